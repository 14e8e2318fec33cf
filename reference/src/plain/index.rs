//! Index logits: every key of a sequence scored for a query.

use std::ops::Range;

use ndarray::{Array1, Array2, ArrayView1, ArrayView2, ArrayViewMut1, Axis, Slice};

use super::{Bytes, Cells, Exact, bytes_at, clamp_len, dot, dot_abs, widen};
use crate::formats::{bf16s, e4m3_decode, f32s, fp4_values, s32s};
use crate::layout::{
    D_INDEX, f32_row, index_k_bf16, index_k_fp4_data, index_k_fp4_scale, index_k_fp8_data, index_k_fp8_scale,
};
use crate::ops::{IndexKFormat, IndexLogitsDecode, IndexLogitsPrefill, Paged, Pages};

/// An index-K row: its scale (1 unless it is fp8) and its stored values; those of fp4 with their scales.
pub fn index_k_row(format: IndexKFormat, memory: &[u8], pages: &Pages, page: u32, row: u32) -> (f64, Array1<f64>) {
    match format {
        IndexKFormat::Fp8 => {
            let codes = bytes_at(memory, index_k_fp8_data(pages, page, row), D_INDEX);
            let scale = f32s(bytes_at(memory, index_k_fp8_scale(pages, page, row), 4))[0];
            (f64::from(scale), codes.iter().map(|&c| f64::from(e4m3_decode(c))).collect())
        }
        IndexKFormat::Bf16 => (1.0, widen(bf16s(bytes_at(memory, index_k_bf16(pages, page, row), 2 * D_INDEX)))),
        IndexKFormat::Fp4 => {
            let codes = bytes_at(memory, index_k_fp4_data(pages, page, row), D_INDEX / 2);
            let scales = bytes_at(memory, index_k_fp4_scale(pages, page, row), 4);
            (1.0, fp4_values(codes, scales).into())
        }
        IndexKFormat::F32 { d } => (1.0, widen(f32s(bytes_at(memory, f32_row(pages, page, row, d), 4 * d as usize)))),
    }
}

/// The query of one head.
fn index_query(format: IndexKFormat, bytes: &[u8]) -> Array1<f64> {
    match format {
        IndexKFormat::Fp8 => bytes.iter().map(|&c| f64::from(e4m3_decode(c))).collect(),
        IndexKFormat::Bf16 => widen(bf16s(bytes)),
        IndexKFormat::Fp4 => fp4_values(&bytes[..D_INDEX / 2], &bytes[D_INDEX / 2..]).into(),
        IndexKFormat::F32 { .. } => widen(f32s(bytes)),
    }
}

/// Score of one key for one query: `scale * sum_h w_h * relu(q_h . k)`. NaN passes through.
pub fn index_score(q: ArrayView2<f64>, weights: ArrayView1<f64>, scale: f64, key: ArrayView1<f64>) -> Exact {
    let (mut value, mut magnitude) = (0.0, 0.0);
    for (query, &w) in q.outer_iter().zip(weights) {
        let dot = dot(query, key);
        let relu = if dot <= 0.0 { 0.0 } else { dot };
        value += w * relu;
        // A dot that no rounding can make positive adds exactly nothing, whoever computes it.
        let terms = dot_abs(query, key);
        if dot > -terms / f64::from(1 << 18) {
            magnitude += w.abs() * terms;
        }
    }
    Exact { value: scale * value, magnitude: scale.abs() * magnitude }
}

/// What the rows of a call of index logits have in common.
struct IndexCall<'a> {
    format: IndexKFormat,
    heads: usize,
    index_q: &'a Bytes,
    index_weights: Array1<f64>,
    index_k: Paged<'a, Bytes>,
    table: Vec<i32>,
    stride_table: usize,
    clean: bool,
}

impl IndexCall<'_> {
    /// Scores the query of row `row` against the keys `range` of the sequence in line `line` of the table.
    fn row(&self, row: usize, line: usize, range: Range<usize>, mut cells: ArrayViewMut1<Option<Exact>>) {
        let minus_infinity = Some(Exact { value: f64::NEG_INFINITY, magnitude: 0.0 });
        if self.clean {
            cells.fill(minus_infinity);
        }
        let (heads, head_bytes) = (self.heads, self.format.query_head_bytes() as usize);
        let mut q = Array2::zeros((heads, self.format.d() as usize));
        let bytes = &self.index_q[row * heads * head_bytes..(row + 1) * heads * head_bytes];
        for (mut q, bytes) in q.outer_iter_mut().zip(bytes.chunks_exact(head_bytes)) {
            q.assign(&index_query(self.format, bytes));
        }
        let w = self.index_weights.slice_axis(Axis(0), Slice::from(row * heads..(row + 1) * heads));
        let (memory, pages) = (self.index_k.buffer, &self.index_k.pages);
        for j in range {
            let page = self.table[line * self.stride_table + j / pages.page_size as usize];
            cells[j] = match u32::try_from(page) {
                Ok(page) if page < pages.num_pages => {
                    let offset = (j % pages.page_size as usize) as u32;
                    let (scale, key) = index_k_row(self.format, memory, pages, page, offset);
                    Some(index_score(q.view(), w, scale, key.view()))
                }
                _ => minus_infinity,
            };
        }
    }
}

/// Index logits, `[b * s_q, stride_logits]`.
pub fn index_logits(args: &IndexLogitsDecode<'_, Bytes>) -> Cells {
    let (rows, stride) = ((args.b * args.s_q) as usize, args.stride_logits as usize);
    let call = IndexCall {
        format: args.format,
        heads: args.index_heads as usize,
        index_q: args.index_q,
        index_weights: widen(f32s(args.index_weights)),
        index_k: args.index_k,
        table: s32s(args.block_table),
        stride_table: args.stride_block_table as usize,
        clean: args.clean_logits,
    };
    let columns = u64::from(args.max_pages) * u64::from(args.index_k.pages.page_size);
    let mut cells = Array2::from_elem((rows, stride), None);
    for (row, &len) in s32s(args.context_lens).iter().enumerate().take(rows) {
        call.row(row, row / args.s_q as usize, 0..clamp_len(len, columns), cells.row_mut(row));
    }
    cells.into_dyn()
}

/// Index logits of ragged queries, `[t, stride_logits]`.
pub fn index_logits_prefill(args: &IndexLogitsPrefill<'_, Bytes>) -> Cells {
    let call = IndexCall {
        format: args.format,
        heads: args.index_heads as usize,
        index_q: args.index_q,
        index_weights: widen(f32s(args.index_weights)),
        index_k: args.index_k,
        table: s32s(args.block_table),
        stride_table: args.stride_block_table as usize,
        clean: args.clean_logits,
    };
    let columns = u64::from(args.max_pages) * u64::from(args.index_k.pages.page_size);
    let (starts, ends) = (args.starts.map(|s| s32s(s)), s32s(args.ends));
    let mut cells = Array2::from_elem((args.t as usize, args.stride_logits as usize), None);
    for (sequence, queries) in s32s(args.cu_seqlens_q)[..=args.b as usize].windows(2).enumerate() {
        for row in clamp_len(queries[0], u64::from(args.t))..clamp_len(queries[1], u64::from(args.t)) {
            let start = starts.as_ref().map_or(0, |starts| clamp_len(starts[row], columns));
            call.row(row, sequence, start..clamp_len(ends[row], columns), cells.row_mut(row));
        }
    }
    cells.into_dyn()
}
