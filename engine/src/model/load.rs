//! Tensors of a checkpoint -> weights of one rank: sharded, stacked, in the storage that the run wants.

mod bytes;
mod jobs;

pub use bytes::RankBytes;

use std::collections::HashMap;

use half::bf16;
use rayon::prelude::*;
use reference::ops::{Dtype, Ops, OpsError, WeightFormat};
use thiserror::Error;

use jobs::{Blocks, Job, JobList, Jobs, Part, Stored, stored_format};

use super::numerics::{Numerics, WeightStorage};
use super::weights::{
    Attention, Compressor, HyperConnection, Indexer, Layer, Matrix, Moe, Mtp, RoutingWeights, Weights,
};
use super::workspace::{Limits, RankShape, bytes_of};
use crate::checkpoint::{Checkpoint, CheckpointError};
use crate::config::{LayerKind, ModelConfig};
use crate::rope;

/// Why weights could not be loaded.
#[derive(Debug, Error)]
pub enum LoadError {
    /// The checkpoint.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The device.
    #[error(transparent)]
    Ops(#[from] OpsError),
    /// The model cannot be divided among that many ranks.
    #[error("tensor parallelism over {size} ranks: {what} is {count}, which does not divide evenly")]
    Uneven {
        /// Ranks.
        size: u32,
        /// What is divided.
        what: &'static str,
        /// How many there are.
        count: u32,
    },
    /// A rank's part of a sum is narrower than products take.
    #[error("tensor parallelism over {size} ranks: expected {what} per rank in multiples of {multiple}, got {count}")]
    Narrow {
        /// Ranks.
        size: u32,
        /// What is divided.
        what: &'static str,
        /// What products take.
        multiple: u32,
        /// What a rank would have.
        count: u32,
    },
}

/// Multiple of the columns of a product, over which it sums.
const SUM_MULTIPLE: u32 = 32;

impl RankShape {
    /// This rank's share of heads, output groups, experts and the shared expert.
    pub fn new(config: &ModelConfig, rank: u32, size: u32) -> Result<Self, LoadError> {
        let share = |what, count: u32| {
            if size == 0 || !count.is_multiple_of(size) {
                return Err(LoadError::Uneven { size, what, count });
            }
            Ok(count / size)
        };
        let shape = Self {
            size,
            rank,
            heads: share("num_attention_heads", config.heads)?,
            groups: share("o_groups", config.o_groups)?,
            experts: share("n_routed_experts", config.experts)?,
            shared_inter: share("moe_intermediate_size", config.moe_inter * config.shared_experts)?,
        };
        let wide = |what, count: u32| match count.is_multiple_of(SUM_MULTIPLE) {
            true => Ok(()),
            false => Err(LoadError::Narrow { size, what, multiple: SUM_MULTIPLE, count }),
        };
        wide("o_groups * o_lora_rank", shape.groups * config.o_lora_rank)?;
        wide("moe_intermediate_size", shape.shared_inter)?;
        Ok(shape)
    }
}

/// Bytes ready for upload.
#[derive(Debug)]
struct Prepared {
    format: WeightFormat,
    data: Vec<u8>,
    scale: Option<Vec<u8>>,
}

struct Loader<'a, O: Ops> {
    ops: &'a O,
    checkpoint: &'a Checkpoint,
    config: &'a ModelConfig,
    numerics: &'a Numerics,
    jobs: JobList<'a>,
}

