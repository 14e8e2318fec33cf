//! Operands of the operations on streams and rows of a buffer, of the choice of experts and of tokens.

use super::Dtype;

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
