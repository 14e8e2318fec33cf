//! The PTX machine as a device: the same text that a card would get, with every launch checked.

mod capture;

pub use capture::EmulatedGraph;

use crate::device::{Device, DeviceError, DeviceProperties, Launch, PtxModule, check_range, not_captured};
use capture::{Capture, Node};
use kernels::Variant;
use ptx_emulator::ir::{Module, Target, TargetSuffix};
use ptx_emulator::{CounterMode, Finding, LaunchConfig, Machine, MachineConfig};
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};
use std::time::Instant;

/// How the machine runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmulatedConfig {
    /// Seed, checks, counters, card.
    pub machine: MachineConfig,
    /// Allocations above this are sparse: untouched pages cost no host memory.
    pub virtual_above: u64,
}

impl EmulatedConfig {
    /// All checks under one schedule seed.
    pub fn checked(seed: u64) -> Self {
        Self::from(MachineConfig::checked(seed))
    }

    /// Bounds checks only, blocks on all host threads, counters on.
    pub fn fast() -> Self {
        Self::from(MachineConfig { counters: CounterMode::Total, ..MachineConfig::fast() })
    }
}

impl From<MachineConfig> for EmulatedConfig {
    fn from(machine: MachineConfig) -> Self {
        Self { machine, virtual_above: 1 << 30 }
    }
}

/// Sums over the launches of a device.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Totals {
    /// Launches, those of replays too.
    pub launches: u64,
    /// Graphs replayed.
    pub replays: u64,
    /// Wall time inside launches, seconds.
    pub seconds: f64,
    /// Warp instructions executed.
    pub warp_instructions: u64,
    /// Matrix instructions executed (0 with counters off).
    pub mma: u64,
    /// Bytes that loads and asynchronous copies read from global memory (0 with counters off).
    pub global_load_bytes: u64,
    /// Bytes that stores, atomics and asynchronous copies wrote to global memory (0 with counters off).
    pub global_store_bytes: u64,
    /// Shared-memory wavefronts (0 with counters off).
    pub shared_wavefronts: u64,
    /// Wavefronts beyond what the access widths need: bank conflicts (0 with counters off).
    pub bank_conflicts: u64,
}

/// One machine.
#[derive(Debug)]
pub struct Emulated {
    properties: DeviceProperties,
    virtual_above: u64,
    shared: Arc<Mutex<State>>,
}

/// Memory of the machine; freed when dropped.
#[derive(Debug)]
pub struct EmulatedBuffer {
    address: u64,
    len: u64,
    shared: Arc<Mutex<State>>,
}

struct State {
    machine: Machine,
    totals: Totals,
    /// Modules by the address of their record, which is kept so that the address stays its own.
    loaded: HashMap<usize, (Arc<PtxModule>, Arc<Module>)>,
    capture: Option<Capture>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("totals", &self.totals).finish_non_exhaustive()
    }
}

/// Parsed texts. Parsing a kernel costs more than running a small case on it, and a suite runs thousands.
static PARSED: LazyLock<Mutex<HashMap<Arc<str>, Arc<Module>>>> = LazyLock::new(Mutex::default);
/// Texts kept; mutated ones come and go.
const PARSED_MOST: usize = 64;

fn parse(module: &PtxModule) -> Result<Arc<Module>, String> {
    let lock = || PARSED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(known) = lock().get(&module.text) {
        return Ok(known.clone());
    }
    let parsed = Arc::new(Module::parse(&module.text).map_err(|e| e.to_string())?);
    let mut cache = lock();
    if cache.len() >= PARSED_MOST {
        cache.clear();
    }
    cache.insert(module.text.clone(), parsed.clone());
    Ok(parsed)
}

impl Emulated {
    /// A machine without memory in use.
    pub fn new(config: EmulatedConfig) -> Self {
        let EmulatedConfig { machine, virtual_above } = config;
        let model = &machine.device;
        let runs = |variant: &Variant| {
            model.runs(match variant {
                Variant::Sm89 => Target { sm: 89, suffix: TargetSuffix::None },
                Variant::Sm120a => Target { sm: 120, suffix: TargetSuffix::Arch },
            })
        };
        let properties = DeviceProperties {
            name: format!("emulated {}", model.name),
            num_sms: model.num_sms,
            variants: [Variant::Sm120a, Variant::Sm89].into_iter().filter(runs).collect(),
            max_shared_bytes: model.max_shared_per_block,
        };
        let state =
            State { machine: Machine::new(machine), totals: Totals::default(), loaded: HashMap::new(), capture: None };
        Self { properties, virtual_above, shared: Arc::new(Mutex::new(state)) }
    }

