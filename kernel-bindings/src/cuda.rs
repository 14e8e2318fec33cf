//! A card behind the NVIDIA driver. libcuda is opened at run time: the same binary runs where there is none, and says so.

mod capture;

pub use capture::CudaGraph;

use crate::cublaslt::CublasLt;
use crate::device::{Device, DeviceError, DeviceProperties, Launch, Matmul, PtxModule, check_range, not_captured};
use capture::{Capture, Captures, lock};
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, CudaViewMut, DevicePtr, DevicePtrMut, result, sys};
use kernels::Variant;
use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::sync::{Arc, Mutex, OnceLock};

/// One card and one stream on it.
#[derive(Debug)]
pub struct Cuda {
    properties: DeviceProperties,
    capability: (i32, i32),
    stream: Arc<CudaStream>,
    modules: Mutex<HashMap<usize, LoadedModule>>,
    /// Opened at the first product, or why it is not there.
    products: OnceLock<Result<CublasLt, String>>,
    captures: Captures,
}

/// Device memory; an empty buffer holds nothing.
#[derive(Debug)]
pub struct CudaBuffer {
    slice: Option<CudaSlice<u8>>,
    captures: Captures,
}

impl Drop for CudaBuffer {
    fn drop(&mut self) {
        let slice = self.slice.take();
        if let (Some(slice), Some(capture)) = (slice, lock(&self.captures).as_mut()) {
            capture.keep(slice);
        }
    }
}

impl CudaBuffer {
    /// The first `elements` f32 of the buffer, if it has as many.
    pub(crate) fn as_f32_mut(&mut self, elements: u64) -> Option<CudaViewMut<'_, f32>> {
        let slice = self.slice.as_mut()?;
        // SAFETY: any bytes are an f32; the allocation is aligned to 256 bytes; the length is checked by the call.
        unsafe { slice.transmute_mut::<f32>(usize::try_from(elements).ok()?) }
    }
}

#[derive(Debug)]
struct LoadedModule {
    /// Keeps the key (the address of the module record) from being used again.
    _module: Arc<PtxModule>,
    handle: sys::CUmodule,
    functions: HashMap<String, sys::CUfunction>,
}

// SAFETY: module and function handles are process-wide identifiers of the driver, which is thread-safe; every call that
// uses them first binds the context to the calling thread.
unsafe impl Send for LoadedModule {}

impl Cuda {
    /// Opens card `ordinal`. The error says what is missing: driver, card, or compute capability 8.9.
    pub fn open(ordinal: usize) -> Result<Self, DeviceError> {
        let absent = |reason: String| DeviceError::Absent { device: "cuda", reason };
        // SAFETY: opens and closes the driver library; libcuda has no load-time side effects that matter here.
        if !unsafe { sys::is_culib_present() } {
            return Err(absent("libcuda is not installed (NVIDIA driver 580 or newer is needed)".into()));
        }
        let count = CudaContext::device_count().map_err(|e| absent(format!("the driver does not answer: {e}")))?;
        if ordinal as i64 >= i64::from(count) {
            return Err(absent(format!("card {ordinal} was asked for, the driver lists {count}")));
        }
        let context = CudaContext::new(ordinal).map_err(|e| absent(format!("card {ordinal} does not open: {e}")))?;
        // One stream: nothing here needs the per-slice events that cudarc keeps for many.
        // SAFETY: all buffers of this device are used on the one stream created below.
        unsafe { context.disable_event_tracking() };
        let query = || -> Result<_, result::DriverError> {
            let attribute = |a| context.attribute(a);
            use sys::CUdevice_attribute::*;
            Ok((
                context.name()?,
                context.compute_capability()?,
                attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
                attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
                context.new_stream()?,
            ))
        };
        let (name, capability, num_sms, shared, stream) =
            query().map_err(|e| absent(format!("card {ordinal} does not answer: {e}")))?;
        let variants = variants_of(capability);
        if variants.is_empty() {
            let (major, minor) = capability;
            return Err(absent(format!("{name} has compute capability {major}.{minor}, 8.9 or more is needed")));
        }
        let properties = DeviceProperties { name, num_sms: num_sms as u32, variants, max_shared_bytes: shared as u32 };
        Ok(Self {
            properties,
            capability,
            stream,
            modules: Mutex::default(),
            products: OnceLock::new(),
            captures: Captures::default(),
        })
    }

