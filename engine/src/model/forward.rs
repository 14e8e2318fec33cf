//! One forward of a batch: embedding, layers, head, sampling. Everything here is composed of operations.

use std::sync::Arc;

use reference::ops::Dtype;
use reference::ops::{
    Embed, GatherRows, HcMix, HcMixing, HcPost, Linear, MoeExperts, Ops, OpsError, Router, Routing, Sample, Swiglu,
};

use super::attention;
use super::cache::{Caches, OpenLayer, refused};
use super::graphs::{GraphCounters, Graphs, Padded, StepPart};
use super::hook::{LayerHook, NoHook};
use super::mtp::DraftArrays;
use super::numerics::Numerics;
use super::probe::{NoProbe, Probe, Stage};
use super::weights::{HyperConnection, Layer, Moe, RoutingWeights, Weights};
use super::workspace::{Limits, RankShape, StepArrays, Workspace};
use crate::batch::{Batch, DecodeMost};
use crate::collective::Collective;
use crate::config::ModelConfig;
use crate::handover::PageRun;
use crate::progress::Part;
use std::ops::Range;
use transfer::gate::{PageGate, Pages, PendingPages};
use transfer::ids::Unit;

/// One rank of a model.
pub struct Model<O: Ops> {
    pub(super) ops: O,
    pub(super) config: ModelConfig,
    pub(super) numerics: Numerics,
    pub(super) shape: RankShape,
    pub(super) weights: Weights<O::Buffer>,
    pub(super) caches: Caches<O::Buffer>,
    pub(super) work: Workspace<O::Buffer>,
    pub(super) arrays: StepArrays<O::Buffer>,
    pub(super) limits: Limits,
    pub(super) collective: Box<dyn Collective<O>>,
    pub(super) draft: DraftArrays<O::Buffer>,
    pub(super) progress: Arc<Part>,
    /// Decode steps. They hold addresses of everything above, none of which is replaced while the model lives.
    pub(super) graphs: Graphs<O>,
    /// The last batch, if it ran in the size of a graph.
    pub(super) padded: Option<Padded>,
    /// Pages that the present step claimed; its layers publish them one after the other.
    pub(super) pending: Vec<PendingPages>,
}

/// What the gate knows of a step: pages that it reads, and pages that it claimed, which its layers publish.
pub(super) struct Passage<'a> {
    pub(super) read: Vec<Pages<'a>>,
    pub(super) pending: &'a [PendingPages],
}

impl<'a> Passage<'a> {
    pub(super) fn new<O: Ops>(ops: &O, batch: &'a Batch, pending: &'a [PendingPages]) -> Result<Self, OpsError> {
        let read = batch.pages.read.iter().map(PageRun::tagged).collect::<Result<_, _>>().map_err(refused(ops))?;
        Ok(Self { read, pending })
    }

    /// Units that one replay runs: all are asked for before it.
    pub(super) fn check<O: Ops>(&self, ops: &O, gate: &PageGate, units: Range<usize>) -> Result<(), OpsError> {
        let mut units = units.map(|unit| Unit(unit as u32));
        units.try_for_each(|unit| gate.readable(unit, &self.read).map(drop)).map_err(refused(ops))
    }

    /// They are published behind it.
    pub(super) fn publish<O: Ops>(&self, ops: &O, gate: &PageGate, units: Range<usize>) -> Result<(), OpsError> {
        for unit in units {
            let unit = Unit(unit as u32);
            self.pending.iter().try_for_each(|pages| gate.publish(unit, pages)).map_err(refused(ops))?;
        }
        Ok(())
    }
}

/// What a model is made of.
#[derive(Debug)]
pub struct Parts<O: Ops> {
    /// Sizes.
    pub config: ModelConfig,
    /// Formats.
    pub numerics: Numerics,
    /// This rank's share.
    pub shape: RankShape,
    /// Largest batch.
    pub limits: Limits,
    /// This rank's weights.
    pub weights: Weights<O::Buffer>,
    /// This rank's caches.
    pub caches: Caches<O::Buffer>,
    /// The other ranks.
    pub collective: Box<dyn Collective<O>>,
}

/// What all layers of a step share.
pub(super) struct Step<'a, O: Ops> {
    pub(super) ops: &'a O,
    pub(super) config: &'a ModelConfig,
    pub(super) numerics: &'a Numerics,
    pub(super) shape: &'a RankShape,
    pub(super) batch: &'a Batch,
    pub(super) arrays: &'a StepArrays<O::Buffer>,
    pub(super) limits: &'a Limits,
}

