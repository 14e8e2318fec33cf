//! `config.json` of a model: every size that the forward pass needs, read from DeepSeek's field names or from those of
//! transformers, each checked before a tensor is looked at.

mod check;
mod presets;
mod read;
mod write;

use kernel_bindings::mapped_file::read_file;
use std::fmt;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Kind of an attention layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LayerKind {
    /// Ratio 0: sliding window only.
    Swa,
    /// Ratio 4: window and the compressed rows that the indexer picks.
    Csa,
    /// Ratio 128: window and all compressed rows.
    Hca,
}

impl LayerKind {
    /// The kind that a `compress_ratios` entry names.
    pub const fn from_ratio(ratio: u32) -> Option<Self> {
        match ratio {
            0 => Some(LayerKind::Swa),
            4 => Some(LayerKind::Csa),
            128 => Some(LayerKind::Hca),
            _ => None,
        }
    }

    /// Source tokens per compressed row; `None` where there are none.
    pub const fn ratio(self) -> Option<u32> {
        match self {
            LayerKind::Swa => None,
            LayerKind::Csa => Some(4),
            LayerKind::Hca => Some(128),
        }
    }

    /// `SWA`, `CSA`, `HCA`
    pub const fn name(self) -> &'static str {
        match self {
            LayerKind::Swa => "SWA",
            LayerKind::Csa => "CSA",
            LayerKind::Hca => "HCA",
        }
    }

    /// Compressed rows that a query at `position` sees: `floor((position + 1) / ratio)`.
    pub const fn compressed_rows(self, position: u32) -> u32 {
        match self.ratio() {
            None => 0,
            Some(ratio) => ((position as u64 + 1) / ratio as u64) as u32,
        }
    }
}

/// Stretching of the rotary frequencies of CSA and HCA layers. Cosines and sines are not scaled.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Yarn {
    /// Divisor of the lowest frequencies.
    pub factor: f64,
    /// Positions before stretching.
    pub original_positions: u32,
    /// Rotations over `original_positions` from which on a frequency stays.
    pub beta_fast: f64,
    /// Rotations below which a frequency is divided by `factor`.
    pub beta_slow: f64,
}

/// Storage of the routed experts as `config.json` states it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpertDtype {
    /// e2m1 with one ue8m0 scale per 32 along k.
    Fp4,
    /// e4m3 with one scale per 128 x 128 block.
    Fp8,
}

/// Sizes and constants of a model. [`ModelConfig::check`] says what each may be.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// Tokens of the vocabulary.
    pub vocab_size: u32,
    /// Channels of a stream.
    pub hidden_size: u32,
    /// Kind of every layer of the trunk.
    pub layers: Vec<LayerKind>,
    /// Leading layers whose experts are picked by token id.
    pub num_hash_layers: u32,
    /// Query heads.
    pub heads: u32,
    /// Channels of a head and of a KV row.
    pub head_dim: u32,
    /// Channels at the end of a head that are rotated; the same for index heads.
    pub rope_dim: u32,
    /// Width between the two query projections.
    pub q_lora_rank: u32,
    /// Groups of heads in the output projection.
    pub o_groups: u32,
    /// Outputs per group.
    pub o_lora_rank: u32,
    /// Window in tokens, the query's own included.
    pub window: u32,
    /// Heads of the indexer.
    pub index_heads: u32,
    /// Channels of an index key.
    pub index_head_dim: u32,
    /// Rows that the indexer picks.
    pub index_topk: u32,
    /// Routed experts.
    pub experts: u32,
    /// Routed experts per token.
    pub experts_per_tok: u32,
    /// Channels inside an expert.
    pub moe_inter: u32,
    /// Shared experts, 1.
    pub shared_experts: u32,
    /// Sum of the routed experts' weights.
    pub routed_scaling: f32,
    /// Clamp inside an expert.
    pub swiglu_limit: f32,
    /// Streams.
    pub hc_mult: u32,
    /// Normalisations of columns when streams are mixed, as many of rows.
    pub hc_sinkhorn_iters: u32,
    /// Added in those normalisations.
    pub hc_eps: f32,
    /// Added to mean squares.
    pub rms_norm_eps: f32,
    /// Rotary base of SWA layers.
    pub rope_theta: f64,
    /// Rotary base of CSA and HCA layers.
    pub compress_rope_theta: f64,
    /// Stretching of CSA and HCA layers.
    pub yarn: Yarn,
    /// Positions of a sequence.
    pub max_position: u32,
    /// Token that starts a text.
    pub bos_id: u32,
    /// Tokens that end a text.
    pub eos_ids: Vec<u32>,
    /// Layers that predict the token after the next, 0 or 1. 0 for the DSpark draft, which is another network.
    pub mtp_layers: u32,
    /// Storage of the experts; `None` where the file does not say (the tensors do).
    pub expert_dtype: Option<ExpertDtype>,
    /// Whether linear weights are said to be stored in fp8 blocks.
    pub quantised: bool,
}

