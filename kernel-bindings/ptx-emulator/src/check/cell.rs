//! Shadow cells: what is remembered of one piece of memory, and the rules that a new access is held against.
//!
//! A cell covers 16 bytes, or, after a partial access, 4 bytes or 1. It names at most one write and one read record
//! inline (16 bytes of state); whatever needs more records moves to a list. A record is kept until a later access
//! *supersedes* it: happens after it and conflicts with everything that it conflicts with. So the first race on a byte
//! is not missed while no more than [`MAX_RECORDS`] unordered accesses are to be remembered.

use super::api::{Conflict, MemSpace, OtherAccess};
use super::clock::{Core, Lanes, View};
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
    /// Events known to be harmless for every lane at hand: in the write place, in the read place.
    harmless: [u32; 2],
    /// Event known to be superseded whoever of the lanes comes.
    superseded: u32,
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
        Op { space, who, know, warps, event, id: NONE, harmless: [NONE; 2], superseded: NONE, out, start }
    }

    /// Enters a table in which the event has this number; numbers of another table mean nothing there.
    pub(super) fn enter(&mut self, id: u32) {
        self.id = id;
        self.harmless = [NONE; 2];
        self.superseded = NONE;
    }

    fn proxy(&self) -> Option<&'a View> {
        self.know.proxy[usize::from(self.space == MemSpace::Global)].as_deref()
    }

    /// Mask under which lanes appear in records: an mbarrier's transactions are one actor.
    #[inline]
    fn record(&self, lanes: u32) -> Rec {
        let agent = self.event.slot >= FAMILIES as u32 * self.who.warps;
        Rec { event: self.id, mask: if agent { 1 } else { lanes } }
    }

    /// Holds the access of `lanes` against a record; true when the record is harmless for any lanes with this knowledge.
    #[cold]
    fn check(&mut self, e: &Event, mask: u32, lanes: u32, addr: u64) -> bool {
        let (mine, theirs) = (self.event.how, e.how);
        if mine.write() && theirs.is_nc() || mine.is_nc() && theirs.write() {
            self.report(FindingClass::NcLoadOfWritten, lanes.trailing_zeros(), addr, e, mask.trailing_zeros());
            return false;
        }
        if !mine.write() && !theirs.write() || self.morally_strong(e) {
            return true;
        }
        let know = self.know;
        let for_all = know.main.covers_all(self.who.block, e);
        let race = |op: &mut Self, lane, other| op.report(op.race_class(e, other), lane, addr, e, other);
        if !for_all && !self.each_lane_knows(&know.main, e, mask, lanes, race) {
            return false;
        }
        if mine.is_async() && theirs.write() && !theirs.is_async() {
            let missing = |op: &mut Self, lane, other| op.report(FindingClass::MissingProxyFence, lane, addr, e, other);
            return match self.proxy() {
                Some(view) if view.covers_all(self.who.block, e) => for_all,
                Some(view) => {
                    self.each_lane_knows(view, e, mask, lanes, missing);
                    false
                }
                None => {
                    missing(self, lanes.trailing_zeros(), mask.trailing_zeros());
                    false
                }
            };
        }
        for_all
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
    fn supersedes(&mut self, e: &Event, rec: Rec, lanes: u32) -> bool {
        rec.event == self.superseded || self.supersedes_slow(e, rec, lanes)
    }

    fn supersedes_slow(&mut self, e: &Event, rec: Rec, lanes: u32) -> bool {
        if !self.dominates(e) {
            return false;
        }
        // A copy's end passes on nothing of its issuer, so only its write, which ends what was there, stands for others.
        let stands = self.event.how.write() || self.event.slot < self.who.warps;
        if stands && self.know.main.covers_all(self.who.block, e) {
            self.superseded = rec.event;
            return true;
        }
        let families = FAMILIES as u32 * self.who.warps;
        let same_slot = e.block == self.event.block && e.slot == self.event.slot && e.slot < families;
        if same_slot && rec.mask & !self.record(lanes).mask == 0 {
            return true;
        }
        if !stands {
            return false;
        }
        let missing = self.know.main.missing(self.who.block, e, rec.mask);
        missing == 0 || self.know.main.owns(&self.who, e) && missing & !lanes == 0 && lanes.is_power_of_two()
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
            self.touch(&mut child, step, inside, op, lanes, addr + u64::from(base));
            self.splits[children][i as usize] = child;
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
        let rec = op.record(lanes);
        let (w, r) = (cell.w, cell.r);
        if w.event != NONE && w.event != op.harmless[0] && op.check(&self.events[w.event as usize], w.mask, lanes, addr)
        {
            op.harmless[0] = w.event;
        }
        let how = op.event.how;
        if how.write() {
            if r.event != NONE
                && r.event != op.harmless[1]
                && op.check(&self.events[r.event as usize], r.mask, lanes, addr)
            {
                op.harmless[1] = r.event;
            }
            if !how.is_strong() {
                *cell = Cell { w: rec, r: Rec::default() };
                return;
            }
        }
        let place = if how.write() { &mut cell.w } else { &mut cell.r };
        if place.event == rec.event {
            place.mask |= rec.mask;
        } else if place.event == NONE || op.supersedes(&self.events[place.event as usize], *place, lanes) {
            *place = rec;
        } else {
            let number = self.take_list(cell);
            self.lists[number as usize].push(rec);
            self.trim(number, op);
            return;
        }
        if how.write() && r.event != NONE && op.supersedes(&self.events[r.event as usize], r, lanes) {
            cell.r = Rec::default();
        }
    }

    fn leaf_list(&mut self, cell: &mut Cell, op: &mut Op<'_>, lanes: u32, addr: u64) {
        let rec = op.record(lanes);
        let number = cell.w.mask;
        let mut list = std::mem::take(&mut self.lists[number as usize]);
        let weak_write = op.event.how.is_weak_write();
        let mut merged = false;
        list.retain_mut(|old| {
            if old.event == rec.event && !weak_write {
                old.mask |= rec.mask;
                merged = true;
                return true;
            }
            let e = &self.events[old.event as usize];
            let place = usize::from(!e.how.write());
            if old.event != op.harmless[place] && op.check(e, old.mask, lanes, addr) {
                op.harmless[place] = old.event;
            }
            !weak_write && !op.supersedes(e, *old, lanes)
        });
        if !merged {
            list.push(rec);
        }
        let writes = list.iter().filter(|r| self.events[r.event as usize].how.write()).count();
        if writes <= 1 && list.len() - writes <= 1 {
            *cell = Cell::default();
            for rec in list.drain(..) {
                if self.events[rec.event as usize].how.write() {
                    cell.w = rec;
                } else {
                    cell.r = rec;
                }
            }
            self.lists[number as usize] = list;
            self.free_lists.push(number);
        } else {
            self.lists[number as usize] = list;
            self.trim(number, op);
        }
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
    fn trim(&mut self, number: u32, op: &Op<'_>) {
        let events = &self.events;
        let list = &mut self.lists[number as usize];
        let foreign_read = |rec: &Rec| {
            let e = &events[rec.event as usize];
            e.block != op.event.block && !e.how.write() && !e.how.is_nc()
        };
        if list.len() > MAX_FOREIGN_READS && list.iter().filter(|rec| foreign_read(rec)).count() > MAX_FOREIGN_READS {
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
