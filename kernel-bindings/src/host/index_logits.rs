//! Index logits: keys are widened a block at a time and multiplied with all heads of a query.

use reference::ops::{IndexKFormat, Pages};
use std::ops::Range;

use super::numbers::{e4m3, f32_at, fp4_values, load_f32, s32_at, widen_bf16};
use super::page_start;
use super::rows::alone;
use super::simd::{Simd, WithSimd, widest};
use super::threads;
use super::tiles::{self, Blocks, Scratch};

/// Columns of a task: the query is packed once for all of them.
const STRETCH: usize = 1024;
/// Multiply-adds that take as long as an element of other operations.
const PRODUCTS_PER_ELEMENT: usize = 32;

/// What the rows of a call have in common.
pub(super) struct Call<'a> {
    pub format: IndexKFormat,
    pub heads: usize,
    pub index_q: &'a [u8],
    pub weights: &'a [u8],
    pub keys: &'a [u8],
    pub pages: Pages,
    pub table: &'a [u8],
    pub stride_table: usize,
    pub clean: bool,
}

impl Call<'_> {
    /// Elements of work of a row with so many columns, for [`alone`].
    pub(super) fn work(&self, columns: usize) -> usize {
        columns * self.heads * self.format.d() as usize / PRODUCTS_PER_ELEMENT
    }

    /// Scores the query of row `row` against the keys `range` of the sequence in line `line` of the block table, into its
    /// logits.
    pub(super) fn row(&self, row: usize, line: usize, range: Range<usize>, logits: &mut [u8]) {
        let stretch = |(number, logits): (usize, &mut [u8])| {
            let first = number * STRETCH;
            let end = first + logits.len() / 4;
            let range = range.start.clamp(first, end)..range.end.clamp(first, end);
            if self.clean {
                let (before, rest) = logits.split_at_mut(4 * (range.start - first));
                let behind = &mut rest[4 * range.len()..];
                fill(before, f32::NEG_INFINITY);
                fill(behind, f32::NEG_INFINITY);
            }
            if !range.is_empty() {
                let logits = &mut logits[4 * (range.start - first)..4 * (range.end - first)];
                widest(Stretch { call: self, row, line, range, logits });
            }
        };
        if alone(self.work(range.len())) {
            logits.chunks_mut(4 * STRETCH).enumerate().for_each(stretch);
        } else {
            threads::share(logits.chunks_mut(4 * STRETCH).enumerate(), stretch);
        }
    }

    /// Start of the page that key `j` lies in, if it lies in the pool.
    fn page(&self, line: usize, j: usize) -> Option<&[u8]> {
        let id = s32_at(self.table, line * self.stride_table + j / self.pages.page_size as usize);
        let id = u32::try_from(id).ok().filter(|&id| id < self.pages.num_pages)?;
        Some(&self.keys[page_start(&self.pages, id as usize)..])
    }
}

fn fill(bytes: &mut [u8], value: f32) {
    bytes.chunks_exact_mut(4).for_each(|x| x.copy_from_slice(&value.to_le_bytes()));
}

/// Columns of one row, and where their logits go.
struct Stretch<'a> {
    call: &'a Call<'a>,
    row: usize,
    line: usize,
    range: Range<usize>,
    logits: &'a mut [u8],
}

impl WithSimd for Stretch<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        tiles::in_blocks(simd, self.call.heads, self);
    }
}