/// A field that is not what it has to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldProblem {
    /// The field as `config.json` spells it.
    pub field: String,
    /// What is accepted.
    pub expected: String,
    /// What was found.
    pub got: String,
}

impl fmt::Display for FieldProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: expected {}, got {}", self.field, self.expected, self.got)
    }
}

/// Why a configuration was refused.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: expected a configuration, got: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's words.
        source: std::io::Error,
    },
    /// The text is not a JSON object.
    #[error("config.json: expected a JSON object, got {0}")]
    Json(String),
    /// Every field that is wrong.
    #[error("config.json: {}", .0.iter().map(FieldProblem::to_string).collect::<Vec<_>>().join("; "))]
    Fields(Vec<FieldProblem>),
}

/// Largest file read as a configuration; the released ones are below 4 KB.
const MAX_CONFIG_BYTES: u64 = 1 << 20;

impl ModelConfig {
    /// Reads `config.json` of a folder.
    pub fn open(dir: impl AsRef<Path>) -> Result<Self, ConfigError> {
        Self::read(dir.as_ref().join("config.json"))
    }

    /// Reads a file like `config.json`.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, ConfigError> {
        let path = path.as_ref();
        let io = |source| ConfigError::Io { path: path.to_owned(), source };
        let bytes = read_file(path, MAX_CONFIG_BYTES).map_err(io)?;
        Self::from_json(std::str::from_utf8(&bytes).map_err(|error| ConfigError::Json(error.to_string()))?)
    }

    /// Reads the text of a `config.json`, with DeepSeek's field names or those of transformers, and checks every field.
    pub fn from_json(text: &str) -> Result<Self, ConfigError> {
        let config = read::read(text)?;
        config.check()?;
        Ok(config)
    }

    /// The text of a `config.json` with DeepSeek's field names, which [`ModelConfig::from_json`] reads back.
    pub fn to_json(&self) -> String {
        write::write(self)
    }

    /// Layers of a kind in the trunk.
    pub fn count(&self, kind: LayerKind) -> u32 {
        self.layers.iter().filter(|&&k| k == kind).count() as u32
    }

    /// Layers of the trunk.
    pub fn num_layers(&self) -> u32 {
        self.layers.len() as u32
    }

    /// Channels of a head that are not rotated.
    pub fn nope_dim(&self) -> u32 {
        self.head_dim - self.rope_dim
    }

    /// Inputs per group of the output projection.
    pub fn o_group_inputs(&self) -> u32 {
        self.heads / self.o_groups * self.head_dim
    }

    /// Outputs of a stream mixer: before, after, and the square between: 24 for 4 streams.
    pub fn hc_mixes(&self) -> u32 {
        (2 + self.hc_mult) * self.hc_mult
    }
}

#[cfg(test)]
mod tests;
