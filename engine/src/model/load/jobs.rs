//! Which blocks of which tensors make up the buffers of a rank: from sizes alone, so that bytes can be counted without a checkpoint.

use std::ops::Range;

use reference::ops::WeightFormat;

use crate::checkpoint::decode::{FP4_BLOCK, FP8_BLOCK};
use crate::checkpoint::{Checkpoint, CheckpointError, Storage, TensorView};
use crate::config::{LayerKind, ModelConfig};
use crate::model::RankShape;

/// A tensor, or a block of it.
#[derive(Debug, Clone)]
pub(super) struct Part {
    pub(super) name: String,
    pub(super) rows: Range<usize>,
    pub(super) columns: Range<usize>,
}

/// What a buffer is made of.
#[derive(Debug, Clone)]
pub(super) enum Job {
    /// Blocks of equal width, one below the other.
    Matrix(Vec<Part>),
    /// f32 values, part of a tensor of one or two axes.
    F32(String, Range<usize>),
    /// Integers as s32.
    S32(String),
    /// Values in the type of the activations.
    Activations(String),
}

/// Names and jobs of the buffers of a block.
pub(super) type Jobs = Vec<(&'static str, Job)>;

/// Buffers of a compressor.
pub(super) const MAIN: [&str; 3] = ["kv_gate", "ape", "compressor_norm"];
/// Buffers of an indexer's compressor.
pub(super) const INDEX: [&str; 3] = ["index_kv_gate", "index_ape", "index_compressor_norm"];

/// A tensor's shape as a matrix, and how it is stored.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stored {
    pub(super) rows: usize,
    pub(super) row_len: usize,
    pub(super) storage: Storage,
}

impl Stored {
    pub(super) fn of(view: &TensorView<'_>) -> Self {
        Self { rows: view.rows(), row_len: view.row_len(), storage: view.storage }
    }
}

impl Part {
    pub(super) fn view<'a>(&self, checkpoint: &'a Checkpoint) -> Result<TensorView<'a>, CheckpointError> {
        checkpoint.tensor(&self.name)
    }

    pub(super) fn rows_of(&self, stored: &Stored) -> Range<usize> {
        self.rows.start..self.rows.end.min(stored.rows)
    }

    pub(super) fn columns_of(&self, stored: &Stored) -> Range<usize> {
        self.columns.start..self.columns.end.min(stored.row_len)
    }
}

/// Bytes of a format: `bytes` hold `per` columns; `rows` and `columns` share a scale.
#[derive(Debug, Clone, Copy)]
pub(super) struct Blocks {
    pub(super) bytes: usize,
    pub(super) per: usize,
    pub(super) rows: usize,
    pub(super) columns: usize,
}

impl Blocks {
    pub(super) fn of(format: WeightFormat) -> Self {
        let (bytes, per, rows, columns) = match format {
            WeightFormat::F32 => (4, 1, 1, 1),
            WeightFormat::Bf16 => (2, 1, 1, 1),
            WeightFormat::Fp8Block128 => (1, 1, FP8_BLOCK, FP8_BLOCK),
            WeightFormat::Fp4Block32 => (1, 2, 1, FP4_BLOCK),
        };
        Self { bytes, per, rows, columns }
    }
}

/// The format of blocks as they are stored, one below the other; `None` where they do not share a storage that operations read, or
/// cut through the blocks of a scale.
pub(super) fn stored_format(parts: &[(&Part, Stored)]) -> Option<WeightFormat> {
    let storage = parts.first()?.1.storage;
    let format = storage.weight_format()?;
    let block = Blocks::of(format);
    let whole = |at: usize, block: usize, end: usize| at.is_multiple_of(block) || at == end;
    let fits = |(i, (part, stored)): (usize, &(&Part, Stored))| {
        let (rows, columns) = (part.rows_of(stored), part.columns_of(stored));
        stored.storage == storage
            && rows.start.is_multiple_of(block.rows)
            && (i + 1 == parts.len() || rows.len().is_multiple_of(block.rows))
            && whole(rows.end, block.rows, stored.rows)
            && columns.start.is_multiple_of(block.columns)
            && whole(columns.end, block.columns, stored.row_len)
    };
    parts.iter().enumerate().all(fits).then_some(format)
}

/// The buffers of a rank.
#[derive(Debug, Clone, Copy)]
pub(super) struct JobList<'a> {
    pub(super) config: &'a ModelConfig,
    pub(super) shape: &'a RankShape,
}

