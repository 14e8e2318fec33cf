//! A model of the golden checkpoint, driven plan by plan without a scheduler.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use engine::batch::Batch;
use engine::checkpoint::Checkpoint;
use engine::collective::{Collective, Solo};
use engine::geometry::{CacheGeometry, CacheShape};
use engine::ids::{Generation, PageId, Position, SequenceId, SlotIndex, TokenId};
use engine::model::cache::Caches;
use engine::model::probe::{NoProbe, Probe, Stage};
use engine::model::{Limits, Model, Numerics, Parts, RankShape, load};
use engine::pools::PoolSizes;
use engine::step::{Generations, InputToken, Sampling, StepEntry, StepPlan};
use reference::golden::{GoldenDir, GoldenFile};
use reference::ops::{Ops, OpsError};

/// The golden checkpoint as it is released: fp8 and fp4 weights, two shards.
pub(crate) fn checkpoint() -> Checkpoint {
    let dir: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../reference/golden/model");
    Checkpoint::open(dir).expect("the golden checkpoint is committed")
}

/// A golden file of the repository.
pub(crate) fn golden(name: &str) -> GoldenFile {
    GoldenDir::shipped().and_then(|dir| dir.file(name)).expect("the golden values are committed")
}

/// The golden prompt, 303 tokens.
pub(crate) fn prompt() -> Vec<i32> {
    golden("goldens").s64s("input_ids").expect("a tensor").iter().map(|&id| id as i32).collect()
}

/// The golden continuation, 96 tokens.
pub(crate) fn continuation() -> Vec<i32> {
    golden("goldens").s64s("gen.tokens").expect("a tensor").iter().map(|&id| id as i32).collect()
}

/// 33 sequences of up to 512 tokens fit.
const SIZES: PoolSizes = PoolSizes { compressed_pages: 67, window_pages: 137, request_slots: 33 };

/// Batches of the rig.
pub(crate) const LIMITS: Limits = Limits { tokens: 512, logits_rows: 512, context: 1024 };

/// A rank with caches for a few sequences.
pub(crate) struct Rig<O: Ops> {
    pub(crate) model: Model<O>,
    pub(crate) shape: CacheShape,
    step: u64,
}

/// Builds the model of `checkpoint` on `ops`.
pub(crate) fn model<O: Ops>(
    ops: O,
    checkpoint: &Checkpoint,
    numerics: Numerics,
    shape: &CacheShape,
    rank: (u32, u32),
    collective: Box<dyn Collective<O>>,
    with_mtp: bool,
) -> Model<O> {
    let config = checkpoint.config().clone();
    let ranks = RankShape::new(&config, rank.0, rank.1).expect("divides");
    let weights = load(&ops, checkpoint, &numerics, &ranks, &LIMITS, with_mtp, &|_| ()).expect("loads");
    let geometry = CacheGeometry::new(&config, *shape, numerics.kv, numerics.index_k, u32::from(with_mtp));
    let caches = Caches::new(&ops, &geometry.expect("formats of the model"), SIZES).expect("fits");
    Model::new(ops, Parts { config, numerics, shape: ranks, limits: LIMITS, weights, caches, collective })
        .expect("fits")
}

impl<O: Ops> Rig<O> {
    /// One rank, no drafts.
    pub(crate) fn new(ops: O, numerics: Numerics) -> Self {
        let checkpoint = checkpoint();
        let shape = CacheShape::ring_per_page(checkpoint.config().window, false);
        Self::with(ops, &checkpoint, numerics, shape)
    }

    /// One rank of any checkpoint and shape.
    pub(crate) fn with(ops: O, checkpoint: &Checkpoint, numerics: Numerics, shape: CacheShape) -> Self {
        let model = model(ops, checkpoint, numerics, &shape, (0, 1), Box::new(Solo), false);
        Self { model, shape, step: 0 }
    }

    /// Part of sequence `number`: `tokens` at `start..`. Pages are dealt out so that neighbours in a sequence are no neighbours
    /// in the pool.
    pub(crate) fn entry(&self, number: u32, start: usize, tokens: &[i32]) -> StepEntry {
        entry(&self.shape, number, start, tokens)
    }

    /// Runs entries; the logits of every token of the batch.
    pub(crate) fn run_with(
        &mut self,
        entries: Vec<StepEntry>,
        num_decode: usize,
        probe: &mut dyn Probe<O>,
    ) -> Result<Vec<Vec<f32>>, OpsError> {
        let plan = StepPlan { step: self.step, num_decode, entries };
        self.step += 1;
        let mut batch = Batch::new(&plan, &self.shape).expect("every page is there");
        all_logits(&mut batch);
        let mut keep = Keep { inner: probe, logits: Vec::new() };
        self.model.forward_with(&batch, &mut keep)?;
        let vocab = keep.logits.len() / batch.t as usize;
        Ok(keep.logits.chunks_exact(vocab).map(<[f32]>::to_vec).collect())
    }

    /// [`Rig::run_with`] without a probe.
    pub(crate) fn run(&mut self, entries: Vec<StepEntry>, num_decode: usize) -> Vec<Vec<f32>> {
        self.run_with(entries, num_decode, &mut NoProbe).expect("runs")
    }

    /// A prompt of sequence `number` in pieces that end at `cuts` and at its own end: logits of every position.
    pub(crate) fn prefill(&mut self, number: u32, tokens: &[i32], cuts: &[usize]) -> Vec<Vec<f32>> {
        let mut logits = Vec::new();
        let mut start = 0;
        for &end in cuts.iter().chain([&tokens.len()]) {
            logits.extend(self.run(vec![self.entry(number, start, &tokens[start..end])], 0));
            start = end;
        }
        logits
    }

