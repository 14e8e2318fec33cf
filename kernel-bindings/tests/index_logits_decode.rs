//! The kernel `index_logits_decode` on the PTX machine, judged by the reference: every case under every schedule, and the
//! properties that no single case shows.

mod common;

use common::refused;
use kernel_bindings::device::Device;
use kernel_bindings::emulated::{Emulated, EmulatedConfig};
use kernel_bindings::ops::{KernelOps, SplitPlan};
use kernels::Variant;
use ptx_emulator::{AsyncMode, MachineConfig};
use reference::cases::index_logits_decode::{Shape, Values, cases};
use reference::cases::{Draw, Size};
use reference::ops::{IndexKFormat, IndexLogitsDecode, Ops, OpsError, Paged};
use reference::problem::{Fill, IndexLogitsProblem, Memory, Problem};
use reference::suite::{self, Case};
use std::ops::Range;

#[path = "prefill/index_logits.rs"]
mod prefill;

const MODES: [AsyncMode; 3] = [AsyncMode::Eager, AsyncMode::AtWait, AsyncMode::Random];
const FORMATS: [IndexKFormat; 3] = [IndexKFormat::Fp8, IndexKFormat::Bf16, IndexKFormat::Fp4];

/// Every format in every variant.
fn forms() -> impl Iterator<Item = (IndexKFormat, Variant)> {
    FORMATS.into_iter().flat_map(|format| Variant::ALL.map(|variant| (format, variant)))
}

fn device(variant: Variant, num_sms: u32, seed: u64) -> KernelOps<Emulated> {
    let async_mode = MODES[seed as usize % MODES.len()];
    let mut machine = MachineConfig { async_mode, ..MachineConfig::checked(seed) };
    machine.device.num_sms = num_sms;
    KernelOps::with_variant(Emulated::new(EmulatedConfig::from(machine)), variant).expect("runs both variants")
}

/// Runs a case under schedules and asynchronous modes, on machines of 1, 3 and 188 SMs. Every run must pass, without a
/// finding, and all must give the same bytes: neither schedule nor split may show. Nine seeds are every mode on every machine;
/// more schedules on 188 SMs, with copies that are late or in pieces, are run by `bench/tests/suite.rs` and the main job.
fn under_schedules(case: &Case, variant: Variant, seeds: Range<u64>) {
    let prepared = case.prepare(1);
    let mut digest = None;
    for seed in seeds {
        let num_sms = [1, 3, 188][(seed / 3 % 3) as usize];
        let report = suite::run_prepared(&device(variant, num_sms, seed), &prepared, Fill::Leave);
        if refused(&report) {
            return;
        }
        assert!(report.passes(), "{num_sms} SMs, schedule {seed}: {report}");
        assert_eq!(*digest.get_or_insert(report.digest), report.digest, "{}: bytes differ, seed {seed}", case.name);
    }
}

fn all_cases(size: Size, variant: Variant, seeds: Range<u64>) {
    let cases: Vec<Case> = cases().into_iter().filter(|case| case.size == size).collect();
    assert!(!cases.is_empty());
    for case in &cases {
        under_schedules(case, variant, seeds.clone());
    }
}

#[test]
fn quick_cases_portable() {
    all_cases(Size::Quick, Variant::Sm89, 0..9);
}

#[test]
fn quick_cases_sm120a() {
    all_cases(Size::Quick, Variant::Sm120a, 0..9);
}

#[test]
fn full_cases_portable() {
    all_cases(Size::Full, Variant::Sm89, 2..4);
}

#[test]
fn full_cases_sm120a() {
    all_cases(Size::Full, Variant::Sm120a, 2..4);
}

/// Runs a problem and returns its one output.
fn run<O: Ops>(ops: &O, problem: &IndexLogitsProblem) -> Vec<u8> {
    Problem::IndexLogitsDecode(problem.clone()).run(ops, Fill::Leave).expect("accepted and without a finding").remove(0)
}

fn judged(variant: Variant, num_sms: u32, seed: u64, problem: &IndexLogitsProblem) {
    let case = Case::new("index_logits_decode", "here", Size::Quick, {
        let problem = problem.clone();
        move |_| Problem::IndexLogitsDecode(problem.clone())
    });
    let report = suite::run_case(&device(variant, num_sms, seed), &case, seed, Fill::Leave);
    assert!(report.passes(), "{variant}, {num_sms} SMs: {report}");
}

#[test]
fn every_length_around_a_matrix_tile_and_a_page() {
    let lens = vec![0, 1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 47, 48, 63, 64, 65, 95, 96, 97, 127, 128, 129];
    for variant in Variant::ALL {
        for format in FORMATS {
            judged(variant, 2, 0, &Shape { format, lens: lens.clone(), ..Shape::default() }.build(3));
        }
    }
}

