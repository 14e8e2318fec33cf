//! How a machine runs, and the card that it stands for.

use crate::counters::CounterMode;
use crate::ir::{Target, TargetSuffix};

/// Whether the machine looks for errors that leave no trace in the results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Checks {
    /// Bounds and alignment only; blocks run on all host threads.
    Off,
    /// Everything: races, uninitialised values, barriers, asynchronous copies. One block at a time.
    #[default]
    Full,
}

/// When the bytes of asynchronous copies move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AsyncMode {
    /// When the copy is issued.
    Eager,
    /// At the last legal moment.
    #[default]
    AtWait,
    /// In pieces of 16 bytes, in any order, any time before the last legal moment.
    Random,
}

/// The card that the machine stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceModel {
    /// Name for reports.
    pub name: String,
    /// Compute capability, e.g. 120; text for `sm_120a`, `sm_120f` and any plain target up to it runs.
    pub sm: u32,
    /// Streaming multiprocessors.
    pub num_sms: u32,
    /// Shared memory of one block, bytes.
    pub max_shared_per_block: u32,
    /// Shared memory of one SM, bytes; every resident block takes 1,024 more than it asks for.
    pub shared_per_sm: u32,
    /// Threads of one SM.
    pub max_threads_per_sm: u32,
    /// 32-bit registers of one SM.
    pub registers_per_sm: u32,
}

impl Default for DeviceModel {
    /// RTX PRO 6000 Blackwell.
    fn default() -> Self {
        Self {
            name: "sm_120a, 188 SMs".to_owned(),
            sm: 120,
            num_sms: 188,
            max_shared_per_block: 101_376,
            shared_per_sm: 102_400,
            max_threads_per_sm: 1536,
            registers_per_sm: 65_536,
        }
    }
}

impl DeviceModel {
    /// Whether text for this target runs here.
    pub fn runs(&self, target: Target) -> bool {
        match target.suffix {
            TargetSuffix::None => target.sm <= self.sm,
            TargetSuffix::Family => target.sm / 10 == self.sm / 10 && target.sm <= self.sm,
            TargetSuffix::Arch => target.sm == self.sm,
        }
    }
}

/// How a machine runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MachineConfig {
    /// Schedule seed: with checks on, the order of blocks, warps, divergent paths and asynchronous copies.
    pub seed: u64,
    /// Error checking.
    pub checks: Checks,
    /// Asynchronous copies.
    pub async_mode: AsyncMode,
    /// Counters.
    pub counters: CounterMode,
    /// Host threads for blocks with checks off; 0 = all. A race-free launch gives the same bytes for any number.
    pub threads: usize,
    /// A launch that executes more warp instructions than this ends with a `deadlock` finding.
    pub max_instructions: u64,
    /// The card.
    pub device: DeviceModel,
}

impl Default for MachineConfig {
    fn default() -> Self {
        Self {
            seed: 0,
            checks: Checks::Full,
            async_mode: AsyncMode::AtWait,
            counters: CounterMode::Off,
            threads: 0,
            max_instructions: 20_000_000_000,
            device: DeviceModel::default(),
        }
    }
}

impl MachineConfig {
    /// All checks, with this schedule seed. The seed also chooses when asynchronous copies move: even ones at the last
    /// moment, odd ones in random pieces.
    pub fn checked(seed: u64) -> Self {
        let async_mode = if seed.is_multiple_of(2) { AsyncMode::AtWait } else { AsyncMode::Random };
        Self { seed, async_mode, ..Self::default() }
    }

    /// As fast as it goes: bounds checks only, copies at once.
    pub fn fast() -> Self {
        Self { checks: Checks::Off, async_mode: AsyncMode::Eager, ..Self::default() }
    }
}