    /// One token of sequence `number` as a decode step.
    pub(crate) fn decode(&mut self, number: u32, position: usize, token: i32) -> Vec<f32> {
        self.run(vec![self.entry(number, position, &[token])], 1).remove(0)
    }
}

/// See [`Rig::entry`].
pub(crate) fn entry(shape: &CacheShape, number: u32, start: usize, tokens: &[i32]) -> StepEntry {
    let end = (start + tokens.len()) as u32;
    // Multiples of 7 modulo a prime: every page once, neighbours apart.
    let page = |i: u32, per_sequence: u32, of: u32| PageId((number * per_sequence + i) * 7 % of);
    StepEntry {
        sequence: SequenceId(u64::from(number)),
        start: Position(start as u32),
        tokens: tokens.iter().map(|&id| InputToken::Known(TokenId(id as u32))).collect(),
        draft: None,
        next: None,
        emits: true,
        sampling: Sampling::GREEDY,
        window_table: (0..end.div_ceil(shape.window_page_tokens))
            .map(|i| Some(page(i, 512 / shape.window_page_tokens, SIZES.window_pages)))
            .collect(),
        compressed_table: (0..end.div_ceil(shape.page_tokens))
            .map(|i| page(i, 512 / shape.page_tokens, SIZES.compressed_pages))
            .collect(),
        request_slot: Some(SlotIndex(number)),
        // The tables of a sequence never change, so that its pages are of one generation; 0 is nobody's.
        generations: Generations::uniform(
            Generation(u64::from(number) + 1),
            end.div_ceil(shape.page_tokens) as usize,
            end.div_ceil(shape.window_page_tokens) as usize,
        ),
    }
}

/// Asks for the logits of every token.
pub(crate) fn all_logits(batch: &mut Batch) {
    batch.logits_rows = (0..batch.t as i32).collect();
    batch.temperature = vec![0.0; batch.t as usize];
    batch.seeds = vec![0; 2 * batch.t as usize];
}

/// Keeps the logits, shows everything to another probe.
struct Keep<'a, O: Ops> {
    inner: &'a mut dyn Probe<O>,
    logits: Vec<f32>,
}

/// Values of a buffer.
pub(crate) fn f32s<O: Ops>(ops: &O, buffer: &O::Buffer, len: usize) -> Result<Vec<f32>, OpsError> {
    let mut bytes = vec![0; 4 * len];
    ops.download(buffer, 0, &mut bytes)?;
    Ok(bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().expect("four bytes"))).collect())
}

impl<O: Ops> Probe<O> for Keep<'_, O> {
    fn at(&mut self, ops: &O, layer: usize, stage: Stage, buffer: &mut O::Buffer, rows: u32) -> Result<(), OpsError> {
        if stage == Stage::Logits {
            let vocab = 256;
            self.logits = f32s(ops, buffer, rows as usize * vocab)?;
        }
        self.inner.at(ops, layer, stage, buffer, rows)
    }
}

/// Copies of what a run with f32 activations held, by layer and stage: the bytes of a whole row times its rows.
#[derive(Default)]
pub(crate) struct Record {
    /// Bytes per row by stage; only these are kept.
    pub(crate) wanted: HashMap<Stage, usize>,
    pub(crate) seen: HashMap<(usize, Stage), Vec<u8>>,
}

impl<O: Ops> Probe<O> for Record {
    fn at(&mut self, ops: &O, layer: usize, stage: Stage, buffer: &mut O::Buffer, rows: u32) -> Result<(), OpsError> {
        if let Some(row) = self.wanted.get(&stage) {
            let mut bytes = vec![0; row * rows as usize];
            ops.download(buffer, 0, &mut bytes)?;
            self.seen.entry((layer, stage)).or_default().extend(bytes);
        }
        Ok(())
    }
}

impl Record {
    /// What was seen, as f32.
    pub(crate) fn f32s(&self, layer: usize, stage: Stage) -> Vec<f32> {
        let bytes = self.seen.get(&(layer, stage)).unwrap_or_else(|| panic!("layer {layer} passed {stage:?}"));
        bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().expect("four bytes"))).collect()
    }

    /// What was seen, as s32.
    pub(crate) fn s32s(&self, layer: usize, stage: Stage) -> Vec<i32> {
        let bytes = self.seen.get(&(layer, stage)).unwrap_or_else(|| panic!("layer {layer} passed {stage:?}"));
        bytes.chunks_exact(4).map(|b| i32::from_le_bytes(b.try_into().expect("four bytes"))).collect()
    }
}

/// The largest absolute difference, and where it is.
pub(crate) fn worst(got: &[f32], expected: &[f32]) -> (f32, usize) {
    assert_eq!(got.len(), expected.len());
    let differences = got.iter().zip(expected).map(|(g, e)| if g == e { 0.0 } else { (g - e).abs() });
    // NaN is the worst of all.
    let rank = |d: f32| if d.is_nan() { f32::INFINITY } else { d };
    differences.enumerate().fold((0.0, 0), |w, (i, d)| if rank(d) > rank(w.0) { (d, i) } else { w })
}

/// Within `bar` everywhere; names the worst element otherwise.
#[track_caller]
pub(crate) fn close(what: &str, got: &[f32], expected: &[f32], bar: f32) {
    let (difference, at) = worst(got, expected);
    assert!(difference <= bar, "{what}: element {at}: {} is not {} ({difference} > {bar})", got[at], expected[at]);
}

/// Index of the largest value, the lowest on a tie.
pub(crate) fn argmax(logits: &[f32]) -> i32 {
    let mut best = 0;
    for (i, &value) in logits.iter().enumerate() {
        if value > logits[best] {
            best = i;
        }
    }
    best as i32
}
