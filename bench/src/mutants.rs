//! The mutation score: every wait, barrier, fence and arrive of every kernel is removed in turn, and the emulator must
//! notice each removal by a finding or a wrong result.
//!
//! A survivor is a defect of the emulator, of the cases, or of the kernel (a barrier that nothing needs). The only
//! survivors that may stand are those listed in `equivalent-mutants.toml` with the reason why the statement cannot
//! matter there.

use crate::parity;
use crate::progress::Progress;
use kernel_bindings::emulated::{Emulated, EmulatedConfig};
use kernel_bindings::ops::KernelOps;
use kernels::{Operation, Variant};
use ptx_emulator::ir::Module;
use ptx_emulator::parse;
use rayon::prelude::*;
use reference::cases::{self, Size};
use reference::problem::Fill;
use reference::suite::{self, Prepared};
use serde::{Deserialize, Serialize};
use std::time::Instant;
use thiserror::Error;

/// Survivors with a reason, committed beside this crate.
pub const EQUIVALENT: &str = include_str!("../equivalent-mutants.toml");

/// A survivor that may stand.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Equivalent {
    /// Module, e.g. `topk_select_sm89`.
    pub module: String,
    /// Statement as it stands in the PTX, registers replaced by `%`.
    pub statement: String,
    /// Kernel source line `file.cu:line` of the statement.
    pub source: String,
    /// Why removing it changes nothing.
    pub reason: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct EquivalentFile {
    #[serde(default)]
    mutant: Vec<Equivalent>,
}

/// What became of one mutant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub enum Fate {
    /// Reported; the first words of the report.
    Killed(String),
    /// Nothing noticed it.
    Survived,
    /// Nothing noticed it, and the committed list says why.
    Equivalent(String),
}

/// One mutant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Mutant {
    /// Module.
    pub module: String,
    /// Line of the PTX text.
    pub line: u32,
    /// Statement.
    pub statement: String,
    /// `file.cu:line`, where `.loc` gives it.
    pub source: String,
    /// Outcome.
    pub fate: Fate,
    /// Case and seed that killed it.
    pub by: String,
}

/// The whole run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Score {
    /// Every mutant.
    pub mutants: Vec<Mutant>,
    /// Entries of the committed list that no survivor matches: they are out of date.
    pub stale: Vec<String>,
    /// Wall time, seconds.
    pub seconds: f64,
}

impl Score {
    /// Mutants that were reported.
    pub fn killed(&self) -> usize {
        self.mutants.iter().filter(|m| matches!(m.fate, Fate::Killed(_))).count()
    }

    /// Mutants that nothing noticed and no reason excuses.
    pub fn survivors(&self) -> impl Iterator<Item = &Mutant> {
        self.mutants.iter().filter(|m| m.fate == Fate::Survived)
    }

    /// No unexplained survivor, no stale excuse, and at least one mutant.
    pub fn passes(&self) -> bool {
        !self.mutants.is_empty() && self.survivors().next().is_none() && self.stale.is_empty()
    }
}

