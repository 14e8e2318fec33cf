//! `linear` on a device: weights streamed once for a few tokens, tiles of 64 x 64 for many. A card multiplies many tokens with
//! bf16 weights by its library, where there is one.

use super::{KernelOps, ParamStruct, device_failed};
use crate::device::{Device, Matmul};
use kernels::Operation;
use kernels::params::Sm120LinearParams;
use reference::ops::{Dtype, Linear, OpsError, WeightFormat};

/// Tokens up to which every weight is read by one block.
const FEW: u32 = 16;
/// Blocks along the second and third axis of a grid, at most.
const MAX_BLOCKS: u32 = 65_535;

// SAFETY: 72 bytes of fields in 72 bytes (asserted beside the generated struct), no padding.
unsafe impl ParamStruct for Sm120LinearParams {}

/// Refuses activations that the kernels do not read.
pub(super) fn bf16_only<D: Device>(ops: &KernelOps<D>, op: Operation, dtype: Dtype) -> Result<(), OpsError> {
    match dtype {
        Dtype::Bf16 => Ok(()),
        Dtype::F32 => Err(OpsError::Unsupported {
            op: op.name(),
            device: ops.properties().name.clone(),
            what: "f32 activations; bf16 is".into(),
        }),
    }
}

/// Name of the format in the entries.
pub(super) fn form(format: WeightFormat) -> &'static str {
    match format {
        WeightFormat::F32 => "f32",
        WeightFormat::Bf16 => "bf16",
        WeightFormat::Fp8Block128 => "fp8",
        WeightFormat::Fp4Block32 => "fp4",
    }
}

/// Entry form and grid.
fn plan(format: WeightFormat, [t, groups, n]: [u32; 3]) -> (String, [u32; 3]) {
    let name = form(format);
    match format {
        WeightFormat::F32 => (name.into(), [n.div_ceil(32), t.div_ceil(8), groups]),
        _ if t <= FEW => (format!("{name}_few"), [n.div_ceil(16), groups, 1]),
        _ => (format!("{name}_many"), [n.div_ceil(64), t.div_ceil(64), groups]),
    }
}

pub(super) fn launch<D: Device>(ops: &KernelOps<D>, args: Linear<'_, D::Buffer>) -> Result<(), OpsError> {
    let device = ops.device();
    bf16_only(ops, Operation::Linear, args.dtype)?;
    if args.t == 0 {
        return Ok(());
    }
    let (form, grid) = plan(args.weight.format, [args.t, args.groups, args.n]);
    if grid[1].max(grid[2]) > MAX_BLOCKS {
        return Err(OpsError::Unsupported {
            op: Operation::Linear.name(),
            device: ops.properties().name.clone(),
            what: format!("{} tokens in {} groups (grid {grid:?}, {MAX_BLOCKS} is the most)", args.t, args.groups),
        });
    }
    if args.weight.format == WeightFormat::Bf16 && args.t > FEW {
        let product = Matmul {
            x: device.address(args.x),
            weight: device.address(args.weight.data),
            out: device.address(args.out),
            out_bf16: args.out_dtype == Dtype::Bf16,
            accumulate: args.accumulate,
            t: args.t,
            groups: args.groups,
            n: args.n,
            k: args.k,
            stride_x: args.stride_x,
            stride_out: args.stride_out,
        };
        // SAFETY: the buffers are of this device and hold the matrices (`check`); they outlive the work as for a launch.
        if let Some(outcome) = unsafe { device.matmul(&product) } {
            return outcome.map_err(device_failed);
        }
    }
    let params = Sm120LinearParams {
        x: device.address(args.x) as *const _,
        weight: device.address(args.weight.data) as *const _,
        scale: args.weight.scale.map_or(0, |scale| device.address(scale)) as *const _,
        out: device.address(args.out) as *mut _,
        stride_x: args.stride_x as i64,
        stride_out: args.stride_out as i64,
        t: args.t as i32,
        n: args.n as i32,
        k: args.k as i32,
        groups: args.groups as i32,
        out_bf16: i32::from(args.out_dtype == Dtype::Bf16),
        accumulate: i32::from(args.accumulate),
    };
    ops.run(Operation::Linear, &form, grid, &params)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_change_at_seventeen_tokens() {
        let of = |format, t| plan(format, [t, 2, 100]);
        assert_eq!(of(WeightFormat::Bf16, 16), ("bf16_few".into(), [7, 2, 1]));
        assert_eq!(of(WeightFormat::Fp8Block128, 17), ("fp8_many".into(), [2, 1, 2]));
        assert_eq!(of(WeightFormat::Fp4Block32, 130), ("fp4_many".into(), [2, 3, 2]));
        assert_eq!(of(WeightFormat::F32, 1), ("f32".into(), [4, 1, 2]));
        assert_eq!(of(WeightFormat::F32, 130), ("f32".into(), [4, 17, 2]));
    }
}
