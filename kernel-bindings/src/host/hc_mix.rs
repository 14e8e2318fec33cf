//! Hyper-connections before a sub-layer: the mixing products, the Sinkhorn matrix, the weighted sum of streams, its norm.
//!
//! The products read 24 rows of `4 d` f32 weights. A group of tokens shares each piece of them while it lies in L1; with
//! one token they stream through once. Nothing is allocated, and the order of the sums depends on neither the group nor the
//! width of the machine's vectors.

use super::HostBuffer;
use super::elements::{load, load_f32, size, store, store_f32};
use super::simd::widest;
use super::threads;
use reference::ops::HcMix;

const HC: usize = 4;
/// Rows of the weight: pre, post, comb.
const MOST_ROWS: usize = 2 * HC + HC * HC;
/// Tokens that share a pass over the weights.
const GROUP: usize = 4;
/// Inputs at a time: 24 rows of them are 24 KB.
const STEP: usize = 256;
/// Partial sums of a product: four vectors of eight, so that additions do not wait for each other.
const LANES: usize = 32;

/// What a token's mixing is made of: products with every row of the weight and the sum of squares.
#[derive(Clone, Copy)]
struct Products {
    rows: [f32; MOST_ROWS],
    squares: f32,
}

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

    let input = Input { dtype: args.dtype, d, streams: &args.streams.bytes, weight: &args.weight.bytes };
    let norm = Norm { weight: &args.norm_weight.bytes, eps: args.norm_eps };
    let iters = args.mixing.as_ref().map(|mixing| mixing.sinkhorn_iters);
    let group = |(first, out, post, comb): (usize, &mut [u8], &mut [u8], &mut [u8])| {
        let tokens = out.len() / (d * bytes);
        let mut products = [Products { rows: [0.0; MOST_ROWS], squares: 0.0 }; GROUP];
        input.products(first, parameters.rows, &mut products[..tokens]);
        for (i, products) in products[..tokens].iter().enumerate() {
            let inverse = 1.0 / (products.squares / (HC * d) as f32 + args.norm_eps).sqrt();
            let argument = |row: usize, scale: usize| {
                products.rows[row] * inverse * parameters.scale[scale] + parameters.base[row]
            };
            let pre: [f32; HC] = std::array::from_fn(|j| sigmoid(argument(j, 0)) + args.hc_eps);
            if let Some(iters) = iters {
                let weights: [f32; HC] = std::array::from_fn(|j| 2.0 * sigmoid(argument(HC + j, 1)));
                store_f32(&weights, &mut post[4 * HC * i..]);
                let logits = std::array::from_fn(|j| std::array::from_fn(|k| argument(2 * HC + HC * j + k, 2)));
                let matrix = sinkhorn(logits, args.hc_eps, iters);
                store_f32(matrix.as_flattened(), &mut comb[4 * HC * HC * i..]);
            }
            input.mix(first + i, pre, &norm, &mut out[d * bytes * i..d * bytes * (i + 1)]);
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

struct Input<'a> {
    dtype: reference::ops::Dtype,
    d: usize,
    streams: &'a [u8],
    weight: &'a [u8],
}

struct Norm<'a> {
    weight: &'a [u8],
    eps: f32,
}

