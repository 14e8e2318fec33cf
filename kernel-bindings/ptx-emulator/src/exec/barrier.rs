//! The named barriers of a block.

use super::block::Block;
use super::lanes::{FULL, L32, L64};
use super::poison;
use super::program::{Any, NONE, Op, Slot};
use super::run::{Flow, narrow};
use super::warp::{State, Warp};
use crate::finding::FindingClass;
use crate::ir::BarRed;

/// Index of the cluster's barrier, behind the 16 named ones.
pub(crate) const CLUSTER_BARRIER: u32 = 16;

/// One barrier in its current phase.
#[derive(Debug, Default)]
pub(crate) struct Barrier {
    /// Lanes that arrived, by warp.
    arrived: Vec<(u32, u32)>,
    /// Threads that complete it; `None` = all of the block.
    threads: Option<u32>,
    /// Reduction, and the predicate's lanes so far.
    reduction: Option<BarRed>,
    votes: u32,
    all: bool,
    /// A predicate among the votes depends on poison.
    unknown: bool,
    /// Other counts that completed phases of this barrier had.
    past: Vec<Option<u32>>,
}

impl Barrier {
    pub(crate) fn describe(&self) -> String {
        let warps = self.arrived.len();
        match self.threads {
            Some(threads) => format!("{warps} warps arrived, {threads} threads expected"),
            None => format!("{warps} warps arrived, all threads expected"),
        }
    }
}

/// A barrier instruction.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrival {
    pub(crate) id: Slot,
    pub(crate) threads: Slot,
    pub(crate) aligned: bool,
    pub(crate) waits: bool,
    /// Operator, destination, predicate.
    pub(crate) reduction: Option<(BarRed, Any, u32)>,
}

impl Block<'_, '_> {
    pub(crate) fn barrier<const CHECKED: bool>(
        &mut self,
        warp: &mut Warp,
        index: usize,
        pc: u32,
        arrival: &Arrival,
    ) -> Flow {
        let program = self.launch.program;
        if arrival.aligned && warp.fragments[index].mask != warp.alive {
            // The whole warp executes it; lanes that are elsewhere may be on their way. They meet in front of it.
            return match self.meet_at(warp, index, pc, &L32::splat(FULL), false) {
                Err(flow) => flow,
                Ok(met) => met.flow,
            };
        }
        let lanes = warp.fragments[index].mask;
        let first = lanes.trailing_zeros() as usize;
        if CHECKED {
            let steer = poison::lanes_with(warp, Any::W(arrival.id))
                | if arrival.threads == NONE { 0 } else { poison::lanes_with(warp, Any::W(arrival.threads)) };
            if steer & lanes != 0 {
                let message = "the barrier's number or thread count depends on a value that nothing wrote".to_owned();
                self.report_text(FindingClass::Uninitialized, warp, pc, Some(first), message);
            }
        }
        let id = warp.w(program, arrival.id).0[first];
        let threads = (arrival.threads != NONE).then(|| warp.w(program, arrival.threads).0[first]);
        let mismatch = |block: &mut Self, warp: &Warp, message: String| {
            block.report_text(FindingClass::BarrierMismatch, warp, pc, Some(first), message);
            block.aborted = true;
            Flow::Abort
        };
        if id >= CLUSTER_BARRIER {
            return mismatch(self, warp, format!("barrier {id} does not exist, there are 16"));
        }
        if let Some(threads) = threads
            && (threads == 0 || threads % 32 != 0 || threads > 1024)
        {
            return mismatch(self, warp, format!("barrier {id}: {threads} threads is not a multiple of 32 up to 1024"));
        }
        if !arrival.waits && threads.is_none() {
            return mismatch(self, warp, format!("barrier {id}: bar.arrive without a thread count"));
        }
        let have = 32 * self.warps.len() as u32;
        if let Some(threads) = threads
            && threads > have
        {
            return mismatch(self, warp, format!("barrier {id} waits for {threads} threads, the block has {have}"));
        }
        let barrier = &mut self.barriers[id as usize];
        let operator = arrival.reduction.map(|(op, _, _)| op);
        if barrier.arrived.is_empty() {
            barrier.threads = threads;
            barrier.reduction = operator;
            (barrier.votes, barrier.all, barrier.unknown) = (0, true, false);
        } else if barrier.threads != threads {
            let words = |t: Option<u32>| t.map_or("all threads".to_owned(), |t| format!("{t} threads"));
            let message =
                format!("barrier {id} waits for {}, this warp says {}", words(barrier.threads), words(threads));
            return mismatch(self, warp, message);
        } else if barrier.reduction != operator {
            let message = format!("barrier {id} is used with different operations in one phase");
            return mismatch(self, warp, message);
        }
        let known = self.barriers[id as usize].arrived.iter().position(|(w, _)| *w == warp.id);
        let slot = match known {
            Some(slot) => slot,
            None => {
                self.barriers[id as usize].arrived.push((warp.id, 0));
                self.barriers[id as usize].arrived.len() - 1
            }
        };
        if self.barriers[id as usize].arrived[slot].1 & lanes != 0 {
            let message = format!("barrier {id}: the same threads arrive a second time before it completed");
            return mismatch(self, warp, message);
        }
        self.barriers[id as usize].arrived[slot].1 |= lanes;
        if let Some((_, _, p)) = arrival.reduction {
            let votes = warp.p(p) & lanes;
            let barrier = &mut self.barriers[id as usize];
            barrier.votes += votes.count_ones();
            barrier.all &= votes == lanes;
            barrier.unknown |= CHECKED && warp.pp(p) & lanes != 0;
        }
        if let Some(check) = &mut self.check {
            check.barrier_arrive(id, warp.id, lanes, arrival.waits);
        }
        self.activity += 1;
        if arrival.waits {
            warp.fragments[index].state = State::Barrier(id);
            warp.fragments[index].pc = pc;
        }
        if let Some(excess) = self.complete_barrier(warp, id) {
            return mismatch(self, warp, excess);
        }
        if arrival.waits { Flow::Again } else { Flow::Next }
    }

