//! Operands of the operations around sparse attention: projections, norms, positions, compressor, experts, streams.
//!
//! Activations have one [`Dtype`] per call. With [`Dtype::Bf16`] every output (and every intermediate value that a
//! contract says is "stored") is rounded once, to nearest even; with [`Dtype::F32`] nothing is rounded but to f32. Sums are
//! taken in f32 or better, in any order. Norm weights, biases, sinks and mixing parameters are f32 whatever the dtype.
//! Strides are in elements. `t` tokens of a batch stand one after the other.

use super::{IndexKFormat, Paged, ScaleRule};

/// Element type of activations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// 32-bit: runs on the host, and the reference.
    F32,
    /// 16-bit brain float: what the kernels read and write.
    Bf16,
}

impl Dtype {
    /// Bytes of an element.
    pub const fn bytes(self) -> u64 {
        match self {
            Dtype::F32 => 4,
            Dtype::Bf16 => 2,
        }
    }

    /// `f32`, `bf16`
    pub const fn name(self) -> &'static str {
        match self {
            Dtype::F32 => "f32",
            Dtype::Bf16 => "bf16",
        }
    }
}

/// How a weight matrix `[rows, k]` is stored, row-major. `k` is a multiple of 32. Values are decoded to f32, which is exact
/// (a code times a scale beyond the range of f32 is infinite; a NaN code or the scale byte 255 gives NaN); products are with
/// the decoded values. Where they are made of bf16, a decoded value below 2^-126 keeps the bits that bf16 has there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WeightFormat {
    /// f32.
    F32,
    /// bf16.
    Bf16,
    /// e4m3, one ue8m0 scale per 128 x 128 block: scales `[ceil(rows / 128), ceil(k / 128)]`. `rows` are all rows of the
    /// operand: matrices that are stacked have blocks of their own only where their rows are a multiple of 128.
    Fp8Block128,
    /// e2m1, two codes per byte (low nibble = even k), one ue8m0 scale per 32 along k: scales `[rows, k / 32]`.
    Fp4Block32,
}

/// A weight matrix, or several of equal size stacked along the rows.
#[derive(Debug)]
pub struct Weight<'a, B> {
    /// Storage.
    pub format: WeightFormat,
    /// Values or codes.
    pub data: &'a B,
    /// Scales of the block formats, absent otherwise.
    pub scale: Option<&'a B>,
}

impl<B> Clone for Weight<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<B> Copy for Weight<'_, B> {}

/// Operands of [`super::Ops::embed`]: `out[t, c, :] = table[ids[t], :]` for every copy `c`, bit for bit. An id outside
/// `0..vocab` gives zeros.
#[derive(Debug)]
pub struct Embed<'a, B> {
    /// Type of table and output.
    pub dtype: Dtype,
    /// `[vocab, d]`.
    pub table: &'a B,
    /// `[t]` s32.
    pub ids: &'a B,
    /// Out `[t, copies, d]`.
    pub out: &'a mut B,
    /// Tokens.
    pub t: u32,
    /// Rows of the table.
    pub vocab: u32,
    /// Channels.
    pub d: u32,
    /// Streams that start from the embedding.
    pub copies: u32,
}

/// Operands of [`super::Ops::gather_rows`]: `out[i] = src[rows[i]]`; a row outside `0..num_rows` gives zeros.
#[derive(Debug)]
pub struct GatherRows<'a, B> {
    /// `[num_rows, row_bytes]`.
    pub src: &'a B,
    /// `[n]` s32.
    pub rows: &'a B,
    /// Out `[n, row_bytes]`.
    pub out: &'a mut B,
    /// Rows to take.
    pub n: u32,
    /// Rows of `src`.
    pub num_rows: u32,
    /// Bytes per row, a multiple of 4; the kernels take multiples of 16.
    pub row_bytes: u64,
}

/// Mixing outputs of a sub-layer in [`HcMix`].
#[derive(Debug)]
pub struct HcMixing<'a, B> {
    /// Out `[t, hc]` f32: `post_j = 2 sigmoid(m[hc + j] scale[1] + base[hc + j])`.
    pub post: &'a mut B,
    /// Out `[t, hc, hc]` f32: the Sinkhorn matrix `M[j][k]` of `m[2 hc + hc j + k] scale[2] + base[2 hc + hc j + k]`.
    pub comb: &'a mut B,
    /// Row and column normalisations, the softmax counted (20); at least 1.
    pub sinkhorn_iters: u32,
}

