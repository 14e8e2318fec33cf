//! Clusters of several blocks: distributed shared memory and the cluster's barrier.
//!
//! The blocks of a cluster run in turns. Their shared memory lives in allocations of global memory, one per block, so
//! that any block reaches any other's with the ordinary accesses and all their checks; a shared address is turned into
//! an address there:
//!
//! ```text
//! bits 31..24  0: this block, r + 1: block of rank r
//! bits 23..0   shared address in that block
//! ```
//!
//! When a block ends, its addresses lead into a freed allocation. Instructions that work on shared memory in another way
//! (matrix loads and stores, asynchronous copies, mbarriers) are refused in such a launch, by name and line.

use super::barrier::{Barrier, CLUSTER_BARRIER};
use super::block::Block;
use super::lanes::{L64, lanes_of};
use super::launch::Launch;
use super::program::{Op, Program};
use crate::memory::WINDOW_START;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

/// Largest cluster that every device takes.
pub(crate) const MAX_BLOCKS: u32 = 8;
const RANK_SHIFT: u32 = 24;

/// The clusters of a launch.
pub(crate) struct Clusters {
    /// Blocks along each axis.
    pub(crate) shape: [u32; 3],
    /// Blocks of the grid along each axis.
    grid: [u32; 3],
    /// Address of each block's shared memory, by linear block index.
    shared: Vec<u64>,
    /// Address of an allocation that was freed.
    gone: u64,
    ended: Vec<AtomicBool>,
    /// By cluster.
    barriers: Vec<Mutex<ClusterPhase>>,
}

#[derive(Default)]
struct ClusterPhase {
    /// Completed phases.
    completed: u32,
    /// Blocks all of whose threads arrived.
    arrived: u32,
    /// Blocks that have ended and had not arrived in this phase.
    ended: u32,
}

impl Clusters {
    /// `shared` holds the address of each block's shared memory, `gone` that of a freed allocation.
    pub(crate) fn new(shape: [u32; 3], grid: [u32; 3], shared: Vec<u64>, gone: u64) -> Self {
        let size = shape.iter().product::<u32>();
        let mut ended = Vec::new();
        ended.resize_with(shared.len(), AtomicBool::default);
        let mut barriers = Vec::new();
        barriers.resize_with(shared.len() / size as usize, Mutex::default);
        Clusters { shape, grid, shared, gone, ended, barriers }
    }

    /// Address of each block's shared memory.
    pub(crate) fn addresses(&self) -> &[u64] {
        &self.shared
    }

    /// Blocks in a cluster.
    pub(crate) fn size(&self) -> u32 {
        self.shape.iter().product()
    }

    /// Number of clusters.
    pub(crate) fn count(&self) -> u32 {
        self.barriers.len() as u32
    }

    fn along(&self) -> [u32; 3] {
        std::array::from_fn(|i| self.grid[i] / self.shape[i])
    }

    /// Coordinates and linear index of the cluster of a block.
    pub(crate) fn cluster_of(&self, block: [u32; 3]) -> ([u32; 3], u32) {
        let at: [u32; 3] = std::array::from_fn(|i| block[i] / self.shape[i]);
        let along = self.along();
        (at, at[0] + along[0] * (at[1] + along[1] * at[2]))
    }

    /// Coordinates and rank of a block in its cluster.
    pub(crate) fn place_of(&self, block: [u32; 3]) -> ([u32; 3], u32) {
        let at: [u32; 3] = std::array::from_fn(|i| block[i] % self.shape[i]);
        (at, at[0] + self.shape[0] * (at[1] + self.shape[1] * at[2]))
    }

    /// Linear index of the block of that rank in a cluster.
    pub(crate) fn member(&self, cluster: u32, rank: u32) -> u32 {
        let along = self.along();
        let cluster = [cluster % along[0], cluster / along[0] % along[1], cluster / along[0] / along[1]];
        let [sx, sy, _] = self.shape;
        let inside = [rank % sx, rank / sx % sy, rank / sx / sy];
        let block: [u32; 3] = std::array::from_fn(|i| cluster[i] * self.shape[i] + inside[i]);
        block[0] + self.grid[0] * (block[1] + self.grid[1] * block[2])
    }

    /// Is this global address shared memory of some block?
    pub(crate) fn holds(&self, address: u64) -> bool {
        // Later allocations lie higher, and a block's shared memory has less than 2^24 bytes.
        let (Some(first), Some(last)) = (self.shared.first(), self.shared.last()) else { return false };
        (*first..*last + (1 << RANK_SHIFT)).contains(&address)
    }

