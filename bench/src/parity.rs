//! The parity suite: every case on every device, judged by the reference.

use crate::cli::DeviceKind;
use crate::progress::Progress;
use crate::report::ParityRow;
use kernel_bindings::cuda::Cuda;
use kernel_bindings::device::DeviceError;
use kernel_bindings::emulated::{Emulated, EmulatedConfig};
use kernel_bindings::host::HostOps;
use kernel_bindings::ops::KernelOps;
use kernels::{Operation, Variant};
use rayon::prelude::*;
use reference::ops::Ops;
use reference::problem::Fill;
use reference::suite::{self, Case, CaseReport, Outcome, Prepared};
use std::time::Instant;

/// Repeats of a case on a card, whose schedule nobody controls: all must give the same bytes.
const CARD_REPEATS: u64 = 20;

/// Which cases, under which schedules.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Cases.
    pub cases: Vec<Case>,
    /// Seed of the data.
    pub data_seed: u64,
    /// Schedule seeds of the emulator.
    pub seeds: Vec<u64>,
}

/// Judges one kind of device. `Err` says why the device is absent.
pub fn judge(kind: DeviceKind, plan: &Plan) -> Result<Vec<ParityRow>, DeviceError> {
    match kind {
        DeviceKind::Host => {
            let host = HostOps;
            Ok(judge_with("host", plan, |prepared| {
                repeat::<HostOps, _>("host", prepared, &[0], |_| &host, Fill::Poison)
            }))
        }
        DeviceKind::Emulated => Ok(judge_emulated(plan)),
        DeviceKind::Cuda => {
            let mut rows = Vec::new();
            for variant in Variant::ALL {
                let card = Cuda::open(0)?;
                let Ok(ops) = KernelOps::with_variant(card, variant) else { continue };
                let device = ops.name();
                let repeats: Vec<u64> = (0..CARD_REPEATS).collect();
                let offered = |case: &Case| offers(case, variant);
                let mut of_variant = Plan { cases: plan.cases.clone(), ..plan.clone() };
                of_variant.cases.retain(offered);
                // One stream: cases run one after the other.
                let bar = progress(&device, of_variant.cases.len());
                for case in &of_variant.cases {
                    let prepared = case.prepare(of_variant.data_seed);
                    rows.push(repeat::<KernelOps<Cuda>, _>(&device, &prepared, &repeats, |_| &ops, Fill::Poison));
                    bar.step();
                }
            }
            Ok(rows)
        }
    }
}

/// Both variants of a case one after the other, so that its data and what the reference expects are computed once.
fn judge_emulated(plan: &Plan) -> Vec<ParityRow> {
    let rows = judge_with("emulated", plan, |prepared| {
        Variant::ALL.map(|variant| {
            let ops = |seed: u64| emulated_ops(variant, seed);
            let device = format!("emulated {variant}");
            offers(&prepared.case, variant)
                .then(|| repeat::<KernelOps<Emulated>, _>(&device, prepared, &plan.seeds, ops, Fill::Leave))
        })
    });
    (0..Variant::ALL.len()).flat_map(|variant| rows.iter().filter_map(move |row| row[variant].clone())).collect()
}

/// The shipped kernels of one variant on a fresh machine with full checks.
pub fn emulated_ops(variant: Variant, seed: u64) -> KernelOps<Emulated> {
    KernelOps::with_variant(Emulated::new(EmulatedConfig::checked(seed)), variant)
        .expect("the machine runs every variant")
}

/// The operation of a case has PTX for the variant.
fn offers(case: &Case, variant: Variant) -> bool {
    Operation::from_name(case.op).is_some_and(|operation| kernels::ptx(operation, variant).is_some())
}

fn progress(device: &str, len: usize) -> Progress {
    if !std::io::IsTerminal::is_terminal(&std::io::stderr()) {
        eprintln!("{device}: {len} cases");
    }
    Progress::new(device, len)
}

fn judge_with<R: Send>(device: &str, plan: &Plan, run: impl Fn(&Prepared) -> R + Sync) -> Vec<R> {
    let bar = progress(device, plan.cases.len());
    let judged = plan.cases.par_iter().map(|case| {
        let judged = run(&case.prepare(plan.data_seed));
        bar.step();
        judged
    });
    judged.collect()
}

/// Runs a case once per seed: every run must pass, and all must give the same bytes. A device
/// that does not offer the case says why.
fn repeat<O: Ops, B: std::borrow::Borrow<O>>(
    device: &str,
    prepared: &Prepared,
    seeds: &[u64],
    ops: impl Fn(u64) -> B,
    fill: Fill,
) -> ParityRow {
    let start = Instant::now();
    let mut row = ParityRow {
        device: device.to_owned(),
        operation: prepared.case.op.to_owned(),
        case: prepared.case.name.clone(),
        seeds: seeds.len() as u32,
        error_over_bound: 0.0,
        worst_output: String::new(),
        wall_ms: 0.0,
        failure: String::new(),
        skipped: String::new(),
    };
    let mut first: Option<(u64, u64)> = None;
    for &seed in seeds {
        let report = suite::run_prepared(ops(seed).borrow(), prepared, fill);
        if let Outcome::Skipped(why) = report.outcome {
            row.skipped = why;
            break;
        }
        note_worst(&mut row, &report);
        if report.fails() {
            row.failure = format!("schedule seed {seed}: {report}");
            break;
        }
        match first {
            None => first = Some((seed, report.digest)),
            Some((other, digest)) if digest != report.digest => {
                row.failure = format!("the bytes of seed {seed} differ from those of seed {other}");
                break;
            }
            Some(_) => {}
        }
    }
    row.wall_ms = start.elapsed().as_secs_f64() * 1e3;
    row
}

fn note_worst(row: &mut ParityRow, report: &CaseReport) {
    for verdict in &report.verdicts {
        if verdict.max_share > row.error_over_bound || row.worst_output.is_empty() {
            row.error_over_bound = row.error_over_bound.max(verdict.max_share);
            row.worst_output.clone_from(&verdict.output);
        }
    }
}