    /// The one stream of this card.
    pub(crate) fn stream(&self) -> Arc<CudaStream> {
        self.stream.clone()
    }

    /// Compute capability as (major, minor).
    pub fn compute_capability(&self) -> (i32, i32) {
        self.capability
    }

    /// Opens the library for products of bf16 matrices if it is not open yet; `Err` says why the kernels do them instead.
    pub fn product_library(&self) -> Result<&'static str, &str> {
        self.products().map(|_| "cuBLASLt")
    }

    fn products(&self) -> Result<&CublasLt, &str> {
        self.products.get_or_init(|| CublasLt::open(&self.stream)).as_ref().map_err(String::as_str)
    }

    /// Runs `work` between two events on the stream and returns the time between them in microseconds.
    pub fn time_us(&self, work: impl FnOnce() -> Result<(), DeviceError>) -> Result<f64, DeviceError> {
        self.outside_capture("a timing")?;
        let flags = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
        let start = self.stream.record_event(flags).map_err(|e| self.failed("event", e))?;
        work()?;
        let end = self.stream.record_event(flags).map_err(|e| self.failed("event", e))?;
        let ms = start.elapsed_ms(&end).map_err(|e| self.failed("event", e))?;
        Ok(f64::from(ms) * 1e3)
    }

    fn refused(&self, what: String) -> DeviceError {
        DeviceError::Capture { device: self.properties.name.clone(), what }
    }

    /// Refuses `what` while a capture is under way, and the capture with it. The driver would break off the capture, in words
    /// that do not say where.
    fn outside_capture(&self, what: &str) -> Result<(), DeviceError> {
        match lock(&self.captures).as_mut() {
            None => Ok(()),
            Some(capture) => Err(self.refused(capture.spoil(&not_captured(what)))),
        }
    }

    /// Counts a node that the capture under way, if any, has recorded.
    fn note_recorded(&self) {
        if let Some(capture) = lock(&self.captures).as_mut() {
            capture.recorded += 1;
        }
    }

    fn failed(&self, entry: &str, error: result::DriverError) -> DeviceError {
        DeviceError::Launch { device: self.properties.name.clone(), entry: entry.to_owned(), reason: error.to_string() }
    }

    fn function(&self, module: &Arc<PtxModule>, entry: &str) -> Result<sys::CUfunction, DeviceError> {
        let refused = |reason: String| DeviceError::Load {
            device: self.properties.name.clone(),
            module: module.name.clone(),
            reason,
        };
        self.stream.context().bind_to_thread().map_err(|e| refused(e.to_string()))?;
        let mut modules = self.modules.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let loaded = match modules.entry(Arc::as_ptr(module) as usize) {
            std::collections::hash_map::Entry::Occupied(found) => found.into_mut(),
            std::collections::hash_map::Entry::Vacant(free) => {
                self.outside_capture(&format!("loading module {}", module.name))?;
                let text = CString::new(&*module.text).map_err(|_| refused("the text holds a zero byte".into()))?;
                // SAFETY: `text` is a zero-terminated PTX image that lives across the call, which copies it; the
                // context is bound to this thread.
                let handle = unsafe { result::module::load_data(text.as_ptr().cast()) }
                    .map_err(|e| refused(format!("the driver refused the PTX: {e}")))?;
                free.insert(LoadedModule { _module: module.clone(), handle, functions: HashMap::new() })
            }
        };
        if entry.is_empty() {
            return Ok(std::ptr::null_mut());
        }
        if let Some(&function) = loaded.functions.get(entry) {
            return Ok(function);
        }
        let name = CString::new(entry).map_err(|_| refused("the entry name holds a zero byte".into()))?;
        // SAFETY: the module handle came from the driver above and is unloaded only when `self` drops.
        let function = unsafe { result::module::get_function(loaded.handle, name) }
            .map_err(|e| refused(format!("entry {entry}: {e}")))?;
        let limit = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the function exists; the value is the card's own opt-in limit less what the function uses statically.
        unsafe {
            let fixed = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES;
            result::function::get_function_attribute(function, fixed)
                .and_then(|used| {
                    let room = self.properties.max_shared_bytes as i32 - used;
                    result::function::set_function_attribute(function, limit, room)
                })
                .map_err(|e| refused(format!("entry {entry}: shared memory limit: {e}")))?;
        }
        loaded.functions.insert(entry.to_owned(), function);
        Ok(function)
    }
}