/// Operands of [`super::Ops::hc_mix`]: hyper-connections before a sub-layer, or before the head.
///
/// `f = flatten(streams[t])`, `m = (fn f) / sqrt(mean(f^2) + norm_eps)`, `pre_j = sigmoid(m[j] scale[0] + base[j]) + hc_eps`,
/// `h = sum_j pre_j streams[t, j]` (stored in `dtype`), `out = norm_weight h / sqrt(mean(h^2) + norm_eps)`.
/// Sinkhorn: `M = softmax over k of L, plus hc_eps`; divide each column by (its sum + hc_eps); then `sinkhorn_iters - 1` times:
/// divide rows by (sum + hc_eps), then columns by (sum + hc_eps). NaN and infinities of a token make everything of that token
/// NaN. Squares are summed in f32: streams above 1e16 are the caller's error.
#[derive(Debug)]
pub struct HcMix<'a, B> {
    /// Type of streams and output.
    pub dtype: Dtype,
    /// `[t, hc, d]`.
    pub streams: &'a B,
    /// `[m, hc * d]` f32, `m = 2 hc + hc^2` with mixing, else `hc`.
    pub weight: &'a B,
    /// `[m]` f32.
    pub base: &'a B,
    /// `[3]` f32 with mixing, else `[1]`.
    pub scale: &'a B,
    /// `[d]` f32.
    pub norm_weight: &'a B,
    /// Out `[t, d]`.
    pub out: &'a mut B,
    /// `post` and `comb` of a sub-layer; `None` for the head.
    pub mixing: Option<HcMixing<'a, B>>,
    /// Tokens.
    pub t: u32,
    /// Streams, 4.
    pub hc: u32,
    /// Channels; the kernels take multiples of 8 up to 8192.
    pub d: u32,
    /// Added to mean squares; finite, not negative.
    pub norm_eps: f32,
    /// See above; finite, not negative.
    pub hc_eps: f32,
}

/// Operands of [`super::Ops::hc_post`]: `streams[t, k] = post[t, k] y[t] + sum_j comb[t, j, k] streams[t, j]`, in place. `y` is
/// read in f32 and rounded to `dtype` first.
#[derive(Debug)]
pub struct HcPost<'a, B> {
    /// Type of the streams.
    pub dtype: Dtype,
    /// In and out `[t, hc, d]`.
    pub streams: &'a mut B,
    /// `[t, d]` f32.
    pub y: &'a B,
    /// `[t, hc]` f32.
    pub post: &'a B,
    /// `[t, hc, hc]` f32.
    pub comb: &'a B,
    /// Tokens.
    pub t: u32,
    /// Streams, 4.
    pub hc: u32,
    /// Channels.
    pub d: u32,
}

/// Operands of [`super::Ops::linear`]: `out[t, g, i] = sum_k x[t, g, k] w[g * n + i, k]`, in f32, rounded once to
/// `out_dtype`; with `accumulate` added to what `out` (f32) holds. NaN and infinities of a row of `x` stay in that row.
/// Elements of `out` between the rows are not written.
#[derive(Debug)]
pub struct Linear<'a, B> {
    /// Type of `x`.
    pub dtype: Dtype,
    /// Rows `[t]` of `groups * k` values, `stride_x` apart.
    pub x: &'a B,
    /// `[groups * n, k]`.
    pub weight: Weight<'a, B>,
    /// Out: rows `[t]` of `groups * n` values, `stride_out` apart.
    pub out: &'a mut B,
    /// Type of `out`.
    pub out_dtype: Dtype,
    /// Add to `out`; only with f32 output.
    pub accumulate: bool,
    /// Rows.
    pub t: u32,
    /// Diagonal blocks; 1 for an ordinary product.
    pub groups: u32,
    /// Outputs per group.
    pub n: u32,
    /// Inputs per group, a multiple of 32.
    pub k: u32,
    /// Row stride of `x`, at least `groups * k`, a multiple of 8.
    pub stride_x: u64,
    /// Row stride of `out`, at least `groups * n`.
    pub stride_out: u64,
}

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

/// How [`Router`] picks experts.
#[derive(Debug)]
pub enum Routing<'a, B> {
    /// The `topk` largest of `s + bias`, `[experts]` f32; ties to the lower expert, NaN counts as -inf (and is picked when
    /// nothing else is left).
    Bias(&'a B),
    /// A fixed table by token id.
    Hash {
        /// `[vocab, topk]` s32; an entry outside `0..experts` is picked with weight 0 and adds nothing to the sum.
        tid2eid: &'a B,
        /// `[t]` s32; an id outside the table takes row 0.
        ids: &'a B,
        /// Rows of the table, at least 1.
        vocab: u32,
    },
}

impl<B> Clone for Routing<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<B> Copy for Routing<'_, B> {}

