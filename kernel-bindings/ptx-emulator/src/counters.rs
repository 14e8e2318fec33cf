//! What a launch did: instructions, memory traffic, conflicts. The raw material of a cost estimate.

use crate::ir::Shape;
use crate::named::named;
use serde::Serialize;
use std::collections::BTreeMap;

/// How much is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CounterMode {
    /// Nothing but the number of warp instructions.
    #[default]
    Off,
    /// Sums over the launch.
    Total,
    /// Sums over the launch and per PTX line.
    PerLine,
}

named! {
    /// Classes of instructions, roughly by the pipe that runs them.
    #[allow(missing_docs)]
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
    #[repr(u8)]
    pub enum Class {
        Integer = "integer",
        Float = "float",
        Half = "half",
        Double = "double",
        Special = "special",
        Convert = "convert",
        Compare = "compare",
        Move = "move",
        Branch = "branch",
        GlobalLoad = "global_load",
        GlobalStore = "global_store",
        SharedLoad = "shared_load",
        SharedStore = "shared_store",
        GenericAccess = "generic_access",
        LocalAccess = "local_access",
        ConstLoad = "const_load",
        ParamLoad = "param_load",
        Atomic = "atomic",
        Exchange = "exchange",
        Matrix = "matrix",
        MatrixLoad = "matrix_load",
        AsyncCopy = "async_copy",
        Mbarrier = "mbarrier",
        Barrier = "barrier",
        Fence = "fence",
        Other = "other",
    }
}

/// Traffic sums, of a launch or of one PTX line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Traffic {
    /// Warp instructions (a guarded-off instruction counts).
    pub warp_instructions: u64,
    /// Lanes that were active in them.
    pub lane_instructions: u64,
    /// Warp-level global requests, loads.
    pub global_load_requests: u64,
    /// 32-byte sectors of those.
    pub global_load_sectors: u64,
    /// Bytes that lanes asked for.
    pub global_load_bytes: u64,
    /// Warp-level global requests, stores and atomics.
    pub global_store_requests: u64,
    /// 32-byte sectors of those.
    pub global_store_sectors: u64,
    /// Bytes that lanes wrote.
    pub global_store_bytes: u64,
    /// Bytes that asynchronous copies read from global memory.
    pub async_load_bytes: u64,
    /// Bytes that asynchronous copies wrote to global memory.
    pub async_store_bytes: u64,
    /// Shared-memory requests, loads.
    pub shared_load_requests: u64,
    /// Passes over the 32 banks that those took.
    pub shared_load_wavefronts: u64,
    /// Bytes that lanes read.
    pub shared_load_bytes: u64,
    /// Shared-memory requests, stores.
    pub shared_store_requests: u64,
    /// Passes over the 32 banks that those took.
    pub shared_store_wavefronts: u64,
    /// Bytes that lanes wrote.
    pub shared_store_bytes: u64,
    /// Passes beyond the least number that the width of the accesses allows.
    pub bank_conflicts: u64,
    /// Bytes of local memory read or written.
    pub local_bytes: u64,
}

impl Traffic {
    /// Adds another sum.
    pub fn add(&mut self, other: &Traffic) {
        self.warp_instructions += other.warp_instructions;
        self.lane_instructions += other.lane_instructions;
        self.global_load_requests += other.global_load_requests;
        self.global_load_sectors += other.global_load_sectors;
        self.global_load_bytes += other.global_load_bytes;
        self.global_store_requests += other.global_store_requests;
        self.global_store_sectors += other.global_store_sectors;
        self.global_store_bytes += other.global_store_bytes;
        self.async_load_bytes += other.async_load_bytes;
        self.async_store_bytes += other.async_store_bytes;
        self.shared_load_requests += other.shared_load_requests;
        self.shared_load_wavefronts += other.shared_load_wavefronts;
        self.shared_load_bytes += other.shared_load_bytes;
        self.shared_store_requests += other.shared_store_requests;
        self.shared_store_wavefronts += other.shared_store_wavefronts;
        self.shared_store_bytes += other.shared_store_bytes;
        self.bank_conflicts += other.bank_conflicts;
        self.local_bytes += other.local_bytes;
    }
}

/// Everything that was counted in one launch.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Counters {
    /// Sums.
    pub total: Traffic,
    /// Warp instructions by class name.
    pub by_class: BTreeMap<&'static str, u64>,
    /// Matrix instructions by shape and types, e.g. `m16n8k16.bf16.bf16.f32`.
    pub mma: BTreeMap<String, u64>,
    /// Floating-point operations of the matrix instructions (2 m n k each).
    pub mma_flops: u64,
    /// Block barriers completed.
    pub barriers: u64,
    /// mbarrier phases completed.
    pub mbarrier_phases: u64,
    /// By PTX line, in [`CounterMode::PerLine`].
    pub by_line: BTreeMap<u32, Traffic>,
}

impl Counters {
    /// Adds the counters of another block.
    pub fn add(&mut self, other: &Counters) {
        self.total.add(&other.total);
        for (class, n) in &other.by_class {
            *self.by_class.entry(class).or_default() += n;
        }
        for (shape, n) in &other.mma {
            *self.mma.entry(shape.clone()).or_default() += n;
        }
        self.mma_flops += other.mma_flops;
        self.barriers += other.barriers;
        self.mbarrier_phases += other.mbarrier_phases;
        for (line, traffic) in &other.by_line {
            self.by_line.entry(*line).or_default().add(traffic);
        }
    }
}

