//! Shadow cells: what is remembered of one piece of memory, and the rules that a new access is held against.
//!
//! A cell covers 16 bytes, or, after a partial access, 4 bytes or 1. It names at most one write and one read record
//! inline (16 bytes of state); whatever needs more records moves to a list. A record is kept until a later access
//! *supersedes* it: happens after it and conflicts with everything that it conflicts with. So the first race on a byte
//! is not missed while no more than [`MAX_RECORDS`] unordered accesses are to be remembered.

use super::api::{Conflict, MemSpace, OtherAccess};
use super::clock::{ALL, Core, Lanes, View};
use super::event::{Event, FAMILIES, THREAD};
use super::warp::Warp;
use crate::finding::FindingClass;
use std::ops::Range;

/// Lanes of one slot that made the access `event`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Rec {
    pub(super) event: u32,
    pub(super) mask: u32,
}

/// No record.
pub(super) const NONE: u32 = 0;
/// In `w.event`: `w.mask` is the number of a list of records.
pub(super) const LIST: u32 = u32::MAX;
/// In `w.event`: `w.mask` is the number of four smaller cells.
pub(super) const SPLIT: u32 = u32::MAX - 1;

/// Accesses remembered per cell; beyond that the oldest reads of other blocks go first, then the oldest accesses.
pub(super) const MAX_RECORDS: usize = 32;
/// Of which reads by other blocks.
pub(super) const MAX_FOREIGN_READS: usize = 4;

/// State of 16, 4 or 1 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Cell {
    pub(super) w: Rec,
    pub(super) r: Rec,
}

/// What holds for an event whichever of the lanes at hand comes and whichever lanes made it: most accesses of an
/// instruction meet the same few events, so the rules are gone through once and not for every cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Verdict(u8);

impl Verdict {
    /// No conflict.
    const HARMLESS: u8 = 1;
    /// No conflict between a lane's share and the lane itself.
    const HARMLESS_TO_SELF: u8 = 2;
    /// Not needed once the access is recorded.
    const SUPERSEDED: u8 = 4;
    /// A lane's share is not needed once the lane's access is recorded.
    const SUPERSEDED_BY_SELF: u8 = 8;
    /// Must be kept.
    const KEPT: u8 = 16;

    #[inline]
    fn any(self, bits: u8) -> bool {
        self.0 & bits != 0
    }
}

/// Events of which the verdict is remembered.
const VERDICTS: usize = 16;

/// The access being made, by lanes with equal knowledge.
pub(super) struct Op<'a> {
    space: MemSpace,
    /// Who looks.
    who: Lanes,
    /// What these lanes know.
    know: &'a Core,
    /// The block's warps, to tell a copy in flight from one whose issuer has waited.
    warps: &'a [Warp],
    /// What the access leaves behind.
    pub(super) event: Event,
    /// Number of `event` in the table at hand.
    id: u32,
    /// What was found out about events met so far in this table: number, [`Verdict`].
    verdicts: [(u32, Verdict); VERDICTS],
    out: &'a mut Vec<Conflict>,
    /// Conflicts before this one belong to other calls.
    start: usize,
}

impl<'a> Op<'a> {
    /// `out` receives conflicts; those before `start` are of other calls.
    pub(super) fn new(
        space: MemSpace,
        who: Lanes,
        know: &'a Core,
        warps: &'a [Warp],
        event: Event,
        start: usize,
        out: &'a mut Vec<Conflict>,
    ) -> Self {
        Op { space, who, know, warps, event, id: NONE, verdicts: [(NONE, Verdict(0)); VERDICTS], out, start }
    }

    /// Enters a table in which the event has this number; numbers of another table mean nothing there.
    pub(super) fn enter(&mut self, id: u32) {
        self.id = id;
        self.verdicts = [(NONE, Verdict(0)); VERDICTS];
    }