    fn barrier(&self, cluster: u32) -> MutexGuard<'_, ClusterPhase> {
        self.barriers[cluster as usize].lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Counts an arrival or an end; completes the phase when nobody is missing.
    fn advance(&self, launch: &Launch<'_>, cluster: u32, count: impl FnOnce(&mut ClusterPhase)) {
        let mut phase = self.barrier(cluster);
        count(&mut phase);
        if phase.arrived > 0 && phase.arrived + phase.ended == self.size() {
            phase.arrived = 0;
            phase.completed += 1;
            if let Some(check) = &launch.check {
                check.cluster_complete(cluster);
            }
        }
    }
}

/// The first instruction that does not run in a launch with clusters of several blocks, and what it is.
pub(crate) fn unsupported(program: &Program) -> Option<(usize, &'static str)> {
    program.code.iter().enumerate().find_map(|(pc, instruction)| {
        let what = match instruction.op {
            Op::Matrix(_) => "a matrix load or store",
            Op::CpAsync(_) => "cp.async",
            Op::Bulk(_) => "a bulk copy",
            Op::Mbar { .. } => "an mbarrier operation",
            _ => return None,
        };
        Some((pc, what))
    })
}

/// `mapa`: the shared address in the block of that rank.
pub(crate) fn map(address: u64, rank: u32) -> u64 {
    address & !0xff00_0000 | u64::from(rank + 1) << RANK_SHIFT
}

impl Block<'_, '_> {
    /// Addresses in global memory of the shared addresses of a block of a cluster.
    pub(crate) fn cluster_addresses(&self, clusters: &Clusters, addresses: &L64, mask: u32) -> L64 {
        let (_, cluster) = clusters.cluster_of(self.launch.block_at(self.index));
        let mut out = L64::splat(0);
        for lane in lanes_of(mask) {
            let address = addresses.0[lane] as u32;
            let block = match address >> RANK_SHIFT {
                0 => self.index,
                // No such rank: an address in no allocation.
                rank if rank > clusters.size() => {
                    out.0[lane] = u64::from(address);
                    continue;
                }
                rank => clusters.member(cluster, rank - 1),
            };
            let base = match clusters.ended[block as usize].load(Ordering::Relaxed) {
                true => clusters.gone,
                false => clusters.shared[block as usize],
            };
            let offset = i64::from(address & 0x00ff_ffff) - i64::from(WINDOW_START);
            out.0[lane] = base.wrapping_add_signed(offset);
        }
        out
    }

    /// All threads of the block have arrived at the cluster's barrier; those that wait go on when all blocks have.
    pub(super) fn cluster_arrived(&mut self, clusters: &Clusters, done: Barrier) {
        let (_, cluster) = clusters.cluster_of(self.launch.block_at(self.index));
        let phase = clusters.barrier(cluster).completed;
        self.cluster_waits = Some((phase, done));
        clusters.advance(self.launch, cluster, |phase| phase.arrived += 1);
        self.launch.activity.fetch_add(1, Ordering::Relaxed);
    }

    /// Lets the threads of the block go on whose phase of the cluster's barrier has completed.
    pub(super) fn cluster_release(&mut self) {
        let (Some((phase, _)), Some(clusters)) = (&self.cluster_waits, &self.launch.clusters) else { return };
        let (_, cluster) = clusters.cluster_of(self.launch.block_at(self.index));
        if clusters.barrier(cluster).completed == *phase {
            return;
        }
        let Some((_, done)) = self.cluster_waits.take() else { return };
        self.progress += 1;
        self.activity += 1;
        for index in 0..self.warps.len() {
            let mut warp = std::mem::take(&mut self.warps[index]);
            self.resume(&mut warp, CLUSTER_BARRIER, &done);
            self.warps[index] = warp;
        }
    }

    /// The block has ended: its shared memory is gone, and nobody waits for it any more.
    pub(super) fn leave_cluster(&mut self) {
        let Some(clusters) = &self.launch.clusters else { return };
        if clusters.ended[self.index as usize].swap(true, Ordering::Relaxed) {
            return;
        }
        let (_, cluster) = clusters.cluster_of(self.launch.block_at(self.index));
        clusters.advance(self.launch, cluster, |phase| phase.ended += 1);
    }
}