/// Counters of one block while it runs: indexed by instruction, no maps.
pub(crate) struct BlockCounters {
    pub(crate) per_instruction: Vec<Traffic>,
    pub(crate) barriers: u64,
    pub(crate) mbarrier_phases: u64,
}

impl BlockCounters {
    pub(crate) fn new(instructions: usize) -> Self {
        Self { per_instruction: vec![Traffic::default(); instructions], barriers: 0, mbarrier_phases: 0 }
    }
}

/// Operations of one matrix instruction.
pub(crate) fn mma_flops(shape: Shape) -> u64 {
    2 * u64::from(shape.m) * u64::from(shape.n) * u64::from(shape.k)
}

/// Wavefronts of a shared-memory request: the lanes of `mask` access `bytes` bytes each at `addresses`. 32 banks of
/// 4 bytes; lanes that touch the same 4-byte word share it; accesses of 8 and 16 bytes go in half and quarter warps.
/// Returns (passes, passes that the width needs at least).
pub(crate) fn wavefronts(addresses: &[u32; 32], mask: u32, bytes: u32) -> (u64, u64) {
    let group = match bytes {
        0..=4 => 32,
        8 => 16,
        _ => 8,
    };
    let (mut total, mut ideal) = (0, 0);
    for first in (0..32).step_by(group) {
        let members = mask >> first & (u32::MAX >> (32 - group));
        if members == 0 {
            continue;
        }
        ideal += 1;
        total += passes(&addresses[first..first + group], members, bytes);
    }
    (total, ideal)
}

/// Passes of one group: the largest number of distinct words that share a bank.
fn passes(addresses: &[u32], members: u32, bytes: u32) -> u64 {
    let words = |address: &u32| address / 4..=address.saturating_add(bytes.max(1) - 1) / 4;
    let active =
        || addresses.iter().enumerate().filter(|(lane, _)| members >> lane & 1 == 1).flat_map(|(_, a)| words(a));
    // Mostly every bank has one word.
    let mut first = [u32::MAX; 32];
    let mut alone = true;
    for word in active() {
        let seen = &mut first[(word % 32) as usize];
        if *seen == u32::MAX {
            *seen = word;
        }
        alone &= *seen == word;
    }
    if alone {
        return 1;
    }
    let mut all: Vec<u32> = active().collect();
    all.sort_unstable();
    all.dedup();
    let mut banks = [0u64; 32];
    all.iter().for_each(|word| banks[(word % 32) as usize] += 1);
    banks.into_iter().max().unwrap_or(1)
}

/// 32-byte sectors that the lanes of `mask` touch with `bytes` bytes each.
pub(crate) fn sectors(addresses: &[u64; 32], mask: u32, bytes: u32) -> u64 {
    let active = || addresses.iter().enumerate().filter(|(lane, _)| mask >> lane & 1 == 1);
    let touched = |address: u64| address / 32..=address.saturating_add(u64::from(bytes.max(1)) - 1) / 32;
    let lowest = active().map(|(_, a)| a / 32).min().unwrap_or(0);
    // Mostly all sectors are near one another: a bit for each.
    let mut near = 0u64;
    let mut far = Vec::new();
    for sector in active().flat_map(|(_, a)| touched(*a)) {
        match sector - lowest {
            bit @ 0..64 => near |= 1 << bit,
            _ => far.push(sector),
        }
    }
    far.sort_unstable();
    far.dedup();
    u64::from(near.count_ones()) + far.len() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bank_conflicts_by_hand() {
        let at = |f: &dyn Fn(u32) -> u32| std::array::from_fn::<u32, 32, _>(|i| f(i as u32));
        assert_eq!(wavefronts(&at(&|i| i * 4), u32::MAX, 4), (1, 1));
        assert_eq!(wavefronts(&at(&|_| 64), u32::MAX, 4), (1, 1));
        assert_eq!(wavefronts(&at(&|i| i * 8), u32::MAX, 4), (2, 1));
        assert_eq!(wavefronts(&at(&|i| i * 128), u32::MAX, 4), (32, 1));
        assert_eq!(wavefronts(&at(&|i| i * 8), u32::MAX, 8), (2, 2));
        assert_eq!(wavefronts(&at(&|i| i * 16), u32::MAX, 16), (4, 4));
        // Rows of 128 bytes read 16 bytes each by 8 lanes: every row starts at bank 0.
        assert_eq!(wavefronts(&at(&|i| i * 128), 0xff, 16), (8, 1));
        assert_eq!(wavefronts(&at(&|i| i * 144), 0xff, 16), (1, 1));
    }

    #[test]
    fn sectors_by_hand() {
        let at = |f: &dyn Fn(u64) -> u64| std::array::from_fn::<u64, 32, _>(|i| f(i as u64));
        assert_eq!(sectors(&at(&|i| i * 4), u32::MAX, 4), 4);
        assert_eq!(sectors(&at(&|i| i * 128), u32::MAX, 4), 32);
        assert_eq!(sectors(&at(&|i| i * 16 + 16), u32::MAX, 16), 17);
        assert_eq!(sectors(&at(&|_| 0), 0, 4), 0);
    }
}