    fn proxy(&self) -> Option<&'a View> {
        self.know.proxy[usize::from(self.space == MemSpace::Global)].as_deref()
    }

    /// The verdict on the event of this number.
    #[inline]
    fn verdict(&mut self, events: &[Event], number: u32) -> Verdict {
        let (known, verdict) = self.verdicts[number as usize % VERDICTS];
        if known == number { verdict } else { self.find(&events[number as usize], number) }
    }

    #[cold]
    fn find(&mut self, e: &Event, number: u32) -> Verdict {
        let (mine, theirs) = (self.event.how, e.how);
        let main = &self.know.main;
        let (covered, owned) = (main.covers_all(self.who.block, e), main.owns(&self.who, e));
        let mut bits = 0;
        let nc = mine.write() && theirs.is_nc() || mine.is_nc() && theirs.write();
        let proxies = mine.is_async() && theirs.write() && !theirs.is_async();
        if !mine.write() && !theirs.write() || self.morally_strong(e) {
            bits |= Verdict::HARMLESS | Verdict::HARMLESS_TO_SELF;
        } else if !nc {
            let seen = |own: bool| {
                !proxies
                    || self
                        .proxy()
                        .is_some_and(|view| view.covers_all(self.who.block, e) || own && view.owns(&self.who, e))
            };
            bits |= if covered && seen(false) { Verdict::HARMLESS } else { 0 };
            bits |= if (covered || owned) && seen(true) { Verdict::HARMLESS_TO_SELF } else { 0 };
        }
        // A copy's end passes on nothing of its issuer, so only its write, which ends what was there, stands for others.
        let stands = mine.write() || self.event.slot < self.who.warps;
        let families = FAMILIES as u32 * self.who.warps;
        let same_slot = e.block == self.event.block && e.slot == self.event.slot && e.slot < families;
        if !self.dominates(e) {
            bits |= Verdict::KEPT;
        } else if stands && covered {
            bits |= Verdict::SUPERSEDED | Verdict::SUPERSEDED_BY_SELF;
        } else if same_slot || stands && owned {
            bits |= Verdict::SUPERSEDED_BY_SELF;
        } else if !stands || main.missing(self.who.block, e, ALL) == ALL {
            bits |= Verdict::KEPT;
        }
        self.verdicts[number as usize % VERDICTS] = (number, Verdict(bits));
        Verdict(bits)
    }

    /// Holds the access of `lanes` against a record and reports what is wrong.
    #[inline]
    fn check(&mut self, events: &[Event], rec: Rec, lanes: u32, addr: u64) {
        let verdict = self.verdict(events, rec.event);
        let to_self = rec.mask == lanes && lanes.is_power_of_two() && verdict.any(Verdict::HARMLESS_TO_SELF);
        if !to_self && !verdict.any(Verdict::HARMLESS) {
            self.check_lanes(&events[rec.event as usize], rec.mask, lanes, addr);
        }
    }

    #[cold]
    fn check_lanes(&mut self, e: &Event, mask: u32, lanes: u32, addr: u64) {
        let (mine, theirs) = (self.event.how, e.how);
        if mine.write() && theirs.is_nc() || mine.is_nc() && theirs.write() {
            return self.report(FindingClass::NcLoadOfWritten, lanes.trailing_zeros(), addr, e, mask.trailing_zeros());
        }
        let know = self.know;
        let race = |op: &mut Self, lane, other| op.report(op.race_class(e, other), lane, addr, e, other);
        if !self.each_lane_knows(&know.main, e, mask, lanes, race) {
            return;
        }
        if mine.is_async() && theirs.write() && !theirs.is_async() {
            let missing = |op: &mut Self, lane, other| op.report(FindingClass::MissingProxyFence, lane, addr, e, other);
            match self.proxy() {
                Some(view) => {
                    self.each_lane_knows(view, e, mask, lanes, missing);
                }
                None => missing(self, lanes.trailing_zeros(), mask.trailing_zeros()),
            }
        }
    }

    /// Calls `unknown` with the first lane that does not know a lane's share of the event, if there is one.
    fn each_lane_knows(
        &mut self,
        view: &View,
        e: &Event,
        mask: u32,
        lanes: u32,
        unknown: impl FnOnce(&mut Self, u32, u32),
    ) -> bool {
        let missing = view.missing(self.who.block, e, mask);
        if missing == 0 {
            return true;
        }
        let owns = view.owns(&self.who, e);
        let mut rest = lanes;
        while rest != 0 {
            let lane = rest.trailing_zeros();
            rest &= rest - 1;
            let missing = if owns { missing & !(1 << lane) } else { missing };
            if missing != 0 {
                unknown(self, lane, missing.trailing_zeros());
                return false;
            }
        }
        true
    }

    /// Both strong, of one proxy, each inside the other's scope.
    fn morally_strong(&self, e: &Event) -> bool {
        let (mine, theirs) = (self.event.how, e.how);
        if !mine.is_strong() || !theirs.is_strong() || mine.is_async() != theirs.is_async() {
            return false;
        }
        let level = mine.level().min(theirs.level());
        e.block == self.event.block || level == 2 || level == 1 && e.cluster == self.event.cluster
    }

    /// Several lanes of one weak write to one address.
    pub(super) fn clash(&mut self, lanes: u32, addr: u64) {
        let second = (lanes & (lanes - 1)).trailing_zeros();
        let e = self.event;
        self.report(self.race_class(&e, second), second, addr, &e, lanes.trailing_zeros());
    }

    fn race_class(&self, e: &Event, lane: u32) -> FindingClass {
        let race = match self.space {
            MemSpace::Shared => FindingClass::SharedRace,
            MemSpace::Global => FindingClass::GlobalRace,
        };
        let (family, warp) = (e.slot / self.who.warps, e.slot % self.who.warps);
        let waited = || {
            let know = &self.warps[warp as usize].know(lane).core.main;
            know.own[family as usize] >= e.epoch || know.clock.missing(e.slot, 1 << lane, e.epoch) == 0
        };
        if family == THREAD || e.block != self.who.block || family < FAMILIES as u32 && waited() {
            race
        } else {
            FindingClass::AsyncEarlyAccess
        }
    }

    #[cold]
    fn report(&mut self, class: FindingClass, lane: u32, addr: u64, e: &Event, other: u32) {
        let known = self.out[self.start..].iter().any(|c| c.class == class && c.other.place == e.place);
        if known {
            return;
        }
        let (warp, lane_of_other) = if e.slot < FAMILIES as u32 * self.who.warps {
            (e.slot % self.who.warps, other)
        } else {
            (e.issuer / 32, e.issuer % 32)
        };
        let other = OtherAccess { block: e.block, warp, lane: lane_of_other, place: e.place, write: e.how.write() };
        self.out.push(Conflict { class, space: self.space, lane, addr, other });
    }

    /// True when every access that conflicts with `e` also conflicts with this one.
    fn dominates(&self, e: &Event) -> bool {
        let (mine, theirs) = (self.event.how, e.how);
        match (mine.write(), mine.is_strong()) {
            (true, false) => true,
            (false, false) => !theirs.write() && (mine.is_nc() || !theirs.is_nc()),
            (write, true) => {
                theirs.is_strong()
                    && (write || !theirs.write())
                    && mine.is_async() == theirs.is_async()
                    && e.block == self.event.block
                    && mine.level() <= theirs.level()
            }
        }
    }

    /// True when the record need not be kept once this access of `lanes` is recorded.
    #[inline]
    fn supersedes(&mut self, events: &[Event], rec: Rec, lanes: u32) -> bool {
        let verdict = self.verdict(events, rec.event);
        if verdict.any(Verdict::SUPERSEDED | Verdict::KEPT) {
            verdict.any(Verdict::SUPERSEDED)
        } else if verdict.any(Verdict::SUPERSEDED_BY_SELF) && rec.mask & !lanes == 0 {
            true
        } else {
            self.supersedes_lanes(&events[rec.event as usize], rec, lanes)
        }
    }

    /// Where lanes of one slot are known to different degrees. The event is dominated and this access stands for it.
    #[cold]
    fn supersedes_lanes(&mut self, e: &Event, rec: Rec, lanes: u32) -> bool {
        if !self.event.how.write() && self.event.slot >= self.who.warps {
            return false;
        }
        let missing = self.know.main.missing(self.who.block, e, rec.mask);
        missing == 0 || self.know.main.owns(&self.who, e) && missing & !lanes == 0
    }
}

