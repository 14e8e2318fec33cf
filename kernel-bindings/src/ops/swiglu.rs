//! `swiglu` on a device: 2,048 channels per block, of whatever tokens.

use super::streams::vectors;
use super::{KernelOps, ParamStruct};
use crate::device::Device;
use kernels::Operation;
use kernels::params::Sm120SwigluParams;
use reference::check::narrow;
use reference::ops::{OpsError, Swiglu};

/// Channels of a block.
const CHANNELS: u64 = 2048;

// SAFETY: 32 bytes of fields in 32 bytes (asserted beside the generated struct), no padding.
unsafe impl ParamStruct for Sm120SwigluParams {}

pub(super) fn launch<D: Device>(ops: &KernelOps<D>, args: Swiglu<'_, D::Buffer>) -> Result<(), OpsError> {
    let device = ops.device();
    ops.only_bf16(Operation::Swiglu, args.dtype)?;
    vectors(ops, Operation::Swiglu, args.inter)?;
    if args.t == 0 {
        return Ok(());
    }
    let blocks = (u64::from(args.t) * u64::from(args.inter)).div_ceil(CHANNELS);
    let blocks = narrow(Operation::Swiglu.name(), "t * inter / 2048", blocks)?;
    let params = Sm120SwigluParams {
        gate_up: device.address(args.gate_up) as *const _,
        out: device.address(args.out) as *mut _,
        t: args.t as i32,
        inter: args.inter as i32,
        limit: args.limit,
        reserved: 0,
    };
    ops.run(Operation::Swiglu, "bf16", [blocks as u32, 1, 1], &params)
}