    /// Completes a barrier that has everybody. `Some` when more threads arrived than it expects.
    fn complete_barrier(&mut self, current: &mut Warp, id: u32) -> Option<String> {
        let barrier = &self.barriers[id as usize];
        if barrier.arrived.is_empty() {
            return None;
        }
        let alive = |block: &Self, current: &Warp, w: u32| {
            if w == current.id { current.alive } else { block.warps[w as usize].alive }
        };
        match barrier.threads {
            None => {
                for w in 0..self.warps.len() as u32 {
                    let arrived = barrier.arrived.iter().find(|(x, _)| *x == w).map_or(0, |(_, lanes)| *lanes);
                    if alive(self, current, w) & !arrived != 0 {
                        return None;
                    }
                }
            }
            Some(threads) => {
                // A warp that arrives whole counts 32, whatever lanes exist.
                let count: u32 = barrier
                    .arrived
                    .iter()
                    .map(|(w, lanes)| if alive(self, current, *w) & !lanes == 0 { 32 } else { lanes.count_ones() })
                    .sum();
                if count < threads {
                    return None;
                }
                if count > threads {
                    return Some(format!("barrier {id} expects {threads} threads, {count} have arrived"));
                }
            }
        }
        let launch = self.launch;
        let cluster = launch.clusters.as_ref().filter(|_| id == CLUSTER_BARRIER);
        match &mut self.check {
            Some(_) if id == CLUSTER_BARRIER => {
                if let (Some(check), None) = (&launch.check, cluster) {
                    check.cluster_complete(self.index);
                }
            }
            Some(check) => check.barrier_complete(id),
            None => {}
        }
        if let Some(counters) = &mut self.counters {
            counters.barriers += 1;
        }
        if let Some(clusters) = cluster {
            let done = std::mem::take(&mut self.barriers[id as usize]);
            self.cluster_arrived(clusters, done);
            return None;
        }
        let mut done = std::mem::take(&mut self.barriers[id as usize]);
        let mut past = std::mem::take(&mut done.past);
        if !past.contains(&done.threads) {
            past.push(done.threads);
        }
        self.barriers[id as usize].past = past;
        self.progress += 1;
        self.activity += 1;
        for (w, _) in &done.arrived {
            if *w == current.id {
                self.resume(current, id, &done);
            } else {
                let mut warp = std::mem::take(&mut self.warps[*w as usize]);
                self.resume(&mut warp, id, &done);
                self.warps[*w as usize] = warp;
            }
        }
        None
    }

