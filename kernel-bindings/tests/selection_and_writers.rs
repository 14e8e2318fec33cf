//! `topk_select`, `kv_write` and `index_k_write` on the emulator with every check on, against the reference.

mod common;
#[path = "capture/graphs.rs"]
mod graphs;

use common::refused;
use kernel_bindings::device::Device;
use kernel_bindings::emulated::{Emulated, EmulatedConfig};
use kernel_bindings::ops::KernelOps;
use kernels::{Operation, Variant};
use ptx_emulator::MachineConfig;
use reference::cases::topk_select::{Beyond, Row, Shape};
use reference::cases::{self, Draw, Size};
use reference::ops::{OpsError, TopkSelect};
use reference::problem::{Fill, Problem};
use reference::suite::{self, Case, Prepared};

/// All checks under a schedule seed, on a card with `num_sms` multiprocessors.
fn machine(seed: u64, num_sms: u32) -> Emulated {
    let mut config = MachineConfig { max_instructions: 50_000_000, ..MachineConfig::checked(seed) };
    config.device.num_sms = num_sms;
    Emulated::new(EmulatedConfig::from(config))
}

/// Runs a case with poisoned and with unwritten memory, under a schedule each; every run gives the same bytes. More schedules
/// are run by `bench/tests/suite.rs` and the main job.
fn run(prepared: &Prepared, seeds: std::ops::Range<u64>) {
    let mut digest = None;
    for seed in seeds {
        let fill = if seed % 2 == 0 { Fill::Poison } else { Fill::Leave };
        let report = suite::run_prepared(&KernelOps::new(machine(seed, 188)), prepared, fill);
        if refused(&report) {
            return;
        }
        assert!(report.passes(), "schedule seed {seed}: {report}");
        assert_eq!(*digest.get_or_insert(report.digest), report.digest, "{report}: schedule seed {seed}");
    }
}

fn run_all(op: &str, seeds: std::ops::Range<u64>) {
    let cases: Vec<Case> = cases::all(Size::Quick).into_iter().filter(|case| case.op == op).collect();
    assert!(cases.len() > 10, "{op}: {} cases", cases.len());
    for case in cases {
        run(&case.prepare(1), seeds.clone());
    }
}

#[test]
fn kv_write_is_byte_exact() {
    run_all("kv_write", 0..2);
}

#[test]
fn index_k_write_is_byte_exact() {
    run_all("index_k_write", 0..2);
}

#[test]
fn topk_select_is_exact() {
    run_all("topk_select", 0..2);
}

fn topk_case(name: &str, shape: Shape) -> Prepared {
    Case::new("topk_select", name, Size::Full, move |seed| Problem::TopkSelect(shape.build(seed))).prepare(7)
}

/// Rows that take each way through the kernel: with and without a bound, the list trimmed, tiles cut to their best.
#[test]
fn topk_select_takes_every_way() {
    let normal = Row::Random(Draw::Normal);
    let rows = vec![
        (4_096, normal),           // no bound
        (4_097, normal),           // bound over a row with few quads
        (32_768, Row::Bucket),     // bound needs a second round
        (20_000, Row::Equal(1.0)), // more candidates than the list takes: the tile is cut, ties across the boundary
        (20_000, Row::Ascending),
        (50_000, Row::Ascending), // the second tile is all better: the list is trimmed
        (32_769, Row::Descending),
        (36_870, Row::Levels(3)),
        (20_000, Row::AllNan),
    ];
    for topk in [37, 2048] {
        let shape = Shape { topk, rows: rows.clone(), beyond: Beyond::Infinity, ..Shape::default() };
        // One block per row: long rows are walked tile by tile.
        let report = suite::run_prepared(&KernelOps::new(machine(1, 1)), &topk_case("ways", shape), Fill::Poison);
        assert!(report.passes(), "{report}");
    }
}

