//! An engine out of command-line choices: checkpoint, device, formats, pools.

use crate::cli::DeviceKind;
use clap::{Args, ValueEnum};
use engine::checkpoint::make::{Make, Store};
use engine::checkpoint::{Checkpoint, CheckpointError};
use engine::collective::{CardRank, Collective};
use engine::config::ModelConfig;
use engine::engine::{Engine, Schedule};
use engine::geometry::{CacheGeometry, CacheShape, GeometryError};
use engine::handover::RankRooms;
use engine::model::cache::Caches;
use engine::model::{GraphCounters, Limits, LoadError, Model, Numerics, Parts, RankShape, WeightStorage, load};
use engine::pools::PoolSizes;
use engine::runner::{RunError, Runner};
use engine::scheduler::{Scheduler, SchedulerConfig, SchedulerError};
use indicatif::{ProgressBar, ProgressStyle};
use kernel_bindings::cuda::Cuda;
use kernel_bindings::device::DeviceError;
use kernel_bindings::emulated::{Emulated, EmulatedConfig};
use kernel_bindings::host::HostOps;
use kernel_bindings::nccl::{NcclId, NcclRank};
use kernel_bindings::ops::KernelOps;
use reference::ops::{Dtype, IndexKFormat, KvFormat, Ops, OpsError, ScaleRule};
use serde::Serialize;
use std::fs::{File, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use thiserror::Error;

/// Type of activations on the command line.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
pub enum Activations {
    F32,
    Bf16,
}

/// Format of KV rows on the command line.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kv {
    F32,
    Bf16,
    #[value(name = "v4_fp8")]
    V4Fp8,
}

/// Format of index keys on the command line.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum IndexK {
    F32,
    Bf16,
    Fp8,
    /// fp8 with power-of-two scales and no Hadamard transform
    Fp8pow2,
    Fp4,
}

impl Kv {
    /// The format, in the width of the model's rows.
    pub fn format(self, config: &ModelConfig) -> KvFormat {
        match self {
            Kv::F32 => KvFormat::F32 { d: config.head_dim },
            Kv::Bf16 => KvFormat::Bf16,
            Kv::V4Fp8 => KvFormat::V4Fp8,
        }
    }
}

impl IndexK {
    /// The format, in the width of the model's rows.
    pub fn format(self, config: &ModelConfig) -> IndexKFormat {
        match self {
            IndexK::F32 => IndexKFormat::F32 { d: config.index_head_dim },
            IndexK::Bf16 => IndexKFormat::Bf16,
            IndexK::Fp8 | IndexK::Fp8pow2 => IndexKFormat::Fp8,
            IndexK::Fp4 => IndexKFormat::Fp4,
        }
    }
}

/// When the host decides about the next step.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ScheduleKind {
    Lockstep,
    Overlap,
}

/// Something that is used or not.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Switch {
    On,
    Off,
}

/// A model and how it is run.
#[derive(Debug, Clone, Args)]
pub struct ModelArgs {
    /// Checkpoint folder (config.json, safetensors); default: a random one of --preset.
    #[arg(long, value_name = "DIR", conflicts_with = "preset")]
    pub model: Option<PathBuf>,
    /// Sizes of the random checkpoint: tiny, mini, peers, flash-N-layers.
    #[arg(long, default_value = "mini", value_name = "NAME")]
    pub preset: String,
    /// Seed of the random checkpoint.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub model_seed: u64,
    /// Where the model runs; default: a card if there is one, else the host.
    #[arg(long, value_enum, env = "SM120_DEVICE")]
    pub device: Option<DeviceKind>,
    /// Ranks that share heads and experts.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub tp: u32,
    /// Activations between operations; default: f32 on the host, bf16 elsewhere.
    #[arg(long, value_enum)]
    pub activations: Option<Activations>,
    /// KV rows; default: v4_fp8 where a head has 512 channels, else f32.
    #[arg(long, value_enum)]
    pub kv: Option<Kv>,
    /// Index keys; default: fp8 where they have 128 channels, else f32.
    #[arg(long, value_enum)]
    pub index_k: Option<IndexK>,
    /// Decide about a step while the one before runs, or after it.
    #[arg(long, value_enum, default_value_t = ScheduleKind::Overlap)]
    pub schedule: ScheduleKind,
    /// Draft one token per step with the checkpoint's MTP layer; the text stays the same.
    #[arg(long)]
    pub mtp: bool,
    /// Tokens of a step at most.
    #[arg(long, default_value_t = 512, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub max_batch_tokens: u32,
    /// Requests that run at once at most.
    #[arg(long, default_value_t = 32, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4_096))]
    pub max_running: u32,
    /// Do not keep pages of finished beginnings.
    #[arg(long)]
    pub no_prefix_cache: bool,
    /// Record decode steps as graphs and replay them, where the device can and the ranks add up on it.
    #[arg(long, value_enum, default_value_t = Switch::On)]
    pub graphs: Switch,
}

