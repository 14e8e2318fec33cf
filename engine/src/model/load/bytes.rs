//! Bytes that a rank takes beside its caches, counted by the jobs and sizes by which it allocates.

use std::collections::HashMap;
use std::convert::Infallible;

use reference::ops::{Dtype, WeightFormat};
use serde::Serialize;

use super::jobs::{Blocks, Job, JobList, Jobs, Part, Stored, stored_format};
use crate::checkpoint::make::Make;
use crate::model::numerics::{Numerics, WeightStorage};
use crate::model::workspace::{Limits, RankShape, Workspace};

/// Bytes of one rank from its start on. Not in it: caches, arrays that follow the batch, and what the implementation of operations
/// keeps for itself (code, scratch of launches, a driver's context).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct RankBytes {
    /// Its part of the weights: heads, output groups and experts are divided, everything else is whole on every rank.
    pub weights: u64,
    /// Rotations of every position.
    pub tables: u64,
    /// Activations of the largest batch.
    pub workspace: u64,
}

impl RankBytes {
    /// Of a rank that loads a checkpoint such as `make` describes; `drafts`: with its MTP layer.
    pub fn new(make: &Make<'_>, numerics: &Numerics, shape: &RankShape, limits: &Limits, drafts: bool) -> Self {
        let config = make.config;
        let stored = make.stored().into_iter().map(|(name, axes, storage)| {
            let axis = |&axis: &u32| axis as usize;
            let (rows, row_len) = (axes.first().map_or(1, axis), axes.iter().skip(1).map(axis).product());
            (name, Stored { rows, row_len, storage })
        });
        let count = Count { numerics, stored: stored.collect() };
        let jobs = JobList { config, shape };
        let mut weights = count.of(&jobs.top());
        for index in 0..config.layers.len() {
            weights += count.of(&jobs.layer(&format!("layers.{index}."), Some(index)));
        }
        let drafts = drafts && config.mtp_layers > 0;
        if drafts {
            weights += count.of(&jobs.mtp()) + count.of(&jobs.layer("mtp.0.", None));
        }
        let mut workspace = 0;
        let buffers = Workspace::of(config, numerics, shape, limits, drafts, |_, bytes| {
            workspace += bytes;
            Ok::<_, Infallible>(())
        });
        let Ok(_) = buffers;
        let tables = 2 * Dtype::F32.bytes() * u64::from(config.rope_dim) * u64::from(limits.context);
        Self { weights, tables, workspace }
    }

    /// All of them.
    pub fn sum(&self) -> u64 {
        self.weights + self.tables + self.workspace
    }
}

struct Count<'a> {
    numerics: &'a Numerics,
    stored: HashMap<String, Stored>,
}

impl Count<'_> {
    fn of(&self, jobs: &Jobs) -> u64 {
        jobs.iter().map(|(_, job)| self.job(job)).sum()
    }

    fn tensor(&self, name: &str) -> Stored {
        *self.stored.get(name).unwrap_or_else(|| panic!("{name}: a tensor of every model"))
    }

    fn job(&self, job: &Job) -> u64 {
        let elements = |name: &str| self.tensor(name).rows * self.tensor(name).row_len;
        match job {
            Job::F32(name, part) => 4 * (part.end.min(elements(name)) - part.start) as u64,
            Job::S32(name) => 4 * elements(name) as u64,
            Job::Activations(name) => self.numerics.activations.bytes() * elements(name) as u64,
            Job::Matrix(parts) => self.matrix(parts),
        }
    }

    fn matrix(&self, parts: &[Part]) -> u64 {
        let parts: Vec<_> = parts.iter().map(|part| (part, self.tensor(&part.name))).collect();
        let format = match self.numerics.weights {
            WeightStorage::F32 => WeightFormat::F32,
            WeightStorage::Stored => stored_format(&parts).unwrap_or(WeightFormat::Bf16),
        };
        let block = Blocks::of(format);
        let scaled = matches!(format, WeightFormat::Fp8Block128 | WeightFormat::Fp4Block32);
        let bytes = |(part, stored): &(&Part, Stored)| {
            let (rows, columns) = (part.rows_of(stored), part.columns_of(stored));
            let data = rows.len() * columns.len() * block.bytes / block.per;
            let scales = rows.len().div_ceil(block.rows) * columns.len().div_ceil(block.columns);
            (data + if scaled { scales } else { 0 }) as u64
        };
        parts.iter().map(bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use kernel_bindings::emulated::{Emulated, EmulatedConfig};
    use kernel_bindings::ops::KernelOps;

    use super::*;
    use crate::checkpoint::Checkpoint;
    use crate::checkpoint::make::Store;
    use crate::config::ModelConfig;
    use crate::model::load;

    /// What is counted is what a device has given away, on every rank, in every storage.
    #[test]
    fn a_rank_takes_what_is_counted() {
        // Two ranks: 32 channels of its output groups, and blocks of 128 that are cut.
        let two = ModelConfig { o_lora_rank: 32, ..ModelConfig::tiny() };
        let limits = Limits { tokens: 24, logits_rows: 5, context: 700 };
        let plain = Numerics { weights: WeightStorage::F32, ..Numerics::device() };
        for store in [Store::Fp32, Store::Bf16, Store::Fp8Fp4] {
            let folder = tempfile::tempdir().expect("a folder");
            let dir = folder.path().join("model");
            let make = Make { config: &two, seed: 1, store, shard_bytes: u64::MAX };
            make.run(&dir, |_| ()).expect("written");
            let checkpoint = Checkpoint::open(&dir).expect("sound");
            for (numerics, size, drafts) in
                [(plain, 1, true), (Numerics::device(), 1, false), (Numerics::device(), 2, true)]
            {
                for rank in 0..size {
                    let shape = RankShape::new(&two, rank, size).expect("divides");
                    let ops = KernelOps::new(Emulated::new(EmulatedConfig::fast()));
                    let loaded = load(&ops, &checkpoint, &numerics, &shape, &limits, drafts, &|_| ()).expect("loaded");
                    let weights = ops.device().live_bytes();
                    let work = Workspace::new(&ops, &two, &numerics, &shape, &limits, drafts).expect("allocated");
                    let counted = RankBytes::new(&make, &numerics, &shape, &limits, drafts);
                    let what = format!("{store:?}, rank {rank} of {size}, drafts {drafts}");
                    assert_eq!(counted.weights + counted.tables, weights, "{what}");
                    assert_eq!(counted.sum(), ops.device().live_bytes(), "{what}");
                    drop((loaded, work));
                    assert_eq!(ops.device().live_bytes(), 0, "{what}: all of it was theirs");
                }
            }
        }
    }
}
