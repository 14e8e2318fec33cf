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

mod config;
mod launch;

pub use crate::counters::CounterMode;
pub use config::{AsyncMode, Checks, DeviceModel, MachineConfig};
pub use launch::{LaunchConfig, LaunchError, LaunchReport};

use crate::check::{InitMap, LaunchCheck, SparseInitMap};
use crate::exec::{self, Clusters, Findings, Launch, ModuleLayout, Program, Rng, Sums, Written};
use crate::exec::{run_block, run_clusters, run_resident};
use crate::ir::{Entry, Module, Space};
use crate::memory::{GlobalMemory, MemoryError, WINDOW_START};
use launch::cluster_shape;
use rayon::prelude::*;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, Weak};

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
