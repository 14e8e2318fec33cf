//! `sparse_mla_prefill` on a device: one block per token and up to 64 heads.

use super::sparse_mla_decode::{form, head_tile, params};
use super::{KernelOps, ParamStruct};
use crate::device::Device;
use kernels::Operation;
use kernels::params::Sm120SparseMlaPrefillParams;
use reference::ops::{OpsError, SparseMlaPrefill};

// SAFETY: the 200 bytes of the attention's parameters, which have no padding, and a pointer, in 208 bytes (asserted beside
// the generated struct).
unsafe impl ParamStruct for Sm120SparseMlaPrefillParams {}

pub(super) fn launch<D: Device>(ops: &KernelOps<D>, args: SparseMlaPrefill<'_, D::Buffer>) -> Result<(), OpsError> {
    let device = ops.device();
    let attention = &args.attention;
    let form = form(ops, Operation::SparseMlaPrefill, attention)?;
    if attention.t == 0 {
        return Ok(());
    }
    let params = Sm120SparseMlaPrefillParams {
        attention: params(device, attention),
        max_logits: args.max_logits.map_or(std::ptr::null_mut(), |buffer| device.address(buffer) as *mut _),
    };
    let grid = [attention.t, attention.h.div_ceil(head_tile(attention.h)), 1];
    ops.run(Operation::SparseMlaPrefill, &form, grid, &params)
}
