//! Bounds of the operations on streams and rows, of the choice of experts and of tokens.

use super::{BF16, F32, Tolerance};
use crate::compare::Bound;
use crate::ops::Dtype;

/// `post` and `comb` of `hc_mix`, and the arguments of its sigmoids.
pub const HC_MIXING: Bound = Bound { abs: 32.0 * F32, rel: 0.0, difference: 1e-8 };
/// Output of `hc_mix`, f32.
pub const HC_OUT_F32: Bound = Bound { abs: 32.0 * F32, rel: 0.0, difference: 1e-8 };
/// Output of `hc_mix`, bf16.
pub const HC_OUT_BF16: Bound = Bound { abs: 1.25 * BF16, rel: 0.0, difference: 1e-5 };
/// Streams after `hc_post`, f32.
pub const HC_POST_F32: Bound = Bound { abs: 8.0 * F32, rel: 0.0, difference: 1e-8 };
/// Streams after `hc_post`, bf16.
pub const HC_POST_BF16: Bound = Bound { abs: 32.0 * F32, rel: 1.25 * BF16, difference: 1e-5 };
/// Gated activation, f32.
pub const SWIGLU_F32: Bound = Bound { abs: 16.0 * F32, rel: 0.0, difference: 1e-8 };
/// Gated activation, bf16.
pub const SWIGLU_BF16: Bound = Bound { abs: 1.25 * BF16, rel: 0.0, difference: 1e-5 };
/// Weights of experts.
pub const EXPERT_WEIGHTS: Bound = Bound { abs: 32.0 * F32, rel: 0.0, difference: 1e-8 };

/// Bound of `hc_mix`'s output.
pub const fn hc_out(dtype: Dtype) -> Bound {
    match dtype {
        Dtype::F32 => HC_OUT_F32,
        Dtype::Bf16 => HC_OUT_BF16,
    }
}

/// Bound of `hc_post`.
pub const fn hc_post(dtype: Dtype) -> Bound {
    match dtype {
        Dtype::F32 => HC_POST_F32,
        Dtype::Bf16 => HC_POST_BF16,
    }
}

/// Bound of `swiglu`.
pub const fn swiglu(dtype: Dtype) -> Bound {
    match dtype {
        Dtype::F32 => SWIGLU_F32,
        Dtype::Bf16 => SWIGLU_BF16,
    }
}

/// Rows of the table.
pub(super) const TABLE: [Tolerance; 12] = [
    Tolerance { op: "embed", output: "out", bound: None, why: "a copy" },
    Tolerance { op: "gather_rows", output: "out", bound: None, why: "a copy" },
    Tolerance {
        op: "hc_mix",
        output: "post, comb",
        bound: Some(HC_MIXING),
        why: "dots of up to 32,768 terms in f32 with some hundred partial sums, 32 roundings of 2^-24 of the terms' size; \
              sigmoid and Sinkhorn pass that on by their derivatives, and every entry is rounded in each normalisation",
    },
    Tolerance {
        op: "hc_mix",
        output: "out (f32)",
        bound: Some(HC_OUT_F32),
        why: "as above, through the weighted sum and the norm",
    },
    Tolerance {
        op: "hc_mix",
        output: "out (bf16)",
        bound: Some(HC_OUT_BF16),
        why: "the output rounded once, 2^-8 and a quarter for f32; where h lies within its f32 error of the middle between \
              two bf16 numbers, either of them",
    },
    Tolerance {
        op: "hc_post",
        output: "streams (f32)",
        bound: Some(HC_POST_F32),
        why: "five products and four sums, each rounded once to f32",
    },
    Tolerance {
        op: "hc_post",
        output: "streams (bf16)",
        bound: Some(HC_POST_BF16),
        why: "f32 sums, the result rounded to bf16 once, 2^-8; a quarter more for the sum in f32",
    },
    Tolerance {
        op: "swiglu",
        output: "out (f32)",
        bound: Some(SWIGLU_F32),
        why: "an exponential good to 2^-22, a division and two products; e^a below 2^-126 may count as 0",
    },
    Tolerance { op: "swiglu", output: "out (bf16)", bound: Some(SWIGLU_BF16), why: "that, rounded to bf16 once" },
    Tolerance {
        op: "router",
        output: "expert_ids",
        bound: None,
        why: "the cases keep sums apart by 2^-14 of their size (or equal in both terms), f32 computes them to 2^-20",
    },
    Tolerance {
        op: "router",
        output: "expert_weights",
        bound: Some(EXPERT_WEIGHTS),
        why: "exponential, logarithm and root good to a few 2^-23, a sum of at most 16 and a division",
    },
    Tolerance {
        op: "sample",
        output: "out",
        bound: None,
        why: "the winner of a case leads by 1e-3 and 2^-18 of the quotient (or wins a tie of equal numbers), f32 noise is \
              good to 1e-5",
    },
];
