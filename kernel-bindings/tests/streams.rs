//! The operations on streams and rows, the choice of experts and of tokens on the emulator with every check on.

use kernel_bindings::device::Device;
use kernel_bindings::emulated::{Emulated, EmulatedConfig};
use kernel_bindings::ops::KernelOps;
use kernels::{Operation, Variant};
use reference::cases::{self, Size};
use reference::ops::{Dtype, Embed, GatherRows, HcMix, Ops, OpsError, Sample};
use reference::problem::Fill;
use reference::reversed;
use reference::suite::{self, Outcome, Prepared};

fn machine(seed: u64) -> KernelOps<Emulated> {
    KernelOps::new(Emulated::new(EmulatedConfig::checked(seed)))
}

/// Runs a case with poisoned and with unwritten memory, under a schedule each; every run gives the same bytes, and the batch
/// in reverse order gives the same rows. More schedules are run by `bench/tests/suite.rs` and the main job.
fn run(prepared: &Prepared, seeds: std::ops::Range<u64>) -> bool {
    let mut digest = None;
    for seed in seeds {
        let fill = if seed % 2 == 0 { Fill::Poison } else { Fill::Leave };
        let ops = machine(seed);
        let report = suite::run_prepared(&ops, prepared, fill);
        if matches!(report.outcome, Outcome::Skipped(_)) {
            return false;
        }
        assert!(report.passes(), "schedule seed {seed}: {report}");
        assert_eq!(*digest.get_or_insert(report.digest), report.digest, "{report}: schedule seed {seed}");
        if seed == 0 {
            let outputs = prepared.problem.run(&ops, fill).expect("it ran a moment ago");
            let order = reversed::differs(&ops, &prepared.problem, &outputs, fill).expect("it ran a moment ago");
            assert_eq!(order, None, "{report}");
        }
    }
    true
}

/// All quick cases; those in f32 and of odd lengths are refused, the others run.
fn run_all(op: &str, at_least: usize) {
    let cases = cases::all(Size::Quick).into_iter().filter(|case| case.op == op);
    let ran = cases.filter(|case| run(&case.prepare(1), 0..2)).count();
    assert!(ran >= at_least, "{op}: {ran} cases ran");
}

#[test]
fn embed_is_exact() {
    run_all("embed", 8);
}

#[test]
fn gather_rows_is_exact() {
    run_all("gather_rows", 9);
}

#[test]
fn hc_mix_is_within_its_bounds() {
    run_all("hc_mix", 18);
    // Data of which a sigmoid lies between half the smallest normal number and that number: flushed before it is doubled.
    let saturated = cases::all(Size::Quick).into_iter().find(|case| case.name == "hc_mix/bf16/saturated");
    assert!(run(&saturated.expect("the case is there").prepare(0), 0..1));
}

#[test]
fn hc_post_is_within_its_bounds() {
    run_all("hc_post", 8);
}

#[test]
fn swiglu_is_within_its_bounds() {
    run_all("swiglu", 10);
}

#[test]
fn router_picks_exactly() {
    run_all("router", 30);
}

#[test]
fn sample_picks_exactly() {
    run_all("sample", 14);
}

/// The true widths, once.
#[test]
fn full_cases() {
    let ops = ["embed", "gather_rows", "hc_mix", "hc_post", "swiglu", "router", "sample"];
    let cases = cases::all(Size::Full).into_iter().filter(|case| case.size == Size::Full && ops.contains(&case.op));
    let ran = cases.filter(|case| run(&case.prepare(2), 1..2)).count();
    assert!(ran >= 11, "{ran} cases ran");
}