/// Loads the weights of a rank. `progress` is called with a number of tensors done, from any thread.
pub fn load<O: Ops>(
    ops: &O,
    checkpoint: &Checkpoint,
    numerics: &Numerics,
    shape: &RankShape,
    limits: &Limits,
    with_mtp: bool,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Weights<O::Buffer>, LoadError> {
    let config = checkpoint.config();
    let loader = Loader { ops, checkpoint, config, numerics, jobs: JobList { config, shape } };
    let layers = (0..config.layers.len()).map(|i| loader.layer(&format!("layers.{i}."), Some(i), progress));
    let layers = layers.collect::<Result<Vec<_>, _>>()?;
    let mut top = loader.prepare(loader.jobs.top(), progress)?;
    let mtp = if with_mtp && config.mtp_layers > 0 { Some(loader.mtp(progress)?) } else { None };
    let table = |frequencies: Vec<f32>, label: &str| {
        let table = rope::table(&frequencies, limits.context);
        loader.upload(&bytes_of(&table, f32::to_le_bytes), label)
    };
    Ok(Weights {
        embed: loader.buffer(&mut top, "embed")?,
        layers,
        head: loader.hyper_connection(&mut top, ["hc_head_fn", "hc_head_base", "hc_head_scale", "norm"])?,
        lm_head: loader.matrix(&mut top, "lm_head")?,
        mtp,
        rope_window: table(rope::window_frequencies(config), "rope_window")?,
        rope_compress: table(rope::compress_frequencies(config), "rope_compress")?,
    })
}

impl<O: Ops> Loader<'_, O> {
    /// Reads and decodes, in parallel.
    fn prepare(
        &self,
        jobs: Jobs,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<HashMap<&'static str, Prepared>, LoadError> {
        let (checkpoint, numerics) = (self.checkpoint, *self.numerics);
        jobs.into_par_iter()
            .map(|(key, job)| {
                let prepared = prepare(checkpoint, &numerics, &job)?;
                progress(match &job {
                    Job::Matrix(parts) => parts.len() as u64,
                    _ => 1,
                });
                Ok((key, prepared))
            })
            .collect()
    }

    fn upload(&self, bytes: &[u8], label: &str) -> Result<O::Buffer, LoadError> {
        let mut buffer = self.ops.alloc(bytes.len() as u64, label)?;
        self.ops.upload(&mut buffer, 0, bytes)?;
        Ok(buffer)
    }

    fn matrix(&self, from: &mut HashMap<&'static str, Prepared>, key: &str) -> Result<Matrix<O::Buffer>, LoadError> {
        let prepared = from.remove(key).expect("every buffer of a block has a job");
        let scale = prepared.scale.map(|scale| self.upload(&scale, key)).transpose()?;
        Ok(Matrix { format: prepared.format, data: self.upload(&prepared.data, key)?, scale })
    }

    fn buffer(&self, from: &mut HashMap<&'static str, Prepared>, key: &str) -> Result<O::Buffer, LoadError> {
        Ok(self.matrix(from, key)?.data)
    }

    fn hyper_connection(
        &self,
        from: &mut HashMap<&'static str, Prepared>,
        [weight, base, scale, norm]: [&str; 4],
    ) -> Result<HyperConnection<O::Buffer>, LoadError> {
        Ok(HyperConnection {
            weight: self.buffer(from, weight)?,
            base: self.buffer(from, base)?,
            scale: self.buffer(from, scale)?,
            norm: self.buffer(from, norm)?,
        })
    }

    /// A block under `prefix`; `index` is its place in the trunk, `None` for the draft layer.
    fn layer(
        &self,
        prefix: &str,
        index: Option<usize>,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<Layer<O::Buffer>, LoadError> {
        let kind = index.map_or(LayerKind::Swa, |i| self.config.layers[i]);
        let hashed = self.jobs.is_hashed(index);
        let mut b = self.prepare(self.jobs.layer(prefix, index), progress)?;
        let compressor = |b: &mut _, [kv_gate, ape, norm]: [&str; 3]| {
            Ok::<_, LoadError>(Compressor {
                kv_gate: self.matrix(b, kv_gate)?,
                ape: self.buffer(b, ape)?,
                norm: self.buffer(b, norm)?,
            })
        };
        let main = (kind != LayerKind::Swa).then(|| compressor(&mut b, jobs::MAIN)).transpose()?;
        let indexer = if kind == LayerKind::Csa {
            let compressor = compressor(&mut b, jobs::INDEX)?;
            let wq_b = self.matrix(&mut b, "index_wq_b")?;
            Some(Indexer { wq_b, weights_proj: self.matrix(&mut b, "weights_proj")?, compressor })
        } else {
            None
        };
        let routing = self.buffer(&mut b, "routing")?;
        Ok(Layer {
            kind,
            attn_hc: self.hyper_connection(&mut b, ["hc_attn_fn", "hc_attn_base", "hc_attn_scale", "attn_norm"])?,
            attn: Attention {
                wq_a: self.matrix(&mut b, "wq_a")?,
                q_norm: self.buffer(&mut b, "q_norm")?,
                wq_b: self.matrix(&mut b, "wq_b")?,
                wkv: self.matrix(&mut b, "wkv")?,
                kv_norm: self.buffer(&mut b, "kv_norm")?,
                wo_a: self.matrix(&mut b, "wo_a")?,
                wo_b: self.matrix(&mut b, "wo_b")?,
                sink: self.buffer(&mut b, "attn_sink")?,
                compressor: main,
                indexer,
            },
            ffn_hc: self.hyper_connection(&mut b, ["hc_ffn_fn", "hc_ffn_base", "hc_ffn_scale", "ffn_norm"])?,
            moe: Moe {
                gate: self.matrix(&mut b, "gate")?,
                routing: if hashed { RoutingWeights::Hash(routing) } else { RoutingWeights::Bias(routing) },
                w13: self.matrix(&mut b, "w13")?,
                w2: self.matrix(&mut b, "w2")?,
                shared_w13: self.matrix(&mut b, "shared_w13")?,
                shared_w2: self.matrix(&mut b, "shared_w2")?,
            },
        })
    }

    fn mtp(&self, progress: &(dyn Fn(u64) + Sync)) -> Result<Mtp<O::Buffer>, LoadError> {
        let mut b = self.prepare(self.jobs.mtp(), progress)?;
        Ok(Mtp {
            enorm: self.buffer(&mut b, "enorm")?,
            hnorm: self.buffer(&mut b, "hnorm")?,
            e_proj: self.matrix(&mut b, "e_proj")?,
            h_proj: self.matrix(&mut b, "h_proj")?,
            layer: self.layer("mtp.0.", None, progress)?,
            head: self.hyper_connection(&mut b, ["hc_head_fn", "hc_head_base", "hc_head_scale", "norm"])?,
        })
    }
}

fn prepare(checkpoint: &Checkpoint, numerics: &Numerics, job: &Job) -> Result<Prepared, CheckpointError> {
    let plain = |format, data| Prepared { format, data, scale: None };
    match job {
        Job::F32(name, part) => {
            let view = checkpoint.tensor(name)?;
            let values = view.f32s(0..view.rows())?;
            let values = &values[part.start..part.end.min(values.len())];
            Ok(plain(WeightFormat::F32, bytes_of(values, f32::to_le_bytes)))
        }
        Job::S32(name) => {
            let values = checkpoint.tensor(name)?.ids(checkpoint.config().experts)?;
            Ok(plain(WeightFormat::F32, bytes_of(&values, i32::to_le_bytes)))
        }
        Job::Activations(name) => {
            let view = checkpoint.tensor(name)?;
            let rows = 0..view.rows();
            Ok(match numerics.activations {
                Dtype::F32 => plain(WeightFormat::F32, bytes_of(&view.f32s(rows)?, f32::to_le_bytes)),
                Dtype::Bf16 => plain(WeightFormat::Bf16, bytes_of(&view.bf16s(rows)?, bf16::to_le_bytes)),
            })
        }
        Job::Matrix(parts) => match numerics.weights {
            WeightStorage::F32 => {
                Ok(plain(WeightFormat::F32, bytes_of(&decoded(checkpoint, parts)?, f32::to_le_bytes)))
            }
            WeightStorage::Stored => match stored(checkpoint, parts)? {
                Some(prepared) => Ok(prepared),
                None => {
                    let to_bf16 = |value: f32| bf16::from_f32(value).to_le_bytes();
                    Ok(plain(WeightFormat::Bf16, bytes_of(&decoded(checkpoint, parts)?, to_bf16)))
                }
            },
        },
    }
}

/// The blocks as values, one below the other.
fn decoded(checkpoint: &Checkpoint, parts: &[Part]) -> Result<Vec<f32>, CheckpointError> {
    let mut all = Vec::new();
    for part in parts {
        let view = part.view(checkpoint)?;
        let (rows, columns) = (part.rows_of(&Stored::of(&view)), part.columns_of(&Stored::of(&view)));
        let values = view.f32s(rows)?;
        for row in values.chunks_exact(view.row_len()) {
            all.extend_from_slice(&row[columns.clone()]);
        }
    }
    Ok(all)
}

/// The blocks as stored, one below the other; `None` where [`jobs::stored_format`] says so.
fn stored(checkpoint: &Checkpoint, parts: &[Part]) -> Result<Option<Prepared>, CheckpointError> {
    let views = parts.iter().map(|part| Ok((part, part.view(checkpoint)?)));
    let views = views.collect::<Result<Vec<_>, CheckpointError>>()?;
    let stored: Vec<_> = views.iter().map(|(part, view)| (*part, Stored::of(view))).collect();
    let Some(format) = stored_format(&stored) else { return Ok(None) };
    let Blocks { bytes, per, columns: block_columns, .. } = Blocks::of(format);
    let (mut data, mut scale) = (Vec::new(), Vec::new());
    for ((part, stored), (_, view)) in stored.iter().zip(&views) {
        let (rows, columns) = (part.rows_of(stored), part.columns_of(stored));
        let row_bytes = view.row_len() * bytes / per;
        for row in view.row_bytes(rows.clone())?.chunks_exact(row_bytes) {
            data.extend_from_slice(&row[columns.start * bytes / per..columns.end * bytes / per]);
        }
        if let Some((scales, _)) = view.scale_block() {
            for row in view.row_scales(rows)?.chunks_exact(scales) {
                scale.extend_from_slice(&row[columns.start / block_columns..columns.end.div_ceil(block_columns)]);
            }
        }
    }
    let scale = (!scale.is_empty()).then_some(scale);
    Ok(Some(Prepared { format, data, scale }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2 output groups of 16 channels; a shared expert of 128 channels.
    #[test]
    fn ranks_that_are_too_narrow_are_refused() {
        let said = |config: &ModelConfig, size| RankShape::new(config, 0, size).map_err(|error| error.to_string());
        let narrow = |what, count, size| {
            Err(format!(
                "tensor parallelism over {size} ranks: expected {what} per rank in multiples of 32, got {count}"
            ))
        };
        let (tiny, mini) = (ModelConfig::tiny(), ModelConfig::mini());
        assert!(said(&tiny, 1).is_ok() && said(&mini, 4).is_ok());
        assert_eq!(said(&tiny, 2), narrow("o_groups * o_lora_rank", 16, 2));
        assert_eq!(said(&mini, 8), narrow("moe_intermediate_size", 16, 8));
    }
}
