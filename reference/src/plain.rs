//! The judge: every operation as plain loops with f64 sums.
//!
//! The free functions return [`Cells`]: for every element of an output either what it must be, in f64, with the size
//! of the terms that it is made of, or `None` where the operation does not write. [`ReferenceOps`] offers the same through
//! [`Ops`], rounded to the type of the output. Nothing here is quick, and nothing is shared with what it judges.

mod prefill;
pub mod products;
pub mod rows;
mod store;
pub mod streams;

pub use prefill::{index_logits_prefill, max_logits};

use std::ops::Range;

use ndarray::{Array1, Array2, Array3, ArrayD, ArrayView1, ArrayView2, ArrayViewMut1, Axis, Slice};

use crate::formats::{
    bf16_bytes, bf16s, e4m3_decode, f32_bytes, f32s, fp4_values, quantise_fp4_row, quantise_index_row,
    quantise_nope_tile, s32s, ue8m0_decode,
};
use crate::layout::{
    D_INDEX, D_KV, D_NOPE, NOPE_TILE, NOPE_TILES, bf16_kv, f32_row, index_k_bf16, index_k_fp4_data, index_k_fp4_scale,
    index_k_fp8_data, index_k_fp8_scale, v4_fp8_data, v4_fp8_footer, v4_fp8_rope,
};
use crate::ops::{
    Dtype, IndexKFormat, IndexKWrite, IndexLogitsDecode, KvFormat, KvWrite, Ops, OpsError, Paged, Pages, SlotList,
    SparseMlaDecode, SplitCombine, TopkSelect,
};

/// What one element of an output must be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Exact {
    /// The value, before rounding to the type of the output.
    pub value: f64,
    /// Size of the terms that make the value: rounding errors of a correct implementation are in proportion to it.
    pub magnitude: f64,
}

/// The elements of an output; `None` where the operation must not write.
pub type Cells = ArrayD<Option<Exact>>;

/// Memory of the reference: plain bytes.
pub type Bytes = Vec<u8>;

fn dot(a: ArrayView1<f64>, b: ArrayView1<f64>) -> f64 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

fn dot_abs(a: ArrayView1<f64>, b: ArrayView1<f64>) -> f64 {
    a.iter().zip(b).map(|(x, y)| (x * y).abs()).sum()
}

fn widen(values: Vec<f32>) -> Array1<f64> {
    values.into_iter().map(f64::from).collect()
}

fn bytes_at(memory: &[u8], start: u64, len: usize) -> &[u8] {
    &memory[start as usize..start as usize + len]
}

/// Context length of a row: negative counts as 0, more than there can be as all.
fn clamp_len(len: i32, most: u64) -> usize {
    (i64::from(len).max(0) as u64).min(most) as usize
}

// ------------------------------------------------------------------------------------------------ index logits

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

// ------------------------------------------------------------------------------------------------ top-k

/// The `topk` best positions of `values`, ascending: larger value first, then lower position; NaN as -inf, -inf never,
/// zeros equal. Up to `topk` values: all positions, whatever the values are.
pub fn select(values: &[f32], topk: usize) -> Vec<usize> {
    if values.len() <= topk {
        return (0..values.len()).collect();
    }
    let mut order: Vec<usize> = (0..values.len()).filter(|&j| values[j] > f32::NEG_INFINITY).collect();
    // The values left are ordered numbers. A stable sort keeps lower positions first among equals, and equality of
    // numbers does not see the sign of zero.
    order.sort_by(|&a, &b| values[b].partial_cmp(&values[a]).expect("no NaN left"));
    order.truncate(topk);
    order.sort_unstable();
    order
}

/// Outputs of [`topk_select`], each complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection {
    /// `[rows, topk]`
    pub positions: Vec<i32>,
    /// `[rows, topk]`; empty without a block table.
    pub slots: Vec<i32>,
    /// `[rows]`
    pub lens: Vec<i32>,
}