    /// Sums over the launches so far.
    pub fn totals(&self) -> Totals {
        self.state().totals.clone()
    }

    /// Bytes of the buffers that there are.
    pub fn live_bytes(&self) -> u64 {
        self.state().machine.live_bytes()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.shared)
    }

    /// The state, unless a capture is under way: then `what` is refused, and the capture with it.
    fn outside_capture(&self, what: &str) -> Result<MutexGuard<'_, State>, DeviceError> {
        let mut state = self.state();
        match &mut state.capture {
            None => Ok(state),
            Some(capture) => Err(self.refused(capture.spoil(&not_captured(what)))),
        }
    }

    fn refused(&self, what: String) -> DeviceError {
        DeviceError::Capture { device: self.properties.name.clone(), what }
    }

    /// A module of this device, loaded now if it was not yet.
    fn loaded(&self, state: &mut State, module: &Arc<PtxModule>) -> Result<Arc<Module>, DeviceError> {
        let key = Arc::as_ptr(module) as usize;
        if let Some((_, parsed)) = state.loaded.get(&key) {
            return Ok(parsed.clone());
        }
        if let Some(capture) = &mut state.capture {
            let what = format!("loading module {}", module.name);
            return Err(self.refused(capture.spoil(&not_captured(&what))));
        }
        let refused = |reason: String| DeviceError::Load {
            device: self.properties.name.clone(),
            module: module.name.clone(),
            reason,
        };
        let parsed = parse(module).map_err(refused)?;
        state.loaded.insert(key, (module.clone(), parsed.clone()));
        Ok(parsed)
    }

    /// Records a node, or runs it.
    fn record_or_run(&self, state: &mut State, node: Node) -> Result<(), DeviceError> {
        match &mut state.capture {
            Some(capture) => capture.push(node),
            None => self.run(state, &node)?,
        }
        Ok(())
    }

    fn run(&self, state: &mut State, node: &Node) -> Result<(), DeviceError> {
        let (module, entry, dims, params) = match node {
            Node::Launch { module, entry, dims, params } => (module, entry, dims, params),
            Node::Fill { address, bytes, value } => {
                return state.machine.fill(*address, *value, *bytes).map_err(|e| self.failed("fill", e));
            }
            Node::Forget { address, bytes } => {
                return state.machine.forget(*address, *bytes).map_err(|e| self.failed("forget", e));
            }
        };
        let start = Instant::now();
        let report = state.machine.launch(module, entry, dims, params).map_err(|e| self.failed(entry, e))?;
        let totals = &mut state.totals;
        totals.seconds += start.elapsed().as_secs_f64();
        totals.launches += 1;
        totals.warp_instructions += report.warp_instructions;
        if let Some(counters) = &report.counters {
            totals.mma += counters.mma.values().sum::<u64>();
            let total = &counters.total;
            totals.global_load_bytes += total.global_load_bytes + total.async_load_bytes;
            totals.global_store_bytes += total.global_store_bytes + total.async_store_bytes;
            totals.shared_wavefronts += total.shared_load_wavefronts + total.shared_store_wavefronts;
            totals.bank_conflicts += total.bank_conflicts;
        }
        self.findings(entry, report.findings)
    }

    fn failed(&self, entry: &str, reason: impl ToString) -> DeviceError {
        DeviceError::Launch {
            device: self.properties.name.clone(),
            entry: entry.to_owned(),
            reason: reason.to_string(),
        }
    }

    fn findings(&self, entry: &str, findings: Vec<Finding>) -> Result<(), DeviceError> {
        let Some(first) = findings.first() else { return Ok(()) };
        Err(DeviceError::Findings {
            device: self.properties.name.clone(),
            entry: entry.to_owned(),
            count: findings.len(),
            first: first.to_string(),
            findings,
        })
    }
}

/// A panic elsewhere does not make the machine unusable: its memory is bytes.
fn lock(shared: &Mutex<State>) -> MutexGuard<'_, State> {
    shared.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Drop for EmulatedBuffer {
    fn drop(&mut self) {
        if self.len > 0 {
            let mut state = lock(&self.shared);
            if let Some(capture) = &mut state.capture {
                capture.spoil(&not_captured("freeing a buffer"));
            }
            // The only error is an address that is not allocated, and this one is.
            let _ = state.machine.free(self.address);
        }
    }
}

impl Device for Emulated {
    type Buffer = EmulatedBuffer;
    type Graph = EmulatedGraph;

    fn properties(&self) -> &DeviceProperties {
        &self.properties
    }

