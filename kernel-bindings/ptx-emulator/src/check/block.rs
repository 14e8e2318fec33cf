//! The calls of the machine: one per memory or synchronisation instruction.

use super::api::{Access, AsyncId, Bulk, BulkCompletion, Conflict};
use crate::ir::{Fence, Ordering, Scope};
use std::sync::Arc;

/// What the blocks of one launch share: the shadow of global memory and the releases made through it.
///
/// Blocks may run on several host threads. Create one per launch and drop it at the end: an earlier launch of the
/// stream is ordered before everything in a later one.
#[derive(Debug, Default)]
pub struct LaunchCheck {}

impl LaunchCheck {
    /// Empty state.
    pub fn new() -> Self {
        LaunchCheck::default()
    }
}

/// The order of one block's threads and the shadow of its shared memory.
///
/// Calls are made in the order in which the machine performs the operations. Masks select lanes of the named warp.
#[derive(Debug)]
pub struct BlockCheck {
    launch: Arc<LaunchCheck>,
}

impl BlockCheck {
    /// A block at its start: `block` is its linear index in the grid, `cluster` that of its cluster (`block` without
    /// clusters), `shared_bytes` the size of its shared window.
    pub fn new(launch: Arc<LaunchCheck>, block: u32, cluster: u32, threads: u32, shared_bytes: u32) -> Self {
        let _ = (block, cluster, threads, shared_bytes);
        BlockCheck { launch }
    }

    /// Checks one warp access and records it; for strong accesses also performs the release or acquire (so an acquire
    /// load must be reported when it is performed, each time it is performed). Appends to `conflicts`.
    pub fn access(&mut self, access: &Access<'_>, conflicts: &mut Vec<Conflict>) {
        let _ = (&self.launch, access, conflicts);
    }

    /// `bar.warp.sync` completed for the lanes of `mask` (all at once).
    pub fn warp_sync(&mut self, warp: u32, mask: u32) {
        let _ = (warp, mask);
    }

    /// Lanes of a warp arrive at barrier `id` of the block: `bar.sync`, `bar.red` (`waits`) or `bar.arrive`.
    pub fn barrier_arrive(&mut self, id: u32, warp: u32, mask: u32, waits: bool) {
        let _ = (id, warp, mask, waits);
    }

    /// Barrier `id` has all its participants; those that wait go on with what every participant knew.
    pub fn barrier_complete(&mut self, id: u32) {
        let _ = id;
    }

    /// A fence by the lanes of `mask`.
    pub fn fence(&mut self, warp: u32, mask: u32, fence: Fence) {
        let _ = (warp, mask, fence);
    }

    /// `mbarrier.init` at shared offset `addr`. Checked as a write of its 8 bytes.
    pub fn mbarrier_init(&mut self, warp: u32, lane: u32, addr: u32, place: u32, conflicts: &mut Vec<Conflict>) {
        let _ = (warp, lane, addr, place, conflicts);
    }

    /// `mbarrier.inval`. Checked as a write of its 8 bytes.
    pub fn mbarrier_inval(&mut self, warp: u32, lane: u32, addr: u32, place: u32, conflicts: &mut Vec<Conflict>) {
        let _ = (warp, lane, addr, place, conflicts);
    }

    /// `mbarrier.arrive` (all forms, also with `expect_tx`) by one lane; `Release` publishes what the lane knows,
    /// `Relaxed` only what a fence covered. Call before [`BlockCheck::mbarrier_complete`] of the phase it ends.
    #[allow(clippy::too_many_arguments)]
    pub fn mbarrier_arrive(
        &mut self,
        warp: u32,
        lane: u32,
        addr: u32,
        ordering: Ordering,
        scope: Scope,
        place: u32,
        conflicts: &mut Vec<Conflict>,
    ) {
        let _ = (warp, lane, addr, ordering, scope, place, conflicts);
    }

    /// Any other use of the object by one lane that gives no order: `mbarrier.expect_tx`, `complete_tx`,
    /// a `test_wait` that returned false. Checked against init and inval.
    pub fn mbarrier_touch(&mut self, warp: u32, lane: u32, addr: u32, place: u32, conflicts: &mut Vec<Conflict>) {
        let _ = (warp, lane, addr, place, conflicts);
    }

    /// The current phase of the mbarrier completed: its arrivals and landed copies become observable.
    pub fn mbarrier_complete(&mut self, addr: u32) {
        let _ = addr;
    }

    /// A `test_wait`/`try_wait` by one lane returned true: with `Acquire` the lane now knows what the phase published;
    /// with `Relaxed` only after a fence.
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
        let _ = (warp, mask, addr, ordering, scope, place, conflicts);
    }

    /// `cp.async` of the lanes of `mask`: `bytes` (4, 8, 16) are written at `dst` (shared offsets), `src_bytes[lane]`
    /// of them read from `src` (global addresses), the rest zero-filled.
    #[allow(clippy::too_many_arguments)]
    pub fn cp_async(
        &mut self,
        warp: u32,
        mask: u32,
        dst: &[u64; 32],
        src: &[u64; 32],
        bytes: u32,
        src_bytes: &[u32; 32],
        place: u32,
        conflicts: &mut Vec<Conflict>,
    ) {
        let _ = (warp, mask, dst, src, bytes, src_bytes, place, conflicts);
    }

    /// `cp.async.commit_group`
    pub fn cp_async_commit(&mut self, warp: u32, mask: u32) {
        let _ = (warp, mask);
    }

    /// `cp.async.wait_group N` returned (`None`: `wait_all`, which also covers uncommitted copies).
    pub fn cp_async_wait(&mut self, warp: u32, mask: u32, groups: Option<u32>) {
        let _ = (warp, mask, groups);
    }

    /// `cp.async.mbarrier.arrive` by one lane: the arrival happens later, when [`BlockCheck::cp_async_arrived`] is
    /// called with the id, and publishes the lane's copies so far.
    pub fn cp_async_mbarrier_arrive(
        &mut self,
        warp: u32,
        lane: u32,
        addr: u32,
        place: u32,
        conflicts: &mut Vec<Conflict>,
    ) -> AsyncId {
        let _ = (warp, lane, addr, place, conflicts);
        AsyncId(0)
    }

    /// The arrival was performed. Call before [`BlockCheck::mbarrier_complete`] of the phase it ends.
    pub fn cp_async_arrived(&mut self, id: AsyncId) {
        let _ = id;
    }

    /// A bulk copy is issued: checked as a read of the source and a write of the destination by the async proxy.
    pub fn bulk_issue(&mut self, bulk: &Bulk, completion: BulkCompletion, conflicts: &mut Vec<Conflict>) -> AsyncId {
        let _ = (bulk, completion, conflicts);
        AsyncId(0)
    }

    /// The copy's bytes are all in place; for an mbarrier copy: its `complete_tx` is being performed. Call before
    /// [`BlockCheck::mbarrier_complete`] of the phase it ends.
    pub fn bulk_landed(&mut self, id: AsyncId) {
        let _ = id;
    }

    /// `cp.async.bulk.commit_group`
    pub fn bulk_commit(&mut self, warp: u32, mask: u32) {
        let _ = (warp, mask);
    }

    /// `cp.async.bulk.wait_group[.read] N` returned.
    pub fn bulk_wait(&mut self, warp: u32, mask: u32, groups: u32, read: bool) {
        let _ = (warp, mask, groups, read);
    }
}
