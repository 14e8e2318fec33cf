//! `hc_post` on a device: one block per 1,024 channels of a token.

use super::streams::vectors;
use super::{KernelOps, ParamStruct};
use crate::device::Device;
use kernels::Operation;
use kernels::params::Sm120HcPostParams;
use reference::ops::{HcPost, OpsError};

/// Channels of a block.
const CHANNELS: u32 = 1024;

// SAFETY: 40 bytes of fields in 40 bytes (asserted beside the generated struct), no padding.
unsafe impl ParamStruct for Sm120HcPostParams {}

pub(super) fn launch<D: Device>(ops: &KernelOps<D>, args: HcPost<'_, D::Buffer>) -> Result<(), OpsError> {
    let device = ops.device();
    ops.only_bf16(Operation::HcPost, args.dtype)?;
    vectors(ops, Operation::HcPost, args.d)?;
    if args.t == 0 {
        return Ok(());
    }
    let params = Sm120HcPostParams {
        streams: device.address(args.streams) as *mut _,
        y: device.address(args.y) as *const _,
        post: device.address(args.post) as *const _,
        comb: device.address(args.comb) as *const _,
        t: args.t as i32,
        d: args.d as i32,
    };
    ops.run(Operation::HcPost, "bf16", [args.t, args.d.div_ceil(CHANNELS), 1], &params)
}
