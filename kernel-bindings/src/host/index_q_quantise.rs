//! Index queries in the form of the index keys, head by head, and their weights.

use reference::ops::{Dtype, IndexKFormat, IndexQQuantise, ScaleRule};

use super::HostBuffer;
use super::numbers::{clamped_amax, convert, fp4_row, from_ue8m0, load, power_of_two_above, to_e4m3};
use super::rows::piece;
use super::simd::widest;
use super::threads;

/// Channels of every format but f32.
const CHANNELS: usize = 128;

/// Writes a head in `format`; returns what its weight is multiplied by.
#[inline(always)]
fn quantise(dtype: Dtype, format: IndexKFormat, rule: ScaleRule, q: &[u8], out: &mut [u8]) -> f32 {
    let values = || {
        let mut values = [0.0; CHANNELS];
        load(dtype, q, &mut values);
        values
    };
    match format {
        IndexKFormat::F32 { .. } => convert(dtype, Dtype::F32, q, out),
        IndexKFormat::Bf16 => convert(dtype, Dtype::Bf16, q, out),
        IndexKFormat::Fp4 => {
            let (codes, scales) = out.split_at_mut(CHANNELS / 2);
            fp4_row(&values(), codes, scales);
        }
        IndexKFormat::Fp8 => {
            let values = values();
            let exact = clamped_amax(&values) / 448.0;
            let scale = match rule {
                ScaleRule::Exact => exact,
                ScaleRule::PowerOfTwo => from_ue8m0(power_of_two_above(exact)),
            };
            out.iter_mut().zip(values).for_each(|(code, x)| *code = to_e4m3(x / scale));
            return scale;
        }
    }
    1.0
}

pub(super) fn run(args: IndexQQuantise<'_, HostBuffer>) {
    let (dtype, format, rule, weight_scale) = (args.dtype, args.format, args.scale_rule, args.weight_scale);
    let (h, d, heads) = (args.h as usize, format.d() as usize, args.t as usize * args.h as usize);
    let (element, query) = (dtype.bytes() as usize, format.query_head_bytes() as usize);
    let (q, weights, stride) = (&args.q.bytes, &args.weights.bytes, args.stride_weights as usize);
    let head = |number: usize, (out, weight): (&mut [u8], &mut [u8])| {
        let bytes = d * element;
        let scale = widest(|| quantise(dtype, format, rule, &q[number * bytes..(number + 1) * bytes], out));
        let mut given = [0.0];
        load(dtype, &weights[(number / h * stride + number % h) * element..][..element], &mut given);
        weight.copy_from_slice(&(given[0] * weight_scale * scale).to_le_bytes());
    };
    let (codes, weights) = (&mut args.index_q.bytes[..query * heads], &mut args.index_weights.bytes[..4 * heads]);
    let together = piece(heads, d);
    let pieces = codes.chunks_mut(query * together).zip(weights.chunks_mut(4 * together)).enumerate();
    threads::share(pieces, |(first, (codes, weights))| {
        let heads = codes.chunks_mut(query).zip(weights.chunks_mut(4)).enumerate();
        heads.for_each(|(number, out)| head(first * together + number, out));
    });
}
