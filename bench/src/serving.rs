//! An engine out of command-line choices: checkpoint, device, formats, pools.

mod host;
mod options;
mod pools;
mod ranks;

pub use host::{HostArgs, HostBytes, HostCachePolicy, HostDisk, parse_host_bytes, parse_host_disk, within};
pub use options::{Activations, IndexK, Kv, ModelArgs, ScheduleKind, Switch};
pub use pools::WINDOW_RATIO;

use crate::cli::DeviceKind;
use engine::checkpoint::make::{Make, Store};
use engine::checkpoint::{Checkpoint, CheckpointError};
use engine::config::ModelConfig;
use engine::engine::{Bell, Engine, Schedule};
use engine::geometry::{CacheGeometry, CacheShape, GeometryError};
use engine::handover::RankParts;
use engine::model::{GraphCounters, Limits, LoadError, Numerics, RankShape, WeightStorage};
use engine::runner::{RunError, Runner};
use engine::scheduler::{Scheduler, SchedulerConfig, SchedulerError};
use indicatif::{ProgressBar, ProgressStyle};
use kernel_bindings::cuda::Cuda;
use kernel_bindings::device::DeviceError;
use kernel_bindings::emulated::{Emulated, EmulatedConfig};
use kernel_bindings::host::HostOps;
use kernel_bindings::ops::KernelOps;
use ranks::Plan;
use reference::ops::{Dtype, OpsError, ScaleRule};
use serde::Serialize;
use std::fs::{File, TryLockError};
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use thiserror::Error;
use transfer::fault::Faults;

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
    /// Host memory under the prefix cache.
    #[error("host cache: {0}")]
    HostCache(String),
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
    /// Bytes of host memory under them.
    pub host_bytes: u64,
    /// Another process computes, and only it knows how.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
}