/// Variants that a card of that compute capability runs, best first. `sm_120a` PTX is refused by any other chip.
fn variants_of(capability: (i32, i32)) -> Vec<Variant> {
    match capability {
        (12, 0) => vec![Variant::Sm120a, Variant::Sm89],
        c if c >= (8, 9) => vec![Variant::Sm89],
        _ => Vec::new(),
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        if self.stream.context().bind_to_thread().is_err() {
            return;
        }
        let modules = self.modules.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner());
        for loaded in modules.values() {
            // SAFETY: the handle came from load_data, no launch follows, and the error of unloading has no taker.
            let _ = unsafe { result::module::unload(loaded.handle) };
        }
    }
}

impl Device for Cuda {
    type Buffer = CudaBuffer;
    type Graph = CudaGraph;

    fn properties(&self) -> &DeviceProperties {
        &self.properties
    }

    fn alloc(&self, bytes: u64, label: &str) -> Result<CudaBuffer, DeviceError> {
        let captures = self.captures.clone();
        if bytes == 0 {
            return Ok(CudaBuffer { slice: None, captures });
        }
        self.outside_capture(&format!("allocating `{label}`"))?;
        let failed = |reason: String| DeviceError::Alloc {
            device: self.properties.name.clone(),
            bytes,
            label: label.to_owned(),
            reason,
        };
        let len = usize::try_from(bytes).map_err(|e| failed(e.to_string()))?;
        // SAFETY: u8 has no invalid values; every read of the host goes through `download`, which copies bytes.
        let slice = unsafe { self.stream.alloc::<u8>(len) }.map_err(|e| failed(e.to_string()))?;
        Ok(CudaBuffer { slice: Some(slice), captures })
    }

    fn len_bytes(&self, buffer: &CudaBuffer) -> u64 {
        buffer.slice.as_ref().map_or(0, |slice| slice.len() as u64)
    }

    fn address(&self, buffer: &CudaBuffer) -> u64 {
        buffer.slice.as_ref().map_or(0, |slice| slice.device_ptr(&self.stream).0)
    }

    fn upload(&self, dst: &mut CudaBuffer, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        check_range(&self.properties.name, self.len_bytes(dst), offset, bytes.len() as u64)?;
        if let (Some(slice), false) = (dst.slice.as_mut(), bytes.is_empty()) {
            self.outside_capture("an upload")?;
            let start = offset as usize;
            let mut view = slice.slice_mut(start..start + bytes.len());
            self.stream.memcpy_htod(bytes, &mut view).map_err(|e| self.failed("upload", e))?;
            // The host bytes may go away as soon as this returns.
            self.stream.synchronize().map_err(|e| self.failed("upload", e))?;
        }
        Ok(())
    }

    fn fill(&self, dst: &mut CudaBuffer, offset: u64, bytes: u64, value: u8) -> Result<(), DeviceError> {
        check_range(&self.properties.name, self.len_bytes(dst), offset, bytes)?;
        let (Some(slice), 1..) = (dst.slice.as_mut(), bytes) else { return Ok(()) };
        self.stream.context().bind_to_thread().map_err(|e| self.failed("fill", e))?;
        let start = slice.device_ptr_mut(&self.stream).0 + offset;
        // SAFETY: the range lies in the allocation (checked above), which this stream frees after the fill; the context is
        // bound to this thread.
        unsafe { result::memset_d8_async(start, value, bytes as usize, self.stream.cu_stream()) }
            .map_err(|e| self.failed("fill", e))?;
        self.note_recorded();
        Ok(())
    }

    fn download(&self, src: &CudaBuffer, offset: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        check_range(&self.properties.name, self.len_bytes(src), offset, bytes.len() as u64)?;
        if let (Some(slice), false) = (src.slice.as_ref(), bytes.is_empty()) {
            self.outside_capture("a download")?;
            let start = offset as usize;
            let view = slice.slice(start..start + bytes.len());
            self.stream.memcpy_dtoh(&view, bytes).map_err(|e| self.failed("download", e))?;
            self.stream.synchronize().map_err(|e| self.failed("download", e))?;
        }
        Ok(())
    }

