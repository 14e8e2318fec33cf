//! mbarrier objects: 64 opaque bits in shared memory, kept here as what they mean.
//!
//! The word in memory is an encoding that nobody should look at; it is there so that an ordinary store over a live object
//! is noticed.

use super::access::Request;
use super::async_copy::Event;
use super::block::Block;
use super::lanes::{L64, lanes_of};
use super::poison;
use super::program::{Addr, Any, MbarOp, NONE, Space};
use super::run::{Flow, set_value, value};
use super::warp::{State, Warp};
use crate::check::AccessKind;
use crate::finding::FindingClass;
use crate::ir::{Ordering, Scope};
use crate::memory::WINDOW_START;

/// Largest count of arrivals and of transaction bytes.
const MAX_COUNT: u32 = (1 << 20) - 1;

/// One object.
#[derive(Debug, Clone)]
pub(crate) struct Mbarrier {
    /// Offset in shared memory.
    at: u32,
    /// Completed phases.
    phase: u64,
    /// Arrivals that a phase takes, and how many are missing.
    expected: u32,
    pending: u32,
    /// Transaction bytes expected and not completed.
    tx: i64,
    /// The word in memory.
    word: u64,
    /// Per thread: phase that it polled in vain last.
    polled: Vec<(u32, u64)>,
}

impl Mbarrier {
    fn encode(&self) -> u64 {
        // Phase, pending and transactions side by side; the top bit tells it from cleared memory.
        1 << 63 | (self.phase & 0xff) << 52 | u64::from(self.pending) << 32 | (self.tx as u32 & 0x1f_ffff) as u64
    }

    /// The state that an arrival returns: the phase and the pending count before it.
    fn token(&self) -> u64 {
        self.phase << 20 | u64::from(self.pending)
    }
}

/// Objects of a block that are initialised.
#[derive(Debug, Default)]
pub(crate) struct Mbarriers {
    list: Vec<Mbarrier>,
}

impl Mbarriers {
    fn find(&mut self, at: u32) -> Option<&mut Mbarrier> {
        self.list.iter_mut().find(|m| m.at == at)
    }

    pub(crate) fn describe(&self, at: u32) -> String {
        match self.list.iter().find(|m| m.at == at) {
            Some(m) => format!(
                "shared+{at:#x} (phase {}, {} of {} arrivals and {} transaction bytes missing)",
                m.phase, m.pending, m.expected, m.tx
            ),
            None => format!("shared+{at:#x}"),
        }
    }
}

/// The thread on whose behalf an object is used.
#[derive(Debug, Clone, Copy)]
pub(crate) struct User {
    pub(crate) warp: u32,
    pub(crate) lane: u32,
    pub(crate) pc: u32,
}

impl Block<'_, '_> {
    fn mbarrier_finding(&self, user: User, at: u32, message: String) {
        let place = super::launch::At { pc: user.pc, block: self.index, warp: user.warp, lane: Some(user.lane) };
        self.launch.report(FindingClass::MbarrierMisuse, place, || (Some(format!("shared+{at:#x}")), None, message));
    }

    /// The live object at an offset; reports when there is none or its word was overwritten.
    fn live(&mut self, user: User, at: u32, what: &str) -> bool {
        let word = self.word(at);
        match self.mbarriers.find(at) {
            None => {
                self.mbarrier_finding(user, at, format!("{what} of an mbarrier that is not initialised"));
                false
            }
            Some(object) if object.word != word => {
                self.mbarriers.list.retain(|m| m.at != at);
                self.mbarrier_finding(user, at, format!("{what} of an mbarrier that an ordinary store overwrote"));
                false
            }
            Some(_) => true,
        }
    }

    fn word(&self, at: u32) -> u64 {
        let at = at as usize;
        self.shared.get(at..at + 8).map_or(0, |b| u64::from_le_bytes(b.try_into().unwrap_or_default()))
    }

    fn put_word(&mut self, at: u32) {
        let Some(object) = self.mbarriers.find(at) else { return };
        object.word = object.encode();
        let word = object.word;
        self.shared[at as usize..at as usize + 8].copy_from_slice(&word.to_le_bytes());
        if let Some(written) = &mut self.shared_written {
            written.set(u64::from(at)..u64::from(at) + 8);
        }
    }

