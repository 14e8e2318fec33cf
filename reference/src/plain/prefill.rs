//! Prefill: many queries of ragged sequences.

use ndarray::Array2;

use super::{Bytes, Cells, Exact, IndexCall, clamp_len, dot, dot_abs, head_query, token_rows, widen};
use crate::formats::{f32s, s32s};
use crate::ops::{IndexLogitsPrefill, SparseMlaDecode};

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
