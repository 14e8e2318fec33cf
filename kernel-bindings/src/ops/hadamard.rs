//! `hadamard` on a device: eight channels per lane.

use super::{KernelOps, ParamStruct};
use crate::device::Device;
use kernels::Operation;
use kernels::params::Sm120HadamardParams;
use reference::ops::{Hadamard, OpsError};

/// Channels of a block.
const CHANNELS: u64 = 128 * 8;

// SAFETY: 32 bytes of fields in 32 bytes (asserted beside the generated struct), no padding.
unsafe impl ParamStruct for Sm120HadamardParams {}

pub(super) fn launch<D: Device>(ops: &KernelOps<D>, args: Hadamard<'_, D::Buffer>) -> Result<(), OpsError> {
    let device = ops.device();
    ops.only_bf16(Operation::Hadamard, args.dtype)?;
    if !(8..=256).contains(&args.d) {
        let what = format!("rows of {}; 8, 16, 32, 64, 128 and 256 are offered", args.d);
        return Err(ops.unsupported(Operation::Hadamard, what));
    }
    if args.rows == 0 {
        return Ok(());
    }
    let params = Sm120HadamardParams {
        x: device.address(args.x) as *const _,
        out: device.address(args.out) as *mut _,
        rows: args.rows as i32,
        d: args.d as i32,
        scale: (args.d as f32).sqrt().recip(),
        reserved: 0,
    };
    // At most 2^31 rows of 256 in blocks of 1,024: 2^29 blocks.
    let blocks = (u64::from(args.rows) * u64::from(args.d)).div_ceil(CHANNELS) as u32;
    ops.run(Operation::Hadamard, "", [blocks, 1, 1], &params)
}
