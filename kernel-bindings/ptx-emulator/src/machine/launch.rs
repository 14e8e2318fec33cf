//! A launch: its shape, what the card and the entry allow, its report.

use super::Machine;
use crate::counters::Counters;
use crate::exec::{self, Program};
use crate::finding::{Finding, FindingClass};
use crate::ir::{Entry, Module, TargetSuffix};
use crate::memory::MemoryError;
use std::sync::Arc;
use thiserror::Error;

/// Shape of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaunchConfig {
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads per block.
    pub block: [u32; 3],
    /// Dynamic shared memory, bytes.
    pub dynamic_shared: u32,
    /// Blocks per cluster, at most 8 of them; `[1, 1, 1]` takes what the entry requires (`.reqnctapercluster`).
    pub cluster: [u32; 3],
    /// Blocks wait for one another: all of them are resident and take turns.
    pub all_resident: bool,
}

impl LaunchConfig {
    /// A launch without dynamic shared memory.
    pub fn new(grid: [u32; 3], block: [u32; 3]) -> Self {
        Self { grid, block, dynamic_shared: 0, cluster: [1; 3], all_resident: false }
    }

    /// The same with dynamic shared memory.
    pub fn with_shared(self, bytes: u32) -> Self {
        Self { dynamic_shared: bytes, ..self }
    }
}

/// What a launch did.
#[derive(Debug, Clone, PartialEq)]
pub struct LaunchReport {
    /// One finding per class and instruction (per pair of instructions for races), in order of first appearance.
    pub findings: Vec<Finding>,
    /// Findings of further classes or instructions that were not kept.
    pub dropped_findings: u64,
    /// Counters, unless they are off.
    pub counters: Option<Counters>,
    /// Warp instructions executed.
    pub warp_instructions: u64,
    /// The launch ended before all blocks had run.
    pub stopped: bool,
}

