//! Memory between the launches of an operation, kept from call to call: all work runs in the order of one stream, so that the
//! next call writes when this one has read.

use super::{KernelOps, device_failed};
use crate::device::Device;
use reference::ops::OpsError;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What is kept, by label.
pub(super) struct Scratch<B>(Mutex<Kept<B>>);

struct Kept<B> {
    buffers: BTreeMap<&'static str, Arc<B>>,
    /// What the capture under way has taken: its graph keeps these, so that a buffer that is too small for a later call can be
    /// replaced without pulling it from under a graph.
    captured: Vec<Arc<B>>,
}

impl<B> Default for Scratch<B> {
    fn default() -> Self {
        Self(Mutex::new(Kept { buffers: BTreeMap::new(), captured: Vec::new() }))
    }
}

impl<B> Scratch<B> {
    fn lock(&self) -> MutexGuard<'_, Kept<B>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was taken since the last call.
    pub(super) fn take_captured(&self) -> Vec<Arc<B>> {
        std::mem::take(&mut self.lock().captured)
    }
}

impl<D: Device> KernelOps<D> {
    /// At least `bytes` bytes that hold nothing anybody may count on.
    pub(super) fn scratch(&self, label: &'static str, bytes: u64) -> Result<Arc<D::Buffer>, OpsError> {
        let buffer = self.kept(label, bytes, |_| Ok(()))?;
        self.device.forget(&buffer).map_err(device_failed)?;
        Ok(buffer)
    }

    /// At least `bytes` bytes of zeros, if every user leaves them so.
    pub(super) fn zeros(&self, label: &'static str, bytes: u64) -> Result<Arc<D::Buffer>, OpsError> {
        self.kept(label, bytes, |buffer| self.device.fill(buffer, 0, bytes, 0).map_err(device_failed))
    }

    /// The next call gets a new buffer.
    pub(super) fn drop_scratch(&self, label: &'static str) {
        self.scratch.lock().buffers.remove(label);
    }

    fn kept(
        &self,
        label: &'static str,
        bytes: u64,
        prepare: impl FnOnce(&mut D::Buffer) -> Result<(), OpsError>,
    ) -> Result<Arc<D::Buffer>, OpsError> {
        let mut kept = self.scratch.lock();
        let fits = |buffer: &&Arc<D::Buffer>| self.device.len_bytes(buffer) >= bytes;
        let buffer = match kept.buffers.get(label).filter(fits) {
            Some(buffer) => buffer.clone(),
            None => {
                let mut buffer = self.device.alloc(bytes, label).map_err(device_failed)?;
                prepare(&mut buffer)?;
                let buffer = Arc::new(buffer);
                kept.buffers.insert(label, buffer.clone());
                buffer
            }
        };
        if self.device.is_capturing() {
            kept.captured.push(buffer.clone());
        }
        Ok(buffer)
    }
}
