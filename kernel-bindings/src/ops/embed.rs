//! `embed` on a device: one block per token.

use super::streams::vectors;
use super::{KernelOps, ParamStruct};
use crate::device::Device;
use kernels::Operation;
use kernels::params::Sm120EmbedParams;
use reference::ops::{Embed, OpsError};

// SAFETY: 40 bytes of fields in 40 bytes (asserted beside the generated struct), no padding.
unsafe impl ParamStruct for Sm120EmbedParams {}

pub(super) fn launch<D: Device>(ops: &KernelOps<D>, args: Embed<'_, D::Buffer>) -> Result<(), OpsError> {
    let device = ops.device();
    ops.only_bf16(Operation::Embed, args.dtype)?;
    vectors(ops, Operation::Embed, args.d)?;
    if args.t == 0 {
        return Ok(());
    }
    let params = Sm120EmbedParams {
        table: device.address(args.table) as *const _,
        ids: device.address(args.ids) as *const _,
        out: device.address(args.out) as *mut _,
        t: args.t as i32,
        vocab: args.vocab as i32,
        d: args.d as i32,
        copies: args.copies as i32,
    };
    ops.run(Operation::Embed, "bf16", [args.t, 1, 1], &params)
}
