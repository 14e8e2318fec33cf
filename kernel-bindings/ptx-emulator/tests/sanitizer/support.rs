//! A block (or several) driven by hand.

use ptx_emulator::FindingClass;
use ptx_emulator::check::{
    Access, AccessKind, AsyncId, BlockCheck, Bulk, BulkCompletion, Conflict, LaunchCheck, MemSpace,
};
use ptx_emulator::ir::{Ordering, Scope};
use std::sync::Arc;

pub(crate) const ALL: u32 = u32::MAX;
/// A global address to play with.
pub(crate) const G: u64 = 0x7000_0000_0000;

/// Blocks of one launch and what they reported; each step has its own place number, from 1.
pub(crate) struct Play {
    pub(crate) blocks: Vec<BlockCheck>,
    pub(crate) conflicts: Vec<Conflict>,
    pub(crate) place: u32,
}

/// Every lane at `base + lane * stride`.
pub(crate) fn spread(base: u64, stride: u64) -> [u64; 32] {
    std::array::from_fn(|lane| base + lane as u64 * stride)
}

impl Play {
    /// Blocks of `warps` full warps.
    pub(crate) fn new(blocks: u32, warps: u32) -> Self {
        let launch = Arc::new(LaunchCheck::new());
        let make = |block| BlockCheck::new(launch.clone(), block, block, warps * 32, 4096);
        Play { blocks: (0..blocks).map(make).collect(), conflicts: Vec::new(), place: 0 }
    }

    /// One block of `warps` full warps.
    pub(crate) fn block(warps: u32) -> Self {
        Play::new(1, warps)
    }

    fn place(&mut self) -> u32 {
        self.place += 1;
        self.place
    }

    #[allow(clippy::too_many_arguments)]
    pub(crate) fn access(
        &mut self,
        block: usize,
        (warp, mask): (u32, u32),
        space: MemSpace,
        addr: &[u64; 32],
        bytes: u32,
        kind: AccessKind,
        ordering: Ordering,
        scope: Scope,
    ) {
        let place = self.place();
        let access = Access { space, warp, mask, addr, bytes, kind, ordering, scope, place };
        self.blocks[block].access(&access, &mut self.conflicts);
    }

    /// Weak shared write of block 0, 4 bytes per lane from `base`.
    pub(crate) fn write(&mut self, who: (u32, u32), base: u64) {
        let (addr, weak) = (spread(base, 4), Ordering::Weak);
        self.access(0, who, MemSpace::Shared, &addr, 4, AccessKind::Write, weak, Scope::Cta);
    }

    /// Weak shared read of block 0, 4 bytes per lane from `base`.
    pub(crate) fn read(&mut self, who: (u32, u32), base: u64) {
        let (addr, weak) = (spread(base, 4), Ordering::Weak);
        self.access(0, who, MemSpace::Shared, &addr, 4, AccessKind::Read, weak, Scope::Cta);
    }

    /// Weak global write of one word by one lane.
    pub(crate) fn write_global(&mut self, block: usize, (warp, lane): (u32, u32), addr: u64) {
        let (kind, weak) = (AccessKind::Write, Ordering::Weak);
        self.access(block, (warp, 1 << lane), MemSpace::Global, &[addr; 32], 4, kind, weak, Scope::Gpu);
    }

    /// Weak global read of one word by one lane.
    pub(crate) fn read_global(&mut self, block: usize, (warp, lane): (u32, u32), addr: u64) {
        let (kind, weak) = (AccessKind::Read, Ordering::Weak);
        self.access(block, (warp, 1 << lane), MemSpace::Global, &[addr; 32], 4, kind, weak, Scope::Gpu);
    }

    /// Strong access of one global word by one lane.
    pub(crate) fn strong(
        &mut self,
        block: usize,
        (warp, lane): (u32, u32),
        addr: u64,
        kind: AccessKind,
        ordering: Ordering,
        scope: Scope,
    ) {
        self.access(block, (warp, 1 << lane), MemSpace::Global, &[addr; 32], 4, kind, ordering, scope);
    }

    /// `bar.sync id` by whole warps.
    pub(crate) fn bar(&mut self, id: u32, warps: &[u32]) {
        for &warp in warps {
            self.blocks[0].barrier_arrive(id, warp, ALL, true);
        }
        self.blocks[0].barrier_complete(id);
    }