#[test]
fn topk_select_of_split_rows_equals_that_of_whole_ones() {
    let kinds = [Row::Random(Draw::Heavy), Row::Plateau, Row::Equal(-2.5), Row::Descending, Row::MostlyMinusInfinity];
    let mut rows: Vec<(i32, Row)> = kinds.iter().map(|&kind| (40_001, kind)).collect();
    // Rows of the same launch that need one block, or none.
    rows.extend([(32_768, Row::Levels(2)), (40, Row::Plateau), (0, Row::Zeros)]);
    let prepared = topk_case("split", Shape { topk: 101, rows, ..Shape::default() });
    let mut digest = None;
    for (seed, num_sms) in [(0, 1), (1, 16), (2, 24), (3, 188)] {
        let report = suite::run_prepared(&KernelOps::new(machine(seed, num_sms)), &prepared, Fill::Poison);
        assert!(report.passes(), "{num_sms} SMs: {report}");
        assert_eq!(*digest.get_or_insert(report.digest), report.digest, "{num_sms} SMs");
    }
}

#[test]
fn arrival_counters_serve_launch_after_launch() {
    let ops = KernelOps::new(machine(5, 188));
    let row = |n| (n, Row::Random(Draw::Normal));
    for rows in [vec![row(33_000)], vec![row(40_000), row(100), row(33_000)], vec![row(50_000)]] {
        let prepared = topk_case("again", Shape { topk: 16, rows, ..Shape::default() });
        for _ in 0..2 {
            let report = suite::run_prepared(&ops, &prepared, Fill::Poison);
            assert!(report.passes(), "{report}");
        }
    }
}

#[test]
fn splits_out_of_range_are_refused() {
    let ops = KernelOps::new(machine(0, 188));
    let buffer = ops.device().alloc(1024, "operand").unwrap();
    let (mut positions, splits) = (ops.device().alloc(64, "topk_positions").unwrap(), [0, 65]);
    for num_splits in splits {
        let args = TopkSelect {
            index_logits: &buffer,
            context_lens: &buffer,
            block_table: None,
            sequence_of_row: None,
            topk_positions: Some(&mut positions),
            topk_slots: None,
            topk_lens: None,
            rows: 1,
            rows_per_sequence: 1,
            num_sequences: 0,
            topk: 16,
            page_size: 64,
            max_pages: 0,
            stride_logits: 256,
            stride_block_table: 0,
        };
        let error: OpsError = ops.topk_select_split(args, num_splits).unwrap_err();
        assert_eq!(error.to_string(), format!("topk_select: num_splits: expected 1 to 64, got {num_splits}"));
    }
}

/// Without any one of its barriers, and with its atomic operation no longer ordering memory, `topk_select` is caught.
#[test]
fn every_synchronisation_of_topk_select_is_needed() {
    let text = kernels::ptx(Operation::TopkSelect, Variant::Sm89).expect("shipped");
    let lines: Vec<&str> = text.lines().collect();
    let short = topk_case(
        "short",
        Shape { topk: 37, rows: vec![(5_000, Row::Random(Draw::Normal)), (5_000, Row::Levels(2))], ..Shape::default() },
    );
    let long = topk_case("long", Shape { topk: 37, rows: vec![(33_000, Row::Plateau)], ..Shape::default() });
    let mut mutants = 0;
    for (number, line) in lines.iter().enumerate() {
        let mutated = match line.trim_start() {
            code if code.starts_with("bar.sync") => String::new(),
            code if code.starts_with("atom.acq_rel") => line.replace("acq_rel", "relaxed"),
            _ => continue,
        };
        let mut changed = lines.clone();
        changed[number] = &mutated;
        let text = changed.join("\n");
        let caught = [&short, &long].into_iter().any(|prepared| {
            (0..2).any(|seed| {
                let mut ops = KernelOps::new(machine(seed, 188));
                ops.replace_module(Operation::TopkSelect, Variant::Sm89, &text);
                !suite::run_prepared(&ops, prepared, Fill::Poison).passes()
            })
        });
        assert!(caught, "line {}: `{}` can go without anyone noticing", number + 1, line.trim());
        mutants += 1;
    }
    assert!(mutants >= 8, "{mutants} mutants");
}