impl Input<'_> {
    /// Products of consecutive tokens with `rows` rows.
    fn products(&self, first: usize, rows: usize, out: &mut [Products]) {
        let (width, bytes) = (HC * self.d, size(self.dtype));
        let mut sums = [[[0.0f32; LANES]; MOST_ROWS]; GROUP];
        let mut squares = [[0.0f32; LANES]; GROUP];
        let mut x = [[0.0f32; STEP]; GROUP];
        for from in (0..width).step_by(STEP) {
            let n = STEP.min(width - from);
            for (i, x) in x[..out.len()].iter_mut().enumerate() {
                let at = ((first + i) * width + from) * bytes;
                load(self.dtype, &self.streams[at..at + n * bytes], &mut x[..n]);
                // Behind the last input stand zeros, of the weights as well.
                x[n..].fill(0.0);
                accumulate(&mut squares[i], x, x);
            }
            let mut w = [0.0f32; STEP];
            for row in 0..rows {
                let at = 4 * (row * width + from);
                load_f32(&self.weight[at..at + 4 * n], &mut w[..n]);
                widest(|| {
                    for (sums, x) in sums.iter_mut().zip(&x[..out.len()]) {
                        accumulate(&mut sums[row], &w, x);
                    }
                });
            }
        }
        for ((products, sums), squares) in out.iter_mut().zip(&sums).zip(&squares) {
            products.rows = sums.map(total);
            products.squares = total(*squares);
        }
    }

    /// `out = norm_weight h / rms(h)` with `h = sum_j pre_j x_j`, stored.
    fn mix(&self, token: usize, pre: [f32; HC], norm: &Norm<'_>, out: &mut [u8]) {
        let (d, bytes) = (self.d, size(self.dtype));
        let mut squares = [0.0f32; LANES];
        let mut h = [0.0f32; STEP];
        for from in (0..d).step_by(STEP) {
            let n = STEP.min(d - from);
            h = [0.0; STEP];
            for (j, pre) in pre.iter().enumerate() {
                let mut x = [0.0f32; STEP];
                let at = ((token * HC + j) * d + from) * bytes;
                load(self.dtype, &self.streams[at..at + n * bytes], &mut x[..n]);
                h.iter_mut().zip(&x).for_each(|(h, x)| *h += pre * x);
            }
            // The sum is stored, and normed as it stands there.
            let piece = &mut out[from * bytes..(from + n) * bytes];
            store(self.dtype, &h[..n], piece);
            load(self.dtype, piece, &mut h[..n]);
            h[n..].fill(0.0);
            accumulate(&mut squares, &h, &h);
        }
        let inverse = 1.0 / (total(squares) / d as f32 + norm.eps).sqrt();
        let mut w = [0.0f32; STEP];
        for from in (0..d).step_by(STEP) {
            let n = STEP.min(d - from);
            let piece = &mut out[from * bytes..(from + n) * bytes];
            load(self.dtype, piece, &mut h[..n]);
            load_f32(&norm.weight[4 * from..4 * (from + n)], &mut w[..n]);
            h.iter_mut().zip(&w).for_each(|(h, w)| *h *= inverse * w);
            store(self.dtype, &h[..n], piece);
        }
    }
}

/// Adds products to the partial sums. Inlined, so that it is compiled for the vectors of its caller.
#[inline(always)]
fn accumulate(sums: &mut [f32; LANES], a: &[f32; STEP], b: &[f32; STEP]) {
    let mut local = *sums;
    for (a, b) in a.chunks_exact(LANES).zip(b.chunks_exact(LANES)) {
        for lane in 0..LANES {
            local[lane] += a[lane] * b[lane];
        }
    }
    *sums = local;
}

fn total(mut sums: [f32; LANES]) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            sums[lane] += sums[lane + width];
        }
        width /= 2;
    }
    sums[0]
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// Rows to a softmax, then columns and rows by turns to sums of 1; `iters` of each, the softmax counted.
fn sinkhorn(mut m: [[f32; HC]; HC], eps: f32, iters: u32) -> [[f32; HC]; HC] {
    for row in &mut m {
        let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        *row = row.map(|x| (x - most).exp());
        let sum: f32 = row.iter().sum();
        *row = row.map(|x| x / sum + eps);
    }
    columns(&mut m, eps);
    for _ in 1..iters {
        for row in &mut m {
            let sum: f32 = row.iter().sum();
            *row = row.map(|x| x / (sum + eps));
        }
        columns(&mut m, eps);
    }
    m
}

fn columns(m: &mut [[f32; HC]; HC], eps: f32) {
    let mut sums = [0.0; HC];
    for row in m.iter() {
        sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
    }
    for row in m {
        row.iter_mut().zip(&sums).for_each(|(x, sum)| *x /= sum + eps);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sinkhorn_of_the_description() {
        let logits = std::array::from_fn(|j| std::array::from_fn(|k| (0.3 * (4 * j + k) as f32).sin()));
        let m = sinkhorn(logits, 1e-6, 20);
        let first = [0.14148550f64, 0.20550939, 0.28464639, 0.36835781];
        let last = [0.30420539, 0.25729784, 0.22657137, 0.21192442];
        for (got, want) in m[0].iter().chain(&m[3]).zip(first.iter().chain(&last)) {
            assert!((f64::from(*got) - want).abs() < 2e-7, "{got}, expected {want}");
        }
    }
}
