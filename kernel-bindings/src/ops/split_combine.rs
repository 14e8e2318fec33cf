//! `split_combine` on a device: one block per token and head.

use super::{KernelOps, ParamStruct};
use crate::device::Device;
use kernels::Operation;
use kernels::params::Sm120SplitCombineParams;
use reference::ops::{OpsError, SplitCombine};

// SAFETY: 72 bytes of fields in 72 bytes (asserted beside the generated struct), no padding.
unsafe impl ParamStruct for Sm120SplitCombineParams {}

pub(super) fn launch<D: Device>(ops: &KernelOps<D>, args: SplitCombine<'_, D::Buffer>) -> Result<(), OpsError> {
    let device = ops.device();
    ops.attention_heads(Operation::SplitCombine, args.h)?;
    if args.t == 0 {
        return Ok(());
    }
    let params = Sm120SplitCombineParams {
        o_partial: device.address(args.o_partial) as *const _,
        lse2_partial: device.address(args.lse2_partial) as *const _,
        attn_sink: args.attn_sink.map_or(std::ptr::null(), |sink| device.address(sink) as *const _),
        out: device.address(args.out) as *mut _,
        lse: device.address(args.lse) as *mut _,
        stride_out_t: args.stride_out[0] as i64,
        stride_out_h: args.stride_out[1] as i64,
        t: args.t as i32,
        h: args.h as i32,
        num_splits: args.num_splits as i32,
        reserved: 0,
    };
    ops.run(Operation::SplitCombine, "", [args.t * args.h, 1, 1], &params)
}
