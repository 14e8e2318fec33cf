//! How far each output may be from the exact result, and why.
//!
//! Bounds follow from number formats and term counts; they are not tuned to an implementation. The magnitude that the
//! absolute part multiplies is, per element: for logits `k_scale * sum_h |w| * sum_d |q k|` over the heads whose dot can
//! be positive; for attention outputs `sum_i p_i |v_i|`; for an lse `max_i sm_scale * sum_d |q k_i|`, at least 1; for
//! attention outputs in f32 the product of the two.

pub mod products;
pub mod rows;
pub mod streams;

use crate::compare::Bound;
use crate::plain::Cells;

/// One row of the table.
#[derive(Debug, Clone, Copy)]
pub struct Tolerance {
    /// Operation.
    pub op: &'static str,
    /// Output of the operation.
    pub output: &'static str,
    /// The bound; `None` means that every bit must be equal.
    pub bound: Option<Bound>,
    /// Where the numbers come from.
    pub why: &'static str,
}

/// Unit roundoff of f32.
const F32: f64 = 1.0 / (1u64 << 24) as f64;
/// Unit roundoff of bf16.
const BF16: f64 = 1.0 / (1u64 << 8) as f64;

/// Index logits.
pub const INDEX_LOGITS: Bound = Bound { abs: 32.0 * F32, rel: 0.0, difference: 1e-8 };
/// Output of sparse attention.
pub const ATTENTION_OUT: Bound = Bound { abs: 2.5 * BF16, rel: 2.5 * BF16, difference: 1e-5 };
/// Log-sum-exp of sparse attention.
pub const ATTENTION_LSE: Bound = Bound { abs: 32.0 * F32, rel: 32.0 * F32, difference: 1e-8 };
/// Output of sparse attention in f32; magnitudes as [`scale_by_scores`] makes them.
pub const ATTENTION_OUT_F32: Bound = Bound { abs: 96.0 * F32, rel: 0.0, difference: 1e-8 };
/// Output of a merge.
pub const COMBINE_OUT: Bound = Bound { abs: 32.0 * F32, rel: 1.25 * BF16, difference: 5e-6 };
/// Log-sum-exp of a merge.
pub const COMBINE_LSE: Bound = Bound { abs: 16.0 * F32, rel: 16.0 * F32, difference: 1e-8 };

/// Index logits of an outside implementation, computed from the same stored codes.
pub const OUTSIDE_LOGITS: Bound = Bound { abs: 1e-5, rel: 1e-5, difference: 1e-8 };
/// Attention of an outside implementation from the same stored bytes; the magnitude is the largest output.
pub const OUTSIDE_ATTENTION: Bound = Bound { abs: 1e-2, rel: 0.0, difference: 1e-5 };
/// Log-sum-exp of an outside implementation from the same stored bytes.
pub const OUTSIDE_LSE: Bound = Bound { abs: 1e-4, rel: 1e-5, difference: 1e-8 };