    fn alloc(&self, bytes: u64, label: &str) -> Result<EmulatedBuffer, DeviceError> {
        let mut address = 0;
        if bytes > 0 {
            let machine = &mut self.outside_capture(&format!("allocating `{label}`"))?.machine;
            let allocated = if bytes > self.virtual_above {
                machine.alloc_virtual(bytes, label)
            } else {
                machine.alloc(bytes, label)
            };
            address = allocated.map_err(|e| DeviceError::Alloc {
                device: self.properties.name.clone(),
                bytes,
                label: label.to_owned(),
                reason: e.to_string(),
            })?;
        }
        Ok(EmulatedBuffer { address, len: bytes, shared: self.shared.clone() })
    }

    fn len_bytes(&self, buffer: &EmulatedBuffer) -> u64 {
        buffer.len
    }

    fn address(&self, buffer: &EmulatedBuffer) -> u64 {
        buffer.address
    }

    fn upload(&self, dst: &mut EmulatedBuffer, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        check_range(&self.properties.name, dst.len, offset, bytes.len() as u64)?;
        if bytes.is_empty() {
            return Ok(());
        }
        let machine = &mut self.outside_capture("an upload")?.machine;
        machine.write(dst.address + offset, bytes).map_err(|e| self.failed("upload", e))
    }

    fn fill(&self, dst: &mut EmulatedBuffer, offset: u64, bytes: u64, value: u8) -> Result<(), DeviceError> {
        check_range(&self.properties.name, dst.len, offset, bytes)?;
        if bytes == 0 {
            return Ok(());
        }
        self.record_or_run(&mut self.state(), Node::Fill { address: dst.address + offset, bytes, value })
    }

    fn forget(&self, buffer: &EmulatedBuffer) -> Result<(), DeviceError> {
        let &EmulatedBuffer { address, len: bytes, .. } = buffer;
        if bytes == 0 {
            return Ok(());
        }
        self.record_or_run(&mut self.state(), Node::Forget { address, bytes })
    }

    fn download(&self, src: &EmulatedBuffer, offset: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        check_range(&self.properties.name, src.len, offset, bytes.len() as u64)?;
        if bytes.is_empty() {
            return Ok(());
        }
        let machine = &self.outside_capture("a download")?.machine;
        machine.read(src.address + offset, bytes).map_err(|e| self.failed("download", e))
    }

    fn load(&self, module: &Arc<PtxModule>) -> Result<(), DeviceError> {
        let state = &mut *self.state();
        let parsed = self.loaded(state, module)?;
        state.machine.load(&parsed).map_err(|e| DeviceError::Load {
            device: self.properties.name.clone(),
            module: module.name.clone(),
            reason: e.to_string(),
        })
    }

    fn launch(&self, launch: &Launch<'_>, params: &[u8]) -> Result<(), DeviceError> {
        let state = &mut *self.state();
        let module = self.loaded(state, launch.module)?;
        let dims = LaunchConfig::new(launch.grid, launch.block).with_shared(launch.dynamic_shared);
        if state.capture.is_some() {
            // A card refuses these while it records, not when it replays.
            let checked = state.machine.check_launch(&module, launch.entry, &dims, params);
            checked.map_err(|e| self.failed(launch.entry, e))?;
        }
        let node = Node::Launch { module, entry: launch.entry.to_owned(), dims, params: params.into() };
        self.record_or_run(state, node)
    }

    /// Launches end before they return.
    fn synchronize(&self) -> Result<(), DeviceError> {
        self.outside_capture("a wait").map(|_| ())
    }

    fn begin_capture(&self) -> Result<(), DeviceError> {
        let mut state = self.outside_capture("another capture")?;
        state.capture = Some(Capture::default());
        Ok(())
    }

    fn end_capture(&self) -> Result<EmulatedGraph, DeviceError> {
        let capture = self.state().capture.take().ok_or_else(|| self.refused("no capture was begun".to_owned()))?;
        capture.into_graph(self.shared.clone()).map_err(|what| self.refused(what))
    }

    fn is_capturing(&self) -> bool {
        self.state().capture.is_some()
    }

    fn replay(&self, graph: &EmulatedGraph) -> Result<(), DeviceError> {
        if !graph.is_of(&self.shared) {
            return Err(self.refused("a graph of another machine cannot be replayed on this one".to_owned()));
        }
        let state = &mut *self.outside_capture("a replay")?;
        state.totals.replays += 1;
        graph.nodes().iter().try_for_each(|node| self.run(state, node))
    }

    fn recorded(&self, graph: &EmulatedGraph) -> u64 {
        graph.nodes().iter().filter(|node| !matches!(node, Node::Forget { .. })).count() as u64
    }
}
