//! Sparse attention: the rows of a token are widened once for all heads; scores, softmax along the rows, weighted sum.

use reference::ops::{Dtype, KvFormat, Pages, SlotList, SparseMlaDecode};

use super::numbers::{e4m3, exponential, f32_at, from_ue8m0, load, load_f32, s32_at, store, widen_bf16};
use super::rows::alone;
use super::simd::{Simd, WithSimd, widest};
use super::threads;
use super::tiles::{self, Blocks, MOST_VECTORS, Scratch};
use super::{HostBuffer, page_start, place};

const NOPE: usize = 448;
const TILE: usize = 64;
/// Rows whose values stay in the second level of the cache while all heads sum them.
const BLOCK: usize = 128;
/// Multiply-adds that take as long as an element of other operations.
const PRODUCTS_PER_ELEMENT: usize = 32;

/// Splits are for devices that must fill many processors: here they are not made.
pub(super) fn run(args: SparseMlaDecode<'_, HostBuffer>) {
    attend(args, None);
}

/// `max_logits`: where the largest score of every token and head goes, if it is wanted.
pub(super) fn attend(args: SparseMlaDecode<'_, HostBuffer>, max_logits: Option<&mut HostBuffer>) {
    let (t, h, d) = (args.t as usize, args.h as usize, args.format.d() as usize);
    let [out_t, out_h] = args.stride_out.map(|s| args.dtype.bytes() as usize * s as usize);
    let call = Call {
        dtype: args.dtype,
        format: args.format,
        q: &args.q.bytes,
        stride_q: args.stride_q.map(|s| s as usize),
        lists: [Some(&args.window), args.compressed.as_ref()],
        sink: args.attn_sink.map(|sink| &sink.bytes[..]),
        sm_scale: args.sm_scale,
    };
    let width: u32 = call.lists.iter().flatten().map(|list| list.width).sum();
    let alone = alone(2 * t * h * d * width as usize / PRODUCTS_PER_ELEMENT);
    // When tokens are few, threads share the heads of one; each then widens the rows for itself.
    let threads = if alone { 1 } else { threads::count() };
    let heads = h.div_ceil(threads.div_ceil(t.max(1))).max(16);

    let mut unwanted = Vec::new();
    let most = match max_logits {
        Some(buffer) => &mut buffer.bytes,
        None => {
            unwanted.resize(4 * t * h, 0);
            &mut unwanted
        }
    };
    let mut tasks = Vec::new();
    let tokens = args.out.bytes.chunks_mut(out_t).zip(args.lse.bytes.chunks_mut(4 * h)).zip(most.chunks_mut(4 * h));
    for (token, ((out, lse), most)) in tokens.enumerate().take(t) {
        let parts = out.chunks_mut(out_h * heads).zip(lse.chunks_mut(4 * heads)).zip(most.chunks_mut(4 * heads));
        for (part, ((out, lse), most)) in parts.enumerate().take(h.div_ceil(heads)) {
            tasks.push(Task { call: &call, token, first_head: part * heads, out, out_h, lse, most });
        }
    }
    if alone {
        tasks.into_iter().for_each(widest);
    } else {
        threads::share(tasks.into_iter(), widest);
    }
}

/// What all tokens have in common.
struct Call<'a> {
    dtype: Dtype,
    format: KvFormat,
    q: &'a [u8],
    stride_q: [usize; 2],
    lists: [Option<&'a SlotList<'a, HostBuffer>>; 2],
    sink: Option<&'a [u8]>,
    sm_scale: f32,
}

impl Call<'_> {
    /// Places of the valid rows of a token, list after list.
    fn valid(&self, token: usize) -> Vec<(&[u8], &Pages, usize)> {
        let mut rows = Vec::new();
        for list in self.lists.iter().flatten() {
            let width = list.width as usize;
            let len = list.lens.map_or(width, |lens| (s32_at(&lens.bytes, token).max(0) as usize).min(width));
            let first = token * list.stride_slots as usize;
            let pages = &list.cache.pages;
            for entry in first..first + len {
                if let Some((page, row)) = place(pages, s32_at(&list.slots.bytes, entry)) {
                    rows.push((&list.cache.buffer.bytes[page_start(pages, page)..], pages, row));
                }
            }
        }
        rows
    }
}

