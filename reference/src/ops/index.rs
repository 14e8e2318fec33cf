//! Operands of the index logits and of the choice of the best.

use super::{IndexKFormat, Paged};

/// Operands of [`super::Ops::index_logits_decode`].
///
/// `logit[r, j] = k_scale[j] * sum_h weight[r, h] * relu(q[r, h] . k[j])`, f32 from the dot on, NaN passes through. Row
/// `r` is query `r % s_q` of sequence `r / s_q`; its `n` is `context_lens[r]` clamped to `0..=max_pages * page_size`.
/// Entries `j < n` whose page id lies outside the pool are -inf and their memory is not read. Entries at and beyond `n`
/// are -inf (up to the row stride) when cleaning is asked for and not written otherwise.
///
/// `k_scale` is the row's f32 for fp8 and 1 otherwise. fp4: `q . k = sum_g qs_g ks_g sum_c q_c k_c` over the four groups of
/// 32 channels, `q_c` and `k_c` the values of the codes; a scale byte of 255 is NaN.
#[derive(Debug)]
pub struct IndexLogitsDecode<'a, B> {
    /// Format of `index_q` and `index_k`.
    pub format: IndexKFormat,
    /// `[b, s_q, index_heads, d]` e4m3, bf16 or f32, contiguous; fp4: `[b, s_q, index_heads]` of 64 code bytes and 4 ue8m0.
    pub index_q: &'a B,
    /// `[b, s_q, index_heads]` f32, contiguous.
    pub index_weights: &'a B,
    /// Index-K pages.
    pub index_k: Paged<'a, B>,
    /// `[b, max_pages]` s32.
    pub block_table: &'a B,
    /// `[b, s_q]` s32, in index rows.
    pub context_lens: &'a B,
    /// Out `[b * s_q, stride_logits]` f32.
    pub index_logits: &'a mut B,
    /// Sequences.
    pub b: u32,
    /// Queries per sequence, 1 to 4.
    pub s_q: u32,
    /// Heads of the indexer, 1 to 128; the kernels take 64.
    pub index_heads: u32,
    /// Columns of the block table in use.
    pub max_pages: u32,
    /// Row stride of the block table.
    pub stride_block_table: u64,
    /// Row stride of the logits, a multiple of 256 and at least `max_pages * page_size`.
    pub stride_logits: u64,
    /// Write -inf to `[n, stride_logits)` of every row; otherwise those entries are not written.
    pub clean_logits: bool,
}

/// Operands of [`super::Ops::index_logits_prefill`]: [`super::IndexLogitsDecode`] for ragged queries.
///
/// Sequence `s` brings the queries `cu_seqlens_q[s]..cu_seqlens_q[s + 1]` of the batch (entries ascend and are clamped to
/// `0..=t`; the first need not be 0: rows outside are not touched). Query `r` scores rows `starts[r]..ends[r]` of its sequence,
/// both clamped to `0..=max_pages * page_size`, into `index_logits[r, starts[r]..ends[r]]`; the rest of the row is -inf when
/// cleaning is asked for and not written otherwise. Keys that no query asks for are not read, nor are queries that ask for
/// none.
#[derive(Debug)]
pub struct IndexLogitsPrefill<'a, B> {
    /// Format of `index_q` and `index_k`.
    pub format: IndexKFormat,
    /// `[t, index_heads, d]` in the query form of the format.
    pub index_q: &'a B,
    /// `[t, index_heads]` f32.
    pub index_weights: &'a B,
    /// Index-K pages.
    pub index_k: Paged<'a, B>,
    /// `[b, max_pages]` s32.
    pub block_table: &'a B,
    /// `[b + 1]` s32.
    pub cu_seqlens_q: &'a B,
    /// `[t]` s32; absent: 0.
    pub starts: Option<&'a B>,
    /// `[t]` s32.
    pub ends: &'a B,
    /// Out `[t, stride_logits]` f32.
    pub index_logits: &'a mut B,
    /// Tokens in the batch.
    pub t: u32,
    /// Sequences.
    pub b: u32,
    /// Heads of the indexer; the kernels take 64.
    pub index_heads: u32,
    /// Columns of the block table in use.
    pub max_pages: u32,
    /// Row stride of the block table.
    pub stride_block_table: u64,
    /// Row stride of the logits, a multiple of 256.
    pub stride_logits: u64,
    /// Write -inf outside `starts..ends`.
    pub clean_logits: bool,
}

/// Operands of [`super::Ops::topk_select`].
///
/// `n` of a row is `context_lens[r]` clamped to `0..=stride_logits`. If `n <= topk`, the row's result is `0..n` whatever
/// the values are (they are not read). Otherwise the `topk` best entries of `0..n`: larger value first, then lower
/// position; -0.0 equals +0.0, NaN counts as -inf, -inf is never selected. Positions come out ascending, -1 behind them.
/// The slot of position `j` is `block_table[j / page_size] * page_size + j % page_size`, or -1 (in its place) if the page
/// id is negative or `j / page_size >= max_pages`. Row `r` reads line `r / rows_per_sequence` of the table, or line
/// `sequence_of_row[r]` where that is given; outside `0..num_sequences`, all its slots are -1. At least one of the two lists
/// is asked for; a block table is given exactly when slots are.
#[derive(Debug)]
pub struct TopkSelect<'a, B> {
    /// `[rows, stride_logits]` f32.
    pub index_logits: &'a B,
    /// `[rows]` s32.
    pub context_lens: &'a B,
    /// `[rows / rows_per_sequence, max_pages]` s32, or `[num_sequences, max_pages]` with `sequence_of_row`; needed for
    /// `topk_slots`.
    pub block_table: Option<&'a B>,
    /// `[rows]` s32: line of the block table; absent: rows stand `rows_per_sequence` to a line. Only with a block table.
    pub sequence_of_row: Option<&'a B>,
    /// Out `[rows, topk]` s32, ascending, -1 at the tail.
    pub topk_positions: Option<&'a mut B>,
    /// Out `[rows, topk]` s32, the same entries as slots.
    pub topk_slots: Option<&'a mut B>,
    /// Out `[rows]` s32.
    pub topk_lens: Option<&'a mut B>,
    /// Rows.
    pub rows: u32,
    /// Rows that share one line of the block table; not looked at with `sequence_of_row`.
    pub rows_per_sequence: u32,
    /// Lines of the block table; looked at with `sequence_of_row` only.
    pub num_sequences: u32,
    /// 1 to 2048.
    pub topk: u32,
    /// Rows per page of the cache that the slots point into.
    pub page_size: u32,
    /// Columns of the block table in use.
    pub max_pages: u32,
    /// Row stride of the logits, a multiple of 256, below 2^31.
    pub stride_logits: u64,
    /// Row stride of the block table.
    pub stride_block_table: u64,
}
