//! `kv_write` on a device: one warp per token.

use super::{KernelOps, ParamStruct};
use crate::device::Device;
use kernels::Operation;
use kernels::params::Sm120CacheWriteParams;
use reference::ops::{KvFormat, KvWrite, OpsError};

/// Tokens of a block.
const TOKENS: u32 = 4;

// SAFETY: 56 bytes of fields in 56 bytes (asserted beside the generated struct), no padding. Shared with `index_k_write`.
unsafe impl ParamStruct for Sm120CacheWriteParams {}

pub(super) fn launch<D: Device>(ops: &KernelOps<D>, args: KvWrite<'_, D::Buffer>) -> Result<(), OpsError> {
    let device = ops.device();
    ops.only_bf16(Operation::KvWrite, args.dtype)?;
    let form = match args.format {
        KvFormat::V4Fp8 => "v4_fp8",
        KvFormat::Bf16 => "bf16",
        KvFormat::F32 { .. } => {
            return Err(ops.unsupported(Operation::KvWrite, "f32 rows; v4_fp8 and bf16 are offered".into()));
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
        scale_pow2: 0,
    };
    ops.run(Operation::KvWrite, form, [args.t.div_ceil(TOKENS), 1, 1], &params)
}
