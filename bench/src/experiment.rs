//! `sm120 experiment`: a deployment on this machine, one question to it, one figure as the answer. A check that could not fail would
//! prove nothing: where a protection can be switched off, the same run shows what happens without it.

mod abort_cascade;
mod corruption;
mod recall;
mod servers;
mod transfer;
mod wedge;

pub use abort_cascade::AbortCascadeArgs;
pub use corruption::CorruptionArgs;
pub use recall::RecallArgs;
pub use transfer::TransferArgs;
pub use wedge::WedgeArgs;

use crate::halves::{TransportKind, Transports};
use crate::report::{machine_facts, table};
use crate::serving::ScheduleKind;
use clap::{Args, Subcommand};
use reference::rng::Rng;
use serde::Serialize;
use std::io::Write;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Options of `experiment`.
#[derive(Debug, Args)]
pub struct ExperimentArgs {
    /// Which.
    #[command(subcommand)]
    pub question: Question,
}

/// The experiments.
#[derive(Debug, Subcommand)]
pub enum Question {
    /// A client with many streams is killed, twice: does the deployment answer as before, and does every page come back?
    AbortCascade(AbortCascadeArgs),
    /// Concurrent sessions of several turns with common beginnings: in how many do tokens differ from those of one process?
    Corruption(CorruptionArgs),
    /// Long prompts in turn, of which the device has always lost the next: the first token with host memory and without, and is it
    /// the same text?
    Recall(RecallArgs),
    /// Rounds of long prompts: how fast do pages move, beside a plain socket of this machine?
    Transfer(TransferArgs),
    /// One part after another is stuck or dead while clients run: who notices after how long, what are the clients told, and does
    /// everything recover?
    Wedge(WedgeArgs),
}

impl Question {
    /// What it deploys, if that is more than one process.
    fn deployment(&self) -> Option<&DeploymentArgs> {
        match self {
            Self::AbortCascade(AbortCascadeArgs { deployment, .. })
            | Self::Corruption(CorruptionArgs { deployment, .. })
            | Self::Transfer(TransferArgs { deployment, .. })
            | Self::Wedge(WedgeArgs { deployment, .. }) => Some(deployment),
            Self::Recall(_) => None,
        }
    }

    fn report(&self) -> &Path {
        match self {
            Self::Recall(args) => &args.report,
            other => other.deployment().map_or(Path::new(""), |deployment| &deployment.report),
        }
    }
}

/// Model of a deployment, and where its report goes.
#[derive(Debug, Clone, Args)]
pub struct DeploymentArgs {
    /// Sizes of the random model.
    #[arg(long, default_value = "tiny", value_name = "NAME")]
    pub preset: String,
    /// Ranks of each server.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub tp: u32,
    /// Decide about a step while the one before runs, or after it.
    #[arg(long, value_enum, default_value_t = ScheduleKind::Overlap)]
    pub schedule: ScheduleKind,
    /// What carries pages between the halves.
    #[arg(long, value_enum, default_value_t = TransportKind::Tcp)]
    pub transport: TransportKind,
    /// Sum every page before it is sent and before it is used.
    #[arg(long)]
    pub verify_transfers: bool,
    /// Folder of the report.
    #[arg(long, default_value = "results/local/experiment", value_name = "DIR")]
    pub report: PathBuf,
}

/// Why there is no answer.
#[derive(Debug, Error)]
pub enum ExperimentError {
    /// A process, a socket, a file.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// Why it failed.
        source: std::io::Error,
    },
    /// What this build, this machine or this experiment cannot do.
    #[error("{0}")]
    Refused(String),
    /// A server that does not start, or an answer that makes no sense.
    #[error("{0}")]
    Server(String),
}

impl ExperimentError {
    fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What.
    pub what: String,
    /// What was seen.
    pub seen: String,
    /// Whether that is as it should be; none for what is only told.
    pub good: Option<bool>,
}

impl Finding {
    fn verdict(&self) -> &'static str {
        match self.good {
            Some(true) => "ok",
            Some(false) => "FALLS SHORT",
            None => "",
        }
    }
}

