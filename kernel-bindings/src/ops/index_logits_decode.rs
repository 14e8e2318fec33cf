//! `index_logits_decode` on a device.

use super::KernelOps;
use crate::device::Device;
use kernels::Operation;
use reference::ops::{IndexLogitsDecode, OpsError};

pub(super) fn launch<D: Device>(ops: &KernelOps<D>, args: IndexLogitsDecode<'_, D::Buffer>) -> Result<(), OpsError> {
    let _ = args;
    ops.choose(Operation::IndexLogitsDecode).map(|_| ())
}