    /// Ends the phase if nothing is missing.
    fn complete_phase(&mut self, at: u32) {
        let Some(object) = self.mbarriers.find(at) else { return };
        if object.pending == 0 && object.tx == 0 {
            object.phase += 1;
            object.pending = object.expected;
            self.progress += 1;
            if let Some(counters) = &mut self.counters {
                counters.mbarrier_phases += 1;
            }
            if let Some(check) = &mut self.check {
                check.mbarrier_complete(at);
            }
        }
        self.activity += 1;
        self.put_word(at);
    }

    /// `count` arrivals.
    pub(crate) fn mbarrier_arrive(&mut self, user: User, at: u32, count: u32, drop: bool, no_complete: bool) -> u64 {
        if !self.live(user, at, "arrival") {
            return 0;
        }
        let Some(object) = self.mbarriers.find(at) else { return 0 };
        let token = object.token();
        if count == 0 || count > object.pending {
            let pending = object.pending;
            self.mbarrier_finding(user, at, format!("{count} arrivals in a phase that misses {pending}"));
            return token;
        }
        if no_complete && count == object.pending {
            self.mbarrier_finding(user, at, "arrive.noComplete that would complete the phase".to_owned());
            return token;
        }
        object.pending -= count;
        if drop {
            object.expected -= count.min(object.expected);
        }
        self.complete_phase(at);
        token
    }

    /// More transaction bytes to come.
    pub(crate) fn mbarrier_expect(&mut self, user: User, at: u32, bytes: u32) {
        if !self.live(user, at, "expect_tx") {
            return;
        }
        let Some(object) = self.mbarriers.find(at) else { return };
        object.tx += i64::from(bytes);
        if object.tx > i64::from(MAX_COUNT) {
            let tx = object.tx;
            object.tx = i64::from(MAX_COUNT);
            self.mbarrier_finding(user, at, format!("transaction count {tx} exceeds {MAX_COUNT}"));
        }
        self.put_word(at);
    }

    /// Transaction bytes have come.
    pub(crate) fn mbarrier_complete_tx(&mut self, user: User, at: u32, bytes: u32) {
        if !self.live(user, at, "complete_tx") {
            return;
        }
        let Some(object) = self.mbarriers.find(at) else { return };
        object.tx -= i64::from(bytes);
        if object.tx < -i64::from(MAX_COUNT) {
            let tx = object.tx;
            object.tx = -i64::from(MAX_COUNT);
            self.mbarrier_finding(user, at, format!("transaction count {tx} is below {}", -i64::from(MAX_COUNT)));
        }
        self.complete_phase(at);
    }

    /// Adds pending arrivals (`cp.async.mbarrier.arrive` without `.noinc`).
    pub(crate) fn mbarrier_increment(&mut self, user: User, at: u32) {
        if !self.live(user, at, "cp.async.mbarrier.arrive") {
            return;
        }
        let Some(object) = self.mbarriers.find(at) else { return };
        object.pending += 1;
        if object.pending > MAX_COUNT {
            self.mbarrier_finding(user, at, format!("pending count exceeds {MAX_COUNT}"));
        }
        self.put_word(at);
    }

