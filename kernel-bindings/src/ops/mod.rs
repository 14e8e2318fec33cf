//! The operations on a device: the contract's `check`, here for all of them, then the parameter struct and the launch, one
//! file each.

mod compress;
mod embed;
mod gather_rows;
mod graph;
mod hadamard;
mod hc_mix;
mod hc_post;
mod index_k_write;
mod index_logits_decode;
mod index_logits_prefill;
mod index_q_quantise;
mod kv_write;
mod linear;
mod moe_experts;
mod norm_rope;
mod router;
mod sample;
mod scratch;
mod sparse_mla_decode;
mod sparse_mla_prefill;
mod split_combine;
mod streams;
mod swiglu;
mod topk_select;

pub use graph::KernelGraph;
pub use index_logits_decode::SplitPlan;

use crate::device::{Device, DeviceError, DeviceProperties, Launch, PtxModule};
use kernels::{Operation, Variant};
use reference::for_each_operation;
use reference::ops::{Dtype, Ops, OpsError};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// The kernels on a device.
pub struct KernelOps<D: Device> {
    device: D,
    variants: Vec<Variant>,
    modules: BTreeMap<(Operation, Variant), Arc<PtxModule>>,
    scratch: scratch::Scratch<D::Buffer>,
}

impl<D: Device + fmt::Debug> fmt::Debug for KernelOps<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KernelOps")
            .field("device", &self.device)
            .field("variants", &self.variants)
            .finish_non_exhaustive()
    }
}

/// A module of the variant that was chosen for a launch.
pub(crate) struct Chosen<'a> {
    pub(crate) variant: Variant,
    pub(crate) module: &'a Arc<PtxModule>,
}

impl<D: Device> KernelOps<D> {
    /// All shipped kernels, best variant of the device first.
    pub fn new(device: D) -> Self {
        let variants = device.properties().variants.clone();
        Self::with_variants(device, variants)
    }

    /// Only one variant; operations that do not have it are refused by name.
    pub fn with_variant(device: D, variant: Variant) -> Result<Self, DeviceError> {
        let properties = device.properties();
        if !properties.variants.contains(&variant) {
            return Err(DeviceError::Load {
                device: properties.name.clone(),
                module: variant.name().to_owned(),
                reason: format!("the device runs {:?} only", properties.variants),
            });
        }
        Ok(Self::with_variants(device, vec![variant]))
    }

    fn with_variants(device: D, variants: Vec<Variant>) -> Self {
        let mut modules = BTreeMap::new();
        for operation in Operation::ALL {
            for &variant in &variants {
                if let Some(text) = kernels::ptx(operation, variant) {
                    let name = format!("{operation}_{variant}");
                    modules.insert((operation, variant), Arc::new(PtxModule { name, text: text.into() }));
                }
            }
        }
        Self { device, variants, modules, scratch: scratch::Scratch::default() }
    }

    /// Puts other PTX in the place of a module, e.g. one with a barrier removed.
    pub fn replace_module(&mut self, operation: Operation, variant: Variant, text: &str) {
        let name = format!("{operation}_{variant}");
        self.modules.insert((operation, variant), Arc::new(PtxModule { name, text: text.into() }));
    }

    /// The device.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// The variant that an operation runs, if any.
    pub fn variant_of(&self, operation: Operation) -> Option<Variant> {
        self.variants.iter().copied().find(|&variant| self.modules.contains_key(&(operation, variant)))
    }

