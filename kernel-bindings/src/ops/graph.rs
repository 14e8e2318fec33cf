//! Recorded launches with the scratch that they use.

use super::{KernelOps, device_failed};
use crate::device::Device;
use reference::ops::OpsError;
use std::sync::Arc;

/// What [`reference::ops::Ops::capture`] of [`KernelOps`] gives.
pub struct KernelGraph<D: Device> {
    graph: D::Graph,
    /// Scratch whose addresses stand in the launches.
    scratch: Vec<Arc<D::Buffer>>,
}

impl<D: Device> std::fmt::Debug for KernelGraph<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { graph, scratch } = self;
        f.debug_struct("KernelGraph").field("graph", graph).field("scratch", &scratch.len()).finish()
    }
}

pub(super) fn capture<D: Device>(
    ops: &KernelOps<D>,
    work: impl FnOnce() -> Result<(), OpsError>,
) -> Result<KernelGraph<D>, OpsError> {
    ops.device.begin_capture().map_err(device_failed)?;
    let outcome = work();
    let graph = ops.device.end_capture().map_err(device_failed);
    let mut scratch = ops.scratch.take_captured();
    // The first thing that went wrong says more than that something did.
    outcome?;
    // Every call of an operation takes its scratch anew.
    scratch.sort_by_key(Arc::as_ptr);
    scratch.dedup_by_key(|buffer| Arc::as_ptr(buffer));
    Ok(KernelGraph { graph: graph?, scratch })
}

impl<D: Device> KernelGraph<D> {
    pub(super) fn replay(&self, ops: &KernelOps<D>) -> Result<(), OpsError> {
        ops.device.replay(&self.graph).map_err(device_failed)
    }

    pub(super) fn recorded(&self, ops: &KernelOps<D>) -> u64 {
        ops.device.recorded(&self.graph)
    }
}
