//! Products of the streams of a few tokens with the rows of hyper-connections: 24 rows (a head: 4) of `4 d` f32 weights.
//!
//! A product has 32 partial sums, and input `i` goes to sum `i mod 32`, product rounded before it is added: the bytes depend
//! on neither the width of the machine's vectors nor the tokens of the group.

use pulp::bytemuck::try_cast_slice;
use reference::ops::Dtype;

use super::elements::{load, load_f32, size};
use super::simd::{Simd, WithSimd, widest};
use super::tiles::Scratch;

/// Rows of the weight, at most: pre, post, comb.
pub(super) const MOST_ROWS: usize = 24;
/// Tokens that share a pass over the weights.
pub(super) const GROUP: usize = 4;
/// Partial sums of a product.
pub(super) const LANES: usize = 32;

/// What a token's mixing is made of: products with every row of the weight and the sum of squares.
#[derive(Clone, Copy)]
pub(super) struct Products {
    pub rows: [f32; MOST_ROWS],
    pub squares: f32,
}

/// Streams of up to [`GROUP`] consecutive tokens, `width` values each, and the first rows of the weight.
#[derive(Clone, Copy)]
pub(super) struct Input<'a> {
    pub dtype: Dtype,
    pub width: usize,
    pub streams: &'a [u8],
    pub weight: &'a [u8],
    pub rows: usize,
}

impl Input<'_> {
    /// Products of every token.
    pub(super) fn products(self, out: &mut [Products]) {
        let values = out.len() * self.width;
        let streams = &self.streams[..values * size(self.dtype)];
        let (x, weight) = (try_cast_slice(streams), try_cast_slice(&self.weight[..4 * self.rows * self.width]));
        let Ok(weight) = weight else { return self.by_steps(out) };
        if !self.width.is_multiple_of(LANES) {
            return self.by_steps(out);
        }
        let mut scratch;
        let x = match (self.dtype, x) {
            (Dtype::F32, Ok(x)) => x,
            _ => {
                scratch = Scratch::take(values);
                let x = &mut scratch.floats()[..values];
                widest(|| load(self.dtype, streams, x));
                x
            }
        };
        widest(Blocks { x, weight, width: self.width, rows: self.rows, out });
    }

    /// Any width, any alignment: behind the last input stand zeros.
    fn by_steps(self, out: &mut [Products]) {
        let bytes = size(self.dtype);
        let steps = self.width.div_ceil(LANES);
        for (token, out) in out.iter_mut().enumerate() {
            let input = |step: usize| {
                let n = LANES.min(self.width - LANES * step);
                let at = (token * self.width + LANES * step) * bytes;
                let mut x = [0.0; LANES];
                load(self.dtype, &self.streams[at..at + n * bytes], &mut x[..n]);
                (x, n)
            };
            let mut squares = [0.0; LANES];
            for step in 0..steps {
                let (x, _) = input(step);
                accumulate(&mut squares, &x, &x);
            }
            out.squares = total(squares);
            for row in 0..self.rows {
                let mut sums = [0.0; LANES];
                for step in 0..steps {
                    let (x, n) = input(step);
                    let at = 4 * (row * self.width + LANES * step);
                    let mut w = [0.0; LANES];
                    load_f32(&self.weight[at..at + 4 * n], &mut w[..n]);
                    accumulate(&mut sums, &w, &x);
                }
                out.rows[row] = total(sums);
            }
        }
    }
}

/// Adds products to the partial sums. Inlined, so that it is compiled for the vectors of its caller.
#[inline(always)]
pub(super) fn accumulate(sums: &mut [f32; LANES], a: &[f32; LANES], b: &[f32; LANES]) {
    for lane in 0..LANES {
        sums[lane] += a[lane] * b[lane];
    }
}

/// Sum of the partial sums.
#[inline(always)]
pub(super) fn total(mut sums: [f32; LANES]) -> f32 {
    for lane in 0..16 {
        sums[lane] += sums[lane + 16];
    }
    for lane in 0..8 {
        sums[lane] += sums[lane + 8];
    }
    for lane in 0..4 {
        sums[lane] += sums[lane + 4];
    }
    (sums[0] + sums[2]) + (sums[1] + sums[3])
}

/// Inputs that stand in memory as vectors do.
struct Blocks<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    width: usize,
    rows: usize,
    out: &'a mut [Products],
}

impl WithSimd for Blocks<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        // Vectors of a product's sums; rows and tokens of a block, so that its sums and inputs fit the registers.
        match S::F32_LANES {
            16 => {
                let whole = self.tokens::<S, 2, 2, GROUP>(simd, 0);
                self.tokens::<S, 2, 4, 1>(simd, whole);
            }
            8 => {
                let whole = self.tokens::<S, 4, 1, 2>(simd, 0);
                self.tokens::<S, 4, 1, 1>(simd, whole);
            }
            4 => {
                let whole = self.tokens::<S, 8, 1, 2>(simd, 0);
                self.tokens::<S, 8, 1, 1>(simd, whole);
            }
            _ => self.plain(),
        }
    }
}

