//! The public machine: memory, modules, launches.
//!
//! ```
//! use ptx_emulator::{LaunchConfig, Machine, MachineConfig, Module};
//!
//! let text = r#"
//! .version 8.0
//! .target sm_89
//! .address_size 64
//! .visible .entry fill(.param .u64 out)
//! {
//!     .reg .b32 %r<2>;
//!     .reg .b64 %rd<4>;
//!     ld.param.u64 %rd1, [out];
//!     mov.u32 %r1, %tid.x;
//!     mul.wide.u32 %rd2, %r1, 4;
//!     add.s64 %rd3, %rd1, %rd2;
//!     st.global.u32 [%rd3], %r1;
//!     ret;
//! }"#;
//! let module = Module::parse(text)?;
//! let mut machine = Machine::new(MachineConfig::checked(1));
//! let out = machine.alloc(128, "out")?;
//! let report = machine.launch(&module, "fill", &LaunchConfig::new([1, 1, 1], [32, 1, 1]), &out.to_le_bytes())?;
//! assert!(report.findings.is_empty());
//! let mut bytes = [0; 128];
//! machine.read(out, &mut bytes)?;
//! assert_eq!(bytes[4..8], 1u32.to_le_bytes());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use crate::check::{InitMap, LaunchCheck, SparseInitMap};
use crate::counters::Counters;
use crate::exec::{self, Clusters, Findings, Launch, ModuleLayout, Program, Rng, Sums, Written};
use crate::exec::{run_block, run_clusters, run_resident};
use crate::finding::{Finding, FindingClass};
use crate::ir::{Entry, Module, Space, Target, TargetSuffix};
use crate::memory::{GlobalMemory, MemoryError, WINDOW_START};
use rayon::prelude::*;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, Weak};
use thiserror::Error;

pub use crate::counters::CounterMode;

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

struct Loaded {
    /// Keeps the entries alive, so that their addresses stay theirs.
    _entries: Vec<Arc<Entry>>,
    layout: ModuleLayout,
    programs: HashMap<String, Arc<Program>>,
}

/// A card: memory and the modules loaded into it.
pub struct Machine {
    config: MachineConfig,
    memory: GlobalMemory,
    written: Vec<Written>,
    /// By address of the module's first entry.
    loaded: HashMap<usize, Loaded>,
    launches: u64,
    pool: Option<rayon::ThreadPool>,
}

impl Machine {
    /// An empty machine.
    pub fn new(config: MachineConfig) -> Self {
        let pool = (config.threads > 0)
            .then(|| rayon::ThreadPoolBuilder::new().num_threads(config.threads).build().ok())
            .flatten();
        Self { config, memory: GlobalMemory::new(), written: Vec::new(), loaded: HashMap::new(), launches: 0, pool }
    }

    /// The configuration.
    pub fn config(&self) -> &MachineConfig {
        &self.config
    }

    /// Changes the schedule seed of later launches.
    pub fn set_seed(&mut self, seed: u64) {
        self.config.seed = seed;
    }

    /// Reserves `bytes` bytes, exactly: the byte behind them is out of bounds. The address is a multiple of 256 (and
    /// never one that was freed); the memory counts as not written.
    pub fn alloc(&mut self, bytes: u64, name: &str) -> Result<u64, MemoryError> {
        let address = self.memory.alloc(bytes, name, false)?;
        if self.config.checks == Checks::Full {
            self.written.push(Written::Dense(InitMap::new(bytes, false)));
        }
        Ok(address)
    }

    /// Reserves address space of which only touched pages cost host memory.
    pub fn alloc_virtual(&mut self, bytes: u64, name: &str) -> Result<u64, MemoryError> {
        let address = self.memory.alloc(bytes, name, true)?;
        if self.config.checks == Checks::Full {
            self.written.push(Written::Sparse(SparseInitMap::new(bytes)));
        }
        Ok(address)
    }

    /// Ends an allocation. Its address is not used again, so that later accesses are found.
    pub fn free(&mut self, address: u64) -> Result<(), MemoryError> {
        self.memory.free(address).map(|_| ())
    }