/// Heads of one token, and where their outputs, log-sum-exps and largest scores go.
struct Task<'a> {
    call: &'a Call<'a>,
    token: usize,
    first_head: usize,
    out: &'a mut [u8],
    /// Bytes from one head of `out` to the next.
    out_h: usize,
    lse: &'a mut [u8],
    most: &'a mut [u8],
}

impl Task<'_> {
    fn heads(&self) -> usize {
        self.lse.len() / 4
    }
}

impl WithSimd for Task<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let (call, h, d) = (self.call, self.heads(), self.call.format.d() as usize);
        let rows = call.valid(self.token);
        // Whole blocks are computed, and what is too much of them is not looked at.
        let columns = h.next_multiple_of(MOST_VECTORS * S::F32_LANES);
        let stride_scores = columns.max(h.next_multiple_of(tiles::ROWS));
        // 16 more, so that rows do not all start in the same lines of the cache.
        let stride = d.next_multiple_of(MOST_VECTORS * S::F32_LANES) + 16;
        let padded = rows.len().next_multiple_of(tiles::ROWS);
        let lens = [columns * d, padded * stride, padded * stride_scores, h.next_multiple_of(tiles::ROWS) * stride];
        let mut scratch = Scratch::take(lens.iter().sum::<usize>() + 2 * h);
        let (panels, scratch) = scratch.floats().split_at_mut(lens[0]);
        let (values, scratch) = scratch.split_at_mut(lens[1]);
        let (scores, scratch) = scratch.split_at_mut(lens[2]);
        let (out, scratch) = scratch.split_at_mut(lens[3]);
        let (max, sum) = scratch[..2 * h].split_at_mut(h);

        let query = &mut out[..d];
        let parts = Scores { task: &self, rows: &rows, panels, query, values, stride, scores, stride_scores };
        tiles::in_blocks(simd, h, parts);
        let scores = &mut scores[..rows.len() * stride_scores];
        softmax(scores, stride_scores, max, sum);
        let values = &values[..rows.len() * stride];
        tiles::in_blocks(simd, d, Sums { h, d, values, stride, scores, stride_scores, out });

        let size = call.dtype.bytes() as usize;
        for (head, values) in out.chunks_exact_mut(stride).enumerate().take(h) {
            let values = &mut values[..d];
            let mut log_sum = f32::NEG_INFINITY;
            if !rows.is_empty() {
                let sink = call.sink.map_or(f32::NEG_INFINITY, |sink| f32_at(sink, self.first_head + head));
                // exp(-inf) = 0: no sink; exp(inf) = inf: all weight on the sink
                let denominator = sum[head] + (sink - max[head]).exp();
                for x in values.iter_mut() {
                    *x /= denominator;
                }
                log_sum = max[head] + sum[head].ln();
            }
            store(call.dtype, values, &mut self.out[head * self.out_h..][..size * d]);
            self.lse[4 * head..4 * head + 4].copy_from_slice(&log_sum.to_le_bytes());
            self.most[4 * head..4 * head + 4].copy_from_slice(&max[head].to_le_bytes());
        }
    }
}

/// Rows widened into `values`, and their scores `[rows, heads]`.
struct Scores<'a> {
    task: &'a Task<'a>,
    rows: &'a [(&'a [u8], &'a Pages, usize)],
    panels: &'a mut [f32],
    /// A row of memory.
    query: &'a mut [f32],
    values: &'a mut [f32],
    stride: usize,
    scores: &'a mut [f32],
    stride_scores: usize,
}