impl Blocks<'_> {
    /// Tokens from `first` on, `T` at a time, against `R` rows at a time; the first token that is left.
    #[inline(always)]
    fn tokens<S: Simd, const N: usize, const R: usize, const T: usize>(&mut self, simd: S, mut first: usize) -> usize {
        let (width, steps) = (self.width, self.width / LANES);
        while first + T <= self.out.len() {
            let out = &mut self.out[first..first + T];
            let mut x: [&[[S::f32s; N]]; T] = [&[]; T];
            for (x, values) in x.iter_mut().zip(self.x[first * width..].chunks_exact(width)) {
                *x = &S::as_simd_f32s(values).0.as_chunks::<N>().0[..steps];
            }
            for (out, x) in out.iter_mut().zip(&x) {
                let [[squares]] = block::<S, N, 1, 1>(simd, [x], [x], steps);
                out.squares = squares;
            }
            for (block_of_rows, weight) in self.weight[..self.rows * width].chunks_exact(R * width).enumerate() {
                let mut w: [&[[S::f32s; N]]; R] = [&[]; R];
                for (w, values) in w.iter_mut().zip(weight.chunks_exact(width)) {
                    *w = &S::as_simd_f32s(values).0.as_chunks::<N>().0[..steps];
                }
                let sums = block::<S, N, R, T>(simd, w, x, steps);
                for (r, sums) in sums.iter().enumerate() {
                    for (out, &sum) in out.iter_mut().zip(sums) {
                        out.rows[block_of_rows * R + r] = sum;
                    }
                }
            }
            first += T;
        }
        first
    }

    /// For machines without vectors that we know of.
    #[inline(always)]
    fn plain(&mut self) {
        for (out, x) in self.out.iter_mut().zip(self.x.chunks_exact(self.width)) {
            let (x, _) = x.as_chunks::<LANES>();
            let mut squares = [0.0; LANES];
            for x in x {
                accumulate(&mut squares, x, x);
            }
            out.squares = total(squares);
            for (out, w) in out.rows.iter_mut().zip(self.weight.chunks_exact(self.width)) {
                let mut sums = [0.0; LANES];
                for (w, x) in w.as_chunks::<LANES>().0.iter().zip(x) {
                    accumulate(&mut sums, w, x);
                }
                *out = total(sums);
            }
        }
    }
}

/// Products of `R` rows with `T` tokens, both of `steps` times [`LANES`] values.
#[inline(always)]
fn block<S: Simd, const N: usize, const R: usize, const T: usize>(
    simd: S,
    w: [&[[S::f32s; N]]; R],
    x: [&[[S::f32s; N]]; T],
    steps: usize,
) -> [[f32; T]; R] {
    let mut sums = [[[simd.splat_f32s(0.0); N]; T]; R];
    for step in 0..steps {
        for (sums, w) in sums.iter_mut().zip(&w) {
            let w = &w[step];
            for (sums, x) in sums.iter_mut().zip(&x) {
                for ((sum, &w), &x) in sums.iter_mut().zip(w).zip(&x[step]) {
                    *sum = simd.add_f32s(*sum, simd.mul_f32s(w, x));
                }
            }
        }
    }
    let mut out = [[0.0; T]; R];
    for (out, sums) in out.iter_mut().zip(&sums) {
        for (out, sums) in out.iter_mut().zip(sums) {
            let mut lanes = [0.0; LANES];
            S::as_mut_simd_f32s(&mut lanes).0.copy_from_slice(sums);
            *out = total(lanes);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition: 32 sums, then halves onto halves.
    fn expected(w: &[f32], x: &[f32]) -> f32 {
        let mut sums = vec![0.0f32; 32];
        for (i, (w, x)) in w.iter().zip(x).enumerate() {
            sums[i % 32] += w * x;
        }
        while sums.len() > 1 {
            let upper = sums.split_off(sums.len() / 2);
            sums.iter_mut().zip(upper).for_each(|(sum, x)| *sum += x);
        }
        sums[0]
    }

    #[test]
    fn every_way_gives_the_same_bits() {
        let value = |i: usize| ((i * 7919 % 1009) as f32 - 504.0) / 37.0;
        let bytes = |n: usize, salt: usize| (0..n).flat_map(|i| value(i + salt).to_le_bytes()).collect::<Vec<u8>>();
        for (width, rows) in [(28, 24), (32, 24), (112, 4), (512, 24), (1056, 4)] {
            for tokens in 1..=GROUP {
                let (streams, weight) = (bytes(tokens * width, 5), bytes(rows * width, 333));
                let floats = |bytes: &[u8]| {
                    let mut floats = vec![0.0; bytes.len() / 4];
                    load_f32(bytes, &mut floats);
                    floats
                };
                let (x, w) = (floats(&streams), floats(&weight));
                let input = Input { dtype: Dtype::F32, width, streams: &streams, weight: &weight, rows };
                let none = Products { rows: [0.0; MOST_ROWS], squares: 0.0 };
                let (mut quick, mut slow, mut plain) = ([none; GROUP], [none; GROUP], [none; GROUP]);
                input.products(&mut quick[..tokens]);
                input.by_steps(&mut slow[..tokens]);
                let mut ways = vec![quick, slow];
                if width.is_multiple_of(LANES) {
                    Blocks { x: &x, weight: &w, width, rows, out: &mut plain[..tokens] }.plain();
                    ways.push(plain);
                }
                for (token, x) in x.chunks_exact(width).enumerate() {
                    for way in &ways {
                        assert_eq!(way[token].squares.to_bits(), expected(x, x).to_bits());
                        for (row, w) in w.chunks_exact(width).enumerate() {
                            let (got, want) = (way[token].rows[row], expected(w, x));
                            assert_eq!(got.to_bits(), want.to_bits(), "{width} wide, token {token}, row {row}");
                        }
                    }
                }
            }
        }
    }
}