/// Events, record lists and split cells: all that the cells of one table refer to.
#[derive(Debug)]
pub(super) struct Tables {
    /// By number; number 0 stands for none.
    pub(super) events: Vec<Event>,
    pub(super) lists: Vec<Vec<Rec>>,
    free_lists: Vec<u32>,
    pub(super) splits: Vec<[Cell; 4]>,
    free_splits: Vec<u32>,
}

impl Tables {
    pub(super) fn new(nothing: Event) -> Self {
        Tables {
            events: vec![nothing],
            lists: Vec::new(),
            free_lists: Vec::new(),
            splits: Vec::new(),
            free_splits: Vec::new(),
        }
    }

    /// Makes the access of `lanes` to some bytes (`part`, from the cell's first) of a cell of `size` bytes at `addr`.
    pub(super) fn touch(
        &mut self,
        cell: &mut Cell,
        size: u32,
        part: Range<u32>,
        op: &mut Op<'_>,
        lanes: u32,
        addr: u64,
    ) {
        if cell.w.event != SPLIT {
            if part == (0..size) {
                return self.leaf(cell, op, lanes, addr);
            }
            self.split(cell);
        }
        let (children, step) = (cell.w.mask as usize, size / 4);
        for i in part.start / step..part.end.div_ceil(step) {
            let mut child = self.splits[children][i as usize];
            let base = i * step;
            let inside = part.start.max(base) - base..part.end.min(base + step) - base;
            if inside.end - inside.start == step && child.w.event != SPLIT {
                self.leaf(&mut child, op, lanes, addr + u64::from(base));
            } else {
                self.touch(&mut child, step, inside, op, lanes, addr + u64::from(base));
            }
            self.splits[children][i as usize] = child;
        }
        if part.end - part.start < size {
            return;
        }
        let cells = &self.splits[children];
        if cells[0].w.event < SPLIT && cells.iter().all(|c| c == &cells[0]) {
            *cell = cells[0];
            self.splits[children] = Default::default();
            self.free_splits.push(children as u32);
        }
    }