/// Why the score could not be taken.
#[derive(Debug, Error)]
pub enum MutantsError {
    /// The committed list does not parse.
    #[error("equivalent-mutants.toml: {0}")]
    List(#[from] toml::de::Error),
    /// A shipped module does not parse.
    #[error("{module}: {reason}")]
    Module {
        /// Module.
        module: String,
        /// Parser's words.
        reason: String,
    },
    /// The kernel as shipped fails a case that mutants are judged by.
    #[error("{module} fails without any mutation: {report}")]
    Unmutated {
        /// Module.
        module: String,
        /// The failing report.
        report: String,
    },
    /// The filter matches nothing.
    #[error("no module's name contains `{0}`")]
    NoModule(String),
}

/// Runs the mutants of every module whose name contains `filter`.
pub fn score(filter: &str, seeds: u64) -> Result<Score, MutantsError> {
    let start = Instant::now();
    let excuses = toml::from_str::<EquivalentFile>(EQUIVALENT)?.mutant;
    let mut mutants = Vec::new();
    let mut modules = Vec::new();
    for operation in Operation::ALL {
        for variant in Variant::ALL {
            let module = format!("{operation}_{variant}");
            if let Some(text) = kernels::ptx(operation, variant).filter(|_| module.contains(filter)) {
                mutants.extend(of_module(&module, operation, variant, text, seeds, &excuses)?);
                modules.push(module);
            }
        }
    }
    if modules.is_empty() {
        return Err(MutantsError::NoModule(filter.to_owned()));
    }
    let used = |e: &Equivalent| mutants.iter().any(|m| matches!(m.fate, Fate::Equivalent(_)) && excused(e, m));
    let stale = excuses
        .iter()
        .filter(|e| modules.contains(&e.module) && !used(e))
        .map(|e| format!("{} `{}` at {}", e.module, e.statement, e.source))
        .collect();
    Ok(Score { mutants, stale, seconds: start.elapsed().as_secs_f64() })
}

fn excused(excuse: &Equivalent, mutant: &Mutant) -> bool {
    excuse.module == mutant.module
        && excuse.statement == without_registers(&mutant.statement)
        && excuse.source == mutant.source
}

/// Register numbers change with every compilation; the statement's shape does not.
fn without_registers(statement: &str) -> String {
    let mut text = String::new();
    let mut chars = statement.chars().peekable();
    while let Some(c) = chars.next() {
        text.push(c);
        if c == '%' {
            while chars.next_if(|c| c.is_ascii_alphanumeric() || *c == '_').is_some() {}
        }
    }
    text
}

fn of_module(
    module: &str,
    operation: Operation,
    variant: Variant,
    text: &str,
    seeds: u64,
    excuses: &[Equivalent],
) -> Result<Vec<Mutant>, MutantsError> {
    let parsed =
        Module::parse(text).map_err(|e| MutantsError::Module { module: module.to_owned(), reason: e.to_string() })?;
    let points = parse::sync_points(text);
    let prepared: Vec<Prepared> = cases::all(Size::Quick)
        .into_iter()
        .filter(|case| case.op == operation.name())
        .map(|case| case.prepare(0))
        .collect();
    // The unmutated kernel passes; and the cheap cases come first, so that most mutants die early.
    let mut timed = prepared
        .into_par_iter()
        .map(|prepared| {
            let report = suite::run_prepared(&parity::emulated_ops(variant, 0), &prepared, Fill::Leave);
            if report.fails() {
                return Err(MutantsError::Unmutated { module: module.to_owned(), report: report.to_string() });
            }
            Ok((report.seconds, prepared))
        })
        .collect::<Result<Vec<_>, _>>()?;
    timed.sort_by(|a, b| a.0.total_cmp(&b.0));

    let bar = Progress::new(module, points.len());
    let mutants = points
        .par_iter()
        .map(|point| {
            let mutated = parse::remove_statement(text, point);
            let (fate, by) = fate(operation, variant, &mutated, &timed, seeds);
            bar.step();
            let mut mutant = Mutant {
                module: module.to_owned(),
                line: point.line,
                statement: point.text.clone(),
                source: source_of(&parsed, point.line),
                fate,
                by,
            };
            if mutant.fate == Fate::Survived
                && let Some(excuse) = excuses.iter().find(|e| excused(e, &mutant))
            {
                mutant.fate = Fate::Equivalent(excuse.reason.clone());
            }
            mutant
        })
        .collect();
    Ok(mutants)
}

/// Warp instructions of one launch: 20 times what the largest quick case takes. A mutant that never ends goes on until here.
const MOST_INSTRUCTIONS: u64 = 1_200_000;

/// A machine with full checks; every other seed has one SM, so that persistent kernels go round their rings.
fn ops(variant: Variant, seed: u64) -> KernelOps<Emulated> {
    let mut config = EmulatedConfig::checked(seed);
    if !seed.is_multiple_of(2) {
        config.machine.device.num_sms = 1;
    }
    config.machine.max_instructions = MOST_INSTRUCTIONS;
    KernelOps::with_variant(Emulated::new(config), variant).expect("the machine runs every variant")
}

/// Runs the cases under the seeds until one notices.
fn fate(operation: Operation, variant: Variant, text: &str, cases: &[(f64, Prepared)], seeds: u64) -> (Fate, String) {
    for seed in 0..seeds {
        for (_, prepared) in cases {
            let mut ops = ops(variant, seed);
            ops.replace_module(operation, variant, text);
            let report = suite::run_prepared(&ops, prepared, Fill::Leave);
            if report.fails() {
                let first = report.to_string();
                let first = first.lines().next().unwrap_or_default().to_owned();
                return (Fate::Killed(first), format!("{} seed {seed}", prepared.case.name));
            }
        }
    }
    (Fate::Survived, String::new())
}

fn source_of(module: &Module, line: u32) -> String {
    let at = module.entries.iter().flat_map(|entry| &entry.code).find(|instruction| instruction.line == line);
    let Some((file, line)) = at.and_then(|instruction| instruction.loc) else { return String::new() };
    let path = module.files.iter().find(|(number, _)| *number == file).map_or("", |(_, path)| path.as_str());
    format!("{}:{line}", path.rsplit('/').next().unwrap_or(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_do_not_name_a_statement() {
        assert_eq!(
            without_registers("mbarrier.arrive.shared.b64 %rd12, [%r7+8];"),
            "mbarrier.arrive.shared.b64 %, [%+8];"
        );
        assert_eq!(without_registers("bar.sync 0;"), "bar.sync 0;");
    }

    #[test]
    fn the_committed_list_gives_reasons() {
        let list = toml::from_str::<EquivalentFile>(EQUIVALENT).expect("the list parses").mutant;
        for entry in list {
            assert!(entry.reason.len() > 40, "{} at {}: say why", entry.statement, entry.source);
        }
    }
}
