//! `hc_mix` on a device: the mixing products over blocks that share the inputs, then one block per token.

use super::streams::vectors;
use super::{KernelOps, ParamStruct};
use crate::device::Device;
use kernels::Operation;
use kernels::params::Sm120HcMixParams;
use reference::ops::{HcMix, OpsError};

/// Channels that a block of the products takes at a time.
const STEP: u32 = 512;
/// Blocks that share the inputs of a token. Depends on nothing but the width, as the order of a sum must.
const SPLITS: u32 = 16;
/// Tokens of a block when there are enough.
const GROUP: u32 = 4;
/// Products and the sum of squares of a token in the scratch.
const PRODUCTS: u64 = 32;
/// Channels that the registers of the last block hold.
const MOST_CHANNELS: u32 = 8192;

// SAFETY: 104 bytes of fields in 104 bytes (asserted beside the generated struct), no padding.
unsafe impl ParamStruct for Sm120HcMixParams {}

pub(super) fn launch<D: Device>(ops: &KernelOps<D>, args: HcMix<'_, D::Buffer>) -> Result<(), OpsError> {
    let device = ops.device();
    ops.only_bf16(Operation::HcMix, args.dtype)?;
    vectors(ops, Operation::HcMix, args.d)?;
    if args.d > MOST_CHANNELS {
        let what = format!("{} channels; up to {MOST_CHANNELS} are offered", args.d);
        return Err(ops.unsupported(Operation::HcMix, what));
    }
    if args.t == 0 {
        return Ok(());
    }
    let all_steps = (args.hc * args.d).div_ceil(STEP);
    let steps = all_steps.div_ceil(SPLITS);
    let num_splits = all_steps.div_ceil(steps);
    let bytes = 4 * PRODUCTS * u64::from(num_splits) * u64::from(args.t);
    let products = ops.scratch("products", bytes)?;
    let mut params = Sm120HcMixParams {
        streams: device.address(args.streams) as *const _,
        weight: device.address(args.weight) as *const _,
        base: device.address(args.base) as *const _,
        scale: device.address(args.scale) as *const _,
        norm_weight: device.address(args.norm_weight) as *const _,
        out: device.address(args.out) as *mut _,
        post: std::ptr::null_mut(),
        comb: std::ptr::null_mut(),
        products: device.address(&products) as *mut _,
        t: args.t as i32,
        d: args.d as i32,
        num_splits: num_splits as i32,
        steps: steps as i32,
        sinkhorn_iters: 1,
        norm_eps: args.norm_eps,
        hc_eps: args.hc_eps,
        reserved: 0,
    };
    let head = if let Some(mixing) = args.mixing {
        params.post = device.address(mixing.post) as *mut _;
        params.comb = device.address(mixing.comb) as *mut _;
        params.sinkhorn_iters = mixing.sinkhorn_iters as i32;
        ""
    } else {
        "head_"
    };
    let group = if args.t < GROUP { 1 } else { GROUP };
    let form = format!("{head}products_{group}");
    ops.run(Operation::HcMix, &form, [args.t.div_ceil(group), num_splits, 1], &params)?;
    ops.run(Operation::HcMix, &format!("{head}finish"), [args.t, 1, 1], &params)
}
