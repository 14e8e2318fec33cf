//! Cases of `sparse_mla_prefill`: the shapes of `sparse_mla_decode` that do not ask for splits, and larger batches.

use super::Size;
use super::sparse_mla_decode::{self, Invalid, List, Shape, Sink};
use crate::ops::KvFormat;
use crate::problem::{Problem, SparseMlaPrefillProblem};
use crate::suite::Case;

fn case(size: Size, name: &str, what: &str, max_logits: bool, shape: Shape) -> Case {
    let virtual_pool = shape.virtual_pool();
    let case = Case::new("sparse_mla_prefill", format!("{name}/{what}"), size, move |seed| {
        let attention = shape.build(seed);
        Problem::SparseMlaPrefill(Box::new(SparseMlaPrefillProblem { attention, max_logits }))
    });
    if virtual_pool { case.in_virtual_pool() } else { case }
}

/// All cases of this operation.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (size, name, what, shape) in sparse_mla_decode::shapes() {
        if shape.num_splits.is_none_or(|splits| splits == 1) {
            cases.push(case(size, name, &what, true, Shape { num_splits: None, ..shape }));
        }
    }
    for (name, format) in [("v4_fp8", KvFormat::V4Fp8), ("bf16", KvFormat::Bf16)] {
        let small = Shape { format, ..Shape::default() };
        let list = |width| List { invalid: Invalid::Some, ..List::of(width) };
        use Size::{Full, Quick, Slow};
        cases.push(case(Quick, name, "without_max_logits", false, Shape { t: 2, ..small.clone() }));
        // What a decode call would split in eight is one run here.
        let splits = Shape { num_splits: Some(8), compressed: Some(list(140)), ..small.clone() };
        cases.push(case(Quick, name, "splits_are_not_looked_at", true, splits));
        let tokens = |t, h| Shape { t, h, window: list(20), compressed: Some(list(13)), ..small.clone() };
        cases.push(case(Quick, name, "11_tokens", true, tokens(11, 8)));
        cases.push(case(Full, name, "130_tokens_64_heads", true, Shape { sink: Sink::Mixed, ..tokens(130, 64) }));
        cases.push(case(Full, name, "200_tokens_128_heads", false, Shape { compressed: None, ..tokens(200, 128) }));
        let model = Shape { t: 64, h: 64, window: list(128), compressed: Some(list(512)), ..small };
        cases.push(case(Slow, name, "64_tokens_640_rows", true, model));
    }
    cases
}