/// Selects in every row.
pub fn topk_select(args: &TopkSelect<'_, Bytes>) -> Selection {
    let (rows, topk, stride) = (args.rows as usize, args.topk as usize, args.stride_logits as usize);
    let lens = s32s(args.context_lens);
    let table = args.block_table.map(|t| s32s(t));
    let sequences = args.sequence_of_row.map(|s| s32s(s));
    let mut result = Selection { positions: Vec::new(), slots: Vec::new(), lens: Vec::new() };
    for (row, &len) in lens.iter().enumerate().take(rows) {
        let n = clamp_len(len, args.stride_logits);
        let from = 4 * row * stride;
        let chosen = select(&f32s(&args.index_logits[from..from + 4 * n]), topk);
        result.lens.push(chosen.len() as i32);
        let pad = std::iter::repeat_n(-1, topk - chosen.len());
        result.positions.extend(chosen.iter().map(|&j| j as i32).chain(pad.clone()));
        if let Some(table) = &table {
            let sequence = match &sequences {
                Some(of_row) => usize::try_from(of_row[row]).ok().filter(|&line| line < args.num_sequences as usize),
                None => Some(row / args.rows_per_sequence as usize),
            };
            let slot = |&j: &usize| {
                let column = j / args.page_size as usize;
                let line = sequence.filter(|_| column < args.max_pages as usize);
                let page = line.map_or(-1, |line| table[line * args.stride_block_table as usize + column]);
                // Slots have 31 bits; a page id whose slots have more is the caller's error, not a panic here.
                let offset = (j % args.page_size as usize) as i32;
                if page < 0 { -1 } else { page.wrapping_mul(args.page_size as i32).wrapping_add(offset) }
            };
            result.slots.extend(chosen.iter().map(slot).chain(pad));
        }
    }
    result
}

// ------------------------------------------------------------------------------------------------ attention

/// The values of a KV row.
pub fn kv_row(format: KvFormat, memory: &[u8], pages: &Pages, page: u32, row: u32) -> Array1<f64> {
    match format {
        KvFormat::V4Fp8 => {
            let codes = bytes_at(memory, v4_fp8_data(pages, page, row), D_NOPE);
            let scales = bytes_at(memory, v4_fp8_footer(pages, page, row), NOPE_TILES);
            let rope = bf16s(bytes_at(memory, v4_fp8_rope(pages, page, row), 2 * (D_KV - D_NOPE)));
            let nope = codes
                .iter()
                .enumerate()
                .map(|(c, &code)| f64::from(e4m3_decode(code)) * f64::from(ue8m0_decode(scales[c / NOPE_TILE])));
            nope.chain(rope.into_iter().map(f64::from)).collect()
        }
        KvFormat::Bf16 => widen(bf16s(bytes_at(memory, bf16_kv(pages, page, row), 2 * D_KV))),
        KvFormat::F32 { d } => widen(f32s(bytes_at(memory, f32_row(pages, page, row, d), 4 * d as usize))),
    }
}

/// Attention of one head over `rows`: as many outputs as the query has channels, and the log-sum-exp.
pub fn attend(q: ArrayView1<f64>, rows: &[Array1<f64>], sm_scale: f64, sink: Option<f64>) -> (Vec<Exact>, Exact) {
    if rows.is_empty() {
        let nothing = Exact { value: 0.0, magnitude: 0.0 };
        return (vec![nothing; q.len()], Exact { value: f64::NEG_INFINITY, magnitude: 0.0 });
    }
    let scores: Vec<f64> = rows.iter().map(|k| sm_scale * dot(q, k.view())).collect();
    // f64::max would drop a NaN
    let max =
        scores.iter().copied().fold(f64::NEG_INFINITY, |m, l| if m.is_nan() || l > m || l.is_nan() { l } else { m });
    let sum: f64 = scores.iter().map(|l| (l - max).exp()).sum();
    let denominator = sum + sink.map_or(0.0, |sink| (sink - max).exp());
    let mut out = vec![Exact { value: 0.0, magnitude: 0.0 }; q.len()];
    for (l, k) in scores.iter().zip(rows) {
        let p = (l - max).exp() / denominator;
        for (o, &v) in out.iter_mut().zip(k) {
            o.value += p * v;
            o.magnitude += p * v.abs();
        }
    }
    let terms = rows.iter().map(|k| sm_scale.abs() * dot_abs(q, k.view())).fold(1.0, f64::max);
    (out, Exact { value: max + sum.ln(), magnitude: terms })
}

