//! Blocks of matrix products that stay in registers: the inner loops of index scores and attention.
//!
//! A block is `M` rows by `N` vectors of columns. Every sum runs along its whole length in one chain, whatever the shape of
//! the block and whatever stands beside it: a result depends on neither.

use std::cell::Cell;

use super::simd::Simd;

/// Something made of blocks, in whatever shape suits the machine.
pub(super) trait Blocks {
    /// Does the work in blocks of `M` rows by `N` vectors.
    fn run<S: Simd, const M: usize, const N: usize>(self, simd: S);
}

/// Rows that every shape of [`in_blocks`] divides.
pub(super) const ROWS: usize = 24;
/// Vectors of the widest shape; the others divide it.
pub(super) const MOST_VECTORS: usize = 4;

/// Picks the shape for `columns` columns: 24 sums where there are 32 registers, else 12.
#[inline(always)]
pub(super) fn in_blocks<S: Simd>(simd: S, columns: usize, blocks: impl Blocks) {
    match (S::REGISTER_COUNT >= 32, columns.div_ceil(S::F32_LANES)) {
        (true, 3..) => blocks.run::<S, 6, 4>(simd),
        (true, 2) => blocks.run::<S, 12, 2>(simd),
        (true, _) => blocks.run::<S, 24, 1>(simd),
        (false, 2..) => blocks.run::<S, 6, 2>(simd),
        (false, _) => blocks.run::<S, 12, 1>(simd),
    }
}

/// `sums[m][n] = sum_c a[m][c] b[c][n]`: rows as they stand in memory times a panel of `N` vectors per `c`.
#[inline(always)]
pub(super) fn rows_by_panel<S: Simd, const M: usize, const N: usize>(
    simd: S,
    a: [&[f32]; M],
    panel: &[f32],
) -> [[S::f32s; N]; M] {
    let (panel, _) = S::as_simd_f32s(panel);
    let (panel, _) = panel.as_chunks::<N>();
    let mut rows = a;
    for row in &mut rows {
        *row = &row[..panel.len()];
    }
    let mut sums = [[simd.splat_f32s(0.0); N]; M];
    for (c, b) in panel.iter().enumerate() {
        for (sums, row) in sums.iter_mut().zip(&rows) {
            let x = simd.splat_f32s(row[c]);
            for (sum, &b) in sums.iter_mut().zip(b) {
                *sum = simd.mul_add_e_f32s(x, b, *sum);
            }
        }
    }
    sums
}

/// `sums[m][n] += sum_r a[r][m] b[r][n]`: columns `a_from..a_from + M` of the rows of `a` times columns from `b_from` on of
/// the rows of `b`, both `*_stride` apart.
#[inline(always)]
pub(super) fn columns_by_rows<S: Simd, const M: usize, const N: usize>(
    simd: S,
    (a, a_stride, a_from): (&[f32], usize, usize),
    (b, b_stride, b_from): (&[f32], usize, usize),
    sums: &mut [[S::f32s; N]; M],
) {
    let mut kept = *sums;
    for (a, b) in a.chunks_exact(a_stride).zip(b.chunks_exact(b_stride)) {
        let a: &[f32; M] = a[a_from..a_from + M].try_into().expect("as long as it was cut");
        let (b, _) = S::as_simd_f32s(&b[b_from..b_from + N * S::F32_LANES]);
        let b: &[S::f32s; N] = b.try_into().expect("as long as it was cut");
        for (sums, &x) in kept.iter_mut().zip(a) {
            let x = simd.splat_f32s(x);
            for (sum, &b) in sums.iter_mut().zip(b) {
                *sum = simd.mul_add_e_f32s(x, b, *sum);
            }
        }
    }
    *sums = kept;
}

/// Puts a column into its panel; columns that no one puts must be zeroed.
#[inline(always)]
pub(super) fn put_column<S: Simd, const N: usize>(panels: &mut [f32], column: usize, values: &[f32]) {
    let width = N * S::F32_LANES;
    let panel = &mut panels[column / width * width * values.len()..][..width * values.len()];
    for (line, &x) in panel.chunks_exact_mut(width).zip(values) {
        line[column % width] = x;
    }
}

thread_local! {
    static SCRATCH: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

/// Memory that the thread keeps for the next call; it holds anything. A value, not a closure's argument: what is compiled
/// for the vectors of the machine must not stand in a closure.
pub(super) struct Scratch(Vec<f32>);

impl Scratch {
    /// At least `len` floats.
    pub(super) fn take(len: usize) -> Scratch {
        // Taken, not borrowed: a second one at the same time is a vector of its own.
        let mut scratch = SCRATCH.take();
        if scratch.len() < len {
            scratch.resize(len, 0.0);
        }
        Scratch(scratch)
    }

    /// The floats.
    pub(super) fn floats(&mut self) -> &mut [f32] {
        &mut self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        SCRATCH.set(std::mem::take(&mut self.0));
    }
}
