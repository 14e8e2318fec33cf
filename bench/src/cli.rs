//! Command line of `sm120`.

use crate::deployment::{PdArgs, RouterArgs};
use crate::e2e::E2eArgs;
use crate::experiment::ExperimentArgs;
use crate::generate::GenerateArgs;
use crate::halves::{DecodeArgs, PrefillArgs};
use crate::host_ops::BenchHostArgs;
use crate::plan::parse_bytes;
use crate::serve::ServeArgs;
use crate::serving::{HostBytes, HostDisk, IndexK, Kv, WINDOW_RATIO, parse_host_bytes, parse_host_disk};
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
    /// Run closed-loop clients against the engine: throughput and latencies.
    E2e(E2eArgs),
    /// Time the heaviest operations on the host.
    BenchHost(BenchHostArgs),
    /// Print one completion as it comes.
    Generate(GenerateArgs),
    /// Answer over HTTP: completions, chat, health, metrics.
    Serve(ServeArgs),
    /// Compute prompts for decode servers and send them the pages.
    Prefill(PrefillArgs),
    /// Answer over HTTP, with prompts that a prefill server computes.
    Decode(DecodeArgs),
    /// One address in front of several decode servers.
    Router(RouterArgs),
    /// A whole deployment on this machine: router, prefill and decode servers, each a process.
    Pd(PdArgs),
    /// Ask a deployment on this machine one question, and answer with one figure.
    Experiment(ExperimentArgs),
    /// Remove every wait, barrier, fence and arrive from the kernels' PTX in turn; each removal must be noticed.
    Mutants(MutantsArgs),
    /// Bytes of the cache term by term, and the tokens and sequences that fit into a card.
    Plan(PlanArgs),
    /// Show what a checkpoint holds and what is wrong with it.
    Inspect(InspectArgs),
    /// Write a checkpoint of random weights in the released format.
    MakeCheckpoint(MakeCheckpointArgs),
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

/// Where the HCA compressor keeps its state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PolicyChoice {
    /// A ring in every window page of 128 tokens.
    RingPerPage,
    /// A ring per running request, window pages of 256 tokens.
    RingPerRequest,
}

/// Bytes of all weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightBytes {
    /// As the model is released: fp8 linear layers, fp4 experts.
    Auto,
    /// So many.
    Bytes(u64),
}

fn weight_bytes(text: &str) -> Result<WeightBytes, String> {
    if text == "auto" { Ok(WeightBytes::Auto) } else { parse_bytes(text).map(WeightBytes::Bytes) }
}

fn ratio(text: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().ok().filter(|ratio| *ratio > 0.0 && *ratio <= 1.0);
    value.ok_or_else(|| format!("expected a number above 0 and up to 1, got `{text}`"))
}

/// Options of `plan`.
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// Model: tiny, mini, peers, v4-flash, v4-pro, flash-N-layers.
    #[arg(long, default_value = "v4-flash", value_name = "NAME", conflicts_with = "config")]
    pub preset: String,
    /// config.json of the model, instead of a preset.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Format of index keys.
    #[arg(long, value_enum, default_value_t = IndexK::Fp8)]
    pub index_k: IndexK,
    /// Format of window and compressed rows.
    #[arg(long, value_enum, default_value_t = Kv::V4Fp8)]
    pub kv: Kv,
    /// Page and ring policy.
    #[arg(long, value_enum, default_value_t = PolicyChoice::RingPerRequest)]
    pub policy: PolicyChoice,
    /// Window tokens per token of context.
    #[arg(long, value_name = "RATIO", default_value_t = WINDOW_RATIO, value_parser = ratio)]
    pub window_ratio: f64,
    /// Window pages for the running requests alone, instead of a ratio.
    #[arg(long)]
    pub request_cap: bool,
    /// Decode with drafts: rings of twice the rows, and the window of the MTP layer.
    #[arg(long)]
    pub speculation: bool,
    /// Memory of a card, as nvidia-smi shows it; the default is that of an RTX PRO 6000.
    #[arg(long, value_name = "BYTES", default_value = "97887MiB", value_parser = parse_bytes)]
    pub memory: u64,
    /// Of that, kept for what is not counted: the driver's context, code, scratch of launches, NCCL. No card has told yet how much.
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = parse_bytes)]
    pub reserve: u64,
    /// Ranks.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub tp: u32,
    /// Bytes of a rank's weights, or `auto`: counted as they are loaded from a checkpoint in fp8 and fp4.
    #[arg(long, value_name = "BYTES", default_value = "auto", value_parser = weight_bytes)]
    pub weights: WeightBytes,
    /// Host memory of every rank for beginnings of texts that the card has lost, or `off`; it is not memory of the card.
    #[arg(long, default_value = "off", value_name = "BYTES|off", value_parser = parse_host_bytes)]
    pub host_cache: HostBytes,
    /// More of them in a folder, as for `serve`.
    #[arg(long, value_name = "DIR:BYTES", value_parser = parse_host_disk)]
    pub host_cache_disk: Option<HostDisk>,
    /// Texts of --context tokens that can be on their way between prefill and decode; 0 in one process.
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=4_096))]
    pub arena_texts: u32,
    /// Running requests.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub max_requests: u32,
    /// Tokens of a step.
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=1048576))]
    pub max_batch_tokens: u32,
    /// Tokens of the sequences to count, and of the longest text.
    #[arg(long, value_name = "N", default_value_t = 32768, value_parser = clap::value_parser!(u32).range(1..=1073741824))]
    pub context: u32,
    /// Write the plan as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}
/// Options of `inspect`.
#[derive(Debug, Args)]
pub struct InspectArgs {
    /// Folder with config.json and safetensors files.
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// Also decode every tensor and look for values that are not finite and experts that do not exist.
    #[arg(long)]
    pub values: bool,
    /// Write what is shown as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// How `make-checkpoint` stores weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum StoreKind {
    /// Everything in f32.
    Fp32,
    /// Matrices in bf16, small tensors in f32.
    Bf16,
    /// As released: linear layers in e4m3, routed experts in e2m1, with ue8m0 scales.
    Fp8fp4,
}

/// Options of `make-checkpoint`.
#[derive(Debug, Args)]
pub struct MakeCheckpointArgs {
    /// New or empty folder.
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// Model: tiny, mini, peers, v4-flash, v4-pro or flash-N-layers (the first N of Flash).
    #[arg(long, default_value = "tiny", value_name = "NAME")]
    pub preset: String,
    /// Seed of the weights; the same seed gives the same bytes, and the same model in every store.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,
    /// Storage of the weights.
    #[arg(long, value_enum, default_value_t = StoreKind::Fp8fp4)]
    pub store: StoreKind,
    /// MiB from which on a weight file is closed.
    #[arg(long, default_value_t = 4096, value_name = "N", value_parser = clap::value_parser!(u64).range(1..1 << 40))]
    pub shard_mib: u64,
}