impl Blocks for Stretch<'_> {
    #[inline(always)]
    fn run<S: Simd, const M: usize, const N: usize>(self, simd: S) {
        const KEYS: usize = tiles::ROWS;
        let (call, d, heads) = (self.call, self.call.format.d() as usize, self.call.heads);
        let page_size = call.pages.page_size as usize;
        let width = N * S::F32_LANES;
        let padded = heads.next_multiple_of(width);
        let mut scratch = Scratch::take(padded * d + heads + KEYS * (d + padded));
        let (panels, scratch) = scratch.floats().split_at_mut(padded * d);
        let (weights, scratch) = scratch.split_at_mut(heads);
        let (keys, dots) = scratch.split_at_mut(KEYS * d);
        panels[(padded - width) * d..].fill(0.0);
        for (head, weight) in weights.iter_mut().enumerate() {
            let query = &mut keys[..d];
            widen_query(call.format, call.index_q, self.row * heads + head, query);
            tiles::put_column::<S, N>(panels, head, query);
            *weight = f32_at(call.weights, self.row * heads + head);
        }
        for (logits, first) in self.logits.chunks_mut(4 * KEYS).zip(self.range.step_by(KEYS)) {
            let count = logits.len() / 4;
            let mut scales = [1.0; KEYS];
            let mut present = [false; KEYS];
            for (key, values) in keys.chunks_exact_mut(d).enumerate().take(count) {
                let row = (first + key) % page_size;
                if let Some(page) = call.page(self.line, first + key) {
                    scales[key] = widen_key(call.format, page, page_size, row, values);
                    present[key] = true;
                }
            }
            // Rows beyond the last, and absent ones, are multiplied as well, whatever they hold.
            for (panel, panel_values) in panels.chunks_exact(width * d).enumerate() {
                for group in 0..count.div_ceil(M) {
                    let mut rows: [&[f32]; M] = [&[]; M];
                    for (row, values) in rows.iter_mut().zip(keys[group * M * d..].chunks_exact(d)) {
                        *row = values;
                    }
                    let sums = tiles::rows_by_panel::<S, M, N>(simd, rows, panel_values);
                    for (m, sums) in sums.iter().enumerate() {
                        let dots = &mut dots[(group * M + m) * padded + panel * width..][..width];
                        S::as_mut_simd_f32s(dots).0.copy_from_slice(sums);
                    }
                }
            }
            for (key, logit) in logits.chunks_exact_mut(4).enumerate() {
                let score = scales[key] * score(simd, weights, &dots[key * padded..][..heads]);
                let value = if present[key] { score } else { f32::NEG_INFINITY };
                logit.copy_from_slice(&value.to_le_bytes());
            }
        }
    }
}

/// `sum_h w_h relu(dot_h)`; NaN comes through.
#[inline(always)]
fn score<S: Simd>(simd: S, weights: &[f32], dots: &[f32]) -> f32 {
    let zero = simd.splat_f32s(0.0);
    let (w, w_tail) = S::as_simd_f32s(weights);
    let (dots, dots_tail) = S::as_simd_f32s(dots);
    let mut sum = zero;
    for (&w, &dot) in w.iter().zip(dots) {
        // not `max`, which would drop a NaN
        let relu = simd.select_f32s(simd.less_than_f32s(dot, zero), zero, dot);
        sum = simd.mul_add_e_f32s(w, relu, sum);
    }
    let mut sum = simd.reduce_sum_f32s(sum);
    for (w, &dot) in w_tail.iter().zip(dots_tail) {
        sum += w * if dot < 0.0 { 0.0 } else { dot };
    }
    sum
}

#[inline(always)]
fn widen_e4m3(codes: &[u8], out: &mut [f32]) {
    for (x, &code) in out.iter_mut().zip(codes) {
        *x = e4m3(code);
    }
}

/// The query of one head, counted over all rows.
#[inline(always)]
fn widen_query(format: IndexKFormat, index_q: &[u8], head: usize, out: &mut [f32]) {
    let (d, size) = (out.len(), format.query_head_bytes() as usize);
    let bytes = &index_q[head * size..(head + 1) * size];
    match format {
        IndexKFormat::Fp8 => widen_e4m3(bytes, out),
        IndexKFormat::Bf16 => widen_bf16(bytes, out),
        IndexKFormat::Fp4 => fp4_values(&bytes[..d / 2], &bytes[d / 2..], out),
        IndexKFormat::F32 { .. } => load_f32(bytes, out),
    }
}

/// Row `row` of a page; returns its scale.
#[inline(always)]
fn widen_key(format: IndexKFormat, page: &[u8], page_size: usize, row: usize, out: &mut [f32]) -> f32 {
    let d = out.len();
    match format {
        IndexKFormat::Fp8 => {
            widen_e4m3(&page[row * d..(row + 1) * d], out);
            // all scales stand behind all codes
            return f32_at(&page[page_size * d..], row);
        }
        IndexKFormat::Bf16 => widen_bf16(&page[2 * row * d..2 * (row + 1) * d], out),
        IndexKFormat::Fp4 => {
            let (codes, scales) = page.split_at(page_size * d / 2);
            fp4_values(&codes[row * d / 2..(row + 1) * d / 2], &scales[4 * row..4 * (row + 1)], out);
        }
        IndexKFormat::F32 { .. } => load_f32(&page[4 * row * d..4 * (row + 1) * d], out),
    }
    1.0
}