/// Operands of [`super::Ops::router`]: `s = sqrt(softplus(scores))` (linear above 20), the picks in descending order of
/// preference (of a table: in its order), `expert_weights = routed_scaling s_e / sum of the picked s`.
///
/// Implementations compute `s` to some units in the last place: sums `s + bias` closer than 2^-20 of their size may change
/// places, unless both terms are equal. Scores below -170 have no f32 `s` left; picks whose `s` are all 0 have weights NaN.
#[derive(Debug)]
pub struct Router<'a, B> {
    /// Rows `[t]` of `[experts]` f32, contiguous.
    pub scores: &'a B,
    /// How to pick.
    pub routing: Routing<'a, B>,
    /// Out `[t, topk]` s32.
    pub expert_ids: &'a mut B,
    /// Out `[t, topk]` f32.
    pub expert_weights: &'a mut B,
    /// Tokens.
    pub t: u32,
    /// Experts, at most 512.
    pub experts: u32,
    /// Picks per token, at most 16 and at most `experts`.
    pub topk: u32,
    /// 1.5 for Flash.
    pub routed_scaling: f32,
}

/// Operands of [`super::Ops::swiglu`]: `out = silu(min(a, limit)) * clamp(b, -limit, limit)`, `a` the first half of a row,
/// `silu(a) = a / (1 + e^-a)`. NaN passes through; `silu(-inf)` is NaN.
#[derive(Debug)]
pub struct Swiglu<'a, B> {
    /// Type of input and output.
    pub dtype: Dtype,
    /// `[t, 2 * inter]`.
    pub gate_up: &'a B,
    /// Out `[t, inter]`.
    pub out: &'a mut B,
    /// Tokens.
    pub t: u32,
    /// Channels.
    pub inter: u32,
    /// 10.0 for V4; above 0.
    pub limit: f32,
}

/// Operands of [`super::Ops::moe_experts`]: the routed experts of a token batch.
///
/// For each pick `e` of a token that lies in `first_expert..first_expert + num_experts` (others add nothing):
/// `[a, b] = w13[e] x` (stored), `h = silu(min(a, limit)) * clamp(b, -limit, limit)` (stored), `out += weight_e * (w2[e] h)`, in
/// f32, over the picks in the order of the list. A pick that stands there twice counts twice; a token without a local pick
/// gets zeros. NaN passes through the clamps.
#[derive(Debug)]
pub struct MoeExperts<'a, B> {
    /// Type of `x` and of stored values.
    pub dtype: Dtype,
    /// `[t, d]`.
    pub x: &'a B,
    /// `[t, topk]` s32.
    pub expert_ids: &'a B,
    /// `[t, topk]` f32.
    pub expert_weights: &'a B,
    /// `[num_experts * 2 * inter, d]`: per expert the gate rows (w1), then the up rows (w3).
    pub w13: Weight<'a, B>,
    /// `[num_experts * d, inter]`.
    pub w2: Weight<'a, B>,
    /// Out `[t, d]` f32.
    pub out: &'a mut B,
    /// Tokens.
    pub t: u32,
    /// Channels, a multiple of 32.
    pub d: u32,
    /// Channels inside an expert, a multiple of 32.
    pub inter: u32,
    /// Picks per token.
    pub topk: u32,
    /// First expert whose weights are here.
    pub first_expert: u32,
    /// Experts whose weights are here.
    pub num_experts: u32,
    /// Clamp, not negative; infinity for none.
    pub limit: f32,
}

/// Operands of [`super::Ops::sample`]: one token per row of vocabulary logits.
///
/// `temperature` not above 1e-5 (0, negative and NaN included): the largest logit, ties to the lower id. Otherwise the
/// largest of `logit / temperature + g_v`, ties to the lower id, with Gumbel noise `g_v = -ln(-ln u_v)`,
/// `u_v = (2 r + 1) 2^-25`, `r` the upper 24 bits of word `v mod 4` of Philox4x32-10 with key `(seeds[2 i], seeds[2 i + 1])`
/// and counter `(v / 4, 0, 0, 0)`. The quotient is an f32 (it may overflow to an infinity), the noise good to 1e-5: sums
/// closer than 1e-4, or 2^-22 of the quotient, may change places. NaN counts as -inf; a row without a finite or +inf value
/// gives 0.
#[derive(Debug)]
pub struct Sample<'a, B> {
    /// `[n, vocab]` f32.
    pub logits: &'a B,
    /// `[n]` f32.
    pub temperature: &'a B,
    /// `[n, 2]` u32.
    pub seeds: &'a B,
    /// Out `[n]` s32.
    pub out: &'a mut B,
    /// Rows.
    pub n: u32,
    /// Tokens of the vocabulary.
    pub vocab: u32,
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
