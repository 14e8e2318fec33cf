//! Hyper-connections before a sub-layer: the mixing products ([`super::hc_products`]), the Sinkhorn matrix, the weighted sum
//! of streams, its norm. Tokens go through in groups; nothing is allocated, and no sum depends on the group.

use super::HostBuffer;
use super::elements::{load, load_f32, size, store, store_f32};
use super::hc_products::{GROUP, Input, LANES, MOST_ROWS, Products, accumulate, total};
use super::simd::{Simd, WithSimd, widest};
use super::threads;
use reference::ops::{Dtype, HcMix};

const HC: usize = 4;
/// Channels at a time.
const STEP: usize = 256;

struct Parameters {
    rows: usize,
    base: [f32; MOST_ROWS],
    scale: [f32; 3],
}

pub(super) fn run(args: HcMix<'_, HostBuffer>) {
    let (t, d, bytes) = (args.t as usize, args.d as usize, size(args.dtype));
    let mut parameters = Parameters { rows: args.mixing_rows() as usize, base: [0.0; MOST_ROWS], scale: [0.0; 3] };
    load_f32(&args.base.bytes[..4 * parameters.rows], &mut parameters.base);
    let scales = if args.mixing.is_some() { 3 } else { 1 };
    load_f32(&args.scale.bytes[..4 * scales], &mut parameters.scale);

    let (streams, weight) = (&args.streams.bytes, &args.weight.bytes);
    let norm = Norm { weight: &args.norm_weight.bytes, eps: args.norm_eps };
    let iters = args.mixing.as_ref().map(|mixing| mixing.sinkhorn_iters);
    let group = |(first, out, post, comb): (usize, &mut [u8], &mut [u8], &mut [u8])| {
        let tokens = out.len() / (d * bytes);
        let streams = &streams[first * HC * d * bytes..(first + tokens) * HC * d * bytes];
        let mut products = [Products { rows: [0.0; MOST_ROWS], squares: 0.0 }; GROUP];
        let input = Input { dtype: args.dtype, width: HC * d, streams, weight, rows: parameters.rows };
        input.products(&mut products[..tokens]);
        let mut logits = [[[0.0; GROUP]; HC]; HC];
        for (i, products) in products[..tokens].iter().enumerate() {
            let inverse = 1.0 / (products.squares / (HC * d) as f32 + args.norm_eps).sqrt();
            let argument = |row: usize, scale: usize| {
                products.rows[row] * inverse * parameters.scale[scale] + parameters.base[row]
            };
            let pre: [f32; HC] = std::array::from_fn(|j| sigmoid(argument(j, 0)) + args.hc_eps);
            if iters.is_some() {
                let weights: [f32; HC] = std::array::from_fn(|j| 2.0 * sigmoid(argument(HC + j, 1)));
                store_f32(&weights, &mut post[4 * HC * i..]);
                for (j, row) in logits.iter_mut().enumerate() {
                    for (k, logits) in row.iter_mut().enumerate() {
                        logits[i] = argument(2 * HC + HC * j + k, 2);
                    }
                }
            }
            let streams = &streams[i * HC * d * bytes..(i + 1) * HC * d * bytes];
            let out = &mut out[d * bytes * i..d * bytes * (i + 1)];
            widest(Mix { dtype: args.dtype, d, streams, pre, norm, out });
        }
        if let Some(iters) = iters {
            let matrices = sinkhorn(logits, args.hc_eps, iters);
            for (i, comb) in comb.chunks_exact_mut(4 * HC * HC).enumerate() {
                for (word, entry) in comb.chunks_exact_mut(4).zip(matrices.as_flattened()) {
                    word.copy_from_slice(&entry[i].to_le_bytes());
                }
            }
        }
    };

    let out = &mut args.out.bytes[..t * d * bytes];
    // The head has neither; empty pieces stand in.
    let (post, comb) = match args.mixing {
        Some(mixing) => (&mut mixing.post.bytes[..4 * HC * t], &mut mixing.comb.bytes[..4 * HC * HC * t]),
        None => (&mut [][..], &mut [][..]),
    };
    // Small batches are spread over the threads, large ones go in whole groups.
    let together = t.div_ceil(threads::count()).clamp(1, GROUP);
    let pieces = out.chunks_mut(together * d * bytes);
    if iters.is_some() {
        let mixing = post.chunks_mut(4 * HC * together).zip(comb.chunks_mut(4 * HC * HC * together));
        let all = pieces.zip(mixing).enumerate();
        threads::share(all, |(i, (out, (post, comb)))| group((i * together, out, post, comb)));
    } else {
        threads::share(pieces.enumerate(), |(i, out)| group((i * together, out, &mut [], &mut [])));
    }
}

#[derive(Clone, Copy)]
struct Norm<'a> {
    weight: &'a [u8],
    eps: f32,
}

