//! The best positions of every row.

use super::{Bytes, clamp_len};
use crate::formats::{f32s, s32s};
use crate::ops::TopkSelect;

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
