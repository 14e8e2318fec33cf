//! What the blocks of a launch share.

use super::cell::Op;
use super::clock::Core;
use super::shadow::Shadow;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Parts of global memory with a lock each.
const SHARDS: u64 = 64;
/// Bytes of neighbouring addresses in one part.
const STRIPE: u64 = 1 << 16;

/// What the blocks of one launch share: the shadow of global memory and the releases made through it.
///
/// Blocks may run on several host threads. Create one per launch and drop it at the end: an earlier launch of the
/// stream is ordered before everything in a later one. Costs about 1 byte per byte of global memory that is touched in
/// units of 16 bytes, 5 where it is touched word by word, 21 where byte by byte, plus 28 per (warp, instruction, time
/// between releases) that some byte still remembers.
#[derive(Debug)]
pub struct LaunchCheck {
    shards: Vec<Mutex<Shadow>>,
    clusters: Mutex<BTreeMap<u32, ClusterBarrier>>,
}

/// `barrier.cluster`: what has arrived, what the last completed phase published. Collections over blocks.
#[derive(Debug, Default)]
pub(super) struct ClusterBarrier {
    pub(super) arrived: Core,
    pub(super) done: Core,
}

impl Default for LaunchCheck {
    fn default() -> Self {
        LaunchCheck::new()
    }
}

impl LaunchCheck {
    /// Empty state.
    pub fn new() -> Self {
        LaunchCheck { shards: (0..SHARDS).map(|_| Mutex::default()).collect(), clusters: Mutex::default() }
    }

    /// All threads of the cluster arrived at `barrier.cluster`: what they published can be acquired by its wait.
    pub fn cluster_complete(&self, cluster: u32) {
        self.with_cluster(cluster, |barrier| barrier.done = barrier.arrived.clone());
    }

    pub(super) fn with_cluster<T>(&self, cluster: u32, f: impl FnOnce(&mut ClusterBarrier) -> T) -> T {
        let mut clusters = self.clusters.lock().unwrap_or_else(PoisonError::into_inner);
        f(clusters.entry(cluster).or_default())
    }

    /// The part of global memory that `addr` is in, and the first address after it.
    pub(super) fn part(&self, addr: u64) -> (u32, u64) {
        ((addr / STRIPE % SHARDS) as u32, (addr / STRIPE + 1).saturating_mul(STRIPE))
    }

    pub(super) fn lock(&self, part: u32) -> MutexGuard<'_, Shadow> {
        self.shards[part as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A per-lane access to global memory.
    pub(super) fn access(&self, op: &mut Op<'_>, mask: u32, addr: &[u64; 32], bytes: u32) {
        let mut rest = mask;
        while rest != 0 {
            let first = rest.trailing_zeros();
            let (part, end) = self.part(addr[first as usize]);
            let start = end - STRIPE;
            let mut here = 0;
            let mut scan = rest;
            while scan != 0 {
                let lane = scan.trailing_zeros();
                scan &= scan - 1;
                let at = addr[lane as usize];
                here |= u32::from(at >= start && at + u64::from(bytes) <= end) << lane;
            }
            if here >> first & 1 == 0 {
                // Misaligned across two parts: one lane alone, piece by piece.
                here = 1 << first;
                self.access_range(op, here, addr[first as usize], u64::from(bytes), |_, _| ());
            } else {
                self.lock(part).access(op, here, addr, bytes);
            }
            rest &= !here;
        }
    }

    /// An access to a range, part by part; `pin` is asked for each and gets the part and the pin of its event.
    pub(super) fn access_range(
        &self,
        op: &mut Op<'_>,
        lanes: u32,
        addr: u64,
        bytes: u64,
        mut pin: impl FnMut(u32, u32),
    ) {
        let (mut at, end) = (addr, addr + bytes);
        while at < end {
            let (part, part_end) = self.part(at);
            let next = part_end.min(end);
            let wants = op.event.epoch == super::event::IN_FLIGHT;
            if let Some(number) = self.lock(part).access_range(op, lanes, at, next - at, wants) {
                pin(part, number);
            }
            at = next;
        }
    }
}