    /// Nobody can move: a barrier that completed with other counts before, and that now lacks threads, is the reason.
    pub(crate) fn mismatched_barrier(&self) -> Option<String> {
        self.barriers.iter().enumerate().find_map(|(id, b)| {
            let other = b.past.iter().find(|past| !b.arrived.is_empty() && **past != b.threads)?;
            let words = |t: Option<u32>| t.map_or("all threads".to_owned(), |t| format!("{t} threads"));
            Some(format!("barrier {id} waits for {}, other warps used it with {}", words(b.threads), words(*other)))
        })
    }

    /// Lets the lanes of a warp go on that wait at a completed barrier.
    pub(super) fn resume(&mut self, warp: &mut Warp, id: u32, done: &Barrier) {
        if id == CLUSTER_BARRIER {
            warp.cluster_pending = 0;
        }
        for i in 0..warp.fragments.len() {
            if warp.fragments[i].state != State::Barrier(id) {
                continue;
            }
            let fragment = &mut warp.fragments[i];
            fragment.state = State::Ready;
            let (pc, mask) = (fragment.pc, fragment.mask);
            fragment.pc += 1;
            if id == CLUSTER_BARRIER
                && let Some(check) = &mut self.check
            {
                check.cluster_wait(warp.id, mask);
            }
            if let Op::BarRed { op, d, .. } = self.launch.program.code[pc as usize].op {
                let value = match op {
                    BarRed::Popc => u64::from(done.votes),
                    BarRed::And => u64::from(done.all),
                    BarRed::Or => u64::from(done.votes != 0),
                };
                narrow(warp, d, &L64::splat(value), mask);
                if self.check.is_some() {
                    poison::set(warp, d, &L64::splat(if done.unknown { u64::MAX } else { 0 }), mask);
                }
            }
        }
    }

    /// Lanes of a warp have exited: barriers may be complete without them.
    pub(crate) fn barriers_after_exit(&mut self, warp: &mut Warp) {
        for id in 0..self.barriers.len() as u32 {
            if self.barriers[id as usize].arrived.is_empty() {
                continue;
            }
            if let Some(excess) = self.complete_barrier(warp, id) {
                let pc = warp.fragments.first().map_or(0, |f| f.pc);
                self.report_text(FindingClass::BarrierMismatch, warp, pc, None, excess);
                self.aborted = true;
            }
        }
    }

    /// `barrier.cluster.arrive`/`wait`: one more barrier of the block, with split phases; in a cluster of several blocks
    /// it completes when all of theirs have.
    pub(crate) fn cluster_barrier(&mut self, warp: &mut Warp, index: usize, pc: u32, wait: bool) -> Flow {
        let lanes = warp.fragments[index].mask;
        let lane = Some(lanes.trailing_zeros() as usize);
        let id = CLUSTER_BARRIER;
        if wait {
            if warp.cluster_arrived & lanes != lanes {
                let message = "barrier.cluster.wait without an arrival before it".to_owned();
                self.report_text(FindingClass::BarrierMismatch, warp, pc, lane, message);
                self.aborted = true;
                return Flow::Abort;
            }
            warp.cluster_arrived &= !lanes;
            if warp.cluster_pending & lanes != 0 {
                return Flow::Wait(State::Barrier(id));
            }
            if let Some(check) = &mut self.check {
                check.cluster_wait(warp.id, lanes);
            }
            return Flow::Next;
        }
        if warp.cluster_arrived & lanes != 0 {
            let message = "barrier.cluster.arrive twice without a wait between".to_owned();
            self.report_text(FindingClass::BarrierMismatch, warp, pc, lane, message);
            self.aborted = true;
            return Flow::Abort;
        }
        warp.cluster_arrived |= lanes;
        warp.cluster_pending |= lanes;
        let barrier = &mut self.barriers[id as usize];
        match barrier.arrived.iter_mut().find(|(w, _)| *w == warp.id) {
            Some((_, arrived)) => *arrived |= lanes,
            None => barrier.arrived.push((warp.id, lanes)),
        }
        if let Some(check) = &mut self.check {
            check.cluster_arrive(warp.id, lanes, true);
        }
        self.activity += 1;
        self.complete_barrier(warp, id);
        Flow::Next
    }
}
