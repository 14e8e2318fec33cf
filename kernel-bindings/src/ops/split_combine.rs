//! `split_combine` on a device.

use super::KernelOps;
use crate::device::Device;
use kernels::Operation;
use reference::ops::{OpsError, SplitCombine};

pub(super) fn launch<D: Device>(ops: &KernelOps<D>, args: SplitCombine<'_, D::Buffer>) -> Result<(), OpsError> {
    let _ = args;
    ops.choose(Operation::SplitCombine).map(|_| ())
}