/// Slots of token `t` that are looked at and lie in the pool, as (page, row).
fn valid_rows(list: &SlotList<'_, Bytes>, t: usize) -> Vec<(u32, u32)> {
    let len = list.lens.map_or(list.width as usize, |lens| clamp_len(s32s(lens)[t], u64::from(list.width)));
    let from = 4 * t * list.stride_slots as usize;
    let slots = s32s(&list.slots[from..from + 4 * len]);
    slots.into_iter().filter_map(|slot| list.cache.pages.locate(slot)).collect()
}

/// All valid rows of a token.
fn token_rows(args: &SparseMlaDecode<'_, Bytes>, token: usize) -> Vec<Array1<f64>> {
    let lists = std::iter::once(&args.window).chain(&args.compressed);
    let rows = lists.flat_map(|list| {
        let cache = &list.cache;
        let row = |(page, row)| kv_row(args.format, cache.buffer, &cache.pages, page, row);
        valid_rows(list, token).into_iter().map(row)
    });
    rows.collect()
}

fn head_query(args: &SparseMlaDecode<'_, Bytes>, token: usize, head: usize) -> Array1<f64> {
    let from = token as u64 * args.stride_q[0] + head as u64 * args.stride_q[1];
    widen(values(args.dtype, elements(args.dtype, args.q, from, args.format.d() as usize)))
}

/// Sparse attention: out `[t, h, d]` and lse `[t, h]`.
pub fn sparse_mla(args: &SparseMlaDecode<'_, Bytes>) -> (Cells, Cells) {
    let (t, h, d) = (args.t as usize, args.h as usize, args.format.d() as usize);
    let sinks = args.attn_sink.map(|b| f32s(b));
    let mut out = Array3::from_elem((t, h, d), None);
    let mut lse = Array2::from_elem((t, h), None);
    for token in 0..t {
        let rows = token_rows(args, token);
        for head in 0..h {
            let q = head_query(args, token, head);
            let sink = sinks.as_ref().map(|s| f64::from(s[head]));
            let (values, log_sum) = attend(q.view(), &rows, f64::from(args.sm_scale), sink);
            for (channel, value) in values.into_iter().enumerate() {
                out[[token, head, channel]] = Some(value);
            }
            lse[[token, head]] = Some(log_sum);
        }
    }
    (out.into_dyn(), lse.into_dyn())
}

/// Merged splits: out `[t, h, 512]` and lse `[t, h]`.
pub fn split_combine(args: &SplitCombine<'_, Bytes>) -> (Cells, Cells) {
    let (t, h, splits) = (args.t as usize, args.h as usize, args.num_splits as usize);
    let lse2 = f32s(&args.lse2_partial[..4 * splits * t * h]);
    let sinks = args.attn_sink.map(|b| f32s(b));
    let mut out = Array3::from_elem((t, h, D_KV), Some(Exact { value: 0.0, magnitude: 0.0 }));
    let mut lse = Array2::from_elem((t, h), Some(Exact { value: f64::NEG_INFINITY, magnitude: 0.0 }));
    for (token, head) in (0..t).flat_map(|token| (0..h).map(move |head| (token, head))) {
        let line = |split: usize| (split * t + token) * h + head;
        let parts: Vec<usize> = (0..splits).filter(|&s| lse2[line(s)] != f32::NEG_INFINITY).collect();
        if parts.is_empty() {
            continue;
        }
        let max = parts.iter().map(|&s| f64::from(lse2[line(s)])).fold(f64::NEG_INFINITY, f64::max);
        let weight = |split: usize| (f64::from(lse2[line(split)]) - max).exp2();
        let sum: f64 = parts.iter().map(|&s| weight(s)).sum();
        let sink = sinks.as_ref().map_or(0.0, |s| (f64::from(s[head]) * std::f64::consts::LOG2_E - max).exp2());
        for channel in 0..D_KV {
            let terms = parts.iter().map(|&s| {
                let from = 4 * (line(s) * D_KV + channel);
                weight(s) * f64::from(f32s(&args.o_partial[from..from + 4])[0]) / (sum + sink)
            });
            let value = terms.clone().sum();
            out[[token, head, channel]] = Some(Exact { value, magnitude: terms.map(f64::abs).sum() });
        }
        let value = std::f64::consts::LN_2 * (max + sum.log2());
        lse[[token, head]] = Some(Exact { value, magnitude: max.abs().max(1.0) });
    }
    (out.into_dyn(), lse.into_dyn())
}