impl Setup {
    /// One line.
    pub fn headline(&self) -> String {
        let Setup { model, device, tp, activations, kv, index_k, schedule, mtp, cache_bytes, host_bytes, url } = self;
        if let Some(url) = url {
            return format!("{url}, with prompts for {model}");
        }
        let word = |value: serde_json::Result<serde_json::Value>| {
            value.ok().and_then(|v| v.as_str().map(str::to_owned)).unwrap_or_default()
        };
        format!(
            "{model} on {device}, {tp} rank(s), activations {activations}, KV {}, index K {}, {} schedule{}, caches {:.1} MiB \
             per rank{}",
            word(serde_json::to_value(kv)),
            word(serde_json::to_value(index_k)),
            word(serde_json::to_value(schedule)),
            if *mtp { ", one draft token per step" } else { "" },
            *cache_bytes as f64 / (1 << 20) as f64,
            match host_bytes {
                0 => String::new(),
                bytes => format!(", host cache {:.1} MiB", *bytes as f64 / (1 << 20) as f64),
            },
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
    /// Rung by what has news for the loop.
    pub bell: Bell,
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
    /// Rung by what has news for the loop.
    pub bell: Bell,
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
            let _ = writeln!(
                std::io::stderr(),
                "{}: waiting for another run that opens or makes a checkpoint",
                folder.display()
            );
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
        let kernels = |option, is_f32: bool| {
            let expected = format!("a format of the kernels on {} (f32 is the host's alone)", self.device().name());
            match is_f32 && !host {
                true => Err(ServingError::Choice { option, expected, got: "f32".into() }),
                false => Ok(()),
            }
        };
        kernels("--activations", activations == Activations::F32)?;
        kernels("--kv", kv == Kv::F32)?;
        kernels("--index-k", index_k == IndexK::F32)?;
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

    /// Loads the model and starts its ranks. Pools hold `max_running` texts of `context` tokens, or `cache_bytes`.
    pub fn start(&self, checkpoint: Checkpoint, context: u32, quiet: bool) -> Result<Serving, ServingError> {
        self.start_with_faults(checkpoint, context, quiet, Arc::new(Faults::none()))
    }

    /// The same, with faults of gate and host cache.
    pub fn start_with_faults(
        &self,
        checkpoint: Checkpoint,
        context: u32,
        quiet: bool,
        faults: Arc<Faults>,
    ) -> Result<Serving, ServingError> {
        let Assembly { scheduler, runner, schedule, config, setup, graphs, bell, .. } =
            self.assemble(checkpoint, context, quiet, faults, |_, _| Ok(Vec::new()))?;
        Ok(Serving { engine: Engine::new(scheduler, runner, schedule), config, setup, graphs, bell })
    }

    /// What [`ModelArgs::start`] makes an engine of. `parts` gives every rank what it takes along
    /// beside its model and its host cache, or nothing, before weights are loaded.
    pub fn assemble(
        &self,
        checkpoint: Checkpoint,
        context: u32,
        quiet: bool,
        faults: Arc<Faults>,
        parts: impl FnOnce(&CacheGeometry, &Bell) -> Result<Vec<RankParts>, ServingError>,
    ) -> Result<Assembly, ServingError> {
        let config = checkpoint.config().clone();
        if self.mtp && config.mtp_layers == 0 {
            let expected = "a checkpoint with an MTP layer".to_owned();
            return Err(ServingError::Choice { option: "--mtp", expected, got: "one without".into() });
        }
        if context > config.max_position {
            let expected = format!("at most {} tokens, the model's positions", config.max_position);
            let option = "prompt and generated tokens together (a server's --context)";
            return Err(ServingError::Choice { option, expected, got: context.to_string() });
        }
        if self.no_prefix_cache && self.host.host_cache != HostBytes::Off {
            let expected = "the prefix cache on top of it".to_owned();
            let got = "--no-prefix-cache".to_owned();
            return Err(ServingError::Choice { option: "--host-cache", expected, got });
        }
        let numerics = self.numerics(&config)?;
        RankShape::new(&config, 0, self.tp)?;
        let shape = CacheShape::ring_per_request(config.window, self.mtp);
        let geometry = CacheGeometry::new(&config, shape, numerics.kv, numerics.index_k, u32::from(self.mtp))?;
        let bell = Bell::new();
        let host = self.host.host(&geometry, &bell, &faults)?;
        let limits = SchedulerConfig {
            max_batch_tokens: self.max_batch_tokens,
            max_running: self.max_running,
            chunk_tokens: self.max_batch_tokens,
            max_context: context,
            prefix_cache: !self.no_prefix_cache,
            speculation: self.mtp,
            host: host.as_ref().map(|host| host.config),
        };
        let sizes = self.pools(&geometry, context)?;
        let scheduler = Scheduler::new(limits, shape, sizes)?;
        let mut parts = parts(&geometry, &bell)?;
        let mut host_bytes = 0;
        if let Some(host) = host {
            parts.resize_with(self.tp as usize, RankParts::default);
            for (rank, part) in parts.iter_mut().enumerate() {
                let tier = host.start(&geometry, rank)?;
                host_bytes = tier.bytes();
                part.host = Some(tier);
            }
        }
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
        let (tp, mtp) = (self.tp, self.mtp);
        let plan = Plan { checkpoint, numerics, geometry, sizes, limits, tp, mtp, graphs, faults, counters };
        let bar = progress_bar(plan.checkpoint.tensors().count() as u64, "weights", !quiet);
        let kind = self.device();
        let runner = match kind {
            DeviceKind::Host => plan.start(&bar, parts, |_, threads| Ok((HostOps, threads)))?,
            DeviceKind::Emulated => plan.start(&bar, parts, |_, threads| {
                Ok((KernelOps::new(Emulated::new(EmulatedConfig::fast())), threads))
            })?,
            DeviceKind::Cuda => plan.start_cards(&bar, parts)?,
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
            host_bytes,
            url: None,
        };
        let graphs = first.get().cloned().unwrap_or_default();
        Ok(Assembly { scheduler, runner, schedule, config, setup, geometry: cache, graphs, bell })
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

    /// Before anything is loaded, and by the name of the option.
    #[test]
    fn formats_that_no_kernel_has_are_refused() {
        let config = ModelConfig::mini();
        let refused = |words: &[&str]| {
            let device = ["--preset", "mini", "--device", "emulated"];
            let model = crate::e2e::E2eArgs::parse(&[&device, words].concat()).model;
            model.numerics(&config).map(drop).map_err(|error| error.to_string())
        };
        assert_eq!(refused(&[]), Ok(()));
        for option in ["--activations", "--kv", "--index-k"] {
            let why = refused(&[option, "f32"]).expect_err("no kernel has it");
            assert!(why.starts_with(&format!("{option}: expected a format of the kernels on emulated")), "{why}");
        }
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