    #[inline]
    pub(super) fn leaf(&mut self, cell: &mut Cell, op: &mut Op<'_>, lanes: u32, addr: u64) {
        if cell.w.event == LIST {
            return self.leaf_list(cell, op, lanes, addr);
        }
        let rec = Rec { event: op.id, mask: lanes };
        let how = op.event.how;
        if cell.w.event != NONE {
            op.check(&self.events, cell.w, lanes, addr);
        }
        if how.write() {
            if cell.r.event != NONE {
                op.check(&self.events, cell.r, lanes, addr);
            }
            if !how.is_strong() {
                *cell = Cell { w: rec, r: Rec::default() };
                return;
            }
            if cell.r.event != NONE && op.supersedes(&self.events, cell.r, lanes) {
                cell.r = Rec::default();
            }
        }
        let place = if how.write() { &mut cell.w } else { &mut cell.r };
        if place.event == rec.event {
            place.mask |= rec.mask;
        } else if place.event == NONE || op.supersedes(&self.events, *place, lanes) {
            *place = rec;
        } else {
            let number = self.take_list(cell);
            self.lists[number as usize].push(rec);
            self.trim(number, op);
        }
    }

    fn leaf_list(&mut self, cell: &mut Cell, op: &mut Op<'_>, lanes: u32, addr: u64) {
        let rec = Rec { event: op.id, mask: lanes };
        let number = cell.w.mask;
        let weak_write = op.event.how.is_weak_write();
        let list = &mut self.lists[number as usize];
        let (mut kept, mut merged) = (0, false);
        for i in 0..list.len() {
            let old = list[i];
            let mut keep = old;
            if old.event == rec.event && !weak_write {
                keep.mask |= rec.mask;
                merged = true;
            } else {
                op.check(&self.events, old, lanes, addr);
                if weak_write || op.supersedes(&self.events, old, lanes) {
                    continue;
                }
            }
            list[kept] = keep;
            kept += 1;
        }
        list.truncate(kept);
        if !merged {
            list.push(rec);
        }
        if list.len() > 2 {
            return self.trim(number, op);
        }
        let write = |rec: &Rec| self.events[rec.event as usize].how.write();
        if let [w] = list[..] {
            *cell = if write(&w) { Cell { w, r: Rec::default() } } else { Cell { w: Rec::default(), r: w } };
        } else if let [a, b] = list[..]
            && write(&a) != write(&b)
        {
            *cell = if write(&a) { Cell { w: a, r: b } } else { Cell { w: b, r: a } };
        } else {
            return;
        }
        list.clear();
        self.free_lists.push(number);
    }