// ------------------------------------------------------------------------------------------------ writers

/// `count` elements of a tensor from element `from` on, as they stand in memory.
fn elements(dtype: Dtype, memory: &[u8], from: u64, count: usize) -> &[u8] {
    bytes_at(memory, dtype.bytes() * from, dtype.bytes() as usize * count)
}

/// Elements of a tensor in f32.
fn values(dtype: Dtype, bytes: &[u8]) -> Vec<f32> {
    match dtype {
        Dtype::F32 => f32s(bytes),
        Dtype::Bf16 => bf16s(bytes),
    }
}

/// Elements of type `from` stored as `to`: a copy if the types are equal.
fn converted(from: Dtype, to: Dtype, bytes: &[u8]) -> Vec<u8> {
    match (from, to) {
        (Dtype::F32, Dtype::Bf16) => bf16_bytes(&f32s(bytes)),
        (Dtype::Bf16, Dtype::F32) => f32_bytes(&bf16s(bytes)),
        (Dtype::F32, Dtype::F32) | (Dtype::Bf16, Dtype::Bf16) => bytes.to_vec(),
    }
}

fn put(memory: &mut [u8], at: u64, bytes: &[u8]) {
    memory[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
}

/// Writes KV rows into the cache of `args`.
pub fn kv_write(args: &mut KvWrite<'_, Bytes>) {
    let slots = s32s(args.slot_mapping);
    for (token, &slot) in slots.iter().enumerate().take(args.t as usize) {
        let Some((page, row)) = args.pages.locate(slot) else { continue };
        let d = args.format.d();
        let given = elements(args.dtype, args.rows, token as u64 * args.stride_rows, d as usize);
        match args.format {
            KvFormat::Bf16 => {
                put(args.cache, bf16_kv(&args.pages, page, row), &converted(args.dtype, Dtype::Bf16, given));
            }
            KvFormat::F32 { d } => {
                put(args.cache, f32_row(&args.pages, page, row, d), &converted(args.dtype, Dtype::F32, given));
            }
            KvFormat::V4Fp8 => {
                let values = values(args.dtype, given);
                let mut footer = [0; NOPE_TILES + 1];
                for (tile, scale) in footer.iter_mut().enumerate().take(NOPE_TILES) {
                    let from = tile * NOPE_TILE;
                    let nope: [f32; NOPE_TILE] = std::array::from_fn(|c| values[from + c]);
                    let (byte, codes) = quantise_nope_tile(&nope);
                    *scale = byte;
                    put(args.cache, v4_fp8_data(&args.pages, page, row) + from as u64, &codes);
                }
                let rope = converted(args.dtype, Dtype::Bf16, &given[args.dtype.bytes() as usize * D_NOPE..]);
                put(args.cache, v4_fp8_rope(&args.pages, page, row), &rope);
                put(args.cache, v4_fp8_footer(&args.pages, page, row), &footer);
            }
        }
    }
}

/// Writes index-K rows into the cache of `args`.
pub fn index_k_write(args: &mut IndexKWrite<'_, Bytes>) {
    let slots = s32s(args.slot_mapping);
    for (token, &slot) in slots.iter().enumerate().take(args.t as usize) {
        let Some((page, row)) = args.pages.locate(slot) else { continue };
        let d = args.format.d();
        let given = elements(args.dtype, args.rows, token as u64 * args.stride_rows, d as usize);
        match args.format {
            IndexKFormat::Bf16 => {
                put(args.cache, index_k_bf16(&args.pages, page, row), &converted(args.dtype, Dtype::Bf16, given));
            }
            IndexKFormat::F32 { d } => {
                put(args.cache, f32_row(&args.pages, page, row, d), &converted(args.dtype, Dtype::F32, given));
            }
            IndexKFormat::Fp4 => {
                let values = values(args.dtype, given);
                let (codes, scales) = quantise_fp4_row(&std::array::from_fn(|c| values[c]));
                put(args.cache, index_k_fp4_data(&args.pages, page, row), &codes);
                put(args.cache, index_k_fp4_scale(&args.pages, page, row), &scales);
            }
            IndexKFormat::Fp8 => {
                let values = values(args.dtype, given);
                let (scale, codes) = quantise_index_row(&std::array::from_fn(|c| values[c]), args.scale_rule);
                put(args.cache, index_k_fp8_data(&args.pages, page, row), &codes);
                put(args.cache, index_k_fp8_scale(&args.pages, page, row), &scale.to_le_bytes());
            }
        }
    }
}

// ------------------------------------------------------------------------------------------------ the trait

/// The reference behind the seam that it judges.
#[derive(Debug, Clone, Copy, Default)]
pub struct ReferenceOps;

/// Up to this size, fresh memory is filled with 0xff (NaN); above, the system's zero pages are left alone.
const POISON_UP_TO: u64 = 256 << 20;

fn len(buffer: &Bytes) -> u64 {
    buffer.len() as u64
}

fn span(bytes: usize, offset: u64, memory: u64) -> Result<Range<usize>, OpsError> {
    match offset.checked_add(bytes as u64) {
        Some(end) if end <= memory => Ok(offset as usize..end as usize),
        _ => Err(OpsError::Device {
            device: "reference".into(),
            message: format!("a copy of {bytes} bytes at offset {offset} leaves a buffer of {memory} bytes"),
        }),
    }
}

/// Checks the operands and stores what the operation makes of them.
macro_rules! checked_and_stored {
    ($($op:ident($operands:ident),)*) => {$(
        fn $op(&self, args: crate::ops::$operands<'_, Bytes>) -> Result<(), OpsError> {
            args.check(len)?;
            store::$op(args);
            Ok(())
        }
    )*};
}

impl Ops for ReferenceOps {
    type Buffer = Bytes;

    fn name(&self) -> String {
        "reference".into()
    }

    fn alloc(&self, bytes: u64, label: &str) -> Result<Bytes, OpsError> {
        let size = usize::try_from(bytes).map_err(|_| OpsError::Device {
            device: "reference".into(),
            message: format!("{label}: {bytes} bytes do not fit the address space"),
        })?;
        Ok(vec![if bytes <= POISON_UP_TO { 0xff } else { 0 }; size])
    }

    fn upload(&self, dst: &mut Bytes, offset: u64, bytes: &[u8]) -> Result<(), OpsError> {
        let range = span(bytes.len(), offset, len(dst))?;
        dst[range].copy_from_slice(bytes);
        Ok(())
    }

    fn download(&self, src: &Bytes, offset: u64, bytes: &mut [u8]) -> Result<(), OpsError> {
        let range = span(bytes.len(), offset, len(src))?;
        bytes.copy_from_slice(&src[range]);
        Ok(())
    }

    fn len_bytes(&self, buffer: &Bytes) -> u64 {
        len(buffer)
    }

    crate::for_each_operation!(checked_and_stored);
}
