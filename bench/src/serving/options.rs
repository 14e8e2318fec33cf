//! What the command line says about a model and how it is run.

use super::HostArgs;
use crate::cli::DeviceKind;
use crate::plan::parse_bytes;
use clap::{Args, ValueEnum};
use engine::config::ModelConfig;
use reference::ops::{IndexKFormat, KvFormat};
use serde::Serialize;
use std::path::PathBuf;

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
    /// Memory of every rank for its cache, such as 40GiB, shared out as by `plan`: what running requests do not use keeps beginnings of
    /// texts. Default: what --max-running texts of full length take.
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub cache_bytes: Option<u64>,
    /// Do not keep pages of finished beginnings.
    #[arg(long)]
    pub no_prefix_cache: bool,
    /// Host memory under the prefix cache.
    #[command(flatten)]
    pub host: HostArgs,
    /// Record decode steps as graphs and replay them, where the device can and the ranks add up on it.
    #[arg(long, value_enum, default_value_t = Switch::On)]
    pub graphs: Switch,
}