impl JobList<'_> {
    fn f32(&self, name: &str) -> Job {
        Job::F32(name.to_owned(), 0..usize::MAX)
    }

    /// A whole tensor as a matrix.
    fn whole(&self, name: &str) -> Job {
        self.stack(&[name], 0..usize::MAX, 0..usize::MAX)
    }

    /// The same block of several tensors.
    fn stack(&self, names: &[impl AsRef<str>], rows: Range<usize>, columns: Range<usize>) -> Job {
        let part = |name: &str| Part { name: name.to_owned(), rows: rows.clone(), columns: columns.clone() };
        Job::Matrix(names.iter().map(|name| part(name.as_ref())).collect())
    }

    /// This rank's `1 / size` of `count`.
    fn share(&self, count: u32) -> Range<usize> {
        let each = (count / self.shape.size) as usize;
        let rank = self.shape.rank as usize;
        each * rank..each * (rank + 1)
    }

    /// Whether the layer routes by a table.
    pub(super) fn is_hashed(&self, index: Option<usize>) -> bool {
        index.is_some_and(|i| i < self.config.num_hash_layers as usize)
    }

    /// Embedding and head.
    pub(super) fn top(&self) -> Jobs {
        vec![
            ("embed", Job::Activations("embed.weight".into())),
            ("lm_head", self.whole("head.weight")),
            ("hc_head_fn", self.f32("hc_head_fn")),
            ("hc_head_base", self.f32("hc_head_base")),
            ("hc_head_scale", self.f32("hc_head_scale")),
            ("norm", self.f32("norm.weight")),
        ]
    }

    /// The draft layer, but for its block.
    pub(super) fn mtp(&self) -> Jobs {
        let name = |tail: &str| format!("mtp.0.{tail}");
        vec![
            ("enorm", self.f32(&name("enorm.weight"))),
            ("hnorm", self.f32(&name("hnorm.weight"))),
            ("e_proj", self.whole(&name("e_proj.weight"))),
            ("h_proj", self.whole(&name("h_proj.weight"))),
            ("hc_head_fn", self.f32(&name("hc_head_fn"))),
            ("hc_head_base", self.f32(&name("hc_head_base"))),
            ("hc_head_scale", self.f32(&name("hc_head_scale"))),
            ("norm", self.f32(&name("norm.weight"))),
        ]
    }

    /// A block under `prefix`; `index` is its place in the trunk, `None` for the draft layer.
    pub(super) fn layer(&self, prefix: &str, index: Option<usize>) -> Jobs {
        let Self { config, .. } = *self;
        let kind = index.map_or(LayerKind::Swa, |i| config.layers[i]);
        let name = |tail: &str| format!("{prefix}{tail}");
        let full = || 0..usize::MAX;
        let head_rows = self.share(config.heads * config.head_dim);
        let low = self.share(config.o_groups * config.o_lora_rank);
        let shared = self.share(config.moe_inter * config.shared_experts);
        let experts: Vec<usize> = self.share(config.experts).collect();
        let w13: Vec<String> =
            experts.iter().flat_map(|e| ["w1", "w3"].map(|w| name(&format!("ffn.experts.{e}.{w}.weight")))).collect();
        let w2: Vec<String> = experts.iter().map(|e| name(&format!("ffn.experts.{e}.w2.weight"))).collect();
        let shared_w13 = ["w1", "w3"].map(|w| name(&format!("ffn.shared_experts.{w}.weight")));
        let mut jobs: Jobs = vec![
            ("hc_attn_fn", self.f32(&name("hc_attn_fn"))),
            ("hc_attn_base", self.f32(&name("hc_attn_base"))),
            ("hc_attn_scale", self.f32(&name("hc_attn_scale"))),
            ("attn_norm", self.f32(&name("attn_norm.weight"))),
            ("hc_ffn_fn", self.f32(&name("hc_ffn_fn"))),
            ("hc_ffn_base", self.f32(&name("hc_ffn_base"))),
            ("hc_ffn_scale", self.f32(&name("hc_ffn_scale"))),
            ("ffn_norm", self.f32(&name("ffn_norm.weight"))),
            ("wq_a", self.whole(&name("attn.wq_a.weight"))),
            ("q_norm", self.f32(&name("attn.q_norm.weight"))),
            ("wq_b", self.stack(&[name("attn.wq_b.weight")], head_rows, full())),
            ("wkv", self.whole(&name("attn.wkv.weight"))),
            ("kv_norm", self.f32(&name("attn.kv_norm.weight"))),
            ("wo_a", self.stack(&[name("attn.wo_a.weight")], low.clone(), full())),
            ("wo_b", self.stack(&[name("attn.wo_b.weight")], full(), low)),
            ("attn_sink", Job::F32(name("attn.attn_sink"), self.share(config.heads))),
            ("gate", self.whole(&name("ffn.gate.weight"))),
            ("w13", self.stack(&w13, full(), full())),
            ("w2", self.stack(&w2, full(), full())),
            ("shared_w13", self.stack(&shared_w13, shared.clone(), full())),
            ("shared_w2", self.stack(&[name("ffn.shared_experts.w2.weight")], full(), shared)),
        ];
        jobs.push(if self.is_hashed(index) {
            ("routing", Job::S32(name("ffn.gate.tid2eid")))
        } else {
            ("routing", self.f32(&name("ffn.gate.bias")))
        });
        let compressor = |prefix: &str, keys: [&'static str; 3]| {
            let of = |tail: &str| name(&format!("{prefix}compressor.{tail}"));
            let kv_gate = self.stack(&[of("wkv.weight"), of("wgate.weight")], full(), full());
            [(keys[0], kv_gate), (keys[1], self.f32(&of("ape"))), (keys[2], self.f32(&of("norm.weight")))]
        };
        if kind != LayerKind::Swa {
            jobs.extend(compressor("attn.", MAIN));
        }
        if kind == LayerKind::Csa {
            jobs.extend(compressor("attn.indexer.", INDEX));
            jobs.push(("index_wq_b", self.whole(&name("attn.indexer.wq_b.weight"))));
            jobs.push(("weights_proj", self.whole(&name("attn.indexer.weights_proj.weight"))));
        }
        jobs
    }
}
