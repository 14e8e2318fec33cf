//! Hostile cases, one file per operation, as data.
//!
//! What no operand describes is NaN; outputs hold a pattern before the call; slots and page ids that are not used say
//! -1, the smallest and largest integer, or one beyond the pool. A case is small enough for its [`Size`].

mod activations;
pub mod compress;
pub mod embed;
pub mod gather_rows;
pub mod golden;
pub mod hadamard;
pub mod hc_mix;
pub mod hc_post;
pub mod index_k_write;
pub mod index_logits_decode;
pub mod index_logits_prefill;
pub mod index_q_quantise;
pub mod kv_write;
pub mod linear;
pub mod moe_experts;
pub mod norm_rope;
pub mod products;
pub mod router;
pub mod sample;
pub mod sparse_mla_decode;
pub mod sparse_mla_prefill;
pub mod split_combine;
pub mod swiglu;
pub mod topk_select;
mod write;

use serde::Serialize;

use crate::rng::Rng;
use crate::suite::Case;

/// How much work a case is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Size {
    /// A few pages or rows: a kernel needs less than about 60,000 warp instructions.
    Quick,
    /// Shapes with every path, up to some tens of thousands of values per row.
    Full,
    /// Rows of 2^18 values and more.
    Slow,
}

/// Every case up to `size`, by operation.
pub fn all(size: Size) -> Vec<Case> {
    let mut cases = Vec::new();
    cases.extend(index_logits_decode::cases());
    cases.extend(index_logits_prefill::cases());
    cases.extend(topk_select::cases());
    cases.extend(sparse_mla_decode::cases());
    cases.extend(sparse_mla_prefill::cases());
    cases.extend(split_combine::cases());
    cases.extend(kv_write::cases());
    cases.extend(index_k_write::cases());
    cases.extend(linear::cases());
    cases.extend(moe_experts::cases());
    cases.extend(embed::cases());
    cases.extend(gather_rows::cases());
    cases.extend(hc_mix::cases());
    cases.extend(hc_post::cases());
    cases.extend(swiglu::cases());
    cases.extend(router::cases());
    cases.extend(sample::cases());
    cases.extend(norm_rope::cases());
    cases.extend(hadamard::cases());
    cases.extend(index_q_quantise::cases());
    cases.extend(compress::cases());
    cases.retain(|case| case.size <= size);
    cases
}

/// Distribution of the values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Draw {
    /// Standard normal.
    Normal,
    /// [`Rng::heavy`].
    Heavy,
}

impl Draw {
    /// One value.
    pub fn value(self, rng: &mut Rng) -> f32 {
        match self {
            Draw::Normal => rng.normal() as f32,
            Draw::Heavy => rng.heavy() as f32,
        }
    }
}

/// Slots or page ids that are none: the four ways, in turn.
fn invalid(i: usize, count: u64) -> i32 {
    [-1, i32::MIN, i32::try_from(count).unwrap_or(i32::MAX), i32::MAX][i % 4]
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::plain::ReferenceOps;
    use crate::problem::Fill;
    use crate::suite::run_case;

    #[test]
    fn names_are_unique_and_start_with_the_operation() {
        let cases = all(Size::Slow);
        let names: HashSet<&str> = cases.iter().map(|c| c.name.as_str()).collect();
        assert_eq!(names.len(), cases.len());
        assert!(cases.iter().all(|c| c.name.starts_with(&format!("{}/", c.op))));
    }

    #[test]
    fn the_reference_passes_its_own_quick_cases_whatever_memory_holds() {
        for case in all(Size::Quick) {
            let poison = run_case(&ReferenceOps, &case, 1, Fill::Poison);
            let names: Vec<&str> = poison.verdicts.iter().map(|v| v.output.as_str()).collect();
            assert_eq!(names, case.problem(1).output_names());
            assert!(poison.passes(), "{poison}");
            let left = run_case(&ReferenceOps, &case, 1, Fill::Leave);
            assert_eq!(poison.digest, left.digest, "{}", case.name);
        }
    }

    #[test]
    fn the_seed_changes_the_data() {
        for case in all(Size::Quick).iter().filter(|c| c.name.contains("/random")) {
            let first = run_case(&ReferenceOps, case, 1, Fill::Poison);
            let second = run_case(&ReferenceOps, case, 2, Fill::Poison);
            assert_ne!(first.digest, second.digest, "{}", case.name);
        }
    }
}