impl<O: Ops> std::fmt::Debug for Model<O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Model").field("ops", &self.ops.name()).field("shape", &self.shape).finish_non_exhaustive()
    }
}

impl<O: Ops> Model<O> {
    /// A model from its parts, with room for the batches of [`Parts::limits`].
    pub fn new(ops: O, parts: Parts<O>) -> Result<Self, OpsError> {
        let Parts { config, numerics, shape, limits, weights, caches, collective } = parts;
        let work = Workspace::new(&ops, &config, &numerics, &shape, &limits, weights.mtp.is_some())?;
        let (arrays, draft) = (StepArrays::new(), DraftArrays::new());
        let most = DecodeMost { tokens: limits.tokens.min(limits.logits_rows), context: limits.context };
        let graphs = Graphs::new(ops.captures() && collective.on_device(), most);
        let progress = Part::new("model", Vec::new());
        let padded = None;
        let pending = Vec::new();
        Ok(Self {
            ops,
            config,
            numerics,
            shape,
            weights,
            caches,
            work,
            arrays,
            limits,
            collective,
            draft,
            progress,
            graphs,
            padded,
            pending,
        })
    }

    /// Runs every step eagerly from now on. Otherwise steps of decode entries alone are recorded and replayed, where the
    /// implementation offers that and the sum over the ranks stays on the device; the tokens are the same up to the rounding of
    /// sums, whose order may depend on the size that a batch is padded to.
    pub fn without_graphs(&mut self) {
        self.graphs.turn_off();
    }

    /// What has been recorded and replayed.
    pub fn graph_counters(&self) -> Arc<GraphCounters> {
        self.graphs.counters()
    }

    /// Counts finished layers there from now on, or finished steps where a step is one piece of work.
    pub fn report(&mut self, progress: Arc<Part>) {
        self.progress = progress;
    }

    /// The implementation.
    pub fn ops(&self) -> &O {
        &self.ops
    }

    /// The caches.
    pub fn caches(&self) -> &Caches<O::Buffer> {
        &self.caches
    }

    /// Whether there is a draft layer.
    pub fn drafts(&self) -> bool {
        self.weights.mtp.is_some()
    }

    /// Runs a batch; one token per row of [`Batch::logits_rows`].
    pub fn forward(&mut self, batch: &Batch) -> Result<Vec<i32>, OpsError> {
        let Some(padded) = self.graphs.padded(batch) else {
            return self.forward_with(batch, &mut NoProbe);
        };
        let Self {
            ops,
            config,
            numerics,
            shape,
            weights,
            caches,
            work,
            limits,
            collective,
            progress,
            graphs,
            pending,
            ..
        } = self;
        let units = 0..weights.layers.len();
        *pending = claim(ops, batch, caches.gate())?;
        let passage = Passage::new(ops, batch, pending)?;
        passage.check(ops, caches.gate(), units.clone())?;
        graphs.put(ops, &padded.batch)?;
        graphs.run(ops, StepPart::Forward, padded.size, |arrays| {
            let step = Step { ops, config, numerics, shape, batch: &padded.batch, arrays: &arrays.step, limits };
            trunk(&step, &passage, weights, caches, work, collective.as_mut(), progress, &mut NoProbe, &mut NoHook)
        })?;
        passage.publish(ops, caches.gate(), units)?;
        progress.tick();
        self.padded = Some(padded);
        samples(&self.ops, &self.work, batch.logits_rows.len())
    }

    /// [`Model::forward`] with `hook` around every layer, always eager.
    pub fn forward_around(&mut self, batch: &Batch, hook: &mut dyn LayerHook<O>) -> Result<Vec<i32>, OpsError> {
        self.run(batch, &mut NoProbe, hook)
    }

    /// [`Model::forward`] under a probe, always eager.
    pub fn forward_with(&mut self, batch: &Batch, probe: &mut dyn Probe<O>) -> Result<Vec<i32>, OpsError> {
        self.run(batch, probe, &mut NoHook)
    }

    /// Rows among the samples of the last forward for which there is no token: their logits are NaN or -inf.
    pub fn undefined(&self, samples: &[i32]) -> Result<Vec<usize>, OpsError> {
        undefined(&self.ops, &self.work, self.config.vocab_size, samples)
    }