/// `out = norm_weight h / rms(h)` with `h = sum_j pre_j x_j`, stored, for the streams `x` of a token.
struct Mix<'a> {
    dtype: Dtype,
    d: usize,
    streams: &'a [u8],
    pre: [f32; HC],
    norm: Norm<'a>,
    out: &'a mut [u8],
}

impl WithSimd for Mix<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Mix { dtype, d, streams, pre, norm, out } = self;
        let bytes = size(dtype);
        let mut squares = [0.0f32; LANES];
        let (mut h, mut x) = ([0.0f32; STEP], [0.0f32; STEP]);
        for from in (0..d).step_by(STEP) {
            let n = STEP.min(d - from);
            h = [0.0; STEP];
            for (stream, pre) in streams.chunks_exact(d * bytes).zip(pre) {
                load(dtype, &stream[from * bytes..(from + n) * bytes], &mut x[..n]);
                for (h, x) in h[..n].iter_mut().zip(&x[..n]) {
                    *h += pre * x;
                }
            }
            // The sum is stored, and normed as it stands there.
            let piece = &mut out[from * bytes..(from + n) * bytes];
            store(dtype, &h[..n], piece);
            load(dtype, piece, &mut h[..n]);
            // Behind the last channel stand zeros.
            for h in h[..n.next_multiple_of(LANES)].as_chunks::<LANES>().0 {
                accumulate(&mut squares, h, h);
            }
        }
        let inverse = 1.0 / (total(squares) / d as f32 + norm.eps).sqrt();
        for from in (0..d).step_by(STEP) {
            let n = STEP.min(d - from);
            let piece = &mut out[from * bytes..(from + n) * bytes];
            load(dtype, piece, &mut h[..n]);
            load_f32(&norm.weight[4 * from..4 * (from + n)], &mut x[..n]);
            for (h, w) in h[..n].iter_mut().zip(&x[..n]) {
                *h *= inverse * w;
            }
            store(dtype, &h[..n], piece);
        }
    }
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// Entries of as many matrices as a group has tokens.
type Matrices = [[[f32; GROUP]; HC]; HC];

/// Rows to a softmax, then columns and rows by turns to sums of 1; `iters` of each, the softmax counted. Every step waits
/// for the one before, so the matrices of a group go side by side.
fn sinkhorn(mut m: Matrices, eps: f32, iters: u32) -> Matrices {
    for row in &mut m {
        let mut most = [f32::NEG_INFINITY; GROUP];
        each(row, &mut most, |x, most| *most = most.max(*x));
        each(row, &mut most, |x, most| *x = (*x - *most).exp());
    }
    widest(|| {
        for row in &mut m {
            let mut sum = [0.0; GROUP];
            each(row, &mut sum, |x, sum| *sum += *x);
            each(row, &mut sum, |x, sum| *x = *x / *sum + eps);
        }
        columns(&mut m, eps);
        for _ in 1..iters {
            for row in &mut m {
                let mut sum = [0.0; GROUP];
                each(row, &mut sum, |x, sum| *sum += *x);
                each(row, &mut sum, |x, sum| *x /= *sum + eps);
            }
            columns(&mut m, eps);
        }
    });
    m
}

#[inline(always)]
fn columns(m: &mut Matrices, eps: f32) {
    let mut sums = [[0.0; GROUP]; HC];
    for row in m.iter() {
        for (sums, entries) in sums.iter_mut().zip(row) {
            for (sum, x) in sums.iter_mut().zip(entries) {
                *sum += x;
            }
        }
    }
    for row in m {
        for (entries, sums) in row.iter_mut().zip(&sums) {
            for (x, sum) in entries.iter_mut().zip(sums) {
                *x /= sum + eps;
            }
        }
    }
}

/// Every entry of a row of every matrix, with the number that its matrix has for the row.
#[inline(always)]
fn each(row: &mut [[f32; GROUP]; HC], numbers: &mut [f32; GROUP], work: impl Fn(&mut f32, &mut f32)) {
    for entries in row {
        for (x, number) in entries.iter_mut().zip(numbers.iter_mut()) {
            work(x, number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sinkhorn_of_the_description() {
        // One matrix in every place, another beside it.
        let entry = |j: usize, k: usize| (0.3 * (4 * j + k) as f32).sin();
        for place in 0..GROUP {
            let logits = std::array::from_fn(|j| {
                std::array::from_fn(|k| std::array::from_fn(|i| if i == place { entry(j, k) } else { entry(k, i) }))
            });
            let m = sinkhorn(logits, 1e-6, 20);
            let first = [0.14148550f64, 0.20550939, 0.28464639, 0.36835781];
            let last = [0.30420539, 0.25729784, 0.22657137, 0.21192442];
            for (got, want) in m[0].iter().chain(&m[3]).zip(first.iter().chain(&last)) {
                assert!((f64::from(got[place]) - want).abs() < 2e-7, "{got:?}, expected {want} at {place}");
            }
        }
    }
}
