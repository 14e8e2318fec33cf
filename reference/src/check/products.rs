//! What `linear` and `moe_experts` refuse.

use super::{addressed, buffer, product, refuse, size, stride_least, stride_multiple};
use crate::ops::{Dtype, Linear, MoeExperts, OpsError, Weight, WeightFormat};

/// Products are made of pieces of this many inputs: the block of the fp4 format and two steps of the matrix unit.
pub const K_MULTIPLE: u32 = 32;

/// Elements between rows of activations that kernels read in 16-byte pieces.
const ROW_MULTIPLE: u64 = 8;

impl WeightFormat {
    /// `f32`, `bf16`, `fp8`, `fp4`
    pub const fn name(self) -> &'static str {
        match self {
            WeightFormat::F32 => "f32",
            WeightFormat::Bf16 => "bf16",
            WeightFormat::Fp8Block128 => "fp8",
            WeightFormat::Fp4Block32 => "fp4",
        }
    }

    /// Bytes of the values or codes of a matrix `[rows, k]`.
    pub const fn data_bytes(self, rows: u64, k: u64) -> u64 {
        match self {
            WeightFormat::F32 => 4 * rows * k,
            WeightFormat::Bf16 => 2 * rows * k,
            WeightFormat::Fp8Block128 => rows * k,
            WeightFormat::Fp4Block32 => rows * (k / 2),
        }
    }

    /// Scale bytes of a matrix `[rows, k]`; 0 where there are none.
    pub const fn scale_bytes(self, rows: u64, k: u64) -> u64 {
        match self {
            WeightFormat::F32 | WeightFormat::Bf16 => 0,
            WeightFormat::Fp8Block128 => rows.div_ceil(128) * k.div_ceil(128),
            WeightFormat::Fp4Block32 => rows * (k / 32),
        }
    }
}

fn k_multiple(op: &'static str, tensor: &'static str, k: u32) -> Result<(), OpsError> {
    size(op, tensor, k, K_MULTIPLE)?;
    if !k.is_multiple_of(K_MULTIPLE) {
        return refuse(op, tensor, format!("a multiple of {K_MULTIPLE}"), k);
    }
    Ok(())
}

/// Scales stand there exactly when the format has them.
fn scales<B>(op: &'static str, tensor: &'static str, weight: &Weight<'_, B>) -> Result<(), OpsError> {
    let needed = weight.format.scale_bytes(1, 32) > 0;
    match (needed, weight.scale.is_some()) {
        (true, false) => refuse(op, tensor, format!("scales of the {} blocks", weight.format.name()), "none"),
        (false, true) => refuse(op, tensor, format!("no scales ({} weights have none)", weight.format.name()), "some"),
        _ => Ok(()),
    }
}

/// The matrix `[rows, k]` lies in its buffers.
fn weight_buffers<B>(
    op: &'static str,
    [data, scale]: [&'static str; 2],
    weight: &Weight<'_, B>,
    rows: u64,
    k: u64,
    len_bytes: &impl Fn(&B) -> u64,
) -> Result<(), OpsError> {
    buffer(op, data, u128::from(weight.format.data_bytes(rows, k)), 1, len_bytes(weight.data))?;
    match weight.scale {
        Some(buf) => buffer(op, scale, u128::from(weight.format.scale_bytes(rows, k)), 1, len_bytes(buf)),
        None => Ok(()),
    }
}

impl<B> Linear<'_, B> {
    /// Refuses operands that do not fit together; `len_bytes` is the size of a buffer.
    pub fn check(&self, len_bytes: impl Fn(&B) -> u64) -> Result<(), OpsError> {
        const OP: &str = "linear";
        size(OP, "t", self.t, 0)?;
        size(OP, "groups", self.groups, 1)?;
        size(OP, "n", self.n, 1)?;
        k_multiple(OP, "k", self.k)?;
        product(OP, "groups * n", &[self.groups, self.n])?;
        product(OP, "groups * k", &[self.groups, self.k])?;
        if self.accumulate && self.out_dtype != Dtype::F32 {
            return refuse(OP, "out_dtype", "f32 (accumulate)", self.out_dtype.name());
        }
        scales(OP, "weight.scale", &self.weight)?;
        let (columns, rows) = (u64::from(self.groups) * u64::from(self.k), u64::from(self.groups) * u64::from(self.n));
        stride_least(OP, "stride_x", self.stride_x, columns)?;
        stride_multiple(OP, "stride_x", self.stride_x, ROW_MULTIPLE)?;
        stride_least(OP, "stride_out", self.stride_out, rows)?;

        let t = u64::from(self.t);
        buffer(OP, "x", addressed(&[(t, self.stride_x)], columns), self.dtype.bytes(), len_bytes(self.x))?;
        let k = u64::from(self.k);
        weight_buffers(OP, ["weight.data", "weight.scale"], &self.weight, rows, k, &len_bytes)?;
        let out = addressed(&[(t, self.stride_out)], rows);
        buffer(OP, "out", out, self.out_dtype.bytes(), len_bytes(self.out))
    }
}

impl<B> MoeExperts<'_, B> {
    /// Refuses operands that do not fit together; `len_bytes` is the size of a buffer.
    pub fn check(&self, len_bytes: impl Fn(&B) -> u64) -> Result<(), OpsError> {
        const OP: &str = "moe_experts";
        size(OP, "t", self.t, 0)?;
        k_multiple(OP, "d", self.d)?;
        k_multiple(OP, "inter", self.inter)?;
        size(OP, "topk", self.topk, 1)?;
        size(OP, "first_expert", self.first_expert, 0)?;
        size(OP, "num_experts", self.num_experts, 1)?;
        product(OP, "t * topk", &[self.t, self.topk])?;
        product(OP, "num_experts * 2 * inter", &[self.num_experts, 2, self.inter])?;
        product(OP, "num_experts * d", &[self.num_experts, self.d])?;
        if self.limit.is_nan() || self.limit < 0.0 {
            return refuse(OP, "limit", "not negative", self.limit);
        }
        scales(OP, "w13.scale", &self.w13)?;
        scales(OP, "w2.scale", &self.w2)?;

        let [t, d, inter, topk, experts] = [self.t, self.d, self.inter, self.topk, self.num_experts].map(u64::from);
        buffer(OP, "x", u128::from(t * d), self.dtype.bytes(), len_bytes(self.x))?;
        buffer(OP, "expert_ids", u128::from(t * topk), 4, len_bytes(self.expert_ids))?;
        buffer(OP, "expert_weights", u128::from(t * topk), 4, len_bytes(self.expert_weights))?;
        weight_buffers(OP, ["w13.data", "w13.scale"], &self.w13, experts * 2 * inter, d, &len_bytes)?;
        weight_buffers(OP, ["w2.data", "w2.scale"], &self.w2, experts * d, inter, &len_bytes)?;
        buffer(OP, "out", u128::from(t * d), 4, len_bytes(self.out))
    }
}
