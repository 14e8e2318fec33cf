//! `linear` and `moe_experts` on the emulator with every check on, against the reference.

use kernel_bindings::emulated::{Emulated, EmulatedConfig};
use kernel_bindings::ops::KernelOps;
use ptx_emulator::MachineConfig;
use reference::cases::moe_experts::Shape;
use reference::cases::{self, Size};
use reference::ops::{Dtype, WeightFormat};
use reference::problem::{Fill, Problem, ProductsProblem};
use reference::reversed;
use reference::suite::{self, Case, Outcome};

fn machine(seed: u64) -> Emulated {
    let config = MachineConfig { max_instructions: 200_000_000, ..MachineConfig::checked(seed) };
    Emulated::new(EmulatedConfig::from(config))
}

/// Every quick case with bf16 activations, under several schedules, with poisoned and unwritten memory: the same bytes, also
/// for the batch in reverse order.
fn run_all(op: &str, seeds: std::ops::Range<u64>) {
    let mut passed = 0;
    for case in cases::all(Size::Quick).into_iter().filter(|case| case.op == op) {
        let prepared = case.prepare(1);
        let mut digest = None;
        for seed in seeds.clone() {
            let fill = if seed % 2 == 0 { Fill::Poison } else { Fill::Leave };
            let report = suite::run_prepared(&KernelOps::new(machine(seed)), &prepared, fill);
            if let Outcome::Skipped(why) = &report.outcome {
                let f32 = case.name.contains("/f32_x_") && why.contains("f32 activations; bf16 is");
                let weights = case.name.contains("_x_f32/") && why.contains("f32 weights; bf16, fp8 and fp4 are");
                assert!(f32 || (op == "moe_experts" && weights), "{report}");
                break;
            }
            assert!(report.passes(), "schedule seed {seed}: {report}");
            assert_eq!(*digest.get_or_insert(report.digest), report.digest, "{report}: schedule seed {seed}");
            passed += 1;
        }
        if digest.is_some() {
            let ops = KernelOps::new(machine(9));
            let outputs = prepared.problem.run(&ops, Fill::Leave).unwrap();
            let order = reversed::differs(&ops, &prepared.problem, &outputs, Fill::Leave).unwrap();
            assert_eq!(order, None, "{}", case.name);
        }
    }
    assert!(passed > 50, "{op}: {passed} runs");
}

#[test]
fn linear_is_right_under_every_schedule() {
    run_all("linear", 0..2);
}

#[test]
fn moe_experts_is_right_under_every_schedule() {
    run_all("moe_experts", 0..2);
}

/// Scratch that another call left behind is not read.
#[test]
fn experts_may_be_called_again_with_other_sizes() {
    let ops = KernelOps::new(machine(4));
    for [t, d, inter] in [[9, 64, 32], [3, 32, 64], [40, 32, 32], [1, 64, 64]] {
        let shape = Shape::of(Dtype::Bf16, WeightFormat::Bf16, [t, d, inter]);
        let build = move |seed| Problem::Products(Box::new(ProductsProblem::MoeExperts(shape.build(seed))));
        let prepared = Case::new("moe_experts", "again", Size::Full, build).prepare(u64::from(t));
        let report = suite::run_prepared(&ops, &prepared, Fill::Poison);
        assert!(report.passes(), "{report}");
    }
}
