//! The kernels `sparse_mla_decode` and `split_combine` on the PTX machine, judged by the reference: every case under many
//! schedules, and the properties that no single case shows.

mod common;

use common::refused;
use kernel_bindings::emulated::{Emulated, EmulatedConfig};
use kernel_bindings::ops::KernelOps;
use kernels::Variant;
use ptx_emulator::{AsyncMode, MachineConfig};
use reference::cases::Size;
use reference::cases::sparse_mla_decode::{Invalid, List, Shape, Sink, cases};
use reference::cases::split_combine;
use reference::ops::KvFormat;
use reference::problem::{Fill, Memory, Problem, SparseMlaProblem};
use reference::suite::{self, Case};
use std::ops::Range;

#[path = "prefill/sparse_mla.rs"]
mod prefill;

const MODES: [AsyncMode; 3] = [AsyncMode::Eager, AsyncMode::AtWait, AsyncMode::Random];
const FORMATS: [KvFormat; 2] = [KvFormat::V4Fp8, KvFormat::Bf16];

fn device(variant: Variant, seed: u64) -> KernelOps<Emulated> {
    let async_mode = MODES[seed as usize % MODES.len()];
    let machine = MachineConfig { async_mode, ..MachineConfig::checked(seed) };
    KernelOps::with_variant(Emulated::new(EmulatedConfig::from(machine)), variant).expect("runs both variants")
}

/// Runs cases under schedules and asynchronous modes. Every run must pass, without a finding, and all of a case must give
/// the same bytes. `bench/tests/suite.rs` and the main job run the same cases under more schedules, with copies that are late
/// or in pieces; of the large ones, those with copies at once (seed 0) are left for here.
fn under_schedules(cases: Vec<Case>, size: Size, variant: Variant, seeds: Range<u64>) {
    let cases: Vec<Case> = cases.into_iter().filter(|case| case.size == size).collect();
    assert!(!cases.is_empty());
    for case in cases {
        let prepared = case.prepare(1);
        let mut digest = None;
        for seed in seeds.clone() {
            let report = suite::run_prepared(&device(variant, seed), &prepared, Fill::Leave);
            if refused(&report) {
                break;
            }
            assert!(report.passes(), "schedule {seed}: {report}");
            assert_eq!(*digest.get_or_insert(report.digest), report.digest, "{}: bytes differ, seed {seed}", case.name);
        }
    }
}

#[test]
fn quick_cases_portable() {
    under_schedules(cases(), Size::Quick, Variant::Sm89, 0..6);
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
fn merges() {
    for variant in Variant::ALL {
        for size in [Size::Quick, Size::Full] {
            under_schedules(split_combine::cases(), size, variant, 0..3);
        }
    }
}

/// Runs a problem and returns `out` and `lse`.
fn run(variant: Variant, seed: u64, problem: &SparseMlaProblem) -> [Vec<u8>; 2] {
    let outputs = Problem::SparseMlaDecode(Box::new(problem.clone())).run(&device(variant, seed), Fill::Leave);
    outputs.expect("accepted and without a finding").try_into().expect("two outputs")
}

#[test]
fn splits_without_rows_change_no_bit() {
    // All rows in one tile: of 2 and 5 splits one has rows, so the merge of one split is held against no merge.
    for variant in Variant::ALL {
        for format in FORMATS {
            for h in [8, 64] {
                for sink in [Sink::Mixed, Sink::Absent] {
                    let (window, compressed) = (List::of(5), Some(List { invalid: Invalid::Some, ..List::of(11) }));
                    let shape = Shape { format, t: 2, h, sink, window, compressed, ..Shape::default() };
                    let split = |splits| SparseMlaProblem { num_splits: Some(splits), ..shape.build(2) };
                    let whole = run(variant, 0, &split(1));
                    for splits in [2, 5] {
                        assert!(
                            run(variant, 1, &split(splits)) == whole,
                            "{variant} {format:?} {h} heads {splits} splits"
                        );
                    }
                }
            }
        }
    }
}

/// The rows of `memory`, `order.len()` equal ones, in another order.
fn reordered(memory: &Memory, order: &[usize]) -> Memory {
    let image = memory.image();
    let row = image.len() / order.len();
    Memory::full(memory.label, order.iter().flat_map(|&i| image[i * row..(i + 1) * row].to_vec()).collect())
}

#[test]
fn permuting_the_batch_permutes_the_result() {
    let order = [2, 0, 3, 1];
    for (variant, format) in
        [(Variant::Sm89, KvFormat::V4Fp8), (Variant::Sm120a, KvFormat::V4Fp8), (Variant::Sm120a, KvFormat::Bf16)]
    {
        let lens = vec![70, 0, 33, 64];
        let shape = Shape {
            format,
            t: 4,
            h: 16,
            window: List { invalid: Invalid::Some, ..List::of(20) },
            compressed: Some(List { lens, ..List::of(70) }),
            num_splits: Some(2),
            ..Shape::default()
        };
        let problem = shape.build(4);
        let mut permuted = problem.clone();
        permuted.q = reordered(&problem.q, &order);
        permuted.window.slots = reordered(&problem.window.slots, &order);
        let (from, to) = (problem.compressed.as_ref(), permuted.compressed.as_mut());
        let (from, to) = (from.expect("second list"), to.expect("second list"));
        to.slots = reordered(&from.slots, &order);
        to.lens = from.lens.as_ref().map(|lens| reordered(lens, &order));
        for (plain, moved) in run(variant, 0, &problem).iter().zip(run(variant, 0, &permuted)) {
            let row = plain.len() / order.len();
            for (at, &from) in order.iter().enumerate() {
                let same = moved[at * row..(at + 1) * row] == plain[from * row..(from + 1) * row];
                assert!(same, "{variant} {format:?}: token {from} moved to {at} has other bytes");
            }
        }
    }
}
