//! `index_k_write` on a device: eight lanes per token.

use super::KernelOps;
use crate::device::Device;
use kernels::Operation;
use kernels::params::Sm120CacheWriteParams;
use reference::ops::{IndexKFormat, IndexKWrite, OpsError, ScaleRule};

/// Tokens of a block.
const TOKENS: u32 = 16;

pub(super) fn launch<D: Device>(ops: &KernelOps<D>, args: IndexKWrite<'_, D::Buffer>) -> Result<(), OpsError> {
    let device = ops.device();
    ops.only_bf16(Operation::IndexKWrite, args.dtype)?;
    let form = match args.format {
        IndexKFormat::Fp8 => "fp8",
        IndexKFormat::Bf16 => "bf16",
        IndexKFormat::Fp4 => "fp4",
        IndexKFormat::F32 { .. } => {
            let what = "f32 rows; fp8, bf16 and fp4 are offered".into();
            return Err(ops.unsupported(Operation::IndexKWrite, what));
        }
    };
    if args.t == 0 {
        return Ok(());
    }
    let params = Sm120CacheWriteParams {
        rows: device.address(args.rows) as *const _,
        slot_mapping: device.address(args.slot_mapping) as *const _,
        cache: device.address(args.cache) as *mut _,
        stride_rows: args.stride_rows as i64,
        page_stride_bytes: args.pages.page_stride_bytes as i64,
        t: args.t as i32,
        num_pages: args.pages.num_pages as i32,
        page_size: args.pages.page_size as i32,
        scale_pow2: i32::from(args.scale_rule == ScaleRule::PowerOfTwo),
    };
    ops.run(Operation::IndexKWrite, form, [args.t.div_ceil(TOKENS), 1, 1], &params)
}