    /// Copies bytes to the device.
    pub fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), MemoryError> {
        let (allocation, offset) = self.memory.host_range(address, bytes.len() as u64)?;
        allocation.write(offset, bytes);
        let id = allocation.id;
        if let Some(written) = self.written.get_mut(id as usize) {
            written.set(offset, bytes.len() as u64);
        }
        Ok(())
    }

    /// Sets `bytes` bytes to `value`.
    pub fn fill(&mut self, address: u64, value: u8, bytes: u64) -> Result<(), MemoryError> {
        let (allocation, offset) = self.memory.host_range(address, bytes)?;
        let chunk = vec![value; bytes.min(1 << 16) as usize];
        let mut done = 0;
        while done < bytes {
            let n = (bytes - done).min(chunk.len() as u64);
            allocation.write(offset + done, &chunk[..n as usize]);
            done += n;
        }
        let id = allocation.id;
        if let Some(written) = self.written.get_mut(id as usize) {
            written.set(offset, bytes);
        }
        Ok(())
    }

    /// Counts `bytes` bytes as not written: a kernel that reads them before they are written again is found.
    pub fn forget(&mut self, address: u64, bytes: u64) -> Result<(), MemoryError> {
        let (allocation, offset) = self.memory.host_range(address, bytes)?;
        let id = allocation.id;
        if let Some(written) = self.written.get_mut(id as usize) {
            written.clear(offset, bytes);
        }
        Ok(())
    }

    /// Copies bytes from the device.
    pub fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), MemoryError> {
        let (allocation, offset) = self.memory.host_range(address, bytes.len() as u64)?;
        allocation.read(offset, bytes);
        Ok(())
    }

    /// First byte of a range that nothing has written, as an offset from `address`; always `None` with checks off.
    pub fn first_unwritten(&self, address: u64, bytes: u64) -> Result<Option<u64>, MemoryError> {
        let (allocation, offset) = self.memory.host_range(address, bytes)?;
        let written = self.written.get(allocation.id as usize);
        Ok(written.and_then(|w| w.first_clear(offset, bytes)).map(|at| at - offset))
    }

    /// An address as allocation + offset.
    pub fn describe(&self, address: u64) -> String {
        self.memory.describe(address)
    }

    /// Bytes in live allocations.
    pub fn live_bytes(&self) -> u64 {
        self.memory.live_bytes()
    }

    /// Loads a module ahead of its first launch: its variables get their addresses and all entries are decoded.
    pub fn load(&mut self, module: &Module) -> Result<(), LaunchError> {
        for entry in &module.entries {
            self.program(module, entry)?;
        }
        Ok(())
    }

    /// Address and size of a `.global` variable of a module.
    pub fn global(&mut self, module: &Module, name: &str) -> Result<Option<(u64, u64)>, LaunchError> {
        let Some(index) = module.variables.iter().position(|v| v.name == name && v.space == Space::Global) else {
            return Ok(None);
        };
        let size = module.variables[index].size;
        let loaded = self.module(module)?;
        Ok(Some((loaded.layout.addresses[index], size)))
    }

    fn module(&mut self, module: &Module) -> Result<&mut Loaded, LaunchError> {
        let key = module.entries.first().map_or(0, |e| Arc::as_ptr(e) as usize);
        if !self.loaded.contains_key(&key) {
            let mut addresses = Vec::with_capacity(module.variables.len());
            let mut constants = Vec::new();
            for variable in &module.variables {
                let address = match variable.space {
                    Space::Global => {
                        let address = self.alloc(variable.size, &variable.name)?;
                        // Variables without initialiser are zero.
                        self.fill(address, 0, variable.size)?;
                        if let Some(init) = &variable.init {
                            self.write(address, &init[..init.len().min(variable.size as usize)])?;
                        }
                        address
                    }
                    Space::Const => {
                        let at = constants.len().next_multiple_of(variable.align.max(1) as usize);
                        constants.resize(at + variable.size as usize, 0);
                        if let Some(init) = &variable.init {
                            let n = init.len().min(variable.size as usize);
                            constants[at..at + n].copy_from_slice(&init[..n]);
                        }
                        at as u64 + u64::from(WINDOW_START)
                    }
                    _ => 0,
                };
                addresses.push(address);
            }
            let layout = ModuleLayout { addresses, constants };
            let loaded = Loaded { _entries: module.entries.clone(), layout, programs: HashMap::new() };
            self.loaded.insert(key, loaded);
        }
        self.loaded.get_mut(&key).ok_or_else(|| LaunchError::NoEntry { name: String::new(), have: "none".to_owned() })
    }

    fn program(&mut self, module: &Module, entry: &Arc<Entry>) -> Result<Arc<Program>, LaunchError> {
        let loaded = self.module(module)?;
        if let Some(program) = loaded.programs.get(&entry.name) {
            return Ok(program.clone());
        }
        let decode = || {
            exec::lower(module, entry, &loaded.layout).map(Arc::new).map_err(|e| LaunchError::Unsupported {
                entry: entry.name.clone(),
                line: e.line,
                message: e.message,
            })
        };
        // Without variables the decoded form is the same on every machine.
        let program = if module.variables.iter().all(|v| v.space == Space::Shared) {
            decoded_once(entry, decode)?
        } else {
            decode()?
        };
        loaded.programs.insert(entry.name.clone(), program.clone());
        Ok(program)
    }

    /// Runs an entry to its end. `params` are the bytes of its parameters in the layout of the PTX ABI.
    ///
    /// # Errors
    /// [`LaunchError`] when the launch cannot start. Whatever goes wrong in the kernel is a finding of the report.
    pub fn launch(
        &mut self,
        module: &Module,
        entry: &str,
        dims: &LaunchConfig,
        params: &[u8],
    ) -> Result<LaunchReport, LaunchError> {
        let (entry, program, shared) = self.accepted(module, entry, dims, params)?;
        let clusters = self.clusters(entry, &program, dims, shared)?;
        let windows = clusters.as_ref().map_or(Vec::new(), |clusters| clusters.addresses().to_vec());
        self.launches += 1;
        let threads: u32 = dims.block.iter().product();
        let checked = self.config.checks == Checks::Full;
        let blocks = dims.grid.iter().map(|n| u64::from(*n)).product::<u64>() as u32;
        let registers = entry.maxnreg.unwrap_or(self.config.device.registers_per_sm / threads.next_multiple_of(32));
        let launch = Launch {
            program: &program,
            module,
            entry,
            memory: &self.memory,
            written: checked.then(|| Mutex::new(&mut self.written)),
            config: &self.config,
            dims,
            params,
            shared_bytes: shared as u32,
            registers_per_thread: registers.min(255) / 8 * 8,
            clusters,
            check: checked.then(|| Arc::new(LaunchCheck::new())),
            findings: Mutex::new(Findings::default()),
            stop: AtomicBool::new(false),
            activity: AtomicU64::new(0),
            instructions: AtomicU64::new(0),
            grid_id: self.launches,
            concurrent: !checked && !dims.all_resident && blocks > 1 && windows.is_empty(),
        };
        let sums = Mutex::new(Sums::new(program.code.len()));
        if dims.all_resident {
            run_resident(&launch, &(0..blocks).collect::<Vec<_>>(), &sums);
        } else if launch.clusters.is_some() {
            run_clusters(&launch, &sums);
        } else if checked {
            // Any order of blocks is as good as any other; a permutation in memory only where it is small.
            let mut order: Vec<u32> = (0..blocks.min(1 << 20)).collect();
            Rng::new(self.config.seed, 0).shuffle(&mut order);
            for index in order.into_iter().chain(1 << 20..blocks.max(1 << 20)) {
                run_block(&launch, index, &sums);
                if launch.is_stopped() {
                    break;
                }
            }
        } else {
            let all = || (0..blocks).into_par_iter().for_each(|index| run_block(&launch, index, &sums));
            match &self.pool {
                Some(pool) => pool.install(all),
                None => all(),
            }
        }
        let sums = sums.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
        let (findings, dropped_findings) = launch.take_findings();
        let report = LaunchReport {
            findings,
            dropped_findings,
            counters: (self.config.counters != CounterMode::Off)
                .then(|| sums.counters(&program, entry, self.config.counters)),
            warp_instructions: launch.instructions.load(Ordering::Relaxed),
            stopped: launch.is_stopped(),
        };
        drop(launch);
        for address in windows {
            self.free(address)?;
        }
        Ok(report)
    }

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
    fn accepted<'m>(
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

    /// Memory for the shared windows of clusters of several blocks.
    fn clusters(
        &mut self,
        entry: &Entry,
        program: &Program,
        dims: &LaunchConfig,
        shared: u64,
    ) -> Result<Option<Clusters>, LaunchError> {
        let shape = cluster_shape(entry, dims);
        if shape == [1; 3] {
            return Ok(None);
        }
        if let Some((pc, what)) = exec::unsupported_in_cluster(program) {
            let line = entry.code.get(pc).map_or(0, |instruction| instruction.line);
            let message = format!("{what} in a launch with clusters of several blocks is not supported");
            return Err(LaunchError::Unsupported { entry: entry.name.clone(), line, message });
        }
        let [gx, gy, gz] = dims.grid;
        let gone = self.alloc(shared, "shared memory of a block that has ended")?;
        self.free(gone)?;
        let mut addresses = Vec::new();
        for index in 0..gx * gy * gz {
            let block = [index % gx, index / gx % gy, index / gx / gy];
            addresses.push(self.alloc(shared, &format!("shared of block {block:?}"))?);
        }
        Ok(Some(Clusters::new(shape, dims.grid, addresses, gone)))
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

/// The decoded form of an entry that needs no machine, made once while the entry lives: a suite runs the same text on
/// thousands of machines.
fn decoded_once(
    entry: &Arc<Entry>,
    decode: impl FnOnce() -> Result<Arc<Program>, LaunchError>,
) -> Result<Arc<Program>, LaunchError> {
    type Decoded = Vec<(Weak<Entry>, Arc<Program>)>;
    static DECODED: LazyLock<Mutex<Decoded>> = LazyLock::new(Mutex::default);
    let lock = || DECODED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let key = Arc::as_ptr(entry);
    if let Some((_, program)) = lock().iter().find(|(known, _)| std::ptr::eq(known.as_ptr(), key)) {
        // The weak reference keeps the address from being used for another entry.
        return Ok(program.clone());
    }
    let program = decode()?;
    let mut all = lock();
    all.retain(|(known, _)| known.strong_count() > 0);
    all.push((Arc::downgrade(entry), program.clone()));
    Ok(program)
}

/// Blocks per cluster along each axis.
fn cluster_shape(entry: &Entry, dims: &LaunchConfig) -> [u32; 3] {
    if dims.cluster == [1; 3] { entry.reqnctapercluster.unwrap_or(dims.cluster) } else { dims.cluster }
}
