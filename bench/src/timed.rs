//! An implementation of the operations that also measures how long each took, copies not counted.

use kernel_bindings::cuda::Cuda;
use kernel_bindings::device::DeviceError;
use kernel_bindings::emulated::Emulated;
use kernel_bindings::host::HostOps;
use kernel_bindings::ops::KernelOps;
use reference::for_each_operation;
use reference::ops::{Ops, OpsError};
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

/// Passes the call on and adds up its time.
macro_rules! measured {
    ($($op:ident($operands:ident),)*) => {$(
        fn $op(&self, args: reference::ops::$operands<'_, O::Buffer>) -> Result<(), OpsError> {
            self.measure(|| self.ops.$op(args))
        }
    )*};
}

impl<O: Clock> Ops for Timed<'_, O> {
    type Buffer = O::Buffer;
    type Graph = std::convert::Infallible;

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

    for_each_operation!(measured);
}
