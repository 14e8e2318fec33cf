//! The draft layer: from the trunk's streams and the next token's embedding to a guess of the token after that.

use reference::ops::{Embed, HcPost, Linear, Norm, NormRope, Ops, OpsError};

use super::cache::{Caches, refused};
use super::forward::{Model, Passage, Step, run_layer, samples};
use super::graphs::StepPart;
use super::hook::{LayerHook, NoHook};
use super::probe::{NoProbe, Probe, Stage};
use super::weights::Weights;
use super::workspace::{Array, Workspace, bytes_of};
use crate::batch::Batch;
use crate::collective::Collective;
use transfer::ids::Unit;

/// Buffers of the draft layer beside the workspace.
#[derive(Debug)]
pub(super) struct DraftArrays<B> {
    next_ids: Array<B>,
    /// `[t, hc]` ones and `[t, hc, hc]` unit matrices: add a vector to every stream.
    ones: Array<B>,
    units: Array<B>,
    /// `[t]` zeros: temperatures of a guess.
    zeros: Array<B>,
    tokens: u32,
    fixed: bool,
}

impl<B> DraftArrays<B> {
    pub(super) fn new() -> Self {
        Self {
            next_ids: Array::named("next_ids"),
            ones: Array::named("ones"),
            units: Array::named("units"),
            zeros: Array::named("zeros"),
            tokens: 0,
            fixed: false,
        }
    }

    pub(super) fn is_fixed(&self) -> bool {
        self.fixed
    }

    /// Keeps every buffer for good.
    pub(super) fn fix(&mut self) {
        let Self { next_ids, ones, units, zeros, .. } = self;
        [next_ids, ones, units, zeros].into_iter().for_each(Array::fix);
        self.fixed = true;
    }

    pub(super) fn put<O: Ops<Buffer = B>>(&mut self, ops: &O, hc: u32, next_ids: &[i32]) -> Result<(), OpsError> {
        self.next_ids.put(ops, &bytes_of(next_ids, i32::to_le_bytes))?;
        let t = next_ids.len() as u32;
        if t > self.tokens {
            let ones = vec![1.0_f32; (t * hc) as usize];
            let units: Vec<f32> = (0..t * hc * hc).map(|i| if i / hc % hc == i % hc { 1.0 } else { 0.0 }).collect();
            self.ones.put(ops, &bytes_of(&ones, f32::to_le_bytes))?;
            self.units.put(ops, &bytes_of(&units, f32::to_le_bytes))?;
            self.zeros.put(ops, &vec![0; 4 * t as usize])?;
            self.tokens = t;
        }
        Ok(())
    }
}

impl<O: Ops> Model<O> {
    /// Runs the draft layer over the tokens of the batch whose forward ran last, and picks the likeliest token after
    /// `next_ids` for every row of [`Batch::logits_rows`].
    ///
    /// `next_ids` is the token behind every token of the batch. The layer keeps window rows of its own; they are written for
    /// every token, so that it must run for every batch once it is used.
    ///
    /// # Panics
    /// Without a draft layer ([`Model::drafts`]).
    pub fn draft(&mut self, batch: &Batch, next_ids: &[i32]) -> Result<Vec<i32>, OpsError> {
        let Some(padded) = self.padded.take() else {
            return self.draft_with(batch, next_ids, &mut NoProbe);
        };
        let Self { ops, config, numerics, shape, weights, caches, work, limits, collective, graphs, pending, .. } =
            self;
        let unit = weights.layers.len();
        let passage = Passage::new(ops, batch, pending)?;
        passage.check(ops, caches.gate(), unit..unit + 1)?;
        let each = padded.size.tokens_per_entry as usize;
        let behind: Vec<i32> =
            (0..padded.batch.t as usize).map(|i| next_ids.get(i).copied().unwrap_or(next_ids[i % each])).collect();
        graphs.put_draft(ops, config.hc_mult, &behind)?;
        graphs.run(ops, StepPart::Draft, padded.size, |arrays| {
            let step = Step { ops, config, numerics, shape, batch: &padded.batch, arrays: &arrays.step, limits };
            let (probe, hook) = (&mut NoProbe, &mut NoHook);
            draft_layer(&step, &passage, &arrays.draft, weights, caches, work, collective.as_mut(), probe, hook)
        })?;
        passage.publish(ops, caches.gate(), unit..unit + 1)?;
        samples(&self.ops, &self.work, batch.logits_rows.len())
    }

    /// [`Model::draft`] with `hook` around its layer, behind an eager forward.
    ///
    /// # Panics
    /// Without a draft layer.
    pub fn draft_around(
        &mut self,
        batch: &Batch,
        next_ids: &[i32],
        hook: &mut dyn LayerHook<O>,
    ) -> Result<Vec<i32>, OpsError> {
        self.draft_run(batch, next_ids, &mut NoProbe, hook)
    }

