//! Seam 2: how a kernel runs. A device owns memory, loads PTX text and launches an entry with the bytes of its
//! parameter struct. [`crate::cuda::Cuda`] is a card behind the driver, [`crate::emulated::Emulated`] the PTX machine.

use kernels::Variant;
use std::fmt;
use std::sync::Arc;
use thiserror::Error;

/// Facts about a device that launches depend on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceProperties {
    /// Name for reports.
    pub name: String,
    /// Streaming multiprocessors; persistent kernels and split plans follow it.
    pub num_sms: u32,
    /// Variants that the device can run, best first.
    pub variants: Vec<Variant>,
    /// Shared memory that one block may use, bytes.
    pub max_shared_bytes: u32,
}

/// PTX text of one module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PtxModule {
    /// Operation and target, e.g. `topk_select_sm89`; names the module in reports.
    pub name: String,
    /// The text.
    pub text: Arc<str>,
}

/// One kernel launch, without its parameters.
#[derive(Debug, Clone)]
pub struct Launch<'a> {
    /// Module.
    pub module: &'a Arc<PtxModule>,
    /// Entry symbol.
    pub entry: &'a str,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads per block.
    pub block: [u32; 3],
    /// Dynamic shared memory, bytes.
    pub dynamic_shared: u32,
}

/// Why a device refused or failed.
#[derive(Debug, Error)]
pub enum DeviceError {
    /// There is no such device on this machine.
    #[error("no {device} device: {reason}")]
    Absent {
        /// `cuda`, `emulated`
        device: &'static str,
        /// What is missing.
        reason: String,
    },
    /// An allocation failed.
    #[error("{device}: cannot allocate {bytes} bytes for `{label}`: {reason}")]
    Alloc {
        /// Device.
        device: String,
        /// Size.
        bytes: u64,
        /// Label.
        label: String,
        /// Driver's words.
        reason: String,
    },
    /// A copy leaves its buffer.
    #[error("{device}: copy of {bytes} bytes at offset {offset} leaves a buffer of {len} bytes")]
    Range {
        /// Device.
        device: String,
        /// Bytes to copy.
        bytes: u64,
        /// Offset in the buffer.
        offset: u64,
        /// Size of the buffer.
        len: u64,
    },
    /// The module could not be loaded.
    #[error("{device}: module {module}: {reason}")]
    Load {
        /// Device.
        device: String,
        /// Module name.
        module: String,
        /// Parser's or driver's words.
        reason: String,
    },
    /// A call that a capture cannot record, or a capture or graph that is not there.
    #[error("{device}: {what}")]
    Capture {
        /// Device.
        device: String,
        /// What was asked for, and why it is refused.
        what: String,
    },
    /// A launch was refused or failed.
    #[error("{device}: {entry}: {reason}")]
    Launch {
        /// Device.
        device: String,
        /// Entry.
        entry: String,
        /// What happened.
        reason: String,
    },
    /// The emulator reported findings; the first one's text.
    #[error("{device}: {entry}: {count} finding(s), first: {first}")]
    Findings {
        /// Device.
        device: String,
        /// Entry.
        entry: String,
        /// Distinct findings.
        count: usize,
        /// Text of the first.
        first: String,
        /// All of them.
        findings: Vec<ptx_emulator::Finding>,
    },
}

/// Product of row-major matrices in device memory, per group `out[t, i] = sum_k x[t, k] weight[i, k]`: bf16 operands, f32 sums.
#[derive(Debug, Clone, Copy)]
pub struct Matmul {
    /// Address of `[t, groups * k]` bf16.
    pub x: u64,
    /// Address of `[groups * n, k]` bf16, contiguous.
    pub weight: u64,
    /// Address of `[t, groups * n]`, f32 or bf16.
    pub out: u64,
    /// `out` is bf16.
    pub out_bf16: bool,
    /// Add to `out`.
    pub accumulate: bool,
    /// Rows of `x`.
    pub t: u32,
    /// Diagonal blocks.
    pub groups: u32,
    /// Outputs per group.
    pub n: u32,
    /// Inputs per group.
    pub k: u32,
    /// Row stride of `x`, elements.
    pub stride_x: u64,
    /// Row stride of `out`, elements.
    pub stride_out: u64,
}

