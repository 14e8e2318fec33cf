//! Operands of the writers of cache rows.

use super::{Dtype, IndexKFormat, KvFormat, Pages, ScaleRule};

/// Operands of [`super::Ops::kv_write`].
///
/// `v4_fp8`: per 64 of the 448 nope channels `a = clamp(amax, 1e-4, f32::MAX)`, `s = 2^ceil(log2(a / 448))`, code =
/// `e4m3(clamp(x / s, -448, 448))` to nearest even, zeros keep their sign; `amax` ignores NaN, a NaN is stored as a NaN
/// (0x7f or 0xff, both are right). Rope channels in bf16, pad byte 0. Bytes outside the written rows stay as they are.
/// Two tokens for one slot in one call are a caller error.
///
/// Everything starts from the value as it is given: quantisers see f32 rows without a rounding to bf16. bf16 channels of f32
/// rows are rounded once, to nearest even (a NaN becomes quiet and keeps sign and upper payload); a type that is stored as
/// it is given is copied bit by bit.
#[derive(Debug)]
pub struct KvWrite<'a, B> {
    /// Type of `rows`.
    pub dtype: Dtype,
    /// Format to write.
    pub format: KvFormat,
    /// `[t, d]`, normed and rotated; `d` is 512, or the width of [`super::KvFormat::F32`].
    pub rows: &'a B,
    /// `[t]` s32; -1 and anything else out of range is skipped.
    pub slot_mapping: &'a B,
    /// Out: pages.
    pub cache: &'a mut B,
    /// Geometry of `cache`.
    pub pages: Pages,
    /// Tokens.
    pub t: u32,
    /// Row stride of `rows`, a multiple of 8 with bf16.
    pub stride_rows: u64,
}

/// Operands of [`super::Ops::index_k_write`].
///
/// bf16 and f32: as in [`KvWrite`]. fp8: one f32 scale per row, `s = clamp(amax, 1e-4, f32::MAX) / 448` (rounded up to a power of two under
/// [`super::ScaleRule::PowerOfTwo`]), code = `e4m3(clamp(x / s, -448, 448))`, both divisions correctly rounded f32; NaN and the
/// order of bytes as in [`KvWrite`]. fp4: per 32 channels `a = clamp(amax, 6 * 2^-126, f32::MAX)`, `s = 2^ceil(log2(a / 6))`
/// with a correctly rounded division, code = `e2m1(clamp(x / s, -6, 6))`, ties to the even code; zeros keep their sign, a NaN
/// is stored as 0. No Hadamard transform is applied here. Bytes outside the written rows stay as they are.
#[derive(Debug)]
pub struct IndexKWrite<'a, B> {
    /// Type of `rows`.
    pub dtype: Dtype,
    /// Format to write.
    pub format: IndexKFormat,
    /// Scale of the fp8 format.
    pub scale_rule: ScaleRule,
    /// `[t, d]`; `d` is 128, or the width of [`super::IndexKFormat::F32`].
    pub rows: &'a B,
    /// `[t]` s32.
    pub slot_mapping: &'a B,
    /// Out: pages.
    pub cache: &'a mut B,
    /// Geometry of `cache`.
    pub pages: Pages,
    /// Tokens.
    pub t: u32,
    /// Row stride of `rows`, a multiple of 8 with bf16.
    pub stride_rows: u64,
}