    /// `cp.async` of 16 bytes per lane.
    pub(crate) fn cp_async(&mut self, (warp, mask): (u32, u32), dst: u64, src: u64) {
        let place = self.place();
        let (dst, src) = (spread(dst, 16), spread(src, 16));
        self.blocks[0].cp_async(warp, mask, &dst, &src, 16, &[16; 32], place, &mut self.conflicts);
    }

    /// Bulk load of `bytes` by one lane, ending on an mbarrier.
    pub(crate) fn load(&mut self, (warp, lane): (u32, u32), dst: u64, src: u64, bytes: u32, mbarrier: u32) -> AsyncId {
        let place = self.place();
        let (dst, src) = ((MemSpace::Shared, dst), (MemSpace::Global, src));
        let bulk = Bulk { warp, lane, dst, src, bytes, reduce: false, place };
        self.blocks[0].bulk_issue(&bulk, BulkCompletion::Mbarrier(mbarrier), &mut self.conflicts)
    }

    /// Bulk store of `bytes` by one lane in its group.
    pub(crate) fn store(&mut self, (warp, lane): (u32, u32), dst: u64, src: u64, bytes: u32, reduce: bool) {
        let place = self.place();
        let (dst, src) = ((MemSpace::Global, dst), (MemSpace::Shared, src));
        let bulk = Bulk { warp, lane, dst, src, bytes, reduce, place };
        self.blocks[0].bulk_issue(&bulk, BulkCompletion::Group, &mut self.conflicts);
    }

    pub(crate) fn init(&mut self, (warp, lane): (u32, u32), mbarrier: u32) {
        let place = self.place();
        self.blocks[0].mbarrier_init(warp, lane, mbarrier, place, &mut self.conflicts);
    }

    pub(crate) fn arrive(&mut self, (warp, mask): (u32, u32), mbarrier: u32) {
        let place = self.place();
        let (release, cta) = (Ordering::Release, Scope::Cta);
        self.blocks[0].mbarrier_arrive(warp, mask, mbarrier, release, cta, place, &mut self.conflicts);
    }

    pub(crate) fn complete(&mut self, mbarrier: u32) {
        self.blocks[0].mbarrier_complete(mbarrier);
    }

    pub(crate) fn observe(&mut self, (warp, mask): (u32, u32), mbarrier: u32) {
        let place = self.place();
        let (acquire, cta) = (Ordering::Acquire, Scope::Cta);
        self.blocks[0].mbarrier_observe(warp, mask, mbarrier, acquire, cta, place, &mut self.conflicts);
    }

    /// Names of the classes reported so far, in order; empty when all is well.
    pub(crate) fn classes(&self) -> Vec<FindingClass> {
        self.conflicts.iter().map(|conflict| conflict.class).collect()
    }

    /// Fails unless nothing was reported.
    #[track_caller]
    pub(crate) fn clean(&self) {
        assert!(self.conflicts.is_empty(), "unexpected reports: {:#?}", self.conflicts);
    }

    /// Fails unless something was reported, and all of it of this class.
    #[track_caller]
    pub(crate) fn only(&self, class: FindingClass) {
        assert!(!self.conflicts.is_empty(), "expected {class}, nothing was reported");
        assert!(self.conflicts.iter().all(|c| c.class == class), "expected only {class}: {:#?}", self.conflicts);
    }

    /// Clean when nothing was left out, otherwise only reports of this class.
    #[track_caller]
    pub(crate) fn verdict(&self, left_out: usize, class: FindingClass) {
        if left_out == 0 { self.clean() } else { self.only(class) }
    }
}

/// Runs a script with nothing left out (0) and with each of its steps `1..=steps` left out in turn.
#[track_caller]
pub(crate) fn each_step_matters(steps: usize, class: FindingClass, script: impl Fn(&dyn Fn(usize) -> bool) -> Play) {
    for left_out in 0..=steps {
        let play = script(&|step| step != left_out);
        if left_out == 0 {
            play.clean();
        } else {
            assert!(!play.conflicts.is_empty(), "step {left_out} left out: nothing was reported");
            play.verdict(left_out, class);
        }
    }
}
