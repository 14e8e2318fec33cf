//! `kv_write` on a device.

use super::KernelOps;
use crate::device::Device;
use kernels::Operation;
use reference::ops::{KvWrite, OpsError};

pub(super) fn launch<D: Device>(ops: &KernelOps<D>, args: KvWrite<'_, D::Buffer>) -> Result<(), OpsError> {
    let _ = args;
    ops.choose(Operation::KvWrite).map(|_| ())
}
