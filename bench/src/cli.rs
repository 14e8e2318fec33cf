//! Command line of `sm120`.

use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;

/// Sparse attention of DeepSeek-V4 for SM120 cards: proven, measured, reported.
///
/// Without a subcommand: the parity suite on every device of this machine (the emulator always, a card if there is
/// one), the real activations of the golden checkpoint, index-K recall and real shapes, with a report folder.
#[derive(Debug, Parser)]
#[command(name = "sm120", version, max_term_width = 100)]
pub struct Cli {
    /// What to do; nothing = the main job.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Folder of the main job's report.
    #[arg(long, default_value = "results/local/main", value_name = "DIR")]
    pub report: PathBuf,
    /// Also write the main job's report as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// List the devices of this machine and what each can run.
    Devices(DevicesArgs),
    /// Judge the operations of a device against the reference.
    Parity(ParityArgs),
    /// Remove every wait, barrier, fence and arrive from the kernels' PTX in turn; each removal must be noticed.
    Mutants(MutantsArgs),
}

/// Options of `devices`.
#[derive(Debug, Args)]
pub struct DevicesArgs {
    /// Write the list as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// A place where operations run.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum DeviceKind {
    Host,
    Emulated,
    Cuda,
}

/// How much work a case may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CaseSize {
    /// Up to about 50,000 warp instructions.
    Quick,
    /// Shapes with every path.
    Full,
    /// Rows of 2^18 values and more.
    Slow,
}

impl DeviceKind {
    /// The word on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            DeviceKind::Host => "host",
            DeviceKind::Emulated => "emulated",
            DeviceKind::Cuda => "cuda",
        }
    }
}

/// Options of `parity`.
#[derive(Debug, Args)]
pub struct ParityArgs {
    /// Devices to judge, comma-separated; default: $SM120_DEVICE, else host, emulated and (if a card is there) cuda.
    #[arg(long, value_enum, value_delimiter = ',', env = "SM120_DEVICE")]
    pub device: Vec<DeviceKind>,
    /// Only cases whose name contains this.
    #[arg(long, value_name = "TEXT")]
    pub case: Option<String>,
    /// Cases up to this size.
    #[arg(long, value_enum, default_value_t = CaseSize::Quick)]
    pub size: CaseSize,
    /// Only this schedule seed of the emulator, instead of the first --seeds ones.
    #[arg(long, value_name = "N", conflicts_with = "seeds")]
    pub seed: Option<u64>,
    /// Schedule seeds per case on the emulator.
    #[arg(long, default_value_t = 16, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1024))]
    pub seeds: u64,
    /// Seed of the data of the cases.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub data_seed: u64,
    /// Golden folder (safetensors and index.json) to judge on, instead of the one that is built in.
    #[arg(long, value_name = "DIR")]
    pub golden: Option<PathBuf>,
    /// List the cases and stop.
    #[arg(long)]
    pub list: bool,
    /// Write the rows as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Options of `mutants`.
#[derive(Debug, Args)]
pub struct MutantsArgs {
    /// Only modules whose name contains this, e.g. `topk_select` or `_sm120a`.
    #[arg(long, value_name = "TEXT")]
    pub module: Option<String>,
    /// Schedule seeds per case before a mutant counts as a survivor.
    #[arg(long, default_value_t = 2, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1024))]
    pub seeds: u64,
    /// Write every mutant with its outcome as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}