    /// [`Model::draft`] under a probe, which sees the draft layer as the one behind the trunk's last; always eager.
    ///
    /// # Panics
    /// Without a draft layer.
    pub fn draft_with(
        &mut self,
        batch: &Batch,
        next_ids: &[i32],
        probe: &mut dyn Probe<O>,
    ) -> Result<Vec<i32>, OpsError> {
        self.draft_run(batch, next_ids, probe, &mut NoHook)
    }

    fn draft_run(
        &mut self,
        batch: &Batch,
        next_ids: &[i32],
        probe: &mut dyn Probe<O>,
        hook: &mut dyn LayerHook<O>,
    ) -> Result<Vec<i32>, OpsError> {
        let Self {
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
            pending,
            ..
        } = self;
        draft.put(ops, config.hc_mult, next_ids)?;
        let step = Step { ops, config, numerics, shape, batch, arrays, limits };
        let passage = Passage::new(ops, batch, pending)?;
        draft_layer(&step, &passage, draft, weights, caches, work, collective.as_mut(), probe, hook)?;
        samples(ops, work, batch.logits_rows.len())
    }
}

/// The operations of the draft layer, from the streams of the trunk to guesses on the device.
#[allow(clippy::too_many_arguments)]
fn draft_layer<O: Ops>(
    step: &Step<'_, O>,
    passage: &Passage<'_>,
    draft: &DraftArrays<O::Buffer>,
    weights: &Weights<O::Buffer>,
    caches: &mut Caches<O::Buffer>,
    work: &mut Workspace<O::Buffer>,
    collective: &mut dyn Collective<O>,
    probe: &mut dyn Probe<O>,
    hook: &mut dyn LayerHook<O>,
) -> Result<(), OpsError> {
    let Step { ops, config, numerics, batch, .. } = *step;
    let mtp = weights.mtp.as_ref().expect("asked for a draft without a draft layer");
    let (t, d, hc, dtype) = (batch.t, config.hidden_size, config.hc_mult, numerics.activations);
    ops.embed(Embed {
        dtype,
        table: &weights.embed,
        ids: draft.next_ids.get(),
        out: &mut work.draft_in,
        t,
        vocab: config.vocab_size,
        d,
        copies: 1,
    })?;
    let norm = |x: &O::Buffer, weight: &O::Buffer, out: &mut O::Buffer, h: u32| {
        ops.norm_rope(NormRope {
            dtype,
            x,
            norm: Norm::Weighted(weight),
            rope: None,
            out,
            t,
            h,
            d,
            stride_x: u64::from(h * d),
            stride_out: u64::from(h * d),
            eps: config.rms_norm_eps,
        })
    };
    let product = |x: &O::Buffer, weight, out: &mut O::Buffer, out_dtype, rows: u32| {
        ops.linear(Linear {
            dtype,
            x,
            weight,
            out,
            out_dtype,
            accumulate: false,
            t: rows,
            groups: 1,
            n: d,
            k: d,
            stride_x: u64::from(d),
            stride_out: u64::from(d),
        })
    };
    norm(&work.draft_in, &mtp.enorm, &mut work.draft_normed, 1)?;
    product(&work.draft_normed, mtp.e_proj.weight(), &mut work.y, reference::ops::Dtype::F32, t)?;
    norm(&work.streams, &mtp.hnorm, &mut work.draft_normed, hc)?;
    product(&work.draft_normed, mtp.h_proj.weight(), &mut work.streams, dtype, t * hc)?;
    ops.hc_post(HcPost {
        dtype,
        streams: &mut work.streams,
        y: &work.y,
        post: draft.ones.get(),
        comb: draft.units.get(),
        t,
        hc,
        d,
    })?;
    // The block sees the next tokens: its routing is by bias, so that ids do not matter to it.
    let index = weights.layers.len();
    hook.layer_begins(ops, caches, index)?;
    let (gate, layers) = caches.split();
    let readable = gate.readable(Unit(index as u32), &passage.read).map_err(refused(ops))?;
    let cache = &mut layers[index].open(&readable);
    run_layer(step, index, &mtp.layer, &weights.rope_window, cache, work, collective, probe)?;
    passage.publish(ops, gate, index..index + 1)?;
    drop(readable);
    hook.layer_done(ops, caches, index)?;
    step.logits(&mtp.head, weights.lm_head.weight(), work)?;
    probe.at(ops, index, Stage::Logits, &mut work.logits, batch.logits_rows.len() as u32)?;
    step.sample(draft.zeros.get(), work)
}
