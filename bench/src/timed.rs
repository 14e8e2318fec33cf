//! An implementation of the operations that also measures how long each took, copies not counted.

use kernel_bindings::cuda::Cuda;
use kernel_bindings::device::DeviceError;
use kernel_bindings::emulated::Emulated;
use kernel_bindings::host::HostOps;
use kernel_bindings::ops::KernelOps;
use reference::ops::{
    Compress, Embed, GatherRows, Hadamard, HcMix, HcPost, IndexKWrite, IndexLogitsDecode, IndexLogitsPrefill,
    IndexQQuantise, KvWrite, Linear, MoeExperts, NormRope, Ops, OpsError, Router, Sample, SparseMlaDecode,
    SparseMlaPrefill, SplitCombine, Swiglu, TopkSelect,
};
use std::cell::Cell;
use std::time::{Duration, Instant};

/// How an implementation tells the time of an operation.
pub trait Clock: Ops {
    /// Runs `work` and returns how long the operation took on the device.
    fn time(&self, work: impl FnOnce() -> Result<(), OpsError>) -> Result<Duration, OpsError>;
}

fn wall(work: impl FnOnce() -> Result<(), OpsError>) -> Result<Duration, OpsError> {
    let start = Instant::now();
    work()?;
    Ok(start.elapsed())
}

impl Clock for HostOps {
    fn time(&self, work: impl FnOnce() -> Result<(), OpsError>) -> Result<Duration, OpsError> {
        wall(work)
    }
}

impl Clock for KernelOps<Emulated> {
    fn time(&self, work: impl FnOnce() -> Result<(), OpsError>) -> Result<Duration, OpsError> {
        wall(work)
    }
}

impl Clock for KernelOps<Cuda> {
    /// Between two events on the stream.
    fn time(&self, work: impl FnOnce() -> Result<(), OpsError>) -> Result<Duration, OpsError> {
        let mut outcome = Ok(());
        let time = self.device().time_us(|| {
            outcome = work();
            Ok::<(), DeviceError>(())
        });
        outcome?;
        let us = time.map_err(|e| OpsError::Device { device: self.name(), message: e.to_string() })?;
        Ok(Duration::from_secs_f64(us * 1e-6))
    }
}

/// Adds up the time of the operations that pass through it.
#[derive(Debug)]
pub struct Timed<'a, O> {
    ops: &'a O,
    elapsed: Cell<Duration>,
}

impl<'a, O: Clock> Timed<'a, O> {
    /// Nothing measured yet.
    pub fn new(ops: &'a O) -> Self {
        Self { ops, elapsed: Cell::default() }
    }

    /// Time of all operations so far.
    pub fn elapsed(&self) -> Duration {
        self.elapsed.get()
    }

    fn measure(&self, work: impl FnOnce() -> Result<(), OpsError>) -> Result<(), OpsError> {
        let time = self.ops.time(work)?;
        self.elapsed.set(self.elapsed.get() + time);
        Ok(())
    }
}

impl<O: Clock> Ops for Timed<'_, O> {
    type Buffer = O::Buffer;

    fn name(&self) -> String {
        self.ops.name()
    }
    fn alloc(&self, bytes: u64, label: &str) -> Result<O::Buffer, OpsError> {
        self.ops.alloc(bytes, label)
    }
    fn upload(&self, dst: &mut O::Buffer, offset: u64, bytes: &[u8]) -> Result<(), OpsError> {
        self.ops.upload(dst, offset, bytes)
    }
    fn download(&self, src: &O::Buffer, offset: u64, bytes: &mut [u8]) -> Result<(), OpsError> {
        self.ops.download(src, offset, bytes)
    }
    fn len_bytes(&self, buffer: &O::Buffer) -> u64 {
        self.ops.len_bytes(buffer)
    }

    fn index_logits_decode(&self, args: IndexLogitsDecode<'_, O::Buffer>) -> Result<(), OpsError> {
        self.measure(|| self.ops.index_logits_decode(args))
    }
    fn index_logits_prefill(&self, args: IndexLogitsPrefill<'_, O::Buffer>) -> Result<(), OpsError> {
        self.measure(|| self.ops.index_logits_prefill(args))
    }
    fn topk_select(&self, args: TopkSelect<'_, O::Buffer>) -> Result<(), OpsError> {
        self.measure(|| self.ops.topk_select(args))
    }
    fn sparse_mla_decode(&self, args: SparseMlaDecode<'_, O::Buffer>) -> Result<(), OpsError> {
        self.measure(|| self.ops.sparse_mla_decode(args))
    }
    fn sparse_mla_prefill(&self, args: SparseMlaPrefill<'_, O::Buffer>) -> Result<(), OpsError> {
        self.measure(|| self.ops.sparse_mla_prefill(args))
    }
    fn split_combine(&self, args: SplitCombine<'_, O::Buffer>) -> Result<(), OpsError> {
        self.measure(|| self.ops.split_combine(args))
    }
    fn kv_write(&self, args: KvWrite<'_, O::Buffer>) -> Result<(), OpsError> {
        self.measure(|| self.ops.kv_write(args))
    }
    fn index_k_write(&self, args: IndexKWrite<'_, O::Buffer>) -> Result<(), OpsError> {
        self.measure(|| self.ops.index_k_write(args))
    }
    fn linear(&self, args: Linear<'_, O::Buffer>) -> Result<(), OpsError> {
        self.measure(|| self.ops.linear(args))
    }
    fn moe_experts(&self, args: MoeExperts<'_, O::Buffer>) -> Result<(), OpsError> {
        self.measure(|| self.ops.moe_experts(args))
    }
    fn embed(&self, args: Embed<'_, O::Buffer>) -> Result<(), OpsError> {
        self.measure(|| self.ops.embed(args))
    }
    fn gather_rows(&self, args: GatherRows<'_, O::Buffer>) -> Result<(), OpsError> {
        self.measure(|| self.ops.gather_rows(args))
    }
    fn hc_mix(&self, args: HcMix<'_, O::Buffer>) -> Result<(), OpsError> {
        self.measure(|| self.ops.hc_mix(args))
    }
    fn hc_post(&self, args: HcPost<'_, O::Buffer>) -> Result<(), OpsError> {
        self.measure(|| self.ops.hc_post(args))
    }
    fn swiglu(&self, args: Swiglu<'_, O::Buffer>) -> Result<(), OpsError> {
        self.measure(|| self.ops.swiglu(args))
    }
    fn router(&self, args: Router<'_, O::Buffer>) -> Result<(), OpsError> {
        self.measure(|| self.ops.router(args))
    }
    fn sample(&self, args: Sample<'_, O::Buffer>) -> Result<(), OpsError> {
        self.measure(|| self.ops.sample(args))
    }
    fn norm_rope(&self, args: NormRope<'_, O::Buffer>) -> Result<(), OpsError> {
        self.measure(|| self.ops.norm_rope(args))
    }
    fn hadamard(&self, args: Hadamard<'_, O::Buffer>) -> Result<(), OpsError> {
        self.measure(|| self.ops.hadamard(args))
    }
    fn index_q_quantise(&self, args: IndexQQuantise<'_, O::Buffer>) -> Result<(), OpsError> {
        self.measure(|| self.ops.index_q_quantise(args))
    }
    fn compress(&self, args: Compress<'_, O::Buffer>) -> Result<(), OpsError> {
        self.measure(|| self.ops.compress(args))
    }
}
