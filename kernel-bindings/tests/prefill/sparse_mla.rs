//! The kernel `sparse_mla_prefill` on the PTX machine.

use kernels::Variant;
use reference::cases::Size;
use reference::cases::sparse_mla_decode::{Invalid, List, Shape, Sink, Values};
use reference::cases::sparse_mla_prefill::cases;
use reference::ops::{Dtype, KvFormat};
use reference::problem::{Fill, Problem, SparseMlaPrefillProblem, SparseMlaProblem};

use super::{FORMATS, device, under_schedules};

#[test]
fn quick_cases_portable() {
    under_schedules(cases(), Size::Quick, Variant::Sm89, 0..3);
}

#[test]
fn quick_cases_sm120a() {
    under_schedules(cases(), Size::Quick, Variant::Sm120a, 0..6);
}

#[test]
fn full_cases_portable() {
    under_schedules(cases(), Size::Full, Variant::Sm89, 0..1);
}

#[test]
fn full_cases_sm120a() {
    under_schedules(cases(), Size::Full, Variant::Sm120a, 0..1);
}

#[test]
fn a_token_has_the_bits_of_an_unsplit_decode_call() {
    let list = |width| List { invalid: Invalid::Some, ..List::of(width) };
    for variant in Variant::ALL {
        for format in FORMATS {
            for (h, values, sink) in [
                (8, Values::Plain, Sink::Mixed),
                (32, Values::Peaked, Sink::Absent),
                (128, Values::Plain, Sink::Normal),
            ] {
                let (window, compressed) = (list(40), Some(list(90)));
                let shape = Shape { format, t: 3, h, values, sink, window, compressed, ..Shape::default() };
                let problem = SparseMlaProblem { num_splits: Some(1), ..shape.build(5) };
                let run = |problem: Problem| problem.run(&device(variant, 1), Fill::Leave).expect("without a finding");
                let decode = run(Problem::SparseMlaDecode(Box::new(problem.clone())));
                let prefill = SparseMlaPrefillProblem { attention: problem, max_logits: false };
                let prefill = run(Problem::SparseMlaPrefill(Box::new(prefill)));
                assert!(prefill == decode, "{variant} {format:?}, {h} heads");
            }
        }
    }
}

#[test]
fn refusals_name_what_is_missing() {
    let refused = |shape: Shape| {
        let problem = SparseMlaPrefillProblem { attention: shape.build(1), max_logits: true };
        let problem = Problem::SparseMlaPrefill(Box::new(problem));
        problem.run(&device(Variant::Sm120a, 0), Fill::Leave).expect_err("no such kernel").to_string()
    };
    let error = refused(Shape { h: 24, ..Shape::default() });
    assert!(error.ends_with("24 heads; 8, 16, 32, 64 and 128 are offered"), "{error}");
    let error = refused(Shape { dtype: Dtype::F32, ..Shape::default() });
    assert!(error.ends_with("f32 activations; bf16 is offered"), "{error}");
    let error = refused(Shape { format: KvFormat::F32 { d: 512 }, ..Shape::default() });
    assert!(error.ends_with("f32 rows; v4_fp8 and bf16 are offered"), "{error}");
    assert!(error.starts_with("sparse_mla_prefill: not offered by "), "{error}");
}