/// A place where PTX runs. Work is ordered as on one stream.
///
/// Work can be captured: between [`Device::begin_capture`] and [`Device::end_capture`] launches, products and fills are
/// recorded and do not run; [`Device::replay`] runs the record any number of times. What a record cannot hold is refused
/// inside a capture, by every device alike: allocations, frees, copies from and to the host, waits, and the first launch out
/// of a module that is not loaded. A capture in which something was refused gives no graph.
pub trait Device {
    /// Device memory; freed when dropped.
    type Buffer;
    /// A record of work with all its parameters, ready to run again.
    type Graph: fmt::Debug;

    /// Facts.
    fn properties(&self) -> &DeviceProperties;
    /// Allocates `bytes` bytes (0 is allowed), not initialised.
    fn alloc(&self, bytes: u64, label: &str) -> Result<Self::Buffer, DeviceError>;
    /// Size in bytes.
    fn len_bytes(&self, buffer: &Self::Buffer) -> u64;
    /// Device address of the first byte; 0 for an empty buffer.
    fn address(&self, buffer: &Self::Buffer) -> u64;
    /// Copies host bytes to the device.
    fn upload(&self, dst: &mut Self::Buffer, offset: u64, bytes: &[u8]) -> Result<(), DeviceError>;
    /// Sets `bytes` bytes from `offset` on to `value`, in the order of the other work.
    fn fill(&self, dst: &mut Self::Buffer, offset: u64, bytes: u64, value: u8) -> Result<(), DeviceError>;
    /// Says that nobody counts on what the buffer holds: a device that checks reports who reads it before it is written again.
    /// Captured like a fill.
    fn forget(&self, buffer: &Self::Buffer) -> Result<(), DeviceError> {
        let _ = buffer;
        Ok(())
    }
    /// Copies device bytes to the host, after all work before.
    fn download(&self, src: &Self::Buffer, offset: u64, bytes: &mut [u8]) -> Result<(), DeviceError>;
    /// Loads a module if it is not loaded yet, so that the first launch does not pay for it.
    fn load(&self, module: &Arc<PtxModule>) -> Result<(), DeviceError>;
    /// Launches an entry. `params` are the bytes of its one parameter struct; buffers whose addresses stand in it must
    /// outlive the work (the caller holds borrows of them across [`Device::download`] or [`Device::synchronize`]).
    fn launch(&self, launch: &Launch<'_>, params: &[u8]) -> Result<(), DeviceError>;
    /// A product by a library of the device, in the order of the stream; `None` where there is none for it.
    ///
    /// # Safety
    /// The addresses are of buffers of this device that hold the matrices and outlive the work, as for [`Device::launch`].
    unsafe fn matmul(&self, product: &Matmul) -> Option<Result<(), DeviceError>> {
        let _ = product;
        None
    }
    /// Waits for all work.
    fn synchronize(&self) -> Result<(), DeviceError>;

    /// Records from here on instead of running. One capture at a time; it belongs to the thread that began it.
    fn begin_capture(&self) -> Result<(), DeviceError>;
    /// Ends the capture.
    ///
    /// # Errors
    /// When none was begun, and when something in it was refused.
    fn end_capture(&self) -> Result<Self::Graph, DeviceError>;
    /// Whether a capture is under way.
    fn is_capturing(&self) -> bool;
    /// Runs a graph of this device. The buffers whose addresses were captured must still be there, as for
    /// [`Device::launch`]; what they hold may have changed.
    fn replay(&self, graph: &Self::Graph) -> Result<(), DeviceError>;
    /// Launches, products and fills of a graph.
    fn recorded(&self, graph: &Self::Graph) -> u64;
}

/// The refusal of a call that a capture cannot record.
pub(crate) fn not_captured(what: &str) -> String {
    format!("{what} inside a capture: only launches, products and fills are recorded")
}

/// The refusal of a capture, with the first refusal inside it.
pub(crate) fn spoilt(why: &str) -> String {
    format!("the capture gives no graph: {why}")
}

/// Refuses a copy that leaves its buffer.
pub(crate) fn check_range(device: &str, len: u64, offset: u64, bytes: u64) -> Result<(), DeviceError> {
    match offset.checked_add(bytes) {
        Some(end) if end <= len => Ok(()),
        _ => Err(DeviceError::Range { device: device.to_owned(), bytes, offset, len }),
    }
}
