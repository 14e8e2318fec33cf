//! Operands of sparse attention and of the merge of its splits.

use super::{Dtype, KvFormat, Paged};

/// One slot list of [`SparseMlaDecode`] with the cache that it points into.
#[derive(Debug)]
pub struct SlotList<'a, B> {
    /// Cache.
    pub cache: Paged<'a, B>,
    /// `[t, width]` s32; anything outside the pool is skipped.
    pub slots: &'a B,
    /// `[t]` s32, clamped to `0..=width`: entries at and beyond it are not looked at.
    pub lens: Option<&'a B>,
    /// Columns.
    pub width: u32,
    /// Row stride of `slots`.
    pub stride_slots: u64,
}

/// Operands of [`super::Ops::sparse_mla_decode`].
///
/// With `l_i = sm_scale * q . k_i` over the valid entries of both lists (an entry that stands there twice counts twice) and
/// `m = max l_i`: `out = sum e^(l_i - m) k_i / (sum e^(l_i - m) + e^(sink - m))`, `lse = m + ln sum e^(l_i - m)`. No valid
/// entry: out 0, lse -inf. Sink +inf: out 0 and lse unchanged; sink -inf or no sink: no extra term.
///
/// `d` is 512, or the width of [`super::KvFormat::F32`].
#[derive(Debug)]
pub struct SparseMlaDecode<'a, B> {
    /// Type of `q` and `out`.
    pub dtype: Dtype,
    /// Row format of both caches.
    pub format: KvFormat,
    /// `[t, h, d]`.
    pub q: &'a B,
    /// Window rows.
    pub window: SlotList<'a, B>,
    /// Compressed rows; `None` in window-only layers.
    pub compressed: Option<SlotList<'a, B>>,
    /// `[h]` f32.
    pub attn_sink: Option<&'a B>,
    /// Out `[t, h, d]`.
    pub out: &'a mut B,
    /// Out `[t, h]` f32, natural logarithm, sink not included, -inf when no row is valid.
    pub lse: &'a mut B,
    /// Query tokens.
    pub t: u32,
    /// Heads, 1 to 256; the kernels take 8, 16, 32, 64 and 128.
    pub h: u32,
    /// Strides of `q` along t and h: at least `d` along h, tokens do not overlap, multiples of 8 with bf16.
    pub stride_q: [u64; 2],
    /// Strides of `out` along t and h, same rules.
    pub stride_out: [u64; 2],
    /// `d^-1/2`; finite.
    pub sm_scale: f32,
    /// Splits along the rows; `None` leaves it to the implementation. The result may differ by rounding only.
    pub num_splits: Option<u32>,
}

/// Operands of [`super::Ops::sparse_mla_prefill`]: [`SparseMlaDecode`] for many query tokens, without splits.
#[derive(Debug)]
pub struct SparseMlaPrefill<'a, B> {
    /// As in [`SparseMlaDecode`]; `num_splits` is not looked at.
    pub attention: SparseMlaDecode<'a, B>,
    /// Out `[t, h]` f32: the largest `l_i`, -inf when no row is valid.
    pub max_logits: Option<&'a mut B>,
}

/// Operands of [`super::Ops::split_combine`].
///
/// `M = max_s lse2_s`, `out = sum_s 2^(lse2_s - M) o_s / (sum_s 2^(lse2_s - M) + 2^(sink * log2 e - M))`,
/// `lse = ln 2 * (M + log2 sum_s 2^(lse2_s - M))`. All splits empty: out 0, lse -inf; sinks as in [`SparseMlaDecode`].
#[derive(Debug)]
pub struct SplitCombine<'a, B> {
    /// `[num_splits, t, h, 512]` f32.
    pub o_partial: &'a B,
    /// `[num_splits, t, h]` f32, base 2, -inf for an empty split (whose `o_partial` is not read).
    pub lse2_partial: &'a B,
    /// `[h]` f32.
    pub attn_sink: Option<&'a B>,
    /// Out `[t, h, 512]` bf16.
    pub out: &'a mut B,
    /// Out `[t, h]` f32, natural.
    pub lse: &'a mut B,
    /// Query tokens.
    pub t: u32,
    /// Heads, 1 to 256; the kernels take 8, 16, 32, 64 and 128.
    pub h: u32,
    /// Splits, at least 1.
    pub num_splits: u32,
    /// Strides of `out` along t and h.
    pub stride_out: [u64; 2],
}