    /// Operations and caches, to copy pages between steps.
    pub fn cache_parts(&mut self) -> (&O, &mut Caches<O::Buffer>) {
        (&self.ops, &mut self.caches)
    }

    fn run(
        &mut self,
        batch: &Batch,
        probe: &mut dyn Probe<O>,
        hook: &mut dyn LayerHook<O>,
    ) -> Result<Vec<i32>, OpsError> {
        self.padded = None;
        let Self { ops, config, numerics, shape, weights, caches, work, arrays, limits, collective, pending, .. } =
            self;
        arrays.put(ops, batch)?;
        hook.layer_begins(ops, caches, 0)?;
        *pending = claim(ops, batch, caches.gate())?;
        let step = Step { ops, config, numerics, shape, batch, arrays, limits };
        let passage = Passage::new(ops, batch, pending)?;
        trunk(&step, &passage, weights, caches, work, collective.as_mut(), &self.progress, probe, hook)?;
        samples(ops, work, batch.logits_rows.len())
    }
}

/// Claims the pages that a step is the first to write. A page that is read and written is this generation's already: nothing
/// changes hands for a step that is refused.
fn claim<O: Ops>(ops: &O, batch: &Batch, gate: &PageGate) -> Result<Vec<PendingPages>, OpsError> {
    Passage::new(ops, batch, &[])?.check(ops, gate, 0..1)?;
    PageRun::claim(&batch.pages.written, gate).map_err(refused(ops))
}

/// The operations of a step, from the ids to samples on the device.
#[allow(clippy::too_many_arguments)]
fn trunk<O: Ops>(
    step: &Step<'_, O>,
    passage: &Passage<'_>,
    weights: &Weights<O::Buffer>,
    caches: &mut Caches<O::Buffer>,
    work: &mut Workspace<O::Buffer>,
    collective: &mut dyn Collective<O>,
    progress: &Part,
    probe: &mut dyn Probe<O>,
    hook: &mut dyn LayerHook<O>,
) -> Result<(), OpsError> {
    let Step { ops, config, numerics, batch, arrays, .. } = *step;
    ops.embed(Embed {
        dtype: numerics.activations,
        table: &weights.embed,
        ids: arrays.ids.get(),
        out: &mut work.streams,
        t: batch.t,
        vocab: config.vocab_size,
        d: config.hidden_size,
        copies: config.hc_mult,
    })?;
    for (index, layer) in weights.layers.iter().enumerate() {
        let rope = if layer.attn.compressor.is_some() { &weights.rope_compress } else { &weights.rope_window };
        // The first layer was announced before the step claimed its pages.
        if index > 0 {
            hook.layer_begins(ops, caches, index)?;
        }
        let (gate, layers) = caches.split();
        let readable = gate.readable(Unit(index as u32), &passage.read).map_err(refused(ops))?;
        let cache = &mut layers[index].open(&readable);
        run_layer(step, index, layer, rope, cache, work, collective, probe)?;
        passage.publish(ops, gate, index..index + 1)?;
        drop(readable);
        hook.layer_done(ops, caches, index)?;
        progress.tick();
    }
    step.logits(&weights.head, weights.lm_head.weight(), work)?;
    let n = batch.logits_rows.len() as u32;
    probe.at(ops, weights.layers.len(), Stage::Logits, &mut work.logits, n)?;
    step.sample(arrays.temperature.get(), work)
}

/// Rows among `samples` for which there is no token: without a number above -inf the first of the vocabulary is taken, so
/// only rows with that one are looked at.
pub(super) fn undefined<O: Ops>(
    ops: &O,
    work: &Workspace<O::Buffer>,
    vocab: u32,
    samples: &[i32],
) -> Result<Vec<usize>, OpsError> {
    let mut rows = Vec::new();
    for (row, _) in samples.iter().enumerate().filter(|(_, sample)| **sample == 0) {
        let mut logit = [0; 4];
        ops.download(&work.logits, 4 * u64::from(vocab) * row as u64, &mut logit)?;
        let logit = f32::from_le_bytes(logit);
        if logit.is_nan() || logit == f32::NEG_INFINITY {
            rows.push(row);
        }
    }
    Ok(rows)
}

