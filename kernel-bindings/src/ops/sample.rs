//! `sample` on a device: one block per row.

use super::{KernelOps, ParamStruct};
use crate::device::Device;
use kernels::Operation;
use kernels::params::Sm120SampleParams;
use reference::ops::{OpsError, Sample};

/// Tokens that a thread reads at once.
const VECTOR: u32 = 4;
/// A vocabulary that 32-bit counters pass without wrapping.
const MOST_TOKENS: u32 = 1 << 30;

// SAFETY: 40 bytes of fields in 40 bytes (asserted beside the generated struct), no padding.
unsafe impl ParamStruct for Sm120SampleParams {}

pub(super) fn launch<D: Device>(ops: &KernelOps<D>, args: Sample<'_, D::Buffer>) -> Result<(), OpsError> {
    let device = ops.device();
    if !args.vocab.is_multiple_of(VECTOR) || args.vocab > MOST_TOKENS {
        let what = format!("a vocabulary of {}; multiples of {VECTOR} up to {MOST_TOKENS} are offered", args.vocab);
        return Err(ops.unsupported(Operation::Sample, what));
    }
    if args.n == 0 {
        return Ok(());
    }
    let params = Sm120SampleParams {
        logits: device.address(args.logits) as *const _,
        temperature: device.address(args.temperature) as *const _,
        seeds: device.address(args.seeds) as *const _,
        out: device.address(args.out) as *mut _,
        n: args.n as i32,
        vocab: args.vocab as i32,
    };
    ops.run(Operation::Sample, "", [args.n, 1, 1], &params)
}
