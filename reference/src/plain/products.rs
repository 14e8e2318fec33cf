//! Products with stored weights, and the routed experts made of them.

use ndarray::Array2;

use super::{Bytes, Cells, Exact};
use crate::formats::{bf16, bf16s, e2m1_decode, e4m3_decode, f32s, s32s, ue8m0_decode};
use crate::ops::{Dtype, Linear, MoeExperts, Weight, WeightFormat};

/// Row `row` of a weight matrix with `k` columns, decoded to f32.
pub fn weight_row(weight: &Weight<'_, Bytes>, row: usize, k: usize) -> Vec<f32> {
    let bytes = |per_row: usize| &weight.data[row * per_row..(row + 1) * per_row];
    let scale = |index: usize| ue8m0_decode(weight.scale.expect("block formats have scales")[index]);
    match weight.format {
        WeightFormat::F32 => f32s(bytes(4 * k)),
        WeightFormat::Bf16 => bf16s(bytes(2 * k)),
        WeightFormat::Fp8Block128 => {
            let blocks = row / 128 * k.div_ceil(128);
            bytes(k).iter().enumerate().map(|(c, &code)| e4m3_decode(code) * scale(blocks + c / 128)).collect()
        }
        WeightFormat::Fp4Block32 => {
            let codes = bytes(k / 2).iter().flat_map(|&pair| [pair & 0xf, pair >> 4]);
            codes.enumerate().map(|(c, code)| e2m1_decode(code) * scale(row * (k / 32) + c / 32)).collect()
        }
    }
}

fn values(dtype: Dtype, memory: &[u8]) -> Vec<f32> {
    match dtype {
        Dtype::F32 => f32s(memory),
        Dtype::Bf16 => bf16s(memory),
    }
}

/// `count` values of a buffer from element `first` on.
fn row_of(dtype: Dtype, memory: &[u8], first: u64, count: usize) -> Vec<f32> {
    let at = (first * dtype.bytes()) as usize;
    values(dtype, &memory[at..at + count * dtype.bytes() as usize])
}

/// What memory of that type holds of a value.
fn stored(dtype: Dtype, value: f64) -> f64 {
    match dtype {
        Dtype::F32 => f64::from(value as f32),
        Dtype::Bf16 => bf16::from_f64(value).to_f64(),
    }
}

fn product(weights: &[f32], x: &[f32]) -> Exact {
    let terms = || weights.iter().zip(x).map(|(&w, &x)| f64::from(w) * f64::from(x));
    Exact { value: terms().sum(), magnitude: terms().map(f64::abs).sum() }
}

/// `linear`, `[t, groups * n]`. With `accumulate`, what `out` holds is added.
pub fn linear(args: &Linear<'_, Bytes>) -> Cells {
    let [t, groups, n, k] = [args.t, args.groups, args.n, args.k].map(|size| size as usize);
    let rows: Vec<Vec<f32>> =
        (0..t).map(|row| row_of(args.dtype, args.x, row as u64 * args.stride_x, groups * k)).collect();
    let mut cells = Array2::from_elem((t, groups * n), None);
    for output in 0..groups * n {
        let weights = weight_row(&args.weight, output, k);
        let from = output / n * k;
        for (token, x) in rows.iter().enumerate() {
            let mut exact = product(&weights, &x[from..from + k]);
            if args.accumulate {
                let before = row_of(Dtype::F32, args.out, token as u64 * args.stride_out + output as u64, 1)[0];
                exact.value += f64::from(before);
                exact.magnitude += f64::from(before).abs();
            }
            cells[[token, output]] = Some(exact);
        }
    }
    cells.into_dyn()
}

/// Sums in f32 may be off by this many roundings of their terms; see the tolerances of products.
const SUM_ROUNDINGS: f64 = 64.0;

/// How far a stored value may be off: its own rounding and that of its sum, in units of the roundoff of `dtype` (for f32:
/// of 64 of them, which is what its bound counts).
fn off(dtype: Dtype, exact: Exact) -> f64 {
    match dtype {
        Dtype::F32 => exact.magnitude,
        Dtype::Bf16 => exact.value.abs() + SUM_ROUNDINGS / f64::from(1 << 16) * exact.magnitude,
    }
}

/// `silu(min(a, limit)) * clamp(b, -limit, limit)` and how far it may be off when `a` and `b` are off by so much. NaN
/// passes through.
fn gated(dtype: Dtype, [a, a_off]: [f64; 2], [b, b_off]: [f64; 2], limit: f64) -> [f64; 2] {
    let cut_a = if a > limit { limit } else { a };
    let cut_b = if b.abs() > limit { limit.copysign(b) } else { b };
    // What lies beyond the limit whatever was rounded is the limit.
    let a_off = if a - a_off > limit { 0.0 } else { a_off };
    let b_off = if b.abs() - b_off > limit { 0.0 } else { b_off };
    let sigmoid = 1.0 / (1.0 + (-cut_a).exp());
    let (silu, slope) = (cut_a / (1.0 + (-cut_a).exp()), sigmoid * (1.0 + cut_a * (1.0 - sigmoid)));
    let value = stored(dtype, silu * cut_b);
    [value, (slope * a_off * cut_b).abs() + (silu * b_off).abs() + value.abs()]
}

/// `moe_experts`, `[t, d]`. Expert by expert; in f64 the order of a token's picks does not show.
pub fn moe_experts(args: &MoeExperts<'_, Bytes>) -> Cells {
    let [t, d, inter, topk] = [args.t, args.d, args.inter, args.topk].map(|size| size as usize);
    let (ids, weights) = (s32s(args.expert_ids), f32s(args.expert_weights));
    let zero = Exact { value: 0.0, magnitude: 0.0 };
    let mut sums = Array2::from_elem((t, d), zero);
    for expert in 0..args.num_experts {
        let id = i64::from(args.first_expert) + i64::from(expert);
        let picks: Vec<usize> = (0..t * topk).filter(|&pick| i64::from(ids[pick]) == id).collect();
        if picks.is_empty() {
            continue;
        }
        let expert = expert as usize;
        let rows = |weight, rows: usize, k| -> Vec<Vec<f32>> {
            (expert * rows..(expert + 1) * rows).map(|row| weight_row(weight, row, k)).collect()
        };
        let (w13, w2) = (rows(&args.w13, 2 * inter, d), rows(&args.w2, d, inter));
        for pick in picks {
            let (token, weight) = (pick / topk, f64::from(weights[pick]));
            let x = row_of(args.dtype, args.x, (token * d) as u64, d);
            let pre = |row: usize| {
                let exact = product(&w13[row], &x);
                [stored(args.dtype, exact.value), off(args.dtype, exact)]
            };
            let h: Vec<[f64; 2]> =
                (0..inter).map(|i| gated(args.dtype, pre(i), pre(inter + i), f64::from(args.limit))).collect();
            for (row, sum) in w2.iter().zip(sums.row_mut(token)) {
                let terms = || row.iter().map(|&w| f64::from(w)).zip(&h);
                sum.value += weight * terms().map(|(w, h)| w * h[0]).sum::<f64>();
                sum.magnitude += weight.abs() * terms().map(|(w, h)| w.abs() * h[1]).sum::<f64>();
            }
        }
    }
    sums.map(|&exact| Some(exact)).into_dyn()
}