/// The first `n` samples, on the host.
pub(super) fn samples<O: Ops>(ops: &O, work: &Workspace<O::Buffer>, n: usize) -> Result<Vec<i32>, OpsError> {
    let mut bytes = vec![0; 4 * n];
    ops.download(&work.sampled, 0, &mut bytes)?;
    Ok(bytes.chunks_exact(4).map(|c| i32::from_le_bytes(c.try_into().expect("four bytes"))).collect())
}

/// One layer: two sub-layers between hyper-connections.
#[allow(clippy::too_many_arguments)]
pub(super) fn run_layer<O: Ops>(
    step: &Step<'_, O>,
    index: usize,
    layer: &Layer<O::Buffer>,
    rope: &O::Buffer,
    cache: &mut OpenLayer<'_, O::Buffer>,
    work: &mut Workspace<O::Buffer>,
    collective: &mut dyn Collective<O>,
    probe: &mut dyn Probe<O>,
) -> Result<(), OpsError> {
    let Step { ops, batch, .. } = *step;
    let t = batch.t;
    let elements = u64::from(t) * u64::from(step.config.hidden_size);

    step.mix(&layer.attn_hc, work)?;
    probe.at(ops, index, Stage::HcAttnPost, &mut work.post, t)?;
    probe.at(ops, index, Stage::HcAttnComb, &mut work.comb, t)?;
    probe.at(ops, index, Stage::AttnIn, &mut work.x, t)?;
    attention::run(step, index, &layer.attn, rope, cache, work, probe)?;
    collective.all_reduce(ops, &mut work.y, elements)?;
    probe.at(ops, index, Stage::AttnOut, &mut work.y, t)?;
    step.post(work)?;
    probe.at(ops, index, Stage::StreamsMid, &mut work.streams, t)?;

    step.mix(&layer.ffn_hc, work)?;
    probe.at(ops, index, Stage::HcFfnPost, &mut work.post, t)?;
    probe.at(ops, index, Stage::HcFfnComb, &mut work.comb, t)?;
    probe.at(ops, index, Stage::FfnIn, &mut work.x, t)?;
    step.experts(index, &layer.moe, work, probe)?;
    collective.all_reduce(ops, &mut work.y, elements)?;
    probe.at(ops, index, Stage::MoeOut, &mut work.y, t)?;
    step.post(work)?;
    probe.at(ops, index, Stage::StreamsOut, &mut work.streams, t)
}

