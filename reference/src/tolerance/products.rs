//! Bounds of products with weights.

use super::{BF16, F32, Tolerance};
use crate::compare::Bound;
use crate::ops::Dtype;

/// Output of a product, f32.
pub const PRODUCT_F32: Bound = Bound { abs: 64.0 * F32, rel: 0.0, difference: 1e-8 };
/// Output of a product, bf16.
pub const PRODUCT_BF16: Bound = Bound { abs: 64.0 * F32, rel: 1.25 * BF16, difference: 5e-6 };
/// Output of the experts from f32 activations.
pub const EXPERTS_F32: Bound = Bound { abs: 64.0 * F32, rel: 0.0, difference: 1e-8 };
/// Output of the experts from bf16 activations.
pub const EXPERTS_BF16: Bound = Bound { abs: 1.5 * BF16, rel: 0.0, difference: 2e-6 };
/// A product of an outside implementation with the same codes; the magnitude is the largest output of the row.
pub const OUTSIDE_PRODUCT: Bound = Bound { abs: 1e-6, rel: 0.0, difference: 1e-10 };

/// Bound of `linear`.
pub const fn linear(out_dtype: Dtype) -> Bound {
    match out_dtype {
        Dtype::F32 => PRODUCT_F32,
        Dtype::Bf16 => PRODUCT_BF16,
    }
}

/// Bound of `moe_experts`.
pub const fn moe_experts(dtype: Dtype) -> Bound {
    match dtype {
        Dtype::F32 => EXPERTS_F32,
        Dtype::Bf16 => EXPERTS_BF16,
    }
}

/// Rows of the table.
pub(super) const TABLE: [Tolerance; 5] = [
    Tolerance {
        op: "linear",
        output: "out (f32)",
        bound: Some(PRODUCT_F32),
        why: "weights are decoded exactly, up to 4,096 products summed in f32 in any order: sqrt(4096) = 64 roundings of \
              2^-24 of sum abs(x w)",
    },
    Tolerance {
        op: "linear",
        output: "out (bf16)",
        bound: Some(PRODUCT_BF16),
        why: "the same sum, rounded to bf16 once, 2^-8; a quarter more for the sum",
    },
    Tolerance {
        op: "linear",
        output: "out against golden values",
        bound: Some(OUTSIDE_PRODUCT),
        why: "256 exact products in f32 on one side, f64 on the other: 1e-6 of the largest output of the row",
    },
    Tolerance {
        op: "moe_experts",
        output: "out (f32 activations)",
        bound: Some(EXPERTS_F32),
        why: "as linear; the magnitude carries the terms of both products through the gate: \
              sum abs(weight w2) (abs(silu'(a) b) sum abs(x w1) + abs(silu(a)) sum abs(x w3) + abs(h))",
    },
    Tolerance {
        op: "moe_experts",
        output: "out (bf16 activations)",
        bound: Some(EXPERTS_BF16),
        why: "a, b and h are stored in bf16 on both sides, but a sum that lies between two of them may fall to either: one \
              step of 2^-8 each, carried through the gate as above, half more. Whole tensor: one stored value in ten may \
              be such a step off, 2^-15 / 10 / 2",
    },
];
