//! The runner: any implementation of [`Ops`], any case, one report.
//!
//! ```
//! use reference::{cases, plain::ReferenceOps, problem::Fill, suite};
//!
//! let cases = cases::all(cases::Size::Quick);
//! let prepared = cases[0].prepare(1);
//! let report = suite::run_prepared(&ReferenceOps, &prepared, Fill::Poison);
//! assert!(report.passes(), "{report}");
//! ```

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::cases::Size;
use crate::compare::Verdict;
use crate::ops::{Ops, OpsError};
use crate::problem::{ExpectedOutput, Fill, Problem};

/// A case: a name and the data that a seed makes of it.
#[derive(Clone)]
pub struct Case {
    /// Unique, `operation/format/what` or `operation/what`.
    pub name: String,
    /// Operation.
    pub op: &'static str,
    /// How much work it is.
    pub size: Size,
    /// Needs a pool of more than 2^31 bytes, of which a few pages are used.
    pub virtual_pool: bool,
    build: Arc<dyn Fn(u64) -> Task + Send + Sync>,
}

/// A problem, and bounds against values from outside where there are such.
#[derive(Debug, Clone)]
pub struct Task {
    /// The call.
    pub problem: Problem,
    /// Outputs of an outside implementation, with the bound against them.
    pub outside: Vec<ExpectedOutput>,
}

impl From<Problem> for Task {
    fn from(problem: Problem) -> Task {
        Task { problem, outside: Vec::new() }
    }
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Case({})", self.name)
    }
}

impl Case {
    /// A case of `op` whose data `build` makes from a seed.
    pub fn new<T: Into<Task>>(
        op: &'static str,
        what: impl fmt::Display,
        size: Size,
        build: impl Fn(u64) -> T + Send + Sync + 'static,
    ) -> Case {
        Case {
            name: format!("{op}/{what}"),
            op,
            size,
            virtual_pool: false,
            build: Arc::new(move |seed| build(seed).into()),
        }
    }

    /// Marks the case as one that needs a virtual pool.
    pub fn in_virtual_pool(mut self) -> Case {
        self.virtual_pool = true;
        self
    }

    /// Makes the data and computes what must come out.
    pub fn prepare(&self, seed: u64) -> Prepared {
        let task = (self.build)(seed);
        let expected = task.problem.expected();
        Prepared { case: self.clone(), seed, problem: task.problem, expected, outside: task.outside }
    }

    /// Makes the data only: for measurements that check against something else.
    pub fn problem(&self, seed: u64) -> Problem {
        (self.build)(seed).problem
    }
}

/// A case with its data and expected outputs, ready to be run any number of times.
#[derive(Debug, Clone)]
pub struct Prepared {
    /// The case.
    pub case: Case,
    /// Seed of the data.
    pub seed: u64,
    /// The call.
    pub problem: Problem,
    /// What the reference says, per output.
    pub expected: Vec<ExpectedOutput>,
    /// What an outside implementation says, for some outputs.
    pub outside: Vec<ExpectedOutput>,
}

/// What became of a case.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub enum Outcome {
    /// Every output is right.
    Passed,
    /// At least one verdict fails.
    WrongResult,
    /// The implementation does not offer this; with its reason.
    Skipped(String),
    /// The implementation refused the operands or failed; with its words.
    Error(String),
}

/// One case on one implementation.
#[derive(Debug, Clone, Serialize)]
pub struct CaseReport {
    /// Name of the implementation.
    pub device: String,
    /// Name of the case.
    pub case: String,
    /// Operation.
    pub op: &'static str,
    /// Seed of the data.
    pub seed: u64,
    /// What became of it.
    pub outcome: Outcome,
    /// One verdict per output, then one per comparison with outside values.
    pub verdicts: Vec<Verdict>,
    /// Hash of all output bytes: equal for equal bytes. 0 unless the call went through.
    pub digest: u64,
    /// Time of the call with its copies, seconds.
    pub seconds: f64,
}

impl CaseReport {
    /// Whether the case passed.
    pub fn passes(&self) -> bool {
        self.outcome == Outcome::Passed
    }

    /// Whether the case counts as a failure; a skip does not.
    pub fn fails(&self) -> bool {
        matches!(self.outcome, Outcome::WrongResult | Outcome::Error(_))
    }

    fn without_outputs(device: String, prepared: &Prepared, outcome: Outcome, time: Duration) -> CaseReport {
        CaseReport {
            device,
            case: prepared.case.name.clone(),
            op: prepared.case.op,
            seed: prepared.seed,
            outcome,
            verdicts: Vec::new(),
            digest: 0,
            seconds: time.as_secs_f64(),
        }
    }
}

impl fmt::Display for CaseReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {}, seed {}: ", self.case, self.device, self.seed)?;
        match &self.outcome {
            Outcome::Passed => write!(f, "passed"),
            Outcome::Skipped(why) => write!(f, "skipped: {why}"),
            Outcome::Error(what) => write!(f, "error: {what}"),
            Outcome::WrongResult => {
                for verdict in self.verdicts.iter().filter(|v| !v.passes()) {
                    write!(f, "\n  {verdict}")?;
                }
                Ok(())
            }
        }?;
        if self.fails() {
            write!(f, "\n  again: sm120 parity --case {} --seed {}", self.case, self.seed)?;
        }
        Ok(())
    }
}

/// FNV-1a over 64 bits.
fn digest(outputs: &[Vec<u8>]) -> u64 {
    let bytes = outputs.iter().flatten();
    bytes.fold(0xcbf2_9ce4_8422_2325, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}

/// Runs a prepared case.
pub fn run_prepared<O: Ops>(ops: &O, prepared: &Prepared, fill: Fill) -> CaseReport {
    let device = ops.name();
    let start = Instant::now();
    let result = prepared.problem.run(ops, fill);
    let time = start.elapsed();
    match result {
        Ok(outputs) => judge(device, prepared, &outputs, time),
        Err(error @ OpsError::Unsupported { .. }) => {
            CaseReport::without_outputs(device, prepared, Outcome::Skipped(error.to_string()), time)
        }
        Err(error) => CaseReport::without_outputs(device, prepared, Outcome::Error(error.to_string()), time),
    }
}

/// Judges outputs that were obtained elsewhere, in the order of [`Prepared::expected`].
pub fn judge(device: String, prepared: &Prepared, outputs: &[Vec<u8>], time: Duration) -> CaseReport {
    let mut verdicts: Vec<Verdict> =
        prepared.expected.iter().zip(outputs).map(|(expected, got)| expected.compare(got)).collect();
    for outside in &prepared.outside {
        let place = prepared.expected.iter().position(|e| e.name == outside.name);
        let got = place.and_then(|i| outputs.get(i)).expect("an outside value is for an output of the operation");
        let mut verdict = outside.compare(got);
        verdict.output = format!("{} against outside values", verdict.output);
        verdicts.push(verdict);
    }
    let all = outputs.len() == prepared.expected.len() && verdicts.iter().all(Verdict::passes);
    let outcome = if all { Outcome::Passed } else { Outcome::WrongResult };
    CaseReport { verdicts, digest: digest(outputs), ..CaseReport::without_outputs(device, prepared, outcome, time) }
}

/// Makes the data of a case and runs it.
pub fn run_case<O: Ops>(ops: &O, case: &Case, seed: u64, fill: Fill) -> CaseReport {
    run_prepared(ops, &case.prepare(seed), fill)
}
