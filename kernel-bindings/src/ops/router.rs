//! `router` on a device: one warp per token.

use super::{KernelOps, ParamStruct};
use crate::device::Device;
use kernels::Operation;
use kernels::params::Sm120RouterParams;
use reference::ops::{OpsError, Router, Routing};

/// Tokens of a block.
const TOKENS: u32 = 4;

// SAFETY: 72 bytes of fields in 72 bytes (asserted beside the generated struct), no padding.
unsafe impl ParamStruct for Sm120RouterParams {}

pub(super) fn launch<D: Device>(ops: &KernelOps<D>, args: Router<'_, D::Buffer>) -> Result<(), OpsError> {
    let device = ops.device();
    if args.t == 0 {
        return Ok(());
    }
    let address = |buffer: &D::Buffer| device.address(buffer);
    let (bias, tid2eid, ids, vocab) = match args.routing {
        Routing::Bias(bias) => (address(bias), 0, 0, 0),
        Routing::Hash { tid2eid, ids, vocab } => (0, address(tid2eid), address(ids), vocab),
    };
    let params = Sm120RouterParams {
        scores: address(args.scores) as *const _,
        bias: bias as *const _,
        tid2eid: tid2eid as *const _,
        ids: ids as *const _,
        expert_ids: address(args.expert_ids) as *mut _,
        expert_weights: address(args.expert_weights) as *mut _,
        t: args.t as i32,
        experts: args.experts as i32,
        topk: args.topk as i32,
        vocab: vocab as i32,
        routed_scaling: args.routed_scaling,
        reserved: 0,
    };
    ops.run(Operation::Router, "", [args.t.div_ceil(TOKENS), 1, 1], &params)
}
