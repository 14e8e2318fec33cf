//! Merge of partial results: weights of the splits relative to the largest, then one pass over the channels.

use reference::ops::SplitCombine;

use super::HostBuffer;
use super::numbers::f32_at;
use super::rows::alone;
use super::simd::to_bf16;
use super::threads;

const CHANNELS: usize = 512;

pub(super) fn run(args: SplitCombine<'_, HostBuffer>) {
    let (t, h, splits) = (args.t as usize, args.h as usize, args.num_splits as usize);
    let [out_t, out_h] = args.stride_out.map(|s| s as usize);
    let (partial, lse2) = (&args.o_partial.bytes, &args.lse2_partial.bytes);
    let sink = args.attn_sink.map(|s| &s.bytes);
    let token = |(token, (out, lse)): (usize, (&mut [u8], &mut [u8]))| {
        for (head, (out, lse)) in out.chunks_mut(2 * out_h).zip(lse.chunks_mut(4)).take(h).enumerate() {
            let line = |split: usize| (split * t + token) * h + head;
            let max = (0..splits).map(|s| f32_at(lse2, line(s))).fold(f32::NEG_INFINITY, f32::max);
            let mut values = [0.0f32; CHANNELS];
            let mut log_sum = f32::NEG_INFINITY;
            if max > f32::NEG_INFINITY {
                let mut sum = 0.0;
                for split in 0..splits {
                    let weight = (f32_at(lse2, line(split)) - max).exp2();
                    if weight == 0.0 {
                        continue; // an empty split: its partial output is not looked at
                    }
                    sum += weight;
                    let row = &partial[4 * line(split) * CHANNELS..];
                    values.iter_mut().enumerate().for_each(|(c, o)| *o += weight * f32_at(row, c));
                }
                let sink = sink.map_or(f32::NEG_INFINITY, |sink| f32_at(sink, head));
                let denominator = sum + sink.mul_add(std::f32::consts::LOG2_E, -max).exp2();
                values.iter_mut().for_each(|o| *o /= denominator);
                log_sum = std::f32::consts::LN_2 * (max + sum.log2());
            }
            to_bf16(&values, &mut out[..2 * CHANNELS]);
            lse.copy_from_slice(&log_sum.to_le_bytes());
        }
    };
    let (out, lse) = (&mut args.out.bytes, &mut args.lse.bytes);
    if alone(splits * t * h * CHANNELS) {
        out.chunks_mut(2 * out_t).zip(lse.chunks_mut(4 * h)).take(t).enumerate().for_each(token);
    } else {
        threads::share(out.chunks_mut(2 * out_t).zip(lse.chunks_mut(4 * h)).take(t).enumerate(), token);
    }
}
