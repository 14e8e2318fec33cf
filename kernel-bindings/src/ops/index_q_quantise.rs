//! `index_q_quantise` on a device: eight lanes per head.

use super::{KernelOps, ParamStruct};
use crate::device::Device;
use kernels::Operation;
use kernels::params::Sm120IndexQQuantiseParams;
use reference::ops::{IndexKFormat, IndexQQuantise, OpsError, ScaleRule};

/// Heads of a block.
const HEADS: u32 = 16;

// SAFETY: 56 bytes of fields in 56 bytes (asserted beside the generated struct), no padding.
unsafe impl ParamStruct for Sm120IndexQQuantiseParams {}

pub(super) fn launch<D: Device>(ops: &KernelOps<D>, args: IndexQQuantise<'_, D::Buffer>) -> Result<(), OpsError> {
    let device = ops.device();
    ops.only_bf16(Operation::IndexQQuantise, args.dtype)?;
    let form = match args.format {
        IndexKFormat::Fp8 => "fp8",
        IndexKFormat::Bf16 => "bf16",
        IndexKFormat::Fp4 => "fp4",
        IndexKFormat::F32 { .. } => {
            let what = "f32 queries; fp8, bf16 and fp4 are offered".into();
            return Err(ops.unsupported(Operation::IndexQQuantise, what));
        }
    };
    if args.t == 0 {
        return Ok(());
    }
    let params = Sm120IndexQQuantiseParams {
        q: device.address(args.q) as *const _,
        weights: device.address(args.weights) as *const _,
        index_q: device.address(args.index_q) as *mut _,
        index_weights: device.address(args.index_weights) as *mut _,
        stride_weights: args.stride_weights as i64,
        t: args.t as i32,
        h: args.h as i32,
        weight_scale: args.weight_scale,
        scale_pow2: i32::from(args.scale_rule == ScaleRule::PowerOfTwo),
    };
    ops.run(Operation::IndexQQuantise, form, [(args.t * args.h).div_ceil(HEADS), 1, 1], &params)
}
