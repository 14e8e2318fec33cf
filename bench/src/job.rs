//! What the commands do, without printing: they make a [`Report`].

use crate::cli::{CaseSize, DeviceKind, ParityArgs};
use crate::deployment::Local;
use crate::e2e::{self, E2eArgs, E2eError, E2eReport};
use crate::parity::{self, Plan};
use crate::report::{ParityRow, RecallRow, Report, machine_facts};
use crate::serve::ServeError;
use crate::{devices, shapes};
use kernel_bindings::host::HostOps;
use reference::cases::{self, Size};
use reference::golden::{GoldenDir, GoldenError};
use reference::ops::OpsError;
use reference::recall;
use reference::suite::Case;
use std::time::Instant;
use thiserror::Error;

/// Why a command could not do its work.
#[derive(Debug, Error)]
pub enum JobError {
    /// Nothing matches the filter.
    #[error("no case's name contains `{0}`; `sm120 parity --list` prints them")]
    NoCase(String),
    /// The golden files are not usable.
    #[error(transparent)]
    Golden(#[from] GoldenError),
    /// A device that was asked for by name is not there.
    #[error("{0}")]
    Device(#[from] kernel_bindings::device::DeviceError),
    /// An operation failed outside a case.
    #[error(transparent)]
    Ops(#[from] OpsError),
    /// The engine failed.
    #[error(transparent)]
    E2e(#[from] E2eError),
    /// The deployment did not come up.
    #[error("prefill and decode apart: {0}")]
    Halves(#[from] ServeError),
    /// Prefill and decode in two processes gave other texts than one.
    #[error("prefill and decode apart, C = {concurrency}: expected texts of checksum {expected}, got {got}")]
    OtherTexts {
        /// Clients.
        concurrency: u32,
        /// Of one process.
        expected: String,
        /// Of two.
        got: String,
    },
    /// A real shape did not run.
    #[error("{0}")]
    Shape(String),
}

/// Seed of the case data of the main job.
const DATA_SEED: u64 = 1;
/// Schedule seeds of every emulated case of the main job, from 0 on; the tests run the first and as many behind them.
pub const SCHEDULE_SEEDS: u64 = 8;

/// The cases that `parity` runs: hostile ones and the golden activations, filtered.
pub fn cases(args: &ParityArgs) -> Result<Vec<Case>, JobError> {
    let mut all = cases::all(match args.size {
        CaseSize::Quick => Size::Quick,
        CaseSize::Full => Size::Full,
        CaseSize::Slow => Size::Slow,
    });
    let golden = match &args.golden {
        Some(folder) => GoldenDir::open(folder)?,
        None => GoldenDir::shipped()?,
    };
    all.extend(cases::golden::cases(&golden)?);
    if let Some(filter) = &args.case {
        all.retain(|case| case.name.contains(filter.as_str()));
        if all.is_empty() {
            return Err(JobError::NoCase(filter.clone()));
        }
    }
    Ok(all)
}

/// `sm120 parity`.
pub fn parity(args: &ParityArgs) -> Result<Report, JobError> {
    let start = Instant::now();
    let seeds = match args.seed {
        Some(seed) => vec![seed],
        None => (0..args.seeds).collect(),
    };
    let plan = Plan { cases: cases(args)?, data_seed: args.data_seed, seeds };
    let mut report = Report { command: "sm120 parity".into(), machine: machine_facts(), ..Report::default() };
    if args.device.is_empty() {
        judge_present(&plan, &mut report);
    } else {
        // A device that was named must be there.
        let mut kinds = args.device.clone();
        kinds.sort_unstable();
        kinds.dedup();
        for kind in kinds {
            report.parity.extend(parity::judge(kind, &plan)?);
        }
    }
    report.seconds = start.elapsed().as_secs_f64();
    Ok(report)
}

fn judge_present(plan: &Plan, report: &mut Report) {
    let present = devices::default_kinds();
    for kind in [DeviceKind::Host, DeviceKind::Emulated, DeviceKind::Cuda] {
        match parity::judge(kind, plan) {
            Ok(rows) => report.parity.extend(rows),
            // It was there a moment ago: a failure, not an absence.
            Err(error) if present.contains(&kind) => report.parity.push(ParityRow::device_failed(kind.name(), &error)),
            Err(error) => report.absent.push((kind.name().to_owned(), error.to_string())),
        }
    }
}

/// The main job: parity on every device of this machine, recall, real shapes.
pub fn main_job() -> Result<Report, JobError> {
    let start = Instant::now();
    let mut all = cases::all(Size::Quick);
    all.extend(cases::golden::cases(&GoldenDir::shipped()?)?);
    let plan = Plan { cases: all, data_seed: DATA_SEED, seeds: (0..SCHEDULE_SEEDS).collect() };
    let mut report = Report { command: "cargo run --release".into(), machine: machine_facts(), ..Report::default() };
    judge_present(&plan, &mut report);
    eprintln!("mini model end to end");
    let alone = end_to_end(None)?;
    eprintln!("the same with prefill and decode in processes of their own");
    report.halves = Some(apart(&alone)?);
    report.e2e = Some(alone);
    eprintln!("recall, real shapes");
    report.recall = recall_rows()?;
    report.shapes = shapes::emulated().map_err(JobError::Shape)?;
    report.seconds = start.elapsed().as_secs_f64();
    Ok(report)
}

/// The mini model at C = 1 and C = 32: prompts of 32 to 95 tokens, 16 new ones; on the default device, or of a server.
fn end_to_end(deployment: Option<&Local>) -> Result<E2eReport, E2eError> {
    let mut words =
        vec!["--concurrency", "1,32", "--prompt-tokens", "32..96", "--new-tokens", "16", "--requests", "32"];
    let of_deployment = deployment.map(|local| (local.url(), local.prefill_servers().join(",")));
    if let Some((url, prefill)) = &of_deployment {
        words.extend(["--url", url, "--prefill-servers", prefill]);
    }
    e2e::all(&E2eArgs::parse(&words), true)
}

/// The same requests through a deployment of this machine, whose texts must be those of one process.
fn apart(alone: &E2eReport) -> Result<E2eReport, JobError> {
    let local = Local::start(&["--preset", "mini", "--context", "256", "--verify-transfers"])?;
    let apart = end_to_end(Some(&local))?;
    for (one, two) in alone.runs.iter().zip(&apart.runs) {
        // Elsewhere a near tie may fall either way, as it may between batches of one process.
        if alone.setup.device == "host" && one.checksum != two.checksum {
            let (c, expected, got) = (one.concurrency, one.checksum.clone(), two.checksum.clone());
            return Err(JobError::OtherTexts { concurrency: c, expected, got });
        }
    }
    Ok(apart)
}

/// Queries per context length: each is a text of its own, a few dozen give the mean to about 0.2 %.
const RECALL_QUERIES: usize = 24;

/// Recall of every format at 2K, 8K, 32K and 128K rows, through the host operations.
fn recall_rows() -> Result<Vec<RecallRow>, OpsError> {
    let host = HostOps;
    let mut rows = Vec::new();
    for context in [2_048, 8_192, 32_768, 131_072] {
        for row in recall::measure(&host, context, RECALL_QUERIES, 512, DATA_SEED)? {
            rows.push(RecallRow {
                format: row.format.to_owned(),
                rows: row.rows as u32,
                recall: row.mean,
                worst: row.min,
                score_kept: row.score_kept,
            });
        }
    }
    Ok(rows)
}
