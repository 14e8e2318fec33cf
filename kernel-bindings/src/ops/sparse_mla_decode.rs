//! `sparse_mla_decode` on a device.

use super::KernelOps;
use crate::device::Device;
use kernels::Operation;
use reference::ops::{OpsError, SparseMlaDecode};

pub(super) fn launch<D: Device>(ops: &KernelOps<D>, args: SparseMlaDecode<'_, D::Buffer>) -> Result<(), OpsError> {
    let _ = args;
    ops.choose(Operation::SparseMlaDecode).map(|_| ())
}
