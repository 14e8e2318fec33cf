//! Refusals of products with weights.

use super::{Size, expect, len};
use reference::ops::*;

#[derive(Clone)]
struct Product {
    dtype: Dtype,
    format: WeightFormat,
    out_dtype: Dtype,
    accumulate: bool,
    /// x, weights, scales, out
    buffers: [Size; 4],
    with_scale: bool,
    t: u32,
    groups: u32,
    n: u32,
    k: u32,
    strides: [u64; 2],
}

impl Product {
    /// Three rows of two groups of 160 inputs and 70 outputs, 8 and 3 elements between them.
    fn valid(format: WeightFormat, data: u64, scale: u64) -> Product {
        Product {
            dtype: Dtype::Bf16,
            format,
            out_dtype: Dtype::F32,
            accumulate: true,
            buffers: [(2 * 328 + 320) * 2, data, scale, (2 * 143 + 140) * 4],
            with_scale: scale > 0,
            t: 3,
            groups: 2,
            n: 70,
            k: 160,
            strides: [328, 143],
        }
    }

    fn check(&self) -> Result<(), OpsError> {
        let mut out = self.buffers[3];
        let scale = self.with_scale.then_some(&self.buffers[2]);
        Linear {
            dtype: self.dtype,
            x: &self.buffers[0],
            weight: Weight { format: self.format, data: &self.buffers[1], scale },
            out: &mut out,
            out_dtype: self.out_dtype,
            accumulate: self.accumulate,
            t: self.t,
            groups: self.groups,
            n: self.n,
            k: self.k,
            stride_x: self.strides[0],
            stride_out: self.strides[1],
        }
        .check(len)
    }
}

#[test]
fn linear() {
    expect(
        &Product::valid(WeightFormat::Bf16, 140 * 160 * 2, 0),
        Product::check,
        &[
            (|a| a.t = 1 << 31, "linear: t: expected at most 2147483647, got 2147483648"),
            (|a| a.groups = 0, "linear: groups: expected at least 1, got 0"),
            (|a| a.n = 0, "linear: n: expected at least 1, got 0"),
            (|a| a.k = 0, "linear: k: expected at least 32, got 0"),
            (|a| a.k = 144, "linear: k: expected a multiple of 32, got 144"),
            (|a| a.n = 1 << 30, "linear: groups * n: expected at most 2147483647, got 2147483648"),
            (|a| a.k = 1 << 30, "linear: groups * k: expected at most 2147483647, got 2147483648"),
            (|a| a.out_dtype = Dtype::Bf16, "linear: out_dtype: expected f32 (accumulate), got bf16"),
            (|a| a.with_scale = true, "linear: weight.scale: expected no scales (bf16 weights have none), got some"),
            (|a| a.strides[0] = 312, "linear: stride_x: expected at least 320 elements, got 312"),
            (|a| a.strides[0] = 324, "linear: stride_x: expected a multiple of 8 elements, got 324"),
            (|a| a.strides[1] = 139, "linear: stride_out: expected at least 140 elements, got 139"),
            (
                |a| a.strides[1] = 1 << 63,
                "linear: stride_out: expected at most 9223372036854775807, got 9223372036854775808",
            ),
            (|a| a.buffers[0] -= 1, "linear: x: expected at least 1952 bytes, got 1951 bytes"),
            (|a| a.dtype = Dtype::F32, "linear: x: expected at least 3904 bytes, got 1952 bytes"),
            (|a| a.buffers[1] -= 1, "linear: weight.data: expected at least 44800 bytes, got 44799 bytes"),
            (|a| a.buffers[3] -= 1, "linear: out: expected at least 1704 bytes, got 1703 bytes"),
        ],
    );
    // 140 x 160: two blocks of rows, two of inputs.
    expect(
        &Product::valid(WeightFormat::Fp8Block128, 140 * 160, 4),
        Product::check,
        &[
            (|a| a.with_scale = false, "linear: weight.scale: expected scales of the fp8 blocks, got none"),
            (|a| a.buffers[1] -= 1, "linear: weight.data: expected at least 22400 bytes, got 22399 bytes"),
            (|a| a.buffers[2] = 3, "linear: weight.scale: expected at least 4 bytes, got 3 bytes"),
        ],
    );
    expect(
        &Product::valid(WeightFormat::Fp4Block32, 140 * 80, 140 * 5),
        Product::check,
        &[
            (|a| a.buffers[1] -= 1, "linear: weight.data: expected at least 11200 bytes, got 11199 bytes"),
            (|a| a.buffers[2] -= 1, "linear: weight.scale: expected at least 700 bytes, got 699 bytes"),
        ],
    );
    Product { t: 0, buffers: [0, 140 * 160 * 4, 0, 0], ..Product::valid(WeightFormat::F32, 1, 0) }
        .check()
        .expect("an empty batch needs no rows");
}