    pub(crate) fn choose(&self, operation: Operation) -> Result<Chosen<'_>, OpsError> {
        let found = self
            .variant_of(operation)
            .and_then(|variant| self.modules.get(&(operation, variant)).map(|module| Chosen { variant, module }));
        found.ok_or_else(|| OpsError::Unsupported {
            op: operation.name(),
            device: self.device.properties().name.clone(),
            what: format!("no PTX for {:?}", self.variants),
        })
    }

    /// The refusal of a call that no kernel is compiled for.
    pub(crate) fn unsupported(&self, operation: Operation, what: String) -> OpsError {
        OpsError::Unsupported { op: operation.name(), device: self.properties().name.clone(), what }
    }

    /// Refuses activations in another type than bf16.
    pub(crate) fn only_bf16(&self, operation: Operation, dtype: Dtype) -> Result<(), OpsError> {
        match dtype {
            Dtype::Bf16 => Ok(()),
            Dtype::F32 => Err(self.unsupported(operation, "f32 activations; bf16 is offered".into())),
        }
    }

    /// Refuses head counts of attention that no kernel is compiled for.
    pub(crate) fn attention_heads(&self, operation: Operation, h: u32) -> Result<(), OpsError> {
        if ![8, 16, 32, 64, 128].contains(&h) {
            return Err(self.unsupported(operation, format!("{h} heads; 8, 16, 32, 64 and 128 are offered")));
        }
        Ok(())
    }

    /// Launches `<operation>[_form]_<variant>` with the block size and the shared memory that the manifest records.
    pub(crate) fn run<T: ParamStruct>(
        &self,
        operation: Operation,
        form: &str,
        grid: [u32; 3],
        params: &T,
    ) -> Result<(), OpsError> {
        let chosen = self.choose(operation)?;
        let form = if form.is_empty() { String::new() } else { format!("_{form}") };
        let entry = format!("{operation}{form}_{}", chosen.variant);
        let record = kernels::manifest().entry(&entry).ok_or_else(|| OpsError::Unsupported {
            op: operation.name(),
            device: self.properties().name.clone(),
            what: format!("no entry {entry} in the PTX"),
        })?;
        let launch = Launch {
            module: chosen.module,
            entry: &entry,
            grid,
            block: [record.threads, 1, 1],
            dynamic_shared: record.dynamic_shared_bytes,
        };
        self.device.launch(&launch, param_bytes(params)).map_err(device_failed)
    }

    pub(crate) fn properties(&self) -> &DeviceProperties {
        self.device.properties()
    }
}

/// A parameter struct that a kernel takes by value.
///
/// # Safety
/// `repr(C)` without padding: every byte belongs to a field (asserted in the C header and in the generated Rust).
pub(crate) unsafe trait ParamStruct: Copy {}

/// Bytes of a parameter struct, as the driver's parameter buffer takes them.
pub(crate) fn param_bytes<T: ParamStruct>(params: &T) -> &[u8] {
    // SAFETY: `T` has no padding (contract of the trait), so all `size_of::<T>()` bytes are initialised; the slice
    // borrows `params`.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(params).cast(), std::mem::size_of::<T>()) }
}

pub(crate) fn device_failed(error: DeviceError) -> OpsError {
    let device = match &error {
        DeviceError::Absent { device, .. } => (*device).to_owned(),
        DeviceError::Alloc { device, .. }
        | DeviceError::Range { device, .. }
        | DeviceError::Load { device, .. }
        | DeviceError::Capture { device, .. }
        | DeviceError::Launch { device, .. }
        | DeviceError::Findings { device, .. } => device.clone(),
    };
    let text = error.to_string();
    let message = text.strip_prefix(&format!("{device}: ")).map_or(text.clone(), str::to_owned);
    OpsError::Device { device, message }
}

/// Checks the operands and launches the operation's kernels.
macro_rules! checked_and_launched {
    ($($op:ident($operands:ident),)*) => {$(
        fn $op(&self, args: reference::ops::$operands<'_, D::Buffer>) -> Result<(), OpsError> {
            args.check(|buffer| self.device.len_bytes(buffer))?;
            $op::launch(self, args)
        }
    )*};
}

impl<D: Device> Ops for KernelOps<D> {
    type Buffer = D::Buffer;
    type Graph = KernelGraph<D>;

    fn name(&self) -> String {
        let variants: Vec<&str> = self.variants.iter().map(|v| v.name()).collect();
        format!("{} ({})", self.properties().name, variants.join(", "))
    }

    fn alloc(&self, bytes: u64, label: &str) -> Result<D::Buffer, OpsError> {
        self.device.alloc(bytes, label).map_err(device_failed)
    }

    fn upload(&self, dst: &mut D::Buffer, offset: u64, bytes: &[u8]) -> Result<(), OpsError> {
        self.device.upload(dst, offset, bytes).map_err(device_failed)
    }

    fn download(&self, src: &D::Buffer, offset: u64, bytes: &mut [u8]) -> Result<(), OpsError> {
        self.device.download(src, offset, bytes).map_err(device_failed)
    }

    fn len_bytes(&self, buffer: &D::Buffer) -> u64 {
        self.device.len_bytes(buffer)
    }

    fn captures(&self) -> bool {
        true
    }

    fn capture(&self, work: impl FnOnce() -> Result<(), OpsError>) -> Result<KernelGraph<D>, OpsError> {
        graph::capture(self, work)
    }

    fn replay(&self, graph: &KernelGraph<D>) -> Result<(), OpsError> {
        graph.replay(self)
    }

    fn recorded(&self, graph: &KernelGraph<D>) -> u64 {
        graph.recorded(self)
    }

    for_each_operation!(checked_and_launched);
}
