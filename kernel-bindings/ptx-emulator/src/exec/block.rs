//! One thread block: its memory, its warps, and the schedule that interleaves them.

use super::async_copy::Copies;
use super::barrier::Barrier;
use super::lanes::FULL;
use super::launch::{At, Launch};
use super::mbarrier::Mbarriers;
use super::rng::Rng;
use super::warp::{State, Warp};
use crate::check::{BlockCheck, Conflict, InitMap};
use crate::counters::{BlockCounters, CounterMode};
use crate::finding::{FindingClass, Place};
use crate::machine::Checks;
use crate::memory::WINDOW_START;
use std::sync::atomic::Ordering;

/// Named barriers of a block, and that of its cluster.
const BARRIERS: usize = super::barrier::CLUSTER_BARRIER as usize + 1;
/// Instructions a warp runs before others get their turn, unless it blocks.
const TURN: u32 = 20_000;
/// Failed polls in a row, without anything that another thread could see, before a warp counts as stuck.
const SPINS: u64 = 2_000;
/// The same where other host threads may be about to do something.
const SPINS_CONCURRENT: u64 = 20_000_000;

/// How a block stands after a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Something happened.
    Progress,
    /// Every warp waits or polls; only another block could change that.
    Idle,
    /// All warps have ended, or the block was given up.
    Done,
}

/// A block that is running.
pub(crate) struct Block<'a, 'm> {
    pub(crate) launch: &'a Launch<'m>,
    /// Linear index in the grid.
    pub(crate) index: u32,
    /// Shared memory; byte 0 has shared address [`crate::memory::WINDOW_START`].
    pub(crate) shared: Vec<u8>,
    /// Written bytes of shared memory, when checks are on.
    pub(crate) shared_written: Option<InitMap>,
    pub(crate) warps: Vec<Warp>,
    pub(crate) barriers: [Barrier; BARRIERS],
    pub(crate) mbarriers: Mbarriers,
    pub(crate) copies: Copies,
    pub(crate) check: Option<BlockCheck>,
    pub(crate) conflicts: Vec<Conflict>,
    pub(crate) rng: Rng,
    pub(crate) counters: Option<BlockCounters>,
    /// Warp instructions so far.
    pub(crate) executed: u64,
    /// Executed instructions already added to the launch's sum.
    reported: u64,
    /// Grows when a barrier or mbarrier phase completes or a copy lands: failed polls are worth repeating.
    pub(crate) progress: u64,
    /// Grows with everything that any other thread could notice, stores included.
    pub(crate) activity: u64,
    shown_activity: u64,
    seen_activity: u64,
    /// The block is given up: its synchronisation is broken.
    pub(crate) aborted: bool,
    /// The phase of the cluster's barrier in which the block has arrived whole, while it is not complete.
    pub(super) cluster_waits: Option<(u32, Barrier)>,
    checked: bool,
    idle_rounds: u32,
}

impl<'a, 'm> Block<'a, 'm> {
    pub(crate) fn new(launch: &'a Launch<'m>, index: u32) -> Self {
        let checked = launch.config.checks == Checks::Full;
        let threads: u32 = launch.dims.block.iter().product();
        let coords = launch.block_at(index);
        let mut warps = Vec::new();
        for id in 0..threads.div_ceil(32) {
            let lanes = (threads - id * 32).min(32);
            let mut warp = Warp::new(id, FULL >> (32 - lanes), launch.program, checked);
            warp.registers = launch.registers_per_thread;
            super::special::set_up(&mut warp, launch, coords);
            warps.push(warp);
        }
        let cluster = launch.clusters.as_ref().map_or(index, |clusters| clusters.cluster_of(coords).1);
        // In a cluster the blocks' shared memory is in allocations, see [`super::cluster`].
        let shared_bytes = if launch.clusters.is_some() { 0 } else { launch.shared_bytes };
        let check =
            launch.check.as_ref().map(|check| BlockCheck::new(check.clone(), index, cluster, threads, shared_bytes));
        Self {
            launch,
            index,
            shared: vec![0xff; shared_bytes as usize],
            shared_written: checked.then(|| InitMap::new(u64::from(shared_bytes), false)),
            warps,
            barriers: Default::default(),
            mbarriers: Mbarriers::default(),
            copies: Copies::new(threads as usize, launch.config.async_mode),
            check,
            conflicts: Vec::new(),
            rng: Rng::new(launch.config.seed, u64::from(index) + 1),
            counters: (launch.config.counters != CounterMode::Off)
                .then(|| BlockCounters::new(launch.program.code.len())),
            executed: 0,
            reported: 0,
            progress: 0,
            activity: 0,
            shown_activity: 0,
            seen_activity: 0,
            aborted: false,
            cluster_waits: None,
            checked,
            idle_rounds: 0,
        }
    }

