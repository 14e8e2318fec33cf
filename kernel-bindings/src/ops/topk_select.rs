//! `topk_select` on a device.

use super::KernelOps;
use crate::device::Device;
use kernels::Operation;
use reference::ops::{OpsError, TopkSelect};

pub(super) fn launch<D: Device>(ops: &KernelOps<D>, args: TopkSelect<'_, D::Buffer>) -> Result<(), OpsError> {
    let _ = args;
    ops.choose(Operation::TopkSelect).map(|_| ())
}