/// Tokens of a batch of one, of three (one per block) and of nine (four per block) get the same bytes.
#[test]
fn hc_mix_does_not_see_the_batch() {
    use reference::cases::hc_mix::{Mixing, Shape, Streams};
    use reference::problem::Problem;
    use reference::problem::streams::StreamsProblem;
    let shape = |t| Shape {
        dtype: Dtype::Bf16,
        t,
        d: 136,
        streams: Streams::Random,
        mixing: Mixing::Ordinary,
        sinkhorn_iters: Some(20),
        eps: [1e-6; 2],
    };
    let whole = shape(9).build(4);
    let outputs = |t: u32| {
        let mut part = whole.clone();
        part.t = t;
        part.streams.len = 2 * 4 * 136 * u64::from(t);
        part.streams.pieces[0].1.truncate(part.streams.len as usize);
        let problem = Problem::Streams(StreamsProblem::HcMix(part));
        problem.run(&machine(0), Fill::Leave).expect("the machine runs it")
    };
    let all = outputs(9);
    for t in [1, 3] {
        for (few, many) in outputs(t).iter().zip(&all) {
            assert_eq!(few[..], many[..few.len()], "{t} tokens");
        }
    }
}

/// What is not offered is refused by name, with what is.
#[test]
fn what_is_not_offered_is_named() {
    let ops = machine(0);
    let buffer = ops.device().alloc(1 << 21, "operand").expect("memory");
    let mut outs: Vec<_> = (0..4).map(|_| ops.device().alloc(1 << 20, "out").expect("memory")).collect();
    let [out, mixed, rows, token] = &mut outs[..] else { unreachable!("four of them") };
    let refusal = |result: Result<(), OpsError>| result.expect_err("it is not offered").to_string();
    let embed = Embed { dtype: Dtype::F32, table: &buffer, ids: &buffer, out, t: 1, vocab: 4, d: 8, copies: 1 };
    let text = refusal(ops.embed(embed));
    assert!(text.contains("embed: not offered by") && text.ends_with("f32 activations; bf16 is offered"), "{text}");
    let mix = HcMix {
        dtype: Dtype::Bf16,
        streams: &buffer,
        weight: &buffer,
        base: &buffer,
        scale: &buffer,
        norm_weight: &buffer,
        out: mixed,
        mixing: None,
        t: 1,
        hc: 4,
        d: 8200,
        norm_eps: 1e-6,
        hc_eps: 1e-6,
    };
    let text = refusal(ops.hc_mix(mix));
    assert!(text.ends_with("8200 channels; up to 8192 are offered"), "{text}");
    let gather = GatherRows { src: &buffer, rows: &buffer, out: rows, n: 1, num_rows: 2, row_bytes: 20 };
    let text = refusal(ops.gather_rows(gather));
    assert!(text.ends_with("rows of 20 bytes; multiples of 16 are offered"), "{text}");
    let draw = Sample { logits: &buffer, temperature: &buffer, seeds: &buffer, out: token, n: 1, vocab: 6 };
    let text = refusal(ops.sample(draw));
    assert!(text.ends_with("a vocabulary of 6; multiples of 4 up to 1073741824 are offered"), "{text}");
}

/// Without any one of its barriers an operation is caught, in each of its entries.
#[test]
fn every_barrier_is_needed() {
    for (operation, name, least) in [(Operation::HcMix, "hc_mix", 6), (Operation::Sample, "sample", 1)] {
        let text = kernels::ptx(operation, Variant::Sm89).expect("shipped");
        let lines: Vec<&str> = text.lines().collect();
        let cases: Vec<Prepared> = cases::all(Size::Quick)
            .into_iter()
            .filter(|case| case.op == name && !case.name.contains("f32"))
            .map(|case| case.prepare(1))
            .collect();
        let barriers: Vec<usize> =
            (0..lines.len()).filter(|&i| lines[i].trim_start().starts_with("bar.sync")).collect();
        assert!(barriers.len() >= least, "{name}: {} barriers", barriers.len());
        for number in barriers {
            let mut changed = lines.clone();
            changed[number] = "";
            let mut ops = machine(1);
            ops.replace_module(operation, Variant::Sm89, &changed.join("\n"));
            let caught = cases.iter().any(|prepared| suite::run_prepared(&ops, prepared, Fill::Poison).fails());
            assert!(caught, "{name}, line {}: a barrier can go without anyone noticing", number + 1);
        }
    }
}
