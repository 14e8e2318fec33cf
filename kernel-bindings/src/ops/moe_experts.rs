//! `moe_experts` on a device: picks grouped by expert, two grouped products, the sum over the picks of a token.

use super::linear::{bf16_only, form};
use super::{KernelOps, ParamStruct};
use crate::device::Device;
use kernels::Operation;
use kernels::params::Sm120MoeExpertsParams;
use reference::ops::{MoeExperts, OpsError, WeightFormat};

/// Tokens per expert, on average, up to which every weight is read by one block.
const FEW: u64 = 16;
/// Blocks along the second axis of a grid, at most.
const MAX_BLOCKS: u32 = 65_535;
/// Bytes of scratch for hidden and partial rows, above which a batch is done in pieces. The result does not depend on it.
const SCRATCH_BYTES: u64 = 256 << 20;
/// Channels of a block that adds up the picks.
const COMBINE_CHANNELS: u32 = 256;

// SAFETY: 136 bytes of fields in 136 bytes (asserted beside the generated struct), no padding.
unsafe impl ParamStruct for Sm120MoeExpertsParams {}

pub(super) fn launch<D: Device>(ops: &KernelOps<D>, args: MoeExperts<'_, D::Buffer>) -> Result<(), OpsError> {
    let device = ops.device();
    bf16_only(ops, Operation::MoeExperts, args.dtype)?;
    let refused =
        |what| OpsError::Unsupported { op: Operation::MoeExperts.name(), device: ops.properties().name.clone(), what };
    if [args.w13.format, args.w2.format].contains(&WeightFormat::F32) {
        return Err(refused("f32 weights; bf16, fp8 and fp4 are".into()));
    }
    if args.num_experts > MAX_BLOCKS {
        return Err(refused(format!("{} experts in one call; up to {MAX_BLOCKS} are", args.num_experts)));
    }
    let [t, d, inter, topk] = [args.t, args.d, args.inter, args.topk].map(u64::from);
    let together = (SCRATCH_BYTES / (topk * (4 * d + 2 * inter))).clamp(1, u64::from(MAX_BLOCKS)).min(t);
    if t == 0 {
        return Ok(());
    }

    let most = together * topk;
    let starts = ops.scratch("expert_starts", 4 * (u64::from(args.num_experts) + 1))?;
    let picks = ops.scratch("expert_picks", 4 * most)?;
    let places = ops.scratch("expert_places", 4 * most)?;
    let hidden = ops.scratch("expert_hidden", 2 * most * inter)?;
    let partial = ops.scratch("expert_partial", 4 * most * d)?;
    let address = |buffer: Option<&D::Buffer>| buffer.map_or(0, |buffer| device.address(buffer));
    for first in (0..t).step_by(together as usize) {
        let tokens = together.min(t - first);
        let params = Sm120MoeExpertsParams {
            x: (device.address(args.x) + 2 * first * d) as *const _,
            expert_ids: (device.address(args.expert_ids) + 4 * first * topk) as *const _,
            expert_weights: (device.address(args.expert_weights) + 4 * first * topk) as *const _,
            w13: device.address(args.w13.data) as *const _,
            w13_scale: address(args.w13.scale) as *const _,
            w2: device.address(args.w2.data) as *const _,
            w2_scale: address(args.w2.scale) as *const _,
            out: (device.address(args.out) + 4 * first * d) as *mut _,
            starts: device.address(&starts) as *mut _,
            picks: device.address(&picks) as *mut _,
            places: device.address(&places) as *mut _,
            hidden: device.address(&hidden) as *mut _,
            partial: device.address(&partial) as *mut _,
            t: tokens as i32,
            d: args.d as i32,
            inter: args.inter as i32,
            topk: args.topk as i32,
            first_expert: args.first_expert as i32,
            num_experts: args.num_experts as i32,
            limit: args.limit,
            reserved: 0,
        };
        let run = |form: &str, grid| ops.run(Operation::MoeExperts, form, grid, &params);
        let (size, rows) = if tokens * topk <= FEW * u64::from(args.num_experts) { ("few", 16) } else { ("many", 64) };
        run("group", [args.num_experts, 1, 1])?;
        let gate_up = format!("gate_up_{}_{size}", form(args.w13.format));
        run(&gate_up, [args.inter.div_ceil(rows), args.num_experts, 1])?;
        let down = format!("down_{}_{size}", form(args.w2.format));
        run(&down, [args.d.div_ceil(rows), args.num_experts, 1])?;
        run("combine", [args.d.div_ceil(COMBINE_CHANNELS), tokens as u32, 1])?;
    }
    Ok(())
}