/// Why a launch was refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[allow(missing_docs)]
pub enum LaunchError {
    #[error("module has no entry `{name}`; it has {have}")]
    NoEntry { name: String, have: String },
    #[error("entry `{entry}`: parameters take {expected} bytes, got {got}")]
    ParamSize { entry: String, expected: u32, got: usize },
    #[error("entry `{entry}`: {dim} of {got:?} is not allowed, {rule}")]
    Shape { entry: String, dim: &'static str, got: [u32; 3], rule: String },
    #[error("entry `{entry}`: {got} bytes of shared memory ({fixed} static), the device has {limit} per block")]
    Shared { entry: String, got: u64, fixed: u32, limit: u32 },
    #[error("text for {target} does not run on {device}")]
    Target { target: String, device: String },
    #[error("entry `{entry}`: {blocks} blocks must all be resident, the device holds {fit}")]
    Residency { entry: String, blocks: u64, fit: u64 },
    #[error("entry `{entry}`, line {line}: {message}")]
    Unsupported { entry: String, line: u32, message: String },
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

impl LaunchError {
    /// The finding class that this error stands for.
    pub fn class(&self) -> FindingClass {
        match self {
            LaunchError::Unsupported { .. } => FindingClass::Unsupported,
            _ => FindingClass::BadLaunch,
        }
    }
}

impl Machine {
    /// Refuses what [`Machine::launch`] would refuse before the first instruction, without running anything.
    pub fn check_launch(
        &mut self,
        module: &Module,
        entry: &str,
        dims: &LaunchConfig,
        params: &[u8],
    ) -> Result<(), LaunchError> {
        self.accepted(module, entry, dims, params).map(|_| ())
    }

    /// The entry, its program and the shared bytes of a block.
    pub(super) fn accepted<'m>(
        &mut self,
        module: &'m Module,
        entry: &str,
        dims: &LaunchConfig,
        params: &[u8],
    ) -> Result<(&'m Arc<Entry>, Arc<Program>, u64), LaunchError> {
        let entry = module.entry(entry).ok_or_else(|| LaunchError::NoEntry {
            name: entry.to_owned(),
            have: module.entries.iter().map(|e| e.name.as_str()).collect::<Vec<_>>().join(", "),
        })?;
        self.check_shape(module, entry, dims)?;
        let expected = entry.param_bytes;
        if params.len() != expected as usize {
            return Err(LaunchError::ParamSize { entry: entry.name.clone(), expected, got: params.len() });
        }
        let program = self.program(module, entry)?;
        let shared = if dims.dynamic_shared > 0 {
            u64::from(program.shared_dynamic_at) + u64::from(dims.dynamic_shared)
        } else {
            u64::from(program.shared_static)
        };
        let limit = self.config.device.max_shared_per_block;
        if shared > u64::from(limit) {
            let fixed = program.shared_static;
            return Err(LaunchError::Shared { entry: entry.name.clone(), got: shared, fixed, limit });
        }
        self.check_residency(entry, dims, shared as u32)?;
        Ok((entry, program, shared))
    }

    fn check_shape(&self, module: &Module, entry: &Entry, dims: &LaunchConfig) -> Result<(), LaunchError> {
        let shape = |dim, got, rule: String| Err(LaunchError::Shape { entry: entry.name.clone(), dim, got, rule });
        if !self.config.device.runs(module.target) {
            let suffix = match module.target.suffix {
                TargetSuffix::None => "",
                TargetSuffix::Arch => "a",
                TargetSuffix::Family => "f",
            };
            let target = format!("sm_{}{suffix}", module.target.sm);
            return Err(LaunchError::Target { target, device: self.config.device.name.clone() });
        }
        let LaunchConfig { grid, block, cluster, .. } = *dims;
        let blocks = grid.iter().map(|n| u64::from(*n)).product::<u64>();
        if grid.contains(&0) || grid[0] > i32::MAX as u32 || grid[1] > 65_535 || grid[2] > 65_535 || blocks > 1 << 31 {
            return shape("a grid", grid, "1 to 2^31-1, 65535, 65535 blocks".to_owned());
        }
        let threads = block.iter().map(|n| u64::from(*n)).product::<u64>();
        if block.contains(&0) || threads > 1024 || block[2] > 64 {
            return shape("a block", block, "1 to 1024 threads, at most 64 along z".to_owned());
        }
        if let Some(required) = entry.reqntid
            && required != block
        {
            return shape("a block", block, format!("the entry requires {required:?} (.reqntid)"));
        }
        if let Some(most) = entry.maxntid
            && threads > most.iter().map(|n| u64::from(*n)).product::<u64>()
        {
            return shape("a block", block, format!("the entry allows {most:?} (.maxntid)"));
        }
        if let Some(required) = entry.reqnctapercluster
            && cluster != [1; 3]
            && cluster != required
        {
            return shape("a cluster", cluster, format!("the entry requires {required:?} (.reqnctapercluster)"));
        }
        let cluster = cluster_shape(entry, dims);
        let size = cluster.iter().map(|n| u64::from(*n)).product::<u64>();
        if size == 0 || size > u64::from(exec::MAX_CLUSTER_BLOCKS) {
            return shape("a cluster", cluster, format!("1 to {} blocks", exec::MAX_CLUSTER_BLOCKS));
        }
        if (0..3).any(|i| !grid[i].is_multiple_of(cluster[i])) {
            return shape("a cluster", cluster, format!("it must divide the grid {grid:?}"));
        }
        if size > 1 && module.target.sm < 90 {
            return shape("a cluster", cluster, "clusters need a text for sm_90 or later".to_owned());
        }
        Ok(())
    }

    fn check_residency(&self, entry: &Entry, dims: &LaunchConfig, shared: u32) -> Result<(), LaunchError> {
        if !dims.all_resident {
            return Ok(());
        }
        let device = &self.config.device;
        let blocks = dims.grid.iter().map(|n| u64::from(*n)).product::<u64>();
        let threads = dims.block.iter().product::<u32>().next_multiple_of(32);
        let by_threads = device.max_threads_per_sm / threads;
        let by_shared = device.shared_per_sm / (shared + 1024);
        let fit = u64::from(by_threads.min(by_shared).max(1)) * u64::from(device.num_sms);
        if blocks > fit {
            return Err(LaunchError::Residency { entry: entry.name.clone(), blocks, fit });
        }
        Ok(())
    }
}

/// Blocks per cluster along each axis.
pub(super) fn cluster_shape(entry: &Entry, dims: &LaunchConfig) -> [u32; 3] {
    if dims.cluster == [1; 3] { entry.reqnctapercluster.unwrap_or(dims.cluster) } else { dims.cluster }
}
