//! What the operations on streams share.

use super::KernelOps;
use crate::device::Device;
use kernels::Operation;
use reference::ops::OpsError;

/// bf16 elements of a 16-byte load.
const VECTOR: u32 = 8;
/// A row that 32-bit counters and the second axis of a grid pass without wrapping.
const MOST_CHANNELS: u32 = 1 << 20;

/// Refuses rows that are not made of 16-byte pieces.
pub(super) fn vectors<D: Device>(ops: &KernelOps<D>, operation: Operation, channels: u32) -> Result<(), OpsError> {
    if !channels.is_multiple_of(VECTOR) || channels > MOST_CHANNELS {
        let what = format!("{channels} channels; multiples of {VECTOR} up to {MOST_CHANNELS} are offered");
        return Err(ops.unsupported(operation, what));
    }
    Ok(())
}