    pub(crate) fn mbarrier<const CHECKED: bool>(
        &mut self,
        warp: &mut Warp,
        pc: u32,
        op: &MbarOp,
        addr: Addr,
        space: Space,
        mask: u32,
    ) -> Flow {
        let mut addresses = self.addresses(warp, addr);
        let ok = if CHECKED { self.clean_addresses(warp, pc, addr, mask) } else { mask };
        if space == Space::Generic {
            for lane in lanes_of(ok) {
                addresses.0[lane] = addresses.0[lane].wrapping_sub(crate::memory::SHARED_WINDOW);
            }
        }
        // Bounds and alignment only: the sanitizer has calls of its own for these objects.
        let request =
            Request { pc, width: 8, align: 8, kind: AccessKind::Read, ordering: Ordering::Weak, scope: Scope::Cta };
        let (offsets, ok) = self.check_window::<false>(warp, Space::Shared, &addresses, ok, &request);
        if let MbarOp::Wait { done, state, parity, ordering } = *op {
            return self.mbarrier_wait::<CHECKED>(warp, pc, &offsets, ok, done, state, parity, ordering);
        }
        let program = self.launch.program;
        // Lanes that arrive at one object in one phase publish together.
        let mut published = 0;
        for lane in lanes_of(ok) {
            let at = offsets.0[lane] as u32;
            let user = User { warp: warp.id, lane: lane as u32, pc };
            let number = |warp: &Warp, slot| if slot == NONE { 1 } else { warp.w(program, slot).0[lane] };
            if CHECKED
                && let MbarOp::Init { count: slot }
                | MbarOp::Arrive { count: slot, .. }
                | MbarOp::Tx { bytes: slot, .. } = *op
                && slot != NONE
                && poison::lanes_with(warp, Any::W(slot)) >> lane & 1 == 1
            {
                let message = "the count depends on a value that nothing wrote".to_owned();
                self.report_text(FindingClass::Uninitialized, warp, pc, Some(lane), message);
            }
            match *op {
                MbarOp::Init { count } => {
                    let count = number(warp, count);
                    if let Some(check) = &mut self.check {
                        check.mbarrier_init(warp.id, lane as u32, at, pc, &mut self.conflicts);
                    }
                    let word = self.word(at);
                    if self.mbarriers.find(at).is_some_and(|m| m.word == word) {
                        self.mbarrier_finding(user, at, "init of an mbarrier that is in use".to_owned());
                    }
                    if count == 0 || count > MAX_COUNT {
                        self.mbarrier_finding(
                            user,
                            at,
                            format!("init with count {count}, allowed are 1 to {MAX_COUNT}"),
                        );
                    }
                    self.mbarriers.list.retain(|m| m.at.abs_diff(at) >= 8);
                    self.mbarriers.list.push(Mbarrier {
                        at,
                        phase: 0,
                        expected: count,
                        pending: count,
                        tx: 0,
                        word: 0,
                        polled: Vec::new(),
                    });
                    self.activity += 1;
                    self.put_word(at);
                }
                MbarOp::Inval => {
                    if let Some(check) = &mut self.check {
                        check.mbarrier_inval(warp.id, lane as u32, at, pc, &mut self.conflicts);
                    }
                    if self.live(user, at, "inval")
                        && let Some(object) = self.mbarriers.find(at)
                    {
                        let busy = object.tx != 0 || object.pending != object.expected || self.copies.uses(at);
                        if busy {
                            self.mbarrier_finding(user, at, "inval of an mbarrier in the middle of a phase".to_owned());
                        }
                        self.mbarriers.list.retain(|m| m.at != at);
                        if let Some(written) = &mut self.shared_written {
                            written.clear(u64::from(at)..u64::from(at) + 8);
                        }
                    }
                    self.activity += 1;
                }
                MbarOp::Arrive { state, count, expect_tx, no_complete, drop, ordering } => {
                    let amount = number(warp, count);
                    if self.check.is_some() && published >> lane & 1 == 0 {
                        let same = lanes_of(ok & !published).filter(|l| offsets.0[*l] as u32 == at);
                        let mut group: u32 = same.fold(0, |m, l| m | 1 << l);
                        let each = if expect_tx { 1 } else { amount };
                        let pending = self.mbarriers.find(at).map_or(0, |m| m.pending);
                        if u64::from(group.count_ones()) * u64::from(each) > u64::from(pending) {
                            group = 1 << lane;
                        }
                        published |= group;
                        if let Some(check) = &mut self.check {
                            let scope = Scope::Cta;
                            check.mbarrier_arrive(warp.id, group, at, ordering, scope, pc, &mut self.conflicts);
                        }
                    }
                    if expect_tx {
                        self.mbarrier_expect(user, at, amount);
                    }
                    let arrivals = if expect_tx { 1 } else { amount };
                    let token = self.mbarrier_arrive(user, at, arrivals, drop, no_complete);
                    if state != NONE {
                        set_value(warp, Any::X(state), lane, token);
                        if CHECKED {
                            poison::clean(warp, Any::X(state), 1 << lane);
                        }
                    }
                }
                MbarOp::Tx { bytes, complete } => {
                    let bytes = number(warp, bytes);
                    if let Some(check) = &mut self.check {
                        check.mbarrier_touch(warp.id, 1 << lane, at, pc, &mut self.conflicts);
                    }
                    if complete {
                        self.mbarrier_complete_tx(user, at, bytes);
                    } else {
                        self.mbarrier_expect(user, at, bytes);
                    }
                }
                MbarOp::CpAsyncArrive { noinc } => {
                    if !noinc {
                        self.mbarrier_increment(user, at);
                    } else {
                        self.live(user, at, "cp.async.mbarrier.arrive");
                    }
                    let id = self
                        .check
                        .as_mut()
                        .map(|check| check.cp_async_mbarrier_arrive(warp.id, lane as u32, at, pc, &mut self.conflicts));
                    self.cp_async_arrive(Event { user, at, id });
                }
                MbarOp::Wait { .. } => {}
            }
            self.drain_conflicts(warp.id, pc);
        }
        if self.aborted { Flow::Abort } else { Flow::Next }
    }