    fn load(&self, module: &Arc<PtxModule>) -> Result<(), DeviceError> {
        self.function(module, "").map(|_| ())
    }

    fn launch(&self, launch: &Launch<'_>, params: &[u8]) -> Result<(), DeviceError> {
        let function = self.function(launch.module, launch.entry)?;
        let [gx, gy, gz] = launch.grid;
        let [bx, by, bz] = launch.block;
        let mut arguments = [params.as_ptr().cast_mut().cast::<c_void>()];
        // SAFETY: the entry takes exactly one parameter struct, whose bytes `params` are (size and offsets are asserted
        // against the C header); the driver copies them before the call returns. Addresses inside point into live
        // buffers of this device, as the caller of `Device::launch` guarantees.
        unsafe {
            result::launch_kernel(
                function,
                (gx, gy, gz),
                (bx, by, bz),
                launch.dynamic_shared,
                self.stream.cu_stream(),
                &mut arguments,
            )
        }
        .map_err(|e| self.failed(launch.entry, e))?;
        self.note_recorded();
        Ok(())
    }

    unsafe fn matmul(&self, product: &Matmul) -> Option<Result<(), DeviceError>> {
        // Opening the library allocates: in a capture it is there already or not at all.
        let library = match lock(&self.captures).is_some() {
            true => self.products.get()?.as_ref().ok()?,
            false => self.products().ok()?,
        };
        // SAFETY: the contract of this method.
        let outcome = unsafe { library.matmul(&self.stream, product) }?;
        self.note_recorded();
        Some(outcome.map_err(|reason| DeviceError::Launch {
            device: self.properties.name.clone(),
            entry: "cublasLtMatmul".to_owned(),
            reason,
        }))
    }

    fn synchronize(&self) -> Result<(), DeviceError> {
        self.outside_capture("a wait")?;
        self.stream.synchronize().map_err(|e| self.failed("synchronize", e))
    }

    fn begin_capture(&self) -> Result<(), DeviceError> {
        self.outside_capture("another capture")?;
        // Other threads may use other cards meanwhile, with calls that a global capture would forbid to everybody.
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        self.stream.begin_capture(mode).map_err(|e| self.failed("begin_capture", e))?;
        *lock(&self.captures) = Some(Capture::default());
        Ok(())
    }

    fn end_capture(&self) -> Result<CudaGraph, DeviceError> {
        let capture = lock(&self.captures).take();
        let capture = capture.ok_or_else(|| self.refused("no capture was begun".to_owned()))?;
        capture.end(&self.stream).map_err(|what| self.refused(what))
    }

    fn is_capturing(&self) -> bool {
        lock(&self.captures).is_some()
    }

    fn replay(&self, graph: &CudaGraph) -> Result<(), DeviceError> {
        if !graph.is_of(&self.stream) {
            return Err(self.refused("a graph of another card cannot be replayed on this one".to_owned()));
        }
        self.outside_capture("a replay")?;
        graph.instantiated().launch().map_err(|e| self.failed("replay", e))
    }

    fn recorded(&self, graph: &CudaGraph) -> u64 {
        graph.recorded()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variants_follow_the_compute_capability() {
        assert_eq!(variants_of((12, 0)), [Variant::Sm120a, Variant::Sm89]);
        assert_eq!(variants_of((12, 1)), [Variant::Sm89], "sm_120a PTX is refused on sm_121");
        assert_eq!(variants_of((9, 0)), [Variant::Sm89]);
        assert_eq!(variants_of((8, 9)), [Variant::Sm89]);
        assert!(variants_of((8, 6)).is_empty());
    }

    /// On a machine without a driver the device is an error value that names what is missing.
    #[test]
    fn a_missing_driver_is_an_error_value() {
        match Cuda::open(usize::MAX) {
            Err(DeviceError::Absent { device: "cuda", reason }) => assert!(!reason.is_empty()),
            other => panic!("expected Absent, got {other:?}"),
        }
    }
}
