//! `compress` on a device: a launch that pools and one that writes the state, in this order on the stream, so that every
//! row is pooled out of the state as it was.

use super::{KernelOps, ParamStruct};
use crate::device::Device;
use kernels::Operation;
use kernels::params::Sm120CompressParams;
use reference::ops::{Compress, OpsError};

/// Channels of a block of the pooling launch.
const CHANNELS: u32 = 128;
/// Blocks along the second axis of a grid.
const MAX_GRID_Y: u32 = 65_535;
/// f32 elements of a 16-byte access.
const VECTOR: u64 = 4;

// SAFETY: 120 bytes of fields in 120 bytes (asserted beside the generated struct), no padding.
unsafe impl ParamStruct for Sm120CompressParams {}

pub(super) fn launch<D: Device>(ops: &KernelOps<D>, args: Compress<'_, D::Buffer>) -> Result<(), OpsError> {
    let device = ops.device();
    ops.only_bf16(Operation::Compress, args.dtype)?;
    for (name, size) in [("d", u64::from(args.d)), ("stride_kv_gate", args.stride_kv_gate)] {
        if !size.is_multiple_of(VECTOR) {
            return Err(
                ops.unsupported(Operation::Compress, format!("{name} {size}; multiples of {VECTOR} are offered"))
            );
        }
    }
    let channel_blocks = args.d.div_ceil(CHANNELS);
    if channel_blocks > MAX_GRID_Y {
        let what = format!("d {}; up to {} is offered", args.d, MAX_GRID_Y * CHANNELS);
        return Err(ops.unsupported(Operation::Compress, what));
    }
    let params = Sm120CompressParams {
        kv_gate: device.address(args.kv_gate) as *const _,
        ape: device.address(args.ape) as *const _,
        state: device.address(args.state) as *mut _,
        state_table: device.address(args.state_table) as *const _,
        positions: device.address(args.positions) as *const _,
        seq: device.address(args.seq) as *const _,
        cu_seqlens: device.address(args.cu_seqlens) as *const _,
        row_tokens: device.address(args.row_tokens) as *const _,
        out: device.address(args.out) as *mut _,
        stride_kv_gate: args.stride_kv_gate as i64,
        t: args.t as i32,
        b: args.b as i32,
        n: args.n as i32,
        ratio: args.ratio as i32,
        d: args.d as i32,
        overlap: i32::from(args.overlap),
        max_state_pages: args.max_state_pages as i32,
        num_state_pages: args.num_state_pages as i32,
        state_page_tokens: args.state_page_tokens as i32,
        ring_rows: args.ring_rows as i32,
    };
    if args.n > 0 {
        ops.run(Operation::Compress, "pool", [args.n, channel_blocks, 1], &params)?;
    }
    if args.t > 0 {
        ops.run(Operation::Compress, "write", [args.t, 1, 1], &params)?;
    }
    Ok(())
}
