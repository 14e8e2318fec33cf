//! Operands of the operations on rows.

use super::{Dtype, IndexKFormat, ScaleRule};

/// Root-mean-square norm of [`NormRope`]. The squares of a row are summed in f32: values of 1e17 and more may come out as
/// zeros. A NaN anywhere makes the whole row NaN.
#[derive(Debug)]
pub enum Norm<'a, B> {
    /// None.
    None,
    /// `x / sqrt(mean(x^2) + eps)`, stored.
    Unweighted,
    /// That times `[d]` f32, stored.
    Weighted(&'a B),
}

impl<B> Clone for Norm<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<B> Copy for Norm<'_, B> {}

/// Rotation of [`NormRope`]: adjacent channels `(2 i, 2 i + 1)` of the last `d_rope`,
/// `(a, b) -> (a cos - b sin, b cos + a sin)`.
#[derive(Debug)]
pub struct Rope<'a, B> {
    /// `[max_positions, d_rope / 2, 2]` f32: cosine, then sine.
    pub table: &'a B,
    /// Rows of the table.
    pub max_positions: u32,
    /// `[t]` s32; a position outside the table leaves the row unrotated.
    pub positions: &'a B,
    /// Channels that turn, even.
    pub d_rope: u32,
    /// Turn back: `-sin`.
    pub inverse: bool,
}

impl<B> Clone for Rope<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<B> Copy for Rope<'_, B> {}

/// Operands of [`super::Ops::norm_rope`]: norm over `d`, then rotation, per token and head.
#[derive(Debug)]
pub struct NormRope<'a, B> {
    /// Type of input and output.
    pub dtype: Dtype,
    /// Rows `[t]` of `[h, d]`, `stride_x` apart.
    pub x: &'a B,
    /// Norm.
    pub norm: Norm<'a, B>,
    /// Rotation.
    pub rope: Option<Rope<'a, B>>,
    /// Out: rows `[t]` of `[h, d]`, `stride_out` apart.
    pub out: &'a mut B,
    /// Tokens.
    pub t: u32,
    /// Heads.
    pub h: u32,
    /// Channels per head.
    pub d: u32,
    /// Row stride of `x`, at least `h * d`.
    pub stride_x: u64,
    /// Row stride of `out`, at least `h * d`.
    pub stride_out: u64,
    /// Added to the mean square; above 0 if there is a norm.
    pub eps: f32,
}

/// Operands of [`super::Ops::hadamard`]: `out[r] = H x[r] / sqrt(d)` with `H[i][j] = (-1)^popcount(i & j)`.
#[derive(Debug)]
pub struct Hadamard<'a, B> {
    /// Type of input and output.
    pub dtype: Dtype,
    /// `[rows, d]`.
    pub x: &'a B,
    /// Out `[rows, d]`.
    pub out: &'a mut B,
    /// Rows.
    pub rows: u32,
    /// Length, a power of two.
    pub d: u32,
}

/// Operands of [`super::Ops::index_q_quantise`]: the query side of the indexer.
///
/// `index_weights[t, h] = weights[t, h] * weight_scale` (f32), times the query's scale for fp8. `d` is that of the format.
/// Formats: f32 and bf16: values in that type; fp8: 128 e4m3 per head with one scale `s = max(amax, 1e-4) / 448` (or that rounded up to a power of
/// two), code = `e4m3(clamp(x / s, -448, 448))`, as in [`super::IndexKWrite`]; fp4: 64 bytes of e2m1 codes (low nibble = even
/// channel) then 4 ue8m0 scales per head, 68 bytes, as the index-K row of that format.
#[derive(Debug)]
pub struct IndexQQuantise<'a, B> {
    /// Type of `q` and `weights`.
    pub dtype: Dtype,
    /// Format of `index_q`.
    pub format: IndexKFormat,
    /// Scale of the fp8 format.
    pub scale_rule: ScaleRule,
    /// `[t, h, d]` contiguous, rotated and transformed.
    pub q: &'a B,
    /// Rows `[t]` of `[h]`, `stride_weights` apart.
    pub weights: &'a B,
    /// Out `[t, h]` codes.
    pub index_q: &'a mut B,
    /// Out `[t, h]` f32.
    pub index_weights: &'a mut B,
    /// Tokens.
    pub t: u32,
    /// Heads.
    pub h: u32,
    /// Row stride of `weights`.
    pub stride_weights: u64,
    /// `d^-1/2 * h^-1/2`.
    pub weight_scale: f32,
}

/// Operands of [`super::Ops::compress`]: one step of a compressor.
///
/// Token `i` of the batch stands at `positions[i]` of sequence `seq[i]`; the tokens of a sequence are consecutive in the
/// batch (`cu_seqlens[s]..cu_seqlens[s + 1]`) and in position. With `w = d` (no overlap) or `2 d`, a token brings
/// `u = kv_gate[i, 0..w]` and `g = kv_gate[i, w..2 w] + ape[position mod ratio]` (an f32). Its state slot is
/// `state_table[s, position / state_page_tokens] * ring_rows + position mod ring_rows`; a slot row holds `u` then `g`, f32.
///
/// For every `i = row_tokens[n]` (a token with `(position + 1) mod ratio = 0`; anything outside the batch gives zeros):
/// `out[n, c] = sum softmax(g) u` over the tokens of its window, `position - ratio + 1 ..= position`, channel by channel.
/// With overlap the items are channels `c` of the window before (none at position `ratio - 1`) and channels `d + c` of this
/// one. The token `k` positions earlier is token `i - k` of the batch if that is not before `cu_seqlens[s]`, else it comes
/// from the state as it was before the call; a page outside `0..num_state_pages`, or a column outside the table, adds no
/// item. No item at all gives zeros. The result is stored in `dtype`.
/// Then the state of every token of the batch is written, of tokens that share a slot the last one's; nothing is written
/// to a page that does not exist.
///
/// A token whose `seq` lies outside `0..b` or whose position is negative is padding: its row is zeros, it writes nothing. A
/// page that tokens of the batch write stands in the state table once.
#[derive(Debug)]
pub struct Compress<'a, B> {
    /// Type of `out`.
    pub dtype: Dtype,
    /// Rows `[t]` of `[2 w]` f32, `stride_kv_gate` apart.
    pub kv_gate: &'a B,
    /// `[ratio, w]` f32.
    pub ape: &'a B,
    /// In and out `[num_state_pages * ring_rows, 2 w]` f32.
    pub state: &'a mut B,
    /// `[b, max_state_pages]` s32.
    pub state_table: &'a B,
    /// `[t]` s32.
    pub positions: &'a B,
    /// `[t]` s32.
    pub seq: &'a B,
    /// `[b + 1]` s32.
    pub cu_seqlens: &'a B,
    /// `[n]` s32.
    pub row_tokens: &'a B,
    /// Out `[n, d]`.
    pub out: &'a mut B,
    /// Tokens.
    pub t: u32,
    /// Sequences.
    pub b: u32,
    /// Rows to pool.
    pub n: u32,
    /// Tokens per row.
    pub ratio: u32,
    /// Channels of a row.
    pub d: u32,
    /// Pool the window before as well (ratio 4).
    pub overlap: bool,
    /// Columns of the state table.
    pub max_state_pages: u32,
    /// Pages of the state.
    pub num_state_pages: u32,
    /// Tokens that share a state page.
    pub state_page_tokens: u32,
    /// State rows per page; at least `ratio`, `2 ratio` with overlap.
    pub ring_rows: u32,
    /// Row stride of `kv_gate`.
    pub stride_kv_gate: u64,
}
