//! Bounds of the operations on rows.
//!
//! Magnitudes: of a rotated channel `|a cos| + |b sin|`; of a transformed one `sum |x| / sqrt(d)`; of a pooled one
//! `sum p |u| (1 + (max g - g) / 8)`.

use super::{BF16, F32, Tolerance};
use crate::compare::Bound;
use crate::ops::Dtype;

/// Bound of an output in the type of the activations.
#[derive(Debug, Clone, Copy)]
pub struct ByDtype {
    /// For f32.
    pub f32: Bound,
    /// For bf16.
    pub bf16: Bound,
}

impl ByDtype {
    /// The bound for a type.
    pub const fn of(self, dtype: Dtype) -> Bound {
        match dtype {
            Dtype::F32 => self.f32,
            Dtype::Bf16 => self.bf16,
        }
    }
}

/// Normed and rotated rows.
pub const NORM_ROPE: ByDtype = ByDtype {
    f32: Bound { abs: 32.0 * F32, rel: 32.0 * F32, difference: 1e-11 },
    bf16: Bound { abs: 3.02 * BF16, rel: 1.02 * BF16, difference: 5e-6 },
};
/// Transformed rows.
pub const HADAMARD: ByDtype = rounded(12.0 * F32);
/// Pooled rows.
pub const COMPRESS: ByDtype = rounded(32.0 * F32);

/// A result within `abs` of its terms, then rounded to the type of the activations. An element passes by the larger of two
/// bounds, not by their sum: with a quarter more for the rounding, 5 times `abs` covers both together.
const fn rounded(abs: f64) -> ByDtype {
    ByDtype {
        f32: Bound { abs, rel: 0.0, difference: 1e-11 },
        bf16: Bound { abs: 5.0 * abs, rel: 1.25 * BF16, difference: 5e-6 },
    }
}

/// Weights of index queries.
pub const INDEX_WEIGHTS: Bound = Bound { abs: 0.0, rel: 2.01 * F32, difference: 1e-13 };
/// Every bit, but for the kind of NaN and the sign of zero.
pub const EQUAL: Bound = Bound { abs: 0.0, rel: 0.0, difference: 0.0 };

/// Every output of these operations.
pub const TABLE: [Tolerance; 10] = [
    Tolerance {
        op: "norm_rope",
        output: "out (f32)",
        bound: Some(NORM_ROPE.f32),
        why: "a sum of up to 8,192 squares in at least 16 parts, at most sqrt(512) = 23 roundings halved by the root, and \
              seven roundings for root, quotient, weight and rotation: allowed 32 of 2^-24",
    },
    Tolerance {
        op: "norm_rope",
        output: "out (bf16)",
        bound: Some(NORM_ROPE.bf16),
        why: "one rounding to bf16, 2^-8. The normed value is stored before it turns: where f32 sums differ it may be \
              stored one step apart, twice 2^-8 of the terms of a rotated channel. Whole tensor: 2^-17 if every element \
              were at its bound, usually a sixth of that",
    },
    Tolerance {
        op: "hadamard",
        output: "out (f32)",
        bound: Some(HADAMARD.f32),
        why: "log2(d) stages of sums and one product, each at most 2^-24 of the sum of magnitudes: allowed 12 for up to \
              d = 512 and two for the root",
    },
    Tolerance { op: "hadamard", output: "out (bf16)", bound: Some(HADAMARD.bf16), why: "that, rounded to bf16 once" },
    Tolerance {
        op: "index_q_quantise",
        output: "index_q (f32, bf16)",
        bound: Some(EQUAL),
        why: "a copy, or one rounding to bf16",
    },
    Tolerance {
        op: "index_q_quantise",
        output: "index_q (fp8, fp4)",
        bound: None,
        why: "correctly rounded quotients and conversions, as in index_k_write",
    },
    Tolerance {
        op: "index_q_quantise",
        output: "index_weights",
        bound: Some(INDEX_WEIGHTS),
        why: "two products in f32; the scale is the same on both sides",
    },
    Tolerance {
        op: "compress",
        output: "out (f32)",
        bound: Some(COMPRESS.f32),
        why: "exponentials good to 2^-22 and three roundings of their argument (the distance of a gate from the largest \
              is in the magnitude), sums of up to 128 terms twice, sqrt(128) = 11 roundings each: allowed 32 of 2^-24",
    },
    Tolerance { op: "compress", output: "out (bf16)", bound: Some(COMPRESS.bf16), why: "that, rounded to bf16 once" },
    Tolerance {
        op: "compress",
        output: "state",
        bound: Some(EQUAL),
        why: "values are copied, gates are one f32 addition; rows that are not written stay",
    },
];