    /// Runs to the end, alone.
    pub(crate) fn run(&mut self) {
        loop {
            match self.turn() {
                Turn::Done => return,
                Turn::Progress => {}
                Turn::Idle => {
                    if self.is_stuck() {
                        self.deadlock();
                        return;
                    }
                    if self.launch.concurrent {
                        std::thread::yield_now();
                    }
                }
            }
        }
    }

    /// Lets one warp run for a while.
    pub(crate) fn turn(&mut self) -> Turn {
        if self.aborted || self.launch.is_stopped() {
            return Turn::Done;
        }
        self.cluster_release();
        let Some(index) = self.pick() else {
            return self.nobody_runs();
        };
        let budget = if self.checked { self.short_turn() } else { TURN };
        let mut warp = std::mem::take(&mut self.warps[index]);
        if self.checked {
            self.run_warp::<true>(&mut warp, budget);
        } else {
            self.run_warp::<false>(&mut warp, budget);
        }
        let spins = warp.spins > 0;
        self.warps[index] = warp;
        self.copies_may_move();
        // Often enough to notice a limit, seldom enough to cost nothing.
        if self.executed - self.reported > (self.launch.config.max_instructions / 16).min(1 << 20) {
            self.account();
        }
        if self.aborted || self.launch.is_stopped() {
            return Turn::Done;
        }
        self.exchange_activity();
        if spins && self.is_stuck() && !self.complete_one_copy() { Turn::Idle } else { Turn::Progress }
    }

    /// Tells other blocks that something happened here, and forgets spins when something happened anywhere.
    fn exchange_activity(&mut self) {
        if self.activity != self.shown_activity {
            self.shown_activity = self.activity;
            self.idle_rounds = 0;
            self.launch.activity.fetch_add(1, Ordering::Relaxed);
        }
        let now = self.launch.activity.load(Ordering::Relaxed);
        if now != self.seen_activity {
            self.seen_activity = now;
            self.warps.iter_mut().for_each(|w| w.spins = 0);
        }
    }

    /// Adds this block's instructions to the launch's sum; stops a launch that ran too long.
    pub(crate) fn account(&mut self) {
        let new = self.executed - self.reported;
        self.reported = self.executed;
        let before = self.launch.instructions.fetch_add(new, Ordering::Relaxed);
        let limit = self.launch.config.max_instructions;
        if before + new > limit && !self.launch.stop.swap(true, Ordering::Relaxed) {
            let waits = self.waits();
            let at = self.first_place();
            self.launch.report(FindingClass::Deadlock, at, || {
                (None, None, format!("the launch did not end within {limit} warp instructions: {waits}"))
            });
        }
    }

    fn short_turn(&mut self) -> u32 {
        // Mostly short turns, now and then a long one, so that warps also drift far apart.
        let r = self.rng.next();
        match r & 7 {
            0 => 1 + (r >> 8) as u32 % 4,
            1..=5 => 1 + (r >> 8) as u32 % 64,
            _ => 1 + (r >> 8) as u32 % 2048,
        }
    }

    /// The next warp: in order when checks are off, by the seed when they are on.
    fn pick(&mut self) -> Option<usize> {
        let n = self.warps.len();
        let start = if self.checked { self.rng.below(n) } else { self.executed as usize % n };
        let progress = self.progress;
        (0..n).map(|i| (start + i) % n).find(|i| self.warps[*i].is_runnable(progress))
    }

    /// No warp can run: finish, complete a copy, break up lanes that wait for one another, or give up.
    fn nobody_runs(&mut self) -> Turn {
        if self.warps.iter().all(Warp::is_done) {
            self.end();
            return Turn::Done;
        }
        if self.complete_one_copy() {
            return Turn::Progress;
        }
        for index in 0..self.warps.len() {
            let mut warp = std::mem::take(&mut self.warps[index]);
            let moved = self.break_up(&mut warp);
            self.warps[index] = warp;
            if self.aborted {
                return Turn::Done;
            }
            if moved {
                return Turn::Progress;
            }
        }
        // Let pollers look again, in case that they give up by themselves.
        self.idle_rounds += 1;
        if self.idle_rounds < 64 && self.wake_pollers() {
            return Turn::Progress;
        }
        // Lanes that wait to reconverge may be the ones that the others poll for.
        let released = self.warps.iter_mut().filter_map(|warp| warp.release_joins().then_some(())).count();
        if released > 0 {
            self.idle_rounds = 0;
            return Turn::Progress;
        }
        if self.cluster_waits.is_some() {
            return Turn::Idle;
        }
        // mbarriers and named barriers belong to the block: no other block can help.
        self.deadlock();
        Turn::Done
    }

