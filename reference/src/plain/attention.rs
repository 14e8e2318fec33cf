//! Attention over the valid rows of two lists, and the merge of splits.

use ndarray::{Array1, Array2, Array3, ArrayView1};

use super::{Bytes, Cells, Exact, bytes_at, clamp_len, dot, dot_abs, elements, values, widen};
use crate::formats::{bf16s, e4m3_decode, f32s, s32s, ue8m0_decode};
use crate::layout::{D_KV, D_NOPE, NOPE_TILE, NOPE_TILES, bf16_kv, f32_row, v4_fp8_data, v4_fp8_footer, v4_fp8_rope};
use crate::ops::{KvFormat, Pages, SlotList, SparseMlaDecode, SplitCombine};

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

/// The largest scaled product of every token and head, `[t, h]`; -inf without rows.
pub fn max_logits(args: &SparseMlaDecode<'_, Bytes>) -> Cells {
    let sm_scale = f64::from(args.sm_scale);
    let mut cells = Array2::from_elem((args.t as usize, args.h as usize), None);
    for token in 0..args.t as usize {
        let rows = token_rows(args, token);
        for head in 0..args.h as usize {
            let q = head_query(args, token, head);
            let mut most = Exact { value: f64::NEG_INFINITY, magnitude: if rows.is_empty() { 0.0 } else { 1.0 } };
            for row in &rows {
                most.value = most.value.max(sm_scale * dot(q.view(), row.view()));
                most.magnitude = most.magnitude.max(sm_scale.abs() * dot_abs(q.view(), row.view()));
            }
            cells[[token, head]] = Some(most);
        }
    }
    cells.into_dyn()
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