/// How far a run is, on standard error.
fn stage(text: &str) {
    // Nobody may be there to read it.
    let _ = writeln!(std::io::stderr(), "{}", text.trim_end());
}

/// The answer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Answer {
    /// Everything that was looked at.
    pub findings: Vec<Finding>,
    /// The figure, in words.
    pub figure: String,
}

impl Answer {
    fn judge(&mut self, what: &str, seen: impl ToString, good: bool) {
        self.push(Finding { what: what.to_owned(), seen: seen.to_string(), good: Some(good) });
    }

    fn tell(&mut self, what: &str, seen: impl ToString) {
        self.push(Finding { what: what.to_owned(), seen: seen.to_string(), good: None });
    }

    /// Says it on standard error too: a run that is stopped has said what it had found.
    fn push(&mut self, finding: Finding) {
        stage(&format!("{}: {} {}", finding.what, finding.seen, finding.verdict()));
        self.findings.push(finding);
    }

    /// Whether everything that was judged is as it should be, and something was.
    pub fn passes(&self) -> bool {
        let mut judged = self.findings.iter().filter_map(|finding| finding.good).peekable();
        judged.peek().is_some() && judged.all(|good| good)
    }

    /// The findings as a table.
    pub fn table(&self) -> String {
        table(
            ["", "seen", "verdict"],
            self.findings.iter().map(|f| [f.what.clone(), f.seen.clone(), f.verdict().into()]),
        )
    }

    /// Writes README.md and report.json.
    fn write(&self, folder: &Path, command: &str) -> std::io::Result<()> {
        std::fs::create_dir_all(folder)?;
        let facts: String = machine_facts().iter().map(|(fact, value)| format!("* {fact}: {value}\n")).collect();
        let text = format!("# Experiment\n\n```\n{command}\n```\n\n**{}**\n\n{}\n{facts}", self.figure, self.table());
        std::fs::write(folder.join("README.md"), text)?;
        std::fs::write(folder.join("report.json"), serde_json::to_string_pretty(self)? + "\n")
    }
}

/// Tokens that every preset has and that end no text.
fn tokens(random: &mut Rng, count: u64) -> Vec<u64> {
    (0..count).map(|_| 3 + random.below(200)).collect()
}

/// Things in a row, or the word for none.
fn list(things: &[String]) -> String {
    if things.is_empty() { "none".into() } else { things.join("; ") }
}

/// Runs an experiment, and writes its report.
///
/// # Errors
/// A transport that is not there, a server that does not start, a report that cannot be written.
pub fn run(args: &ExperimentArgs, transports: Transports, command: &str) -> Result<Answer, ExperimentError> {
    let question = &args.question;
    if let Some(deployment) = question.deployment() {
        let missing = |error: crate::serve::ServeError| ExperimentError::Refused(error.to_string());
        transports.check(deployment.transport).map_err(missing)?;
    }
    let folder = question.report();
    let write = |answer: &Answer| {
        answer.write(folder, command).map_err(ExperimentError::io(format!("the report in {}", folder.display())))
    };
    // A folder that cannot be written is said before the work; the report of a run that is stopped says that it was.
    write(&Answer { figure: "Not finished.".into(), ..Answer::default() })?;
    let answer = match question {
        Question::AbortCascade(args) => abort_cascade::run(args)?,
        Question::Corruption(args) => corruption::run(args)?,
        Question::Recall(args) => recall::run(args)?,
        Question::Transfer(args) => transfer::run(args)?,
        Question::Wedge(args) => wedge::run(args)?,
    };
    write(&answer)?;
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_shortfall_is_enough_and_no_judgement_is_none() {
        let mut answer = Answer::default();
        answer.tell("throughput", 3);
        assert!(!answer.passes(), "nothing was judged");
        answer.judge("pages", "all", true);
        assert!(answer.passes());
        answer.judge("health", "503", false);
        assert!(!answer.passes());
        assert!(answer.table().contains("FALLS SHORT"), "{}", answer.table());
    }
}
