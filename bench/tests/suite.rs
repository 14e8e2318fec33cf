//! The parity suite and the mutation score as tests.

use bench::cli::DeviceKind;
use bench::job::SCHEDULE_SEEDS;
use bench::mutants;
use bench::parity::{self, Plan};
use bench::report::{Report, machine_facts};
use reference::cases::{self, Size};
use reference::golden::GoldenDir;
use reference::suite::Case;

fn all_pass(kind: DeviceKind, cases: Vec<Case>, seeds: impl IntoIterator<Item = u64>) {
    let plan = Plan { cases, data_seed: 1, seeds: seeds.into_iter().collect() };
    let parity = parity::judge(kind, &plan).expect("the device is there");
    let report = Report { parity, machine: machine_facts(), ..Report::default() };
    assert!(!report.parity.is_empty(), "no case was run");
    let failures: Vec<String> = report.failures().map(|row| row.failure.clone()).collect();
    assert!(failures.is_empty(), "{}\n{}", report.parity_table(), failures.join("\n"));
}

/// Every quick case and the golden activations, both variants: no finding, equal bytes, right results under the first schedule
/// of the main job and under as many others as it has.
#[test]
fn quick_and_golden_cases_under_other_schedules_than_the_main_job() {
    let mut cases = cases::all(Size::Quick);
    let golden = GoldenDir::shipped().expect("the golden values are committed");
    cases.extend(cases::golden::cases(&golden).expect("they are complete"));
    all_pass(DeviceKind::Emulated, cases, std::iter::once(0).chain(SCHEDULE_SEEDS..2 * SCHEDULE_SEEDS));
}

/// The larger shapes, whose every path has a small sibling above, under one schedule with early and one with late copies.
#[test]
fn full_cases_under_2_schedules() {
    let cases = cases::all(Size::Full).into_iter().filter(|case| case.size == Size::Full).collect();
    all_pass(DeviceKind::Emulated, cases, 0..2);
}

/// Rows of 2^18 and 2^20 values: the selection has no bounded buffer.
#[test]
fn long_rows_select_exactly() {
    let cases: Vec<Case> = cases::all(Size::Slow).into_iter().filter(|case| case.size == Size::Slow).collect();
    all_pass(DeviceKind::Host, cases.clone(), 0..1);
    all_pass(DeviceKind::Emulated, cases, 0..1);
}

/// Every wait, barrier, fence and arrive taken out in turn is noticed, or listed with the reason why it cannot be.
#[test]
fn every_mutant_is_noticed() {
    let score = mutants::score("", 2).expect("the unmutated kernels pass");
    let survivors: Vec<String> =
        score.survivors().map(|m| format!("{} line {} `{}` ({})", m.module, m.line, m.statement, m.source)).collect();
    assert!(
        score.passes(),
        "killed {} of {}; survivors:\n{}\nstale: {:?}",
        score.killed(),
        score.mutants.len(),
        survivors.join("\n"),
        score.stale
    );
}