    /// Turns the records of a cell into a list and returns its number.
    fn take_list(&mut self, cell: &mut Cell) -> u32 {
        let number = self.free_lists.pop().unwrap_or_else(|| {
            self.lists.push(Vec::new());
            self.lists.len() as u32 - 1
        });
        let list = &mut self.lists[number as usize];
        list.extend([cell.w, cell.r].into_iter().filter(|rec| rec.event != NONE));
        *cell = Cell { w: Rec { event: LIST, mask: number }, r: Rec::default() };
        number
    }

    /// Keeps a list within its bounds.
    #[inline]
    fn trim(&mut self, number: u32, op: &Op<'_>) {
        if self.lists[number as usize].len() > MAX_FOREIGN_READS {
            self.trim_long(number, op);
        }
    }

    fn trim_long(&mut self, number: u32, op: &Op<'_>) {
        let events = &self.events;
        let list = &mut self.lists[number as usize];
        let foreign_read = |rec: &Rec| {
            let e = &events[rec.event as usize];
            e.block != op.event.block && !e.how.write() && !e.how.is_nc()
        };
        if list.iter().filter(|rec| foreign_read(rec)).count() > MAX_FOREIGN_READS {
            let oldest = list.iter().position(foreign_read).expect("counted above");
            list.remove(oldest);
        }
        if list.len() > MAX_RECORDS {
            // The one weak write stays: it conflicts with everything.
            let weak_write = |rec: &Rec| events[rec.event as usize].how.is_weak_write();
            let oldest = list.iter().position(|rec| !weak_write(rec)).unwrap_or(0);
            list.remove(oldest);
        }
    }

    /// Replaces a cell by four smaller ones with the same records.
    fn split(&mut self, cell: &mut Cell) {
        let mut parts = [*cell; 4];
        if cell.w.event == LIST {
            for part in &mut parts[1..] {
                let records = self.lists[cell.w.mask as usize].clone();
                let mut copy = Cell::default();
                let number = self.take_list(&mut copy);
                self.lists[number as usize].extend(records);
                *part = copy;
            }
        }
        let number = match self.free_splits.pop() {
            Some(number) => {
                self.splits[number as usize] = parts;
                number
            }
            None => {
                self.splits.push(parts);
                self.splits.len() as u32 - 1
            }
        };
        *cell = Cell { w: Rec { event: SPLIT, mask: number }, r: Rec::default() };
    }
}
