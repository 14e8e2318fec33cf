//! Mbarriers: what a phase publishes to those who observe its end.

use super::api::{Access, AccessKind, Conflict, MemSpace, OtherAccess};
use super::block::BlockCheck;
use super::clock::{ALL, Know, Lanes, join_shared};
use super::event::{Event, FAMILIES, How, THREAD, level};
use crate::finding::FindingClass;
use crate::ir::{Ordering, Scope};
use std::sync::Arc;

/// Order state of one mbarrier object.
#[derive(Debug)]
pub(super) struct Mbarrier {
    /// Its own entry in the clocks: the bytes that landed.
    pub(super) slot: u32,
    /// Epoch of the bytes that land in the current phase.
    pub(super) now: u32,
    /// Arrivals since `init`, this phase's included.
    pub(super) arrived: Know,
    /// What the last completed phase published.
    done: Arc<Know>,
    /// Who initialised it, and the release after it by `fence.mbarrier_init`.
    init: Option<(Event, u32)>,
    init_fence: Option<Event>,
}

impl BlockCheck {
    /// The object at `addr`; one that was never initialised has no order to give (and is a misuse that the machine
    /// reports).
    pub(super) fn mbarrier(&mut self, addr: u32) -> &mut Mbarrier {
        let slot = (FAMILIES * self.warps.len() + self.mbarriers.len()) as u32;
        self.mbarriers.entry(u64::from(addr)).or_insert_with(|| Mbarrier {
            slot,
            now: 1,
            arrived: Know::default(),
            done: Arc::default(),
            init: None,
            init_fence: None,
        })
    }

    /// `mbarrier.init` at shared offset `addr`. Checked as a write of its 8 bytes.
    pub fn mbarrier_init(&mut self, warp: u32, lane: u32, addr: u32, place: u32, conflicts: &mut Vec<Conflict>) {
        self.mbarrier_bytes(warp, 1 << lane, addr, How::WEAK_WRITE, place, conflicts);
        let event = self.event(warp, THREAD, self.warps[warp as usize].now, place, How::WEAK_WRITE);
        let mbarrier = self.mbarrier(addr);
        mbarrier.now += 1;
        mbarrier.arrived = Know::default();
        mbarrier.done = Arc::default();
        mbarrier.init = Some((event, lane));
        mbarrier.init_fence = None;
    }

    /// `mbarrier.inval`. Checked as a write of its 8 bytes.
    pub fn mbarrier_inval(&mut self, warp: u32, lane: u32, addr: u32, place: u32, conflicts: &mut Vec<Conflict>) {
        self.mbarrier_bytes(warp, 1 << lane, addr, How::WEAK_WRITE, place, conflicts);
        self.mbarrier(addr).init = None;
    }

    /// `mbarrier.arrive` (all forms, also with `expect_tx`) by the lanes of `mask`; `Release` publishes what they know,
    /// `Relaxed` only what a fence covered. Call before [`BlockCheck::mbarrier_complete`] of the phase it ends.
    #[allow(clippy::too_many_arguments)]
    pub fn mbarrier_arrive(
        &mut self,
        warp: u32,
        mask: u32,
        addr: u32,
        ordering: Ordering,
        scope: Scope,
        place: u32,
        conflicts: &mut Vec<Conflict>,
    ) {
        self.mbarrier_bytes(warp, mask, addr, How::strong(true, scope), place, conflicts);
        let lanes = self.lanes(warp);
        let mut published = Know::default();
        self.warps[warp as usize].publish(lanes, mask, &mut published);
        let releases = matches!(ordering, Ordering::Release | Ordering::AcqRel);
        if releases {
            self.warps[warp as usize].tick();
            self.mbarrier(addr).arrived.join(&published);
        } else if let Some(fenced) = &published.fenced[0] {
            self.mbarrier(addr).arrived.core.join(fenced);
        }
    }

    /// Any other use of the object by lanes of a warp that gives no order: `mbarrier.expect_tx`, `complete_tx`,
    /// `pending_count`, a `test_wait` that returned false. Checked against init and inval.
    pub fn mbarrier_touch(&mut self, warp: u32, mask: u32, addr: u32, place: u32, conflicts: &mut Vec<Conflict>) {
        self.mbarrier_bytes(warp, mask, addr, How::strong(true, Scope::Cta), place, conflicts);
    }