/// Every output of the operations of sparse attention.
const ATTENTION: [Tolerance; 19] = [
    Tolerance {
        op: "index_logits_decode",
        output: "index_logits",
        bound: Some(INDEX_LOGITS),
        why: "e4m3 and bf16 products are exact in f32; 128-term dots and a 64-term head sum in f32, in any order: \
              rounding errors add like a random walk, sqrt(128) + sqrt(64) = 19 roundings of 2^-24, allowed 32. Stricter \
              than the published 5e-6 for the whole tensor (DeepGEMM), which only catches errors of 0.3%. Heads whose dot is \
              surely negative add exactly nothing, so that ties at 0 are ties. f32 rows round each product as well, half a \
              rounding: sqrt(2 * 128) + sqrt(64) = 24; fp4 products are exact, and so are their sums over a group",
    },
    Tolerance {
        op: "index_logits_prefill",
        output: "index_logits",
        bound: Some(INDEX_LOGITS),
        why: "as index_logits_decode",
    },
    Tolerance {
        op: "topk_select",
        output: "topk_positions, topk_slots, topk_lens",
        bound: None,
        why: "selection compares, it does not compute",
    },
    Tolerance {
        op: "sparse_mla_decode",
        output: "out",
        bound: Some(ATTENTION_OUT),
        why: "probabilities and output each rounded to bf16, at most 2^-8 of sum p abs(v) each; a quarter more for the \
              exponent. About the published bounds (FlashMLA: abs 1e-3 for values of 0.1, rel 2.01/128). Whole tensor: two \
              roundings of at most 2^-8/sqrt(3) rms give 5.1e-6, allowed twice that (FlashMLA: 5e-6 on large tensors)",
    },
    Tolerance {
        op: "sparse_mla_decode",
        output: "out (f32)",
        bound: Some(ATTENTION_OUT_F32),
        why: "a score is off by up to 32 roundings of 2^-24 of its terms, as in the lse; numerator and denominator of a \
              probability carry that each, 64; f32 sums over up to 640 rows add sqrt(640) = 25 roundings, allowed 32",
    },
    Tolerance {
        op: "sparse_mla_decode",
        output: "lse",
        bound: Some(ATTENTION_LSE),
        why: "512-term dots of exact products in f32: sqrt(512) = 23 roundings of 2^-24 of the terms' size, allowed 32 \
              (FlashMLA: abs 1e-6, rel 8.01/65536, which a small lse made of large terms cannot meet and a large one never \
              fails)",
    },
    Tolerance {
        op: "sparse_mla_prefill",
        output: "out",
        bound: Some(ATTENTION_OUT),
        why: "as sparse_mla_decode; f32 as there",
    },
    Tolerance { op: "sparse_mla_prefill", output: "lse", bound: Some(ATTENTION_LSE), why: "as sparse_mla_decode" },
    Tolerance {
        op: "sparse_mla_prefill",
        output: "max_logits",
        bound: Some(ATTENTION_LSE),
        why: "the dots of the lse without its exponentials (FlashMLA: abs 1e-6, rel 2.01/65536)",
    },
    Tolerance {
        op: "split_combine",
        output: "out",
        bound: Some(COMBINE_OUT),
        why: "f32 partials and f32 sums, the output rounded to bf16 once, 2^-8; a quarter more for the sum in f32",
    },
    Tolerance {
        op: "split_combine",
        output: "lse",
        bound: Some(COMBINE_LSE),
        why: "one exponential per split and one logarithm, each good to 2^-22, of a sum of f32",
    },
    Tolerance {
        op: "kv_write",
        output: "cache (v4_fp8)",
        bound: None,
        why: "one correctly rounded operation per code; scales are powers of two; both NaN codes of e4m3 count as equal",
    },
    Tolerance {
        op: "kv_write",
        output: "cache (bf16, f32)",
        bound: None,
        why: "a copy, or one correctly rounded conversion",
    },
    Tolerance {
        op: "index_k_write",
        output: "cache (fp8)",
        bound: None,
        why: "two correctly rounded f32 divisions and one conversion; both NaN codes of e4m3 count as equal",
    },
    Tolerance {
        op: "index_k_write",
        output: "cache (fp4)",
        bound: None,
        why: "the scale out of one correctly rounded f32 division; a power of two, so that x / s is exact; one conversion",
    },
    Tolerance {
        op: "index_k_write",
        output: "cache (bf16, f32)",
        bound: None,
        why: "a copy, or one correctly rounded conversion",
    },
    Tolerance {
        op: "index_logits_decode",
        output: "index_logits against golden values",
        bound: Some(OUTSIDE_LOGITS),
        why: "scores of order 1 in f32 on both sides, from the same codes",
    },
    Tolerance {
        op: "sparse_mla_decode",
        output: "out against golden values",
        bound: Some(OUTSIDE_ATTENTION),
        why: "bf16 queries, probabilities and outputs on one side, f32 on the other: 1e-2 of the largest output",
    },
    Tolerance {
        op: "sparse_mla_decode",
        output: "lse against golden values",
        bound: Some(OUTSIDE_LSE),
        why: "f32 on both sides; terms of order 20",
    },
];

/// Multiplies the magnitudes of f32 outputs `[t, h, d]` by those of their lse `[t, h]`: without a rounding of probabilities
/// to bf16, the error of a score, which is in proportion to its terms, is what moves an output.
pub fn scale_by_scores(out: &mut Cells, lse: &Cells) {
    for (place, cell) in out.indexed_iter_mut() {
        if let (Some(exact), Some(lse)) = (cell, &lse[[place[0], place[1]]]) {
            exact.magnitude *= lse.magnitude.max(1.0);
        }
    }
}

/// Every output of every operation.
pub fn table() -> Vec<Tolerance> {
    [&ATTENTION[..], &streams::TABLE, &rows::TABLE, &products::TABLE].concat()
}

/// The table as Markdown.
pub fn markdown() -> String {
    let mut text = String::from("| operation | output | element: abs x magnitude | or rel | whole | why |\n");
    text.push_str("|---|---|---|---|---|---|\n");
    for row in table() {
        let bound = match row.bound {
            Some(b) => format!("{:.2e} | {:.2e} | {:.0e}", b.abs, b.rel, b.difference),
            None => "equal | equal | equal".into(),
        };
        text.push_str(&format!("| `{}` | {} | {bound} | {} |\n", row.op, row.output, row.why));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markdown_has_every_row_and_six_columns() {
        let text = markdown();
        assert_eq!(text.lines().count(), table().len() + 2);
        assert!(text.lines().all(|line| line.matches('|').count() == 7));
    }
}
