//! `norm_rope`, `hadamard`, `index_q_quantise` and `compress` on the emulator with every check on, against the reference.

use kernel_bindings::emulated::{Emulated, EmulatedConfig};
use kernel_bindings::host::HostOps;
use kernel_bindings::ops::KernelOps;
use kernels::{Operation, Variant};
use ptx_emulator::MachineConfig;
use reference::cases::{self, Size};
use reference::problem::Fill;
use reference::reversed;
use reference::suite::{self, Case, Outcome, Prepared};

fn machine(seed: u64) -> Emulated {
    Emulated::new(EmulatedConfig::from(MachineConfig { max_instructions: 50_000_000, ..MachineConfig::checked(seed) }))
}

/// Whether the kernels do not offer a case: f32, and sizes that are not whole 16-byte accesses or not a lane's.
fn refused(case: &Case) -> bool {
    let sizes = ["norm_rope/bf16/rows_of_10", "compress/bf16/ratio_4/rows_of_7"];
    let lengths = [1, 2, 4, 512].map(|d| format!("hadamard/bf16/random_rows_of_{d}"));
    case.name.contains("f32") || sizes.contains(&case.name.as_str()) || lengths.contains(&case.name)
}

/// Runs the quick cases of an operation under several schedules, with poisoned and with unwritten memory, in order and in
/// reverse; every run gives the same bytes. Returns how many were run, not refused.
fn run_all(op: &str, seeds: std::ops::Range<u64>) -> usize {
    let mut run = 0;
    for case in cases::all(Size::Quick).into_iter().filter(|case| case.op == op) {
        let prepared = case.prepare(1);
        let mut digest = None;
        for seed in seeds.clone() {
            let fill = if seed % 2 == 0 { Fill::Poison } else { Fill::Leave };
            let ops = KernelOps::new(machine(seed));
            let report = suite::run_prepared(&ops, &prepared, fill);
            if refused(&case) {
                assert!(matches!(&report.outcome, Outcome::Skipped(why) if why.contains("offered")), "{report}");
                continue;
            }
            assert!(report.passes(), "schedule seed {seed}: {report}");
            assert_eq!(*digest.get_or_insert(report.digest), report.digest, "{report}: schedule seed {seed}");
            if seed == seeds.start {
                let outputs = prepared.problem.run(&ops, fill).unwrap();
                let order = reversed::differs(&ops, &prepared.problem, &outputs, fill).unwrap();
                assert_eq!(order, None, "{}", case.name);
                run += 1;
            }
        }
    }
    run
}

#[test]
fn norm_rope() {
    let run = run_all("norm_rope", 0..2);
    assert!(run > 20, "{run} cases");
}

#[test]
fn hadamard() {
    let run = run_all("hadamard", 0..2);
    assert!(run > 10, "{run} cases");
}

#[test]
fn index_q_quantise() {
    let run = run_all("index_q_quantise", 0..2);
    assert!(run > 40, "{run} cases");
}

#[test]
fn compress() {
    let run = run_all("compress", 0..2);
    assert!(run > 30, "{run} cases");
}

fn case(name: &str) -> Prepared {
    let find = |case: &Case| case.name == name;
    cases::all(Size::Quick).into_iter().find(find).expect("a case of that name").prepare(3)
}

/// The barrier between the warps of a pooled row is needed.
#[test]
fn the_synchronisation_of_compress_is_needed() {
    let text = kernels::ptx(Operation::Compress, Variant::Sm89).expect("shipped");
    let prepared = case("compress/bf16/ratio_4/index_rows");
    let lines: Vec<&str> = text.lines().collect();
    let mut mutants = 0;
    for (number, line) in lines.iter().enumerate().filter(|(_, line)| line.trim_start().starts_with("bar")) {
        let mut changed = lines.clone();
        changed[number] = "";
        let caught = (0..2).any(|seed| {
            let mut ops = KernelOps::new(machine(seed));
            ops.replace_module(Operation::Compress, Variant::Sm89, &changed.join("\n"));
            !suite::run_prepared(&ops, &prepared, Fill::Poison).passes()
        });
        assert!(caught, "line {}: `{}` can go without anyone noticing", number + 1, line.trim());
        mutants += 1;
    }
    assert!(mutants >= 1, "{mutants} mutants");
}

/// A compressor that writes its state first pools other rows: the order of the two launches counts.
#[test]
fn pooling_comes_before_writing() {
    let prepared = case("compress/bf16/ratio_4/5_tokens_from_every_place");
    let outputs = prepared.problem.run(&HostOps, Fill::Poison).unwrap();
    let text = kernels::ptx(Operation::Compress, Variant::Sm89).expect("shipped");
    // Swapping the names of the entries swaps the launches; the grids differ, so that this cannot be right by chance.
    let swapped = text
        .replace("compress_pool_sm89", "compress_other_sm89")
        .replace("compress_write_sm89", "compress_pool_sm89")
        .replace("compress_other_sm89", "compress_write_sm89");
    let mut ops = KernelOps::new(machine(0));
    assert!(suite::judge("host".into(), &prepared, &outputs, std::time::Duration::ZERO).passes());
    ops.replace_module(Operation::Compress, Variant::Sm89, &swapped);
    assert!(!suite::run_prepared(&ops, &prepared, Fill::Poison).passes());
}