    /// The current phase of the mbarrier completed: its arrivals and landed copies become observable.
    pub fn mbarrier_complete(&mut self, addr: u32) {
        let mbarrier = self.mbarrier(addr);
        mbarrier.arrived.core.main.clock.raise(mbarrier.slot, ALL, mbarrier.now);
        mbarrier.done = Arc::new(mbarrier.arrived.clone());
        mbarrier.now += 1;
    }

    /// A `test_wait`/`try_wait` by the lanes of `mask` returned true: with `Acquire` they now know what the phase
    /// published, with `Relaxed` only after a fence.
    #[allow(clippy::too_many_arguments)]
    pub fn mbarrier_observe(
        &mut self,
        warp: u32,
        mask: u32,
        addr: u32,
        ordering: Ordering,
        scope: Scope,
        place: u32,
        conflicts: &mut Vec<Conflict>,
    ) {
        self.mbarrier_bytes(warp, mask, addr, How::strong(false, scope), place, conflicts);
        let done = self.mbarrier(addr).done.clone();
        let relaxed = !matches!(ordering, Ordering::Acquire | Ordering::AcqRel);
        let core = relaxed.then(|| Arc::new(done.core.clone()));
        self.warps[warp as usize].update(mask, |know| match &core {
            Some(_) => know.pending[..=level(scope)].iter_mut().for_each(|pending| join_shared(pending, &core)),
            None => know.join(&done),
        });
    }

    /// The 8 bytes of the object, touched by lanes of a warp.
    pub(super) fn mbarrier_bytes(
        &mut self,
        warp: u32,
        mask: u32,
        addr: u32,
        how: How,
        place: u32,
        conflicts: &mut Vec<Conflict>,
    ) {
        let access = Access {
            space: MemSpace::Shared,
            warp,
            mask,
            addr: &[u64::from(addr); 32],
            bytes: 8,
            kind: AccessKind::Atomic,
            ordering: Ordering::Relaxed,
            scope: Scope::Cta,
            place,
        };
        self.check(&access, how, conflicts);
    }

    /// `fence.mbarrier_init`: the inits that the lanes made so far are visible to the async proxy for whoever is
    /// ordered after the fence.
    pub(super) fn fence_mbarrier_init(&mut self, warp: u32, mask: u32) {
        let fence = self.event(warp, THREAD, self.warps[warp as usize].now, 0, How::READ);
        for mbarrier in self.mbarriers.values_mut() {
            if let Some((init, lane)) = &mbarrier.init
                && init.slot == fence.slot
                && mask >> lane & 1 != 0
                && mbarrier.init_fence.is_none()
            {
                mbarrier.init_fence = Some(fence);
            }
        }
        self.warps[warp as usize].tick();
    }

    /// An asynchronous `complete_tx` on the object is set up by a lane: the init must be fenced for the async proxy.
    pub(super) fn mbarrier_for_copy(
        &mut self,
        warp: u32,
        lane: u32,
        addr: u32,
        place: u32,
        conflicts: &mut Vec<Conflict>,
    ) {
        self.mbarrier_touch(warp, 1 << lane, addr, place, conflicts);
        let who = Lanes { mask: 1 << lane, ..self.lanes(warp) };
        let Some(mbarrier) = self.mbarriers.get(&u64::from(addr)) else { return };
        let Some((init, init_lane)) = mbarrier.init else { return };
        let core = &self.warps[warp as usize].know(lane).core;
        let knows = |view: &super::clock::View, event: &Event| {
            let missing = view.missing(self.block, event, 1 << init_lane);
            missing == 0 || view.owns(&who, event) && init_lane == lane
        };
        let fenced = mbarrier.init_fence.is_some_and(|fence| knows(&core.main, &fence))
            || core.proxy[0].as_ref().is_some_and(|view| knows(view, &init));
        if !fenced && knows(&core.main, &init) {
            let other = OtherAccess {
                block: self.block,
                warp: init.slot % self.warps.len() as u32,
                lane: init_lane,
                place: init.place,
                write: true,
            };
            let class = FindingClass::MissingProxyFence;
            conflicts.push(Conflict { class, space: MemSpace::Shared, lane, addr: u64::from(addr), other });
        }
    }
}