impl Blocks for Scores<'_> {
    #[inline(always)]
    fn run<S: Simd, const M: usize, const N: usize>(self, simd: S) {
        let (call, h) = (self.task.call, self.task.heads());
        let (d, size) = (call.format.d() as usize, call.dtype.bytes() as usize);
        let width = N * S::F32_LANES;
        let columns = h.next_multiple_of(width);
        let panels = &mut self.panels[..columns * d];
        panels[(columns - width) * d..].fill(0.0);
        for head in 0..h {
            let from = self.task.token * call.stride_q[0] + (self.task.first_head + head) * call.stride_q[1];
            let query = &mut self.query[..d];
            load(call.dtype, &call.q[size * from..size * (from + d)], query);
            tiles::put_column::<S, N>(panels, head, query);
        }
        let scale = simd.splat_f32s(call.sm_scale);
        for (group, rows) in self.rows.chunks(M).enumerate() {
            let values = &mut self.values[group * M * self.stride..][..M * self.stride];
            for (&(page, pages, row), values) in rows.iter().zip(values.chunks_exact_mut(self.stride)) {
                widen_row(call.format, page, pages.page_size as usize, row, &mut values[..d]);
            }
            for (panel, panel_values) in panels.chunks_exact(width * d).enumerate() {
                let mut block: [&[f32]; M] = [&[]; M];
                for (row, values) in block.iter_mut().zip(values.chunks_exact(self.stride)) {
                    *row = values;
                }
                let sums = tiles::rows_by_panel::<S, M, N>(simd, block, panel_values);
                for (m, sums) in sums.into_iter().enumerate() {
                    let at = (group * M + m) * self.stride_scores + panel * width;
                    let (scores, _) = S::as_mut_simd_f32s(&mut self.scores[at..at + width]);
                    for (score, sum) in scores.iter_mut().zip(sums) {
                        *score = simd.mul_f32s(scale, sum);
                    }
                }
            }
        }
    }
}

/// `out[head] = sum_r scores[r, head] values[r]`.
struct Sums<'a> {
    h: usize,
    d: usize,
    values: &'a [f32],
    stride: usize,
    scores: &'a [f32],
    stride_scores: usize,
    out: &'a mut [f32],
}

impl Blocks for Sums<'_> {
    #[inline(always)]
    fn run<S: Simd, const M: usize, const N: usize>(self, simd: S) {
        let (width, stride) = (N * S::F32_LANES, self.stride);
        self.out.fill(0.0);
        let blocks = self.values.chunks(BLOCK * stride).zip(self.scores.chunks(BLOCK * self.stride_scores));
        for (values, scores) in blocks {
            for column in (0..self.d).step_by(width) {
                for head in (0..self.h).step_by(M) {
                    let out = &mut self.out[head * stride..];
                    let mut sums = [[simd.splat_f32s(0.0); N]; M];
                    for (sums, out) in sums.iter_mut().zip(out.chunks_exact(stride)) {
                        sums.copy_from_slice(S::as_simd_f32s(&out[column..column + width]).0);
                    }
                    let (a, b) = ((scores, self.stride_scores, head), (values, stride, column));
                    tiles::columns_by_rows::<S, M, N>(simd, a, b, &mut sums);
                    for (sums, out) in sums.iter().zip(out.chunks_exact_mut(stride)) {
                        S::as_mut_simd_f32s(&mut out[column..column + width]).0.copy_from_slice(sums);
                    }
                }
            }
        }
    }
}

/// Scores `[rows, stride]` become `e^(score - max)`, column by column; `max` and `sum` per column. No row: -inf and 0.
#[inline(always)]
fn softmax(scores: &mut [f32], stride: usize, max: &mut [f32], sum: &mut [f32]) {
    max.fill(f32::NEG_INFINITY);
    sum.fill(0.0);
    for scores in scores.chunks_exact(stride) {
        for (max, &score) in max.iter_mut().zip(scores) {
            // a NaN stays
            *max = if score > *max || score.is_nan() { score } else { *max };
        }
    }
    for scores in scores.chunks_exact_mut(stride) {
        for ((score, &max), sum) in scores.iter_mut().zip(&*max).zip(&mut *sum) {
            *score = exponential(*score - max);
            *sum += *score;
        }
    }
}

/// Row `row` of a page.
#[inline(always)]
fn widen_row(format: KvFormat, page: &[u8], page_size: usize, row: usize, out: &mut [f32]) {
    let d = out.len();
    match format {
        KvFormat::Bf16 => widen_bf16(&page[2 * d * row..2 * d * (row + 1)], out),
        KvFormat::F32 { .. } => load_f32(&page[4 * d * row..4 * d * (row + 1)], out),
        KvFormat::V4Fp8 => {
            let data = &page[576 * row..576 * (row + 1)];
            let scales = &page[576 * page_size + 8 * row..];
            let (nope, rope) = out.split_at_mut(NOPE);
            for ((codes, out), &scale) in data.chunks_exact(TILE).zip(nope.chunks_exact_mut(TILE)).zip(scales) {
                let scale = from_ue8m0(scale);
                for (x, &code) in out.iter_mut().zip(codes) {
                    *x = e4m3(code) * scale;
                }
            }
            widen_bf16(&data[NOPE..], rope);
        }
    }
}