impl<O: Ops> Step<'_, O> {
    /// Streams -> input of a sub-layer.
    fn mix(&self, hc: &HyperConnection<O::Buffer>, work: &mut Workspace<O::Buffer>) -> Result<(), OpsError> {
        let mixing =
            HcMixing { post: &mut work.post, comb: &mut work.comb, sinkhorn_iters: self.config.hc_sinkhorn_iters };
        self.ops.hc_mix(HcMix {
            dtype: self.numerics.activations,
            streams: &work.streams,
            weight: &hc.weight,
            base: &hc.base,
            scale: &hc.scale,
            norm_weight: &hc.norm,
            out: &mut work.x,
            mixing: Some(mixing),
            t: self.batch.t,
            hc: self.config.hc_mult,
            d: self.config.hidden_size,
            norm_eps: self.config.rms_norm_eps,
            hc_eps: self.config.hc_eps,
        })
    }

    /// Output of a sub-layer -> streams.
    fn post(&self, work: &mut Workspace<O::Buffer>) -> Result<(), OpsError> {
        self.ops.hc_post(HcPost {
            dtype: self.numerics.activations,
            streams: &mut work.streams,
            y: &work.y,
            post: &work.post,
            comb: &work.comb,
            t: self.batch.t,
            hc: self.config.hc_mult,
            d: self.config.hidden_size,
        })
    }

    /// Routed and shared experts: `x` -> `y`.
    fn experts(
        &self,
        index: usize,
        moe: &Moe<O::Buffer>,
        work: &mut Workspace<O::Buffer>,
        probe: &mut dyn Probe<O>,
    ) -> Result<(), OpsError> {
        let Self { ops, config, numerics, shape, batch, arrays, .. } = *self;
        let t = batch.t;
        let (d, dtype) = (config.hidden_size, numerics.activations);
        let wide = |n: u32| u64::from(n);
        ops.linear(Linear {
            dtype,
            x: &work.x,
            weight: moe.gate.weight(),
            out: &mut work.scores,
            out_dtype: Dtype::F32,
            accumulate: false,
            t,
            groups: 1,
            n: config.experts,
            k: d,
            stride_x: wide(d),
            stride_out: wide(config.experts),
        })?;
        let routing = match &moe.routing {
            RoutingWeights::Bias(bias) => Routing::Bias(bias),
            RoutingWeights::Hash(tid2eid) => Routing::Hash { tid2eid, ids: arrays.ids.get(), vocab: config.vocab_size },
        };
        ops.router(Router {
            scores: &work.scores,
            routing,
            expert_ids: &mut work.expert_ids,
            expert_weights: &mut work.expert_weights,
            t,
            experts: config.experts,
            topk: config.experts_per_tok,
            routed_scaling: config.routed_scaling,
        })?;
        probe.at(ops, index, Stage::ExpertIds, &mut work.expert_ids, t)?;
        probe.at(ops, index, Stage::ExpertWeights, &mut work.expert_weights, t)?;
        ops.moe_experts(MoeExperts {
            dtype,
            x: &work.x,
            expert_ids: &work.expert_ids,
            expert_weights: &work.expert_weights,
            w13: moe.w13.weight(),
            w2: moe.w2.weight(),
            out: &mut work.y,
            t,
            d,
            inter: config.moe_inter,
            topk: config.experts_per_tok,
            first_expert: shape.rank * shape.experts,
            num_experts: shape.experts,
            limit: config.swiglu_limit,
        })?;
        let inter = shape.shared_inter;
        ops.linear(Linear {
            dtype,
            x: &work.x,
            weight: moe.shared_w13.weight(),
            out: &mut work.gate_up,
            out_dtype: dtype,
            accumulate: false,
            t,
            groups: 1,
            n: 2 * inter,
            k: d,
            stride_x: wide(d),
            stride_out: wide(2 * inter),
        })?;
        ops.swiglu(Swiglu {
            dtype,
            gate_up: &work.gate_up,
            out: &mut work.hidden,
            t,
            inter,
            limit: config.swiglu_limit,
        })?;
        ops.linear(Linear {
            dtype,
            x: &work.hidden,
            weight: moe.shared_w2.weight(),
            out: &mut work.y,
            out_dtype: Dtype::F32,
            accumulate: true,
            t,
            groups: 1,
            n: d,
            k: inter,
            stride_x: wide(inter),
            stride_out: wide(d),
        })
    }

    /// Vocabulary logits of the rows that want them.
    pub(super) fn logits(
        &self,
        head: &HyperConnection<O::Buffer>,
        lm_head: reference::ops::Weight<'_, O::Buffer>,
        work: &mut Workspace<O::Buffer>,
    ) -> Result<(), OpsError> {
        let Self { ops, config, numerics, batch, arrays, .. } = *self;
        let n = batch.logits_rows.len() as u32;
        let (d, hc, dtype) = (config.hidden_size, config.hc_mult, numerics.activations);
        ops.gather_rows(GatherRows {
            src: &work.streams,
            rows: arrays.logits_rows.get(),
            out: &mut work.head_streams,
            n,
            num_rows: batch.t,
            row_bytes: u64::from(hc) * u64::from(d) * dtype.bytes(),
        })?;
        ops.hc_mix(HcMix {
            dtype,
            streams: &work.head_streams,
            weight: &head.weight,
            base: &head.base,
            scale: &head.scale,
            norm_weight: &head.norm,
            out: &mut work.head_x,
            mixing: None,
            t: n,
            hc,
            d,
            norm_eps: config.rms_norm_eps,
            hc_eps: config.hc_eps,
        })?;
        ops.linear(Linear {
            dtype,
            x: &work.head_x,
            weight: lm_head,
            out: &mut work.logits,
            out_dtype: Dtype::F32,
            accumulate: false,
            t: n,
            groups: 1,
            n: config.vocab_size,
            k: d,
            stride_x: u64::from(d),
            stride_out: u64::from(config.vocab_size),
        })
    }

    /// Tokens from the logits at the given `[n]` temperatures.
    pub(super) fn sample(&self, temperature: &O::Buffer, work: &mut Workspace<O::Buffer>) -> Result<(), OpsError> {
        self.ops.sample(Sample {
            logits: &work.logits,
            temperature,
            seeds: self.arrays.seeds.get(),
            out: &mut work.sampled,
            n: self.batch.logits_rows.len() as u32,
            vocab: self.config.vocab_size,
        })
    }
}
