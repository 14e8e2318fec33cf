//! Operands of products with weights.

use super::{Dtype, Weight};

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