/// Why there is no engine.
#[derive(Debug, Error)]
pub enum ServingError {
    /// A choice that the model cannot take.
    #[error("{option}: expected {expected}, got {got}")]
    Choice {
        /// Option.
        option: &'static str,
        /// What is accepted.
        expected: String,
        /// What was asked for.
        got: String,
    },
    /// Checkpoint.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// Sharding.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// Device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Cache sizes.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// Scheduler limits.
    #[error(transparent)]
    Scheduler(#[from] SchedulerError),
    /// Start of the ranks.
    #[error(transparent)]
    Run(#[from] RunError),
    /// An operation.
    #[error(transparent)]
    Ops(#[from] OpsError),
    /// Pages on their way: memory, sockets, what both halves must agree on.
    #[error("transfer of pages: {0}")]
    Transfer(String),
}

/// What an engine was built from, for reports.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Setup {
    /// Checkpoint folder.
    pub model: String,
    /// Device kind.
    pub device: String,
    /// Ranks.
    pub tp: u32,
    /// `f32`, `bf16`
    pub activations: String,
    /// KV rows.
    pub kv: Kv,
    /// Index keys.
    pub index_k: IndexK,
    /// Host schedule.
    pub schedule: ScheduleKind,
    /// Speculation.
    pub mtp: bool,
    /// Bytes of the caches of one rank.
    pub cache_bytes: u64,
    /// Another process computes, and only it knows how.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
}

impl Setup {
    /// One line.
    pub fn headline(&self) -> String {
        let Setup { model, device, tp, activations, kv, index_k, schedule, mtp, cache_bytes, url } = self;
        if let Some(url) = url {
            return format!("{url}, with prompts for {model}");
        }
        let word = |value: serde_json::Result<serde_json::Value>| {
            value.ok().and_then(|v| v.as_str().map(str::to_owned)).unwrap_or_default()
        };
        format!(
            "{model} on {device}, {tp} rank(s), activations {activations}, KV {}, index K {}, {} schedule{}, caches {:.1} MiB \
             per rank",
            word(serde_json::to_value(kv)),
            word(serde_json::to_value(index_k)),
            word(serde_json::to_value(schedule)),
            if *mtp { ", one draft token per step" } else { "" },
            *cache_bytes as f64 / (1 << 20) as f64,
        )
    }
}

/// An engine ready for requests.
#[derive(Debug)]
pub struct Serving {
    /// The engine.
    pub engine: Engine,
    /// Sizes of the model.
    pub config: ModelConfig,
    /// What it was built from.
    pub setup: Setup,
    /// What the graphs of the first rank have done so far.
    pub graphs: Arc<GraphCounters>,
}

/// What an engine, or one half of two, is made of.
#[derive(Debug)]
pub struct Assembly {
    /// Queues and pages.
    pub scheduler: Scheduler,
    /// Ranks.
    pub runner: Runner,
    /// Host schedule.
    pub schedule: Schedule,
    /// Sizes of the model.
    pub config: ModelConfig,
    /// What it was built from.
    pub setup: Setup,
    /// What its caches look like.
    pub geometry: CacheGeometry,
    /// What the graphs of the first rank have done so far.
    pub graphs: Arc<GraphCounters>,
}

/// The configuration of a preset.
pub fn preset(name: &str) -> Result<ModelConfig, ServingError> {
    ModelConfig::preset(name).ok_or_else(|| ServingError::Choice {
        option: "--preset",
        expected: ModelConfig::PRESETS.to_owned(),
        got: name.to_owned(),
    })
}

/// Largest checkpoint that is made without being asked for by name.
const MAX_KEPT_BYTES: u64 = 32 << 30;

impl ModelArgs {
    /// Opens the checkpoint, or makes the preset's once under `results/local/checkpoints`.
    pub fn checkpoint(&self) -> Result<Checkpoint, ServingError> {
        match &self.model {
            Some(dir) => Ok(Checkpoint::open(dir)?),
            None => self.kept(Path::new("results/local/checkpoints")),
        }
    }

    /// The random checkpoint of the preset out of `folder`, made if it is not there. Runs at the same time make it once: the
    /// folder is locked meanwhile.
    fn kept(&self, folder: &Path) -> Result<Checkpoint, ServingError> {
        let config = preset(&self.preset)?;
        let store = if config.quantised { Store::Fp8Fp4 } else { Store::Fp32 };
        let make = Make { config: &config, seed: self.model_seed, store, shard_bytes: 1 << 30 };
        if make.bytes() > MAX_KEPT_BYTES {
            let size = |bytes| indicatif::BinaryBytes(bytes).to_string();
            let expected = format!(
                "a model of at most {} (larger ones are made by `make-checkpoint` and named by --model)",
                size(MAX_KEPT_BYTES)
            );
            let got = format!("{}, {}", self.preset, size(make.bytes()));
            return Err(ServingError::Choice { option: "--preset", expected, got });
        }
        let io = |source| CheckpointError::Io { path: folder.to_owned(), source };
        std::fs::create_dir_all(folder).map_err(io)?;
        let lock = File::open(folder).map_err(io)?;
        if let Err(TryLockError::WouldBlock) = lock.try_lock() {
            // Nobody may be there to read it.
            let _ =
                writeln!(std::io::stderr(), "{}: waiting for another run that makes a checkpoint", folder.display());
            lock.lock().map_err(io)?;
        }
        let dir = folder.join(format!("{}-seed-{}", self.preset, self.model_seed));
        if let Ok(checkpoint) = Checkpoint::open(&dir)
            && *checkpoint.config() == config
        {
            return Ok(checkpoint);
        }
        let _ = std::fs::remove_dir_all(&dir);
        let bar = progress_bar(make.bytes(), "checkpoint", true);
        make.run(&dir, |bytes| bar.inc(bytes))?;
        bar.finish_and_clear();
        Ok(Checkpoint::open(&dir)?)
    }

    /// The device that is used.
    pub fn device(&self) -> DeviceKind {
        self.device.unwrap_or_else(|| if Cuda::open(0).is_ok() { DeviceKind::Cuda } else { DeviceKind::Host })
    }

    fn formats(&self, config: &ModelConfig) -> (Activations, Kv, IndexK) {
        let host = self.device() == DeviceKind::Host;
        let activations = self.activations.unwrap_or(if host { Activations::F32 } else { Activations::Bf16 });
        let kv = self.kv.unwrap_or(if config.head_dim == 512 { Kv::V4Fp8 } else { Kv::F32 });
        let index_k = self.index_k.unwrap_or(if config.index_head_dim == 128 { IndexK::Fp8 } else { IndexK::F32 });
        (activations, kv, index_k)
    }

    /// The formats of a run.
    pub fn numerics(&self, config: &ModelConfig) -> Result<Numerics, ServingError> {
        let (activations, kv, index_k) = self.formats(config);
        let word = |value: serde_json::Result<serde_json::Value>| {
            value.ok().and_then(|v| v.as_str().map(str::to_owned)).unwrap_or_default()
        };
        let fixed = |option, got: String, channels: u32, needed: u32| {
            if got == "f32" || channels == needed {
                return Ok(());
            }
            let expected = format!("f32 for rows of {channels} channels (the other formats are for {needed})");
            Err(ServingError::Choice { option, expected, got })
        };
        fixed("--kv", word(serde_json::to_value(kv)), config.head_dim, 512)?;
        fixed("--index-k", word(serde_json::to_value(index_k)), config.index_head_dim, 128)?;
        let host = self.device() == DeviceKind::Host;
        Ok(Numerics {
            activations: match activations {
                Activations::F32 => Dtype::F32,
                Activations::Bf16 => Dtype::Bf16,
            },
            weights: if host { WeightStorage::F32 } else { WeightStorage::Stored },
            kv: kv.format(config),
            index_k: index_k.format(config),
            scale_rule: if index_k == IndexK::Fp8pow2 { ScaleRule::PowerOfTwo } else { ScaleRule::Exact },
        })
    }

    /// Loads the model and starts its ranks. Pools hold `max_running` texts of `context` tokens.
    pub fn start(&self, checkpoint: Checkpoint, context: u32, quiet: bool) -> Result<Serving, ServingError> {
        let Assembly { scheduler, runner, schedule, config, setup, graphs, .. } =
            self.assemble(checkpoint, context, quiet, |_| Ok(Vec::new()))?;
        Ok(Serving { engine: Engine::new(scheduler, runner, schedule), config, setup, graphs })
    }

    /// What [`ModelArgs::start`] makes an engine of. `rooms` gives every rank its end of the rooms, or nothing, before weights are
    /// loaded.
    pub fn assemble(
        &self,
        checkpoint: Checkpoint,
        context: u32,
        quiet: bool,
        rooms: impl FnOnce(&CacheGeometry) -> Result<Vec<RankRooms>, ServingError>,
    ) -> Result<Assembly, ServingError> {
        let config = checkpoint.config().clone();
        if self.mtp && config.mtp_layers == 0 {
            let expected = "a checkpoint with an MTP layer".to_owned();
            return Err(ServingError::Choice { option: "--mtp", expected, got: "one without".into() });
        }
        if context > config.max_position {
            let expected = format!("at most {} tokens, the model's positions", config.max_position);
            let option = "prompt and generated tokens together";
            return Err(ServingError::Choice { option, expected, got: context.to_string() });
        }
        let numerics = self.numerics(&config)?;
        RankShape::new(&config, 0, self.tp)?;
        let shape = CacheShape::ring_per_request(config.window, self.mtp);
        let geometry = CacheGeometry::new(&config, shape, numerics.kv, numerics.index_k, u32::from(self.mtp))?;
        let limits = SchedulerConfig {
            max_batch_tokens: self.max_batch_tokens,
            max_running: self.max_running,
            chunk_tokens: self.max_batch_tokens,
            max_context: context,
            prefix_cache: !self.no_prefix_cache,
            speculation: self.mtp,
        };
        let sizes = PoolSizes {
            compressed_pages: self.max_running.saturating_mul(shape.compressed_pages(context)),
            window_pages: self.max_running.saturating_mul(shape.max_window_pages(self.max_batch_tokens.min(context))),
            request_slots: self.max_running,
        };
        let scheduler = Scheduler::new(limits, shape, sizes)?;
        let rooms = rooms(&geometry)?;
        let limits = Limits {
            tokens: self.max_batch_tokens,
            logits_rows: self.max_running * if self.mtp { 2 } else { 1 },
            context,
        };
        let model = checkpoint.dir().display().to_string();
        let cache_bytes = geometry.buffers(sizes).iter().map(|buffer| buffer.bytes).sum();
        let checkpoint = Arc::new(checkpoint);
        let (graphs, counters) = (self.graphs == Switch::On, Arc::new(OnceLock::new()));
        let first = Arc::clone(&counters);
        let cache = geometry.clone();
        let plan = Plan { checkpoint, numerics, geometry, sizes, limits, tp: self.tp, mtp: self.mtp, graphs, counters };
        let bar = progress_bar(plan.checkpoint.tensors().count() as u64, "weights", !quiet);
        let kind = self.device();
        let runner = match kind {
            DeviceKind::Host => plan.start(&bar, rooms, |_, threads| Ok((HostOps, threads)))?,
            DeviceKind::Emulated => plan.start(&bar, rooms, |_, threads| {
                Ok((KernelOps::new(Emulated::new(EmulatedConfig::fast())), threads))
            })?,
            DeviceKind::Cuda => plan.start_cards(&bar, rooms)?,
        };
        bar.finish_and_clear();
        let schedule = match self.schedule {
            ScheduleKind::Lockstep => Schedule::Lockstep,
            ScheduleKind::Overlap => Schedule::Overlap,
        };
        let (activations, kv, index_k) = self.formats(&config);
        let setup = Setup {
            model,
            device: kind.name().to_owned(),
            tp: self.tp,
            activations: match activations {
                Activations::F32 => "f32".into(),
                Activations::Bf16 => "bf16".into(),
            },
            kv,
            index_k,
            schedule: if self.mtp { ScheduleKind::Lockstep } else { self.schedule },
            mtp: self.mtp,
            cache_bytes,
            url: None,
        };
        let graphs = first.get().cloned().unwrap_or_default();
        Ok(Assembly { scheduler, runner, schedule, config, setup, geometry: cache, graphs })
    }
}

/// What every rank is built from.
#[derive(Clone)]
struct Plan {
    checkpoint: Arc<Checkpoint>,
    numerics: Numerics,
    geometry: CacheGeometry,
    sizes: PoolSizes,
    limits: Limits,
    tp: u32,
    mtp: bool,
    graphs: bool,
    /// Those of the first rank.
    counters: Arc<OnceLock<Arc<GraphCounters>>>,
}

impl Plan {
    /// Starts the ranks; `open` gives each its operations and the other ranks, for which threads of this process are offered.
    fn start<O: Ops + 'static>(
        &self,
        bar: &ProgressBar,
        rooms: Vec<RankRooms>,
        open: impl Fn(u32, Box<dyn Collective<O>>) -> Result<(O, Box<dyn Collective<O>>), OpsError> + Send + Sync + 'static,
    ) -> Result<Runner, RunError> {
        let (plan, bar) = (self.clone(), bar.clone());
        Runner::start_with_rooms(self.tp, self.geometry.shape, rooms, move |rank, threads| {
            let failed = |source: OpsError| RunError::Load(source.into());
            let (ops, collective) = open(rank, threads).map_err(failed)?;
            plan.model(ops, rank, collective, &bar)
        })
    }

    /// One card per rank; sums by NCCL where it is installed, through the host otherwise, which is said.
    fn start_cards(&self, bar: &ProgressBar, rooms: Vec<RankRooms>) -> Result<Runner, ServingError> {
        // Absence is said before threads start.
        for rank in 0..self.tp {
            Cuda::open(rank as usize)?;
        }
        let group = match self.tp {
            1 => None,
            _ => NcclId::new().map_err(|error| eprintln!("sums over the ranks go through the host: {error}")).ok(),
        };
        let ranks = self.tp;
        let failed = |error: DeviceError| OpsError::Device { device: "cuda".into(), message: error.to_string() };
        let runner = self.start(bar, rooms, move |rank, threads| {
            let card = Cuda::open(rank as usize).map_err(failed)?;
            let collective = match group {
                None => threads,
                Some(id) => Box::new(CardRank(NcclRank::join(&card, id, rank, ranks).map_err(failed)?)),
            };
            Ok((KernelOps::new(card), collective))
        });
        Ok(runner?)
    }

    fn model<O: Ops>(
        &self,
        ops: O,
        rank: u32,
        collective: Box<dyn Collective<O>>,
        bar: &ProgressBar,
    ) -> Result<Model<O>, RunError> {
        let failed = |source: OpsError| RunError::Load(source.into());
        let config = self.checkpoint.config().clone();
        let ranks = RankShape::new(&config, rank, self.tp)?;
        let done = |tensors: u64| {
            if rank == 0 {
                bar.inc(tensors);
            }
        };
        // Memory that is too small is known before a weight is read.
        let caches = Caches::new(&ops, &self.geometry, self.sizes).map_err(failed)?;
        let weights = load(&ops, &self.checkpoint, &self.numerics, &ranks, &self.limits, self.mtp, &done)?;
        let (numerics, limits) = (self.numerics, self.limits);
        let parts = Parts { config, numerics, shape: ranks, limits, weights, caches, collective };
        let mut model = Model::new(ops, parts).map_err(failed)?;
        if !self.graphs {
            model.without_graphs();
        }
        if rank == 0 {
            self.counters.get_or_init(|| model.graph_counters());
        }
        Ok(model)
    }
}

/// A bar on a terminal; nothing elsewhere or when hidden.
pub fn progress_bar(len: u64, what: &'static str, shown: bool) -> ProgressBar {
    if !shown {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{msg:12} [{bar:32}] {pos}/{len} {eta}").expect("a valid template");
    ProgressBar::new(len).with_style(style).with_message(what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tiny() -> ModelArgs {
        crate::e2e::E2eArgs::parse(&["--preset", "tiny", "--device", "host"]).model
    }

    /// Every run gets the checkpoint, one makes it, and nothing else stays behind.
    #[test]
    fn runs_at_once_share_a_checkpoint() {
        let folder = tempfile::tempdir().expect("a folder");
        std::thread::scope(|scope| {
            let run = || scope.spawn(|| tiny().kept(folder.path()).map(|checkpoint| checkpoint.bytes()));
            let runs: Vec<_> = (0..5).map(|_| run()).collect();
            let bytes: Vec<u64> =
                runs.into_iter().map(|run| run.join().expect("no panic").expect("a checkpoint")).collect();
            assert!(bytes.windows(2).all(|pair| pair[0] == pair[1]), "{bytes:?}");
        });
        let left: Vec<_> =
            std::fs::read_dir(folder.path()).expect("there").map(|e| e.expect("entry").file_name()).collect();
        assert_eq!(left, ["tiny-seed-1"]);
    }

    #[test]
    fn no_model_of_hundreds_of_gib_is_made_unasked() {
        let folder = tempfile::tempdir().expect("a folder");
        let args = ModelArgs { preset: "v4-flash".into(), ..tiny() };
        let text = args.kept(folder.path()).expect_err("too large").to_string();
        assert!(text.starts_with("--preset: expected a model of at most 32.00 GiB"), "{text}");
        assert!(text.ends_with("got v4-flash, 148.65 GiB"), "{text}");
        assert_eq!(std::fs::read_dir(folder.path()).expect("there").count(), 0);
    }

    /// 4,096 texts of 2^30 tokens are 2^34 pages, which 32 bits would make none.
    #[test]
    fn pools_beyond_32_bits_are_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let config = ModelConfig { max_position: 1 << 30, ..ModelConfig::tiny() };
        let dir = folder.path().join("x");
        Make { config: &config, seed: 1, store: Store::Fp8Fp4, shard_bytes: u64::MAX }
            .run(&dir, |_| ())
            .expect("written");
        let args = ModelArgs { max_running: 4096, max_batch_tokens: 8193, ..tiny() };
        let checkpoint = Checkpoint::open(&dir).expect("whole");
        let text = args.start(checkpoint, 1 << 29, true).expect_err("too many pages").to_string();
        assert!(text.starts_with("compressed_pages: expected at most "), "{text}");
    }
}