#[derive(Clone)]
struct Experts {
    /// x, ids, weights, w13, its scales, w2, out
    buffers: [Size; 7],
    t: u32,
    d: u32,
    inter: u32,
    topk: u32,
    experts: [u32; 2],
    limit: f32,
    with_scale: bool,
}

impl Experts {
    fn check(&self) -> Result<(), OpsError> {
        let mut out = self.buffers[6];
        let scale = self.with_scale.then_some(&self.buffers[4]);
        MoeExperts {
            dtype: Dtype::Bf16,
            x: &self.buffers[0],
            expert_ids: &self.buffers[1],
            expert_weights: &self.buffers[2],
            w13: Weight { format: WeightFormat::Fp4Block32, data: &self.buffers[3], scale },
            w2: Weight { format: WeightFormat::Bf16, data: &self.buffers[5], scale: None },
            out: &mut out,
            t: self.t,
            d: self.d,
            inter: self.inter,
            topk: self.topk,
            first_expert: self.experts[0],
            num_experts: self.experts[1],
            limit: self.limit,
        }
        .check(len)
    }
}

#[test]
fn moe_experts() {
    // Five tokens, two picks, three experts of 32 channels.
    let valid = Experts {
        buffers: [5 * 64 * 2, 40, 40, 3 * 64 * 32, 3 * 64 * 2, 3 * 64 * 32 * 2, 5 * 64 * 4],
        t: 5,
        d: 64,
        inter: 32,
        topk: 2,
        experts: [7, 3],
        limit: 0.0,
        with_scale: true,
    };
    expect(
        &valid,
        Experts::check,
        &[
            (|a| a.t = 1 << 31, "moe_experts: t: expected at most 2147483647, got 2147483648"),
            (|a| a.t = 1 << 30, "moe_experts: t * topk: expected at most 2147483647, got 2147483648"),
            (|a| a.d = 48, "moe_experts: d: expected a multiple of 32, got 48"),
            (|a| a.inter = 16, "moe_experts: inter: expected at least 32, got 16"),
            (|a| a.topk = 0, "moe_experts: topk: expected at least 1, got 0"),
            (|a| a.experts[1] = 0, "moe_experts: num_experts: expected at least 1, got 0"),
            (|a| a.experts[0] = u32::MAX, "moe_experts: first_expert: expected at most 2147483647, got 4294967295"),
            (|a| a.limit = -1.0, "moe_experts: limit: expected not negative, got -1"),
            (|a| a.limit = f32::NAN, "moe_experts: limit: expected not negative, got NaN"),
            (|a| a.with_scale = false, "moe_experts: w13.scale: expected scales of the fp4 blocks, got none"),
            (|a| a.buffers[0] -= 1, "moe_experts: x: expected at least 640 bytes, got 639 bytes"),
            (|a| a.buffers[1] -= 1, "moe_experts: expert_ids: expected at least 40 bytes, got 39 bytes"),
            (|a| a.buffers[2] -= 1, "moe_experts: expert_weights: expected at least 40 bytes, got 39 bytes"),
            (|a| a.buffers[3] -= 1, "moe_experts: w13.data: expected at least 6144 bytes, got 6143 bytes"),
            (|a| a.buffers[4] -= 1, "moe_experts: w13.scale: expected at least 384 bytes, got 383 bytes"),
            (|a| a.buffers[5] -= 1, "moe_experts: w2.data: expected at least 12288 bytes, got 12287 bytes"),
            (|a| a.buffers[6] -= 1, "moe_experts: out: expected at least 1280 bytes, got 1279 bytes"),
        ],
    );
}