#[test]
fn batches_around_the_number_of_sms() {
    for b in [187, 188, 189] {
        let lens: Vec<i32> = (0..b).map(|i| i * 13 % 70).collect();
        judged(Variant::Sm120a, 188, 1, &Shape { lens: lens.clone(), ..Shape::default() }.build(4));
        judged(Variant::Sm89, 188, 2, &Shape { lens, ..Shape::default() }.build(4));
    }
}

#[test]
fn batches_of_many_windows_and_sections() {
    // 700 sequences: windows of 32 in eight sections of 96, with runs of empty sequences across their borders.
    let lens: Vec<i32> = (0..700).map(|i| if (60..200).contains(&i) || i % 5 == 0 { 0 } else { i % 3 + 1 }).collect();
    for variant in Variant::ALL {
        judged(variant, 5, 0, &Shape { lens: lens.clone(), ..Shape::default() }.build(5));
    }
}

#[test]
fn queries_of_a_sequence_share_its_keys() {
    for s_q in 1..=4u32 {
        let lens: Vec<i32> = (0..6 * s_q as i32).map(|i| (i * 41 + 11) % 200).collect();
        for variant in Variant::ALL {
            for format in FORMATS {
                let shape = Shape { format, s_q, lens: lens.clone(), holes: s_q % 2 == 0, ..Shape::default() };
                judged(variant, 2, u64::from(s_q), &shape.build(6));
            }
        }
    }
}

/// The rows of `memory`, `parts` equal ones, in another order.
fn reordered(memory: &Memory, order: &[usize]) -> Memory {
    let image = memory.image();
    let row = image.len() / order.len();
    Memory::full(memory.label, order.iter().flat_map(|&i| image[i * row..(i + 1) * row].to_vec()).collect())
}

#[test]
fn permuting_the_batch_permutes_the_result() {
    let lens = vec![130, 0, 64, 1, 200, 65, 13, 64, 190];
    let order = [4, 8, 0, 2, 6, 1, 3, 7, 5];
    for variant in Variant::ALL {
        for format in FORMATS {
            let problem = Shape { format, lens: lens.clone(), ..Shape::default() }.build(8);
            let permuted = IndexLogitsProblem {
                index_q: reordered(&problem.index_q, &order),
                index_weights: reordered(&problem.index_weights, &order),
                block_table: reordered(&problem.block_table, &order),
                context_lens: reordered(&problem.context_lens, &order),
                ..problem.clone()
            };
            let (plain, permuted) = (run(&device(variant, 3, 0), &problem), run(&device(variant, 3, 0), &permuted));
            let row = plain.len() / order.len();
            for (at, &from) in order.iter().enumerate() {
                let (got, want) = (&permuted[at * row..(at + 1) * row], &plain[from * row..(from + 1) * row]);
                assert!(got == want, "{variant} {format:?}: row {from} moved to {at} has other bytes");
            }
        }
    }
}

#[test]
fn a_key_scores_the_same_wherever_it_stands() {
    // One page seen at every place of the tables: each row of the result repeats the first 64 logits.
    for (format, variant) in forms() {
        let mut problem = Shape { format, lens: vec![64 * 6; 2], page_pad: 64, ..Shape::default() }.build(9);
        let table = problem.block_table.image();
        problem.block_table = Memory::full("block_table", table[..4].repeat(12));
        let mut query = problem.index_q.image();
        query.copy_within(..64 * format.query_head_bytes() as usize, 64 * format.query_head_bytes() as usize);
        problem.index_q = Memory::full("index_q", query);
        let mut weights = problem.index_weights.image();
        weights.copy_within(..256, 256);
        problem.index_weights = Memory::full("index_weights", weights);
        let logits = run(&device(variant, 5, 0), &problem);
        let row = 4 * problem.stride_logits as usize;
        for at in (0..2).flat_map(|r| (0..6).map(move |p| r * row + p * 256)) {
            assert!(logits[at..at + 256] == logits[..256], "{variant} {format:?}: byte {at} on");
        }
    }
}

/// The operands of a problem on a device, for calls that the runner does not make.
fn planned(ops: &KernelOps<Emulated>, problem: &IndexLogitsProblem, plan: &SplitPlan) -> Result<Vec<u8>, OpsError> {
    let load = |memory: &Memory| {
        let mut buffer = ops.alloc(memory.len, memory.label)?;
        for (offset, bytes) in &memory.pieces {
            ops.upload(&mut buffer, *offset, bytes)?;
        }
        Ok::<_, OpsError>(buffer)
    };
    let plan_bytes: Vec<u8> = plan.first_tiles().iter().flat_map(|tile| tile.to_le_bytes()).collect();
    let split_plan = load(&Memory::full("split_plan", plan_bytes))?;
    let mut logits =
        load(&Memory::full("index_logits", vec![0xa5; 4 * problem.stride_logits as usize * problem.b as usize]))?;
    let args = IndexLogitsDecode {
        format: problem.format,
        index_q: &load(&problem.index_q)?,
        index_weights: &load(&problem.index_weights)?,
        index_k: Paged { buffer: &load(&problem.index_k)?, pages: problem.pages },
        block_table: &load(&problem.block_table)?,
        context_lens: &load(&problem.context_lens)?,
        index_logits: &mut logits,
        b: problem.b,
        s_q: problem.s_q,
        index_heads: problem.index_heads,
        max_pages: problem.max_pages,
        stride_block_table: problem.stride_block_table,
        stride_logits: problem.stride_logits,
        clean_logits: problem.clean_logits,
    };
    ops.index_logits_decode_planned(args, plan, &split_plan)?;
    let mut bytes = vec![0; ops.device().len_bytes(&logits) as usize];
    ops.download(&logits, 0, &mut bytes)?;
    Ok(bytes)
}