    #[allow(clippy::too_many_arguments)]
    fn mbarrier_wait<const CHECKED: bool>(
        &mut self,
        warp: &mut Warp,
        pc: u32,
        offsets: &L64,
        mask: u32,
        done: u32,
        state: Any,
        parity: bool,
        ordering: Ordering,
    ) -> Flow {
        let program = self.launch.program;
        let mut finished = 0u32;
        let mut waiting_at = 0;
        for lane in lanes_of(mask) {
            let at = offsets.0[lane] as u32;
            let user = User { warp: warp.id, lane: lane as u32, pc };
            if CHECKED && poison::lanes_with(warp, state) >> lane & 1 == 1 {
                let message = "the phase depends on a value that nothing wrote".to_owned();
                self.report_text(FindingClass::Uninitialized, warp, pc, Some(lane), message);
            }
            if !self.live(user, at, "wait") {
                // Nothing to wait for: do not hang.
                finished |= 1 << lane;
                continue;
            }
            let wanted = value(warp, program, state, lane);
            let Some(object) = self.mbarriers.find(at) else { continue };
            let phase = object.phase;
            let thread = warp.id * 32 + lane as u32;
            let is_done = if parity {
                phase & 1 != wanted & 1
            } else {
                let token_phase = wanted >> 20;
                if token_phase > phase || token_phase + 1 < phase {
                    self.mbarrier_finding(
                        user,
                        at,
                        format!("wait for phase {token_phase} of an mbarrier in phase {phase}"),
                    );
                }
                token_phase < phase
            };
            let Some(object) = self.mbarriers.find(at) else { continue };
            let polled = object.polled.iter().position(|(t, _)| *t == thread);
            if is_done {
                finished |= 1 << lane;
                if let Some(i) = polled {
                    object.polled.swap_remove(i);
                }
            } else {
                waiting_at = at;
                match polled {
                    Some(i) if parity && object.polled[i].1 + 2 <= phase => {
                        let before = object.polled[i].1;
                        object.polled[i].1 = phase;
                        let message =
                            format!("wait for phase {before} missed it: the mbarrier is already in phase {phase}");
                        self.mbarrier_finding(user, at, message);
                    }
                    Some(i) => object.polled[i].1 = phase,
                    None => object.polled.push((thread, phase)),
                }
                if let Some(check) = &mut self.check {
                    check.mbarrier_touch(warp.id, 1 << lane, at, pc, &mut self.conflicts);
                }
            }
        }
        if let Some(check) = &mut self.check {
            // Lanes at the same object observe it together.
            let mut rest = finished;
            while rest != 0 {
                let at = offsets.0[rest.trailing_zeros() as usize];
                let same = lanes_of(rest).filter(|l| offsets.0[*l] == at).fold(0, |m, l| m | 1 << l);
                check.mbarrier_observe(warp.id, same, at as u32, ordering, Scope::Cta, pc, &mut self.conflicts);
                rest &= !same;
            }
        }
        self.drain_conflicts(warp.id, pc);
        warp.set_p(done, finished, mask);
        if CHECKED {
            warp.set_pp(done, 0, mask);
        }
        if self.aborted {
            Flow::Abort
        } else if finished == mask {
            Flow::Next
        } else {
            Flow::Sleep(State::Poll { progress: self.progress, addr: waiting_at + WINDOW_START })
        }
    }
}
