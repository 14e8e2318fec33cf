//! `norm_rope` on a device: one warp per token and head.

use super::{KernelOps, ParamStruct};
use crate::device::Device;
use kernels::Operation;
use kernels::params::Sm120NormRopeParams;
use reference::ops::{Norm, NormRope, OpsError};

/// Rows of a block.
const ROWS: u32 = 4;
/// Elements of a 16-byte access.
const VECTOR: u64 = 8;

// SAFETY: 88 bytes of fields in 88 bytes (asserted beside the generated struct), no padding.
unsafe impl ParamStruct for Sm120NormRopeParams {}

pub(super) fn launch<D: Device>(ops: &KernelOps<D>, args: NormRope<'_, D::Buffer>) -> Result<(), OpsError> {
    let device = ops.device();
    ops.only_bf16(Operation::NormRope, args.dtype)?;
    let d_rope = args.rope.map_or(0, |rope| rope.d_rope);
    let sizes = [
        ("d", u64::from(args.d)),
        ("d_rope", u64::from(d_rope)),
        ("stride_x", args.stride_x),
        ("stride_out", args.stride_out),
    ];
    for (name, size) in sizes {
        if !size.is_multiple_of(VECTOR) {
            return Err(
                ops.unsupported(Operation::NormRope, format!("{name} {size}; multiples of {VECTOR} are offered"))
            );
        }
    }
    if args.t == 0 {
        return Ok(());
    }
    let params = Sm120NormRopeParams {
        x: device.address(args.x) as *const _,
        weight: match args.norm {
            Norm::Weighted(weight) => device.address(weight) as *const _,
            Norm::Unweighted | Norm::None => std::ptr::null(),
        },
        rope_table: args.rope.map_or(std::ptr::null(), |rope| device.address(rope.table) as *const _),
        positions: args.rope.map_or(std::ptr::null(), |rope| device.address(rope.positions) as *const _),
        out: device.address(args.out) as *mut _,
        stride_x: args.stride_x as i64,
        stride_out: args.stride_out as i64,
        t: args.t as i32,
        h: args.h as i32,
        d: args.d as i32,
        d_rope: d_rope as i32,
        max_positions: args.rope.map_or(0, |rope| rope.max_positions as i32),
        normed: i32::from(!matches!(args.norm, Norm::None)),
        inverse: i32::from(args.rope.is_some_and(|rope| rope.inverse)),
        eps: args.eps,
    };
    ops.run(Operation::NormRope, "", [(args.t * args.h).div_ceil(ROWS), 1, 1], &params)
}
