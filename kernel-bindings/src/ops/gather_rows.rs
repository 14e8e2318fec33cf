//! `gather_rows` on a device: one block per 16 KiB of a row.

use super::{KernelOps, ParamStruct};
use crate::device::Device;
use kernels::Operation;
use kernels::params::Sm120GatherRowsParams;
use reference::ops::{GatherRows, OpsError};

/// Bytes that a block copies without going round: 256 threads, 4 times 16 bytes.
const PART: u64 = 16 << 10;
/// Blocks of a row; longer rows go round.
const MOST_PARTS: u64 = 256;

// SAFETY: 40 bytes of fields in 40 bytes (asserted beside the generated struct), no padding.
unsafe impl ParamStruct for Sm120GatherRowsParams {}

pub(super) fn launch<D: Device>(ops: &KernelOps<D>, args: GatherRows<'_, D::Buffer>) -> Result<(), OpsError> {
    let device = ops.device();
    if !args.row_bytes.is_multiple_of(16) {
        let what = format!("rows of {} bytes; multiples of 16 are offered", args.row_bytes);
        return Err(ops.unsupported(Operation::GatherRows, what));
    }
    if args.n == 0 {
        return Ok(());
    }
    let params = Sm120GatherRowsParams {
        src: device.address(args.src) as *const _,
        rows: device.address(args.rows) as *const _,
        out: device.address(args.out) as *mut _,
        n: args.n as i32,
        num_rows: args.num_rows as i32,
        row_bytes: args.row_bytes as i32,
        reserved: 0,
    };
    let parts = args.row_bytes.div_ceil(PART).min(MOST_PARTS) as u32;
    ops.run(Operation::GatherRows, "", [args.n, parts, 1], &params)
}