#[test]
fn every_plan_gives_the_same_bytes() {
    let lens = [300, 0, 65, 1, 700];
    let problem = Shape { lens: lens.to_vec(), ..Shape::default() }.build(10);
    let max_rows = problem.max_pages * problem.pages.page_size;
    for variant in Variant::ALL {
        let want = run(&device(variant, 4, 0), &problem);
        let uneven = SplitPlan::from_first_tiles(vec![0, 0, 13, 14, 14, 19]);
        let beyond = SplitPlan::from_first_tiles(vec![-3, 7, i32::MAX]);
        for plan in [SplitPlan::even(&lens, 1, max_rows, 1), SplitPlan::even(&lens, 1, max_rows, 40), uneven, beyond] {
            let got = planned(&device(variant, 4, 1), &problem, &plan).expect("accepted and without a finding");
            assert!(got == want, "{variant}: {plan:?}");
        }
    }
}

#[test]
fn any_page_size() {
    for page_size in [1, 3, 16, 31, 32, 33, 48, 80, 96, 128] {
        for (format, variant) in forms() {
            let shape = Shape { format, page_size, holes: page_size > 3, lens: vec![140, 3], ..Shape::default() };
            judged(variant, 2, 1, &shape.build(13));
        }
    }
}

/// What a block costs: a key comes once, whatever the number of queries, no product more than needed is made, and no access to
/// shared memory waits for another one's bank.
#[test]
fn keys_are_fetched_once_for_all_queries() {
    let (keys, s_q) = (3_072, 2);
    for (format, row_bytes, mma_per_key) in
        [(IndexKFormat::Fp8, 132, [2, 2]), (IndexKFormat::Bf16, 256, [4, 4]), (IndexKFormat::Fp4, 68, [4, 1])]
    {
        for (variant, mma_per_key) in Variant::ALL.into_iter().zip(mma_per_key) {
            let shape = Shape { format, s_q, lens: vec![keys; s_q as usize], clean: false, ..Shape::default() };
            let mut config = EmulatedConfig::fast();
            config.machine.device.num_sms = 1;
            let ops = KernelOps::with_variant(Emulated::new(config), variant).expect("runs both");
            run(&ops, &shape.build(1));
            let (totals, pairs) = (ops.device().totals(), u64::from(s_q) * keys as u64);
            println!(
                "{variant} {}: per query and key {:.2} instructions, {:.2} wavefronts, {:.2} B",
                format.name(),
                totals.warp_instructions as f64 / pairs as f64,
                totals.shared_wavefronts as f64 / pairs as f64,
                totals.global_load_bytes as f64 / pairs as f64,
            );
            assert_eq!(totals.mma, pairs * mma_per_key, "{variant} {}", format.name());
            assert_eq!(totals.bank_conflicts, 0, "{variant} {}", format.name());
            // six warps load queries and weights, the producer page ids
            let (least, warps) = (keys as u64 * row_bytes, 6 * 64 * (format.query_head_bytes() + 4 * 4 + 4 * 4));
            let got = totals.global_load_bytes;
            assert!(
                (least..least + warps + (8 << 10)).contains(&got),
                "{variant} {}: {got} B, least {least}",
                format.name()
            );
        }
    }
}

#[test]
fn refusals_name_what_is_wrong() {
    let ops = device(Variant::Sm120a, 2, 0);
    let problem = Shape { lens: vec![20], ..Shape::default() }.build(1);
    let error = planned(&ops, &problem, &SplitPlan::from_first_tiles(vec![])).expect_err("no blocks");
    assert!(error.to_string().contains("split_plan: expected at least one block and 0 bytes, got 0 blocks"), "{error}");
}

#[test]
fn values_of_any_size_pass_the_bound() {
    for draw in [Draw::Normal, Draw::Heavy] {
        for format in FORMATS {
            let shape = Shape { format, lens: vec![200], values: Values::Plain(draw), ..Shape::default() };
            judged(Variant::Sm120a, 1, 0, &shape.build(12));
        }
    }
}