    fn wake_pollers(&mut self) -> bool {
        let mut any = false;
        for fragment in self.warps.iter_mut().flat_map(|w| &mut w.fragments) {
            if let State::Poll { .. } = fragment.state {
                fragment.state = State::Ready;
                any = true;
            }
        }
        any
    }

    /// Whether every warp that lives waits or has polled in vain for long.
    pub(crate) fn is_stuck(&self) -> bool {
        let bound = if self.launch.concurrent { SPINS_CONCURRENT } else { SPINS };
        self.warps.iter().filter(|w| !w.is_done()).all(|w| {
            let waits = !w.fragments.iter().any(|f| f.state == State::Ready);
            waits || w.spins > bound
        })
    }

    /// Reports that nobody can move.
    pub(crate) fn deadlock(&mut self) {
        self.aborted = true;
        let waits = self.waits();
        let at = self.first_place();
        let (class, reason) = match self.mismatched_barrier() {
            Some(reason) => (FindingClass::BarrierMismatch, reason),
            None => (FindingClass::Deadlock, "nobody can move".to_owned()),
        };
        self.launch.report(class, at, || (None, None, format!("{reason}: {waits}")));
    }

    fn first_place(&self) -> At {
        for warp in &self.warps {
            if let Some(fragment) = warp.fragments.first() {
                let lane = Some(fragment.mask.trailing_zeros());
                return At { pc: fragment.pc, block: self.index, warp: warp.id, lane };
            }
        }
        At { pc: 0, block: self.index, warp: 0, lane: None }
    }

    /// What every warp waits for, in words.
    pub(crate) fn waits(&self) -> String {
        let mut parts = Vec::new();
        for warp in self.warps.iter().filter(|w| !w.is_done()) {
            for fragment in &warp.fragments {
                let line = self.launch.entry.code.get(fragment.pc as usize).map_or(0, |i| i.line);
                let what = match fragment.state {
                    State::Ready if warp.spins > 0 => format!("polls at line {line}"),
                    State::Ready => format!("runs at line {line}"),
                    State::Collect { .. } => format!("waits for other lanes at line {line}"),
                    State::Barrier(super::barrier::CLUSTER_BARRIER) => {
                        format!("waits at the cluster's barrier at line {line}")
                    }
                    State::Barrier(id) => {
                        let barrier = &self.barriers[id as usize];
                        format!("waits at barrier {id} ({}) at line {line}", barrier.describe())
                    }
                    State::Poll { addr, .. } => {
                        format!(
                            "waits for mbarrier {} at line {line}",
                            self.mbarriers.describe(addr.wrapping_sub(WINDOW_START))
                        )
                    }
                };
                parts.push(format!("warp {} lanes {:#010x} {what}", warp.id, fragment.mask));
            }
            let parked = warp.parked();
            if parked != 0 {
                parts.push(format!("warp {} lanes {parked:#010x} wait to reconverge", warp.id));
            }
            if parts.len() > 40 {
                parts.push("...".to_owned());
                break;
            }
        }
        parts.join("; ")
    }

    /// Records a finding of an instruction of this block.
    pub(crate) fn report(
        &self,
        class: FindingClass,
        warp: &Warp,
        pc: u32,
        lane: Option<usize>,
        text: impl FnOnce() -> (Option<String>, Option<Place>, String),
    ) {
        let at = At { pc, block: self.index, warp: warp.id, lane: lane.map(|l| l as u32) };
        self.launch.report(class, at, text);
    }

    /// Records a finding without address.
    pub(crate) fn report_text(&self, class: FindingClass, warp: &Warp, pc: u32, lane: Option<usize>, message: String) {
        self.report(class, warp, pc, lane, || (None, None, message));
    }

    /// Turns what the sanitizer found during the last call into findings.
    pub(crate) fn drain_conflicts(&mut self, warp: u32, pc: u32) {
        if self.conflicts.is_empty() {
            return;
        }
        for conflict in std::mem::take(&mut self.conflicts) {
            let at = At { pc, block: self.index, warp, lane: Some(conflict.lane) };
            let other = Some(conflict.other.place);
            let shared = self.launch.clusters.as_ref().is_some_and(|clusters| clusters.holds(conflict.addr));
            let class = match conflict.class {
                FindingClass::GlobalRace if shared => FindingClass::SharedRace,
                class => class,
            };
            self.launch.report_pair(class, at, other, || self.launch.conflict_text(&conflict));
        }
    }

    /// The block's last instruction has run.
    fn end(&mut self) {
        self.copies_at_exit();
        self.leave_cluster();
        self.account();
        self.launch.activity.fetch_add(1, Ordering::Relaxed);
    }
}
