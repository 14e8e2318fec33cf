//! Problems of the operations on streams and rows, of the choice of experts and of tokens.

use super::{Expected, ExpectedOutput, Fill, Memory, fetch, output};
use crate::compare::{Bound, Float};
use crate::ops::{Dtype, Embed, GatherRows, HcMix, HcMixing, HcPost, Ops, OpsError, Router, Routing, Sample, Swiglu};
use crate::plain::{Bytes, Cells, streams as plain};
use crate::tolerance::streams as tolerance;

/// Streams of hyper-connections.
const HC: u64 = 4;

/// Operands of `embed`; shapes as in [`Embed`].
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct EmbedProblem {
    pub dtype: Dtype,
    pub table: Memory,
    pub ids: Memory,
    pub t: u32,
    pub vocab: u32,
    pub d: u32,
    pub copies: u32,
}

/// Operands of `gather_rows`; shapes as in [`GatherRows`].
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct GatherProblem {
    pub src: Memory,
    pub rows: Memory,
    pub n: u32,
    pub num_rows: u32,
    pub row_bytes: u64,
}

/// Operands of `hc_mix`; shapes as in [`HcMix`].
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct HcMixProblem {
    pub dtype: Dtype,
    pub streams: Memory,
    pub weight: Memory,
    pub base: Memory,
    pub scale: Memory,
    pub norm_weight: Memory,
    /// Of a sub-layer; `None` for the head.
    pub sinkhorn_iters: Option<u32>,
    pub t: u32,
    pub d: u32,
    pub norm_eps: f32,
    pub hc_eps: f32,
}

/// Operands of `hc_post`; shapes as in [`HcPost`].
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct HcPostProblem {
    pub dtype: Dtype,
    pub streams: Memory,
    pub y: Memory,
    pub post: Memory,
    pub comb: Memory,
    pub t: u32,
    pub d: u32,
}

/// Operands of `swiglu`; shapes as in [`Swiglu`].
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct SwigluProblem {
    pub dtype: Dtype,
    pub gate_up: Memory,
    pub t: u32,
    pub inter: u32,
    pub limit: f32,
}

/// How a [`RouterProblem`] picks.
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub enum RoutingProblem {
    Bias(Memory),
    Hash { tid2eid: Memory, ids: Memory, vocab: u32 },
}

/// Operands of `router`; shapes as in [`Router`].
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct RouterProblem {
    pub scores: Memory,
    pub routing: RoutingProblem,
    pub t: u32,
    pub experts: u32,
    pub topk: u32,
    pub routed_scaling: f32,
}

/// Operands of `sample`; shapes as in [`Sample`].
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct SampleProblem {
    pub logits: Memory,
    pub temperature: Memory,
    pub seeds: Memory,
    pub n: u32,
    pub vocab: u32,
}

/// One call with its data.
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub enum StreamsProblem {
    Embed(EmbedProblem),
    GatherRows(GatherProblem),
    HcMix(HcMixProblem),
    HcPost(HcPostProblem),
    Swiglu(SwigluProblem),
    Router(RouterProblem),
    Sample(SampleProblem),
}

impl StreamsProblem {
    /// Operation.
    pub fn op(&self) -> &'static str {
        match self {
            StreamsProblem::Embed(_) => "embed",
            StreamsProblem::GatherRows(_) => "gather_rows",
            StreamsProblem::HcMix(_) => "hc_mix",
            StreamsProblem::HcPost(_) => "hc_post",
            StreamsProblem::Swiglu(_) => "swiglu",
            StreamsProblem::Router(_) => "router",
            StreamsProblem::Sample(_) => "sample",
        }
    }

    pub(super) fn output_names(&self) -> Vec<&'static str> {
        match self {
            StreamsProblem::HcMix(p) if p.sinkhorn_iters.is_some() => vec!["out", "post", "comb"],
            StreamsProblem::HcPost(_) => vec!["streams"],
            StreamsProblem::Router(_) => vec!["expert_ids", "expert_weights"],
            _ => vec!["out"],
        }
    }

    pub(super) fn run<O: Ops>(&self, ops: &O, fill: Fill) -> Result<Vec<Bytes>, OpsError> {
        match self {
            StreamsProblem::Embed(p) => p.run(ops, fill),
            StreamsProblem::GatherRows(p) => p.run(ops, fill),
            StreamsProblem::HcMix(p) => p.run(ops, fill),
            StreamsProblem::HcPost(p) => p.run(ops, fill),
            StreamsProblem::Swiglu(p) => p.run(ops, fill),
            StreamsProblem::Router(p) => p.run(ops, fill),
            StreamsProblem::Sample(p) => p.run(ops, fill),
        }
    }

    pub(super) fn expected(&self) -> Vec<ExpectedOutput> {
        match self {
            StreamsProblem::Embed(p) => p.expected(),
            StreamsProblem::GatherRows(p) => p.expected(),
            StreamsProblem::HcMix(p) => p.expected(),
            StreamsProblem::HcPost(p) => p.expected(),
            StreamsProblem::Swiglu(p) => p.expected(),
            StreamsProblem::Router(p) => p.expected(),
            StreamsProblem::Sample(p) => p.expected(),
        }
    }
}

/// Float elements without gaps.
fn dense(name: &'static str, cells: Cells, dtype: Dtype, bound: Bound) -> ExpectedOutput {
    let float = match dtype {
        Dtype::F32 => Float::F32,
        Dtype::Bf16 => Float::Bf16,
    };
    let mut strides = vec![1u64; cells.ndim()];
    for axis in (1..cells.ndim()).rev() {
        strides[axis - 1] = strides[axis] * cells.shape()[axis] as u64;
    }
    ExpectedOutput { name, expected: Expected::Floats { cells, float, strides, bound } }
}

impl EmbedProblem {
    fn args<'a, B>(&self, [table, ids]: [&'a B; 2], out: &'a mut B) -> Embed<'a, B> {
        Embed { dtype: self.dtype, table, ids, out, t: self.t, vocab: self.vocab, d: self.d, copies: self.copies }
    }

    fn run<O: Ops>(&self, ops: &O, fill: Fill) -> Result<Vec<Bytes>, OpsError> {
        let (table, ids) = (self.table.load(ops, fill)?, self.ids.load(ops, fill)?);
        let row = u64::from(self.copies) * u64::from(self.d) * self.dtype.bytes();
        let mut out = output(ops, "out", u64::from(self.t) * row)?;
        ops.embed(self.args([&table, &ids], &mut out))?;
        Ok(vec![fetch(ops, &out)?])
    }

    fn expected(&self) -> Vec<ExpectedOutput> {
        let bytes = plain::embed(&self.args([&self.table.image(), &self.ids.image()], &mut Vec::new()));
        let row_bytes = u64::from(self.d) * self.dtype.bytes();
        vec![ExpectedOutput { name: "out", expected: Expected::Rows { bytes, row_bytes, e4m3: false } }]
    }
}

impl GatherProblem {
    fn args<'a, B>(&self, [src, rows]: [&'a B; 2], out: &'a mut B) -> GatherRows<'a, B> {
        GatherRows { src, rows, out, n: self.n, num_rows: self.num_rows, row_bytes: self.row_bytes }
    }

    fn run<O: Ops>(&self, ops: &O, fill: Fill) -> Result<Vec<Bytes>, OpsError> {
        let (src, rows) = (self.src.load(ops, fill)?, self.rows.load(ops, fill)?);
        let mut out = output(ops, "out", u64::from(self.n) * self.row_bytes)?;
        ops.gather_rows(self.args([&src, &rows], &mut out))?;
        Ok(vec![fetch(ops, &out)?])
    }

    fn expected(&self) -> Vec<ExpectedOutput> {
        let bytes = plain::gather_rows(&self.args([&self.src.image(), &self.rows.image()], &mut Vec::new()));
        vec![ExpectedOutput { name: "out", expected: Expected::Rows { bytes, row_bytes: self.row_bytes, e4m3: false } }]
    }
}

impl HcMixProblem {
    fn inputs(&self) -> [&Memory; 5] {
        [&self.streams, &self.weight, &self.base, &self.scale, &self.norm_weight]
    }

    fn args<'a, B>(&self, inputs: &'a [B], outputs: &'a mut [B; 3]) -> HcMix<'a, B> {
        let [out, post, comb] = outputs;
        HcMix {
            dtype: self.dtype,
            streams: &inputs[0],
            weight: &inputs[1],
            base: &inputs[2],
            scale: &inputs[3],
            norm_weight: &inputs[4],
            out,
            mixing: self.sinkhorn_iters.map(|sinkhorn_iters| HcMixing { post, comb, sinkhorn_iters }),
            t: self.t,
            hc: HC as u32,
            d: self.d,
            norm_eps: self.norm_eps,
            hc_eps: self.hc_eps,
        }
    }

    fn run<O: Ops>(&self, ops: &O, fill: Fill) -> Result<Vec<Bytes>, OpsError> {
        let inputs = self.inputs().iter().map(|m| m.load(ops, fill)).collect::<Result<Vec<_>, _>>()?;
        let (t, mixed) = (u64::from(self.t), self.sinkhorn_iters.map_or(0, |_| u64::from(self.t)));
        let mut outputs = [
            output(ops, "out", t * u64::from(self.d) * self.dtype.bytes())?,
            output(ops, "post", 4 * mixed * HC)?,
            output(ops, "comb", 4 * mixed * HC * HC)?,
        ];
        ops.hc_mix(self.args(&inputs, &mut outputs))?;
        outputs.iter().take(self.output_count()).map(|buffer| fetch(ops, buffer)).collect()
    }

    fn output_count(&self) -> usize {
        if self.sinkhorn_iters.is_some() { 3 } else { 1 }
    }

    fn expected(&self) -> Vec<ExpectedOutput> {
        let images: Vec<Bytes> = self.inputs().iter().map(|m| m.image()).collect();
        let mixed = plain::hc_mix(&self.args(&images, &mut Default::default()));
        let mut outputs = vec![
            dense("out", mixed.out, self.dtype, tolerance::hc_out(self.dtype)),
            dense("post", mixed.post, Dtype::F32, tolerance::HC_MIXING),
            dense("comb", mixed.comb, Dtype::F32, tolerance::HC_MIXING),
        ];
        outputs.truncate(self.output_count());
        outputs
    }
}

impl HcPostProblem {
    fn args<'a, B>(&self, streams: &'a mut B, [y, post, comb]: [&'a B; 3]) -> HcPost<'a, B> {
        HcPost { dtype: self.dtype, streams, y, post, comb, t: self.t, hc: HC as u32, d: self.d }
    }

    fn run<O: Ops>(&self, ops: &O, fill: Fill) -> Result<Vec<Bytes>, OpsError> {
        let mut streams = self.streams.load(ops, fill)?;
        let (y, post) = (self.y.load(ops, fill)?, self.post.load(ops, fill)?);
        let comb = self.comb.load(ops, fill)?;
        ops.hc_post(self.args(&mut streams, [&y, &post, &comb]))?;
        Ok(vec![fetch(ops, &streams)?])
    }

    fn expected(&self) -> Vec<ExpectedOutput> {
        let inputs = [&self.y.image(), &self.post.image(), &self.comb.image()];
        let cells = plain::hc_post(&self.args(&mut self.streams.image(), inputs));
        vec![dense("streams", cells, self.dtype, tolerance::hc_post(self.dtype))]
    }
}

impl SwigluProblem {
    fn args<'a, B>(&self, gate_up: &'a B, out: &'a mut B) -> Swiglu<'a, B> {
        Swiglu { dtype: self.dtype, gate_up, out, t: self.t, inter: self.inter, limit: self.limit }
    }

    fn run<O: Ops>(&self, ops: &O, fill: Fill) -> Result<Vec<Bytes>, OpsError> {
        let gate_up = self.gate_up.load(ops, fill)?;
        let mut out = output(ops, "out", u64::from(self.t) * u64::from(self.inter) * self.dtype.bytes())?;
        ops.swiglu(self.args(&gate_up, &mut out))?;
        Ok(vec![fetch(ops, &out)?])
    }

    fn expected(&self) -> Vec<ExpectedOutput> {
        let cells = plain::swiglu(&self.args(&self.gate_up.image(), &mut Vec::new()));
        vec![dense("out", cells, self.dtype, tolerance::swiglu(self.dtype))]
    }
}

impl RouterProblem {
    /// Memory of the way of picking: the bias, or the table and the ids.
    fn routing_memory(&self) -> Vec<&Memory> {
        match &self.routing {
            RoutingProblem::Bias(bias) => vec![bias],
            RoutingProblem::Hash { tid2eid, ids, .. } => vec![tid2eid, ids],
        }
    }

    fn args<'a, B>(
        &self,
        scores: &'a B,
        routing: &'a [B],
        [expert_ids, expert_weights]: [&'a mut B; 2],
    ) -> Router<'a, B> {
        let routing = match &self.routing {
            RoutingProblem::Bias(_) => Routing::Bias(&routing[0]),
            RoutingProblem::Hash { vocab, .. } => {
                Routing::Hash { tid2eid: &routing[0], ids: &routing[1], vocab: *vocab }
            }
        };
        Router {
            scores,
            routing,
            expert_ids,
            expert_weights,
            t: self.t,
            experts: self.experts,
            topk: self.topk,
            routed_scaling: self.routed_scaling,
        }
    }

    fn run<O: Ops>(&self, ops: &O, fill: Fill) -> Result<Vec<Bytes>, OpsError> {
        let scores = self.scores.load(ops, fill)?;
        let routing = self.routing_memory().iter().map(|m| m.load(ops, fill)).collect::<Result<Vec<_>, _>>()?;
        let bytes = 4 * u64::from(self.t) * u64::from(self.topk);
        let (mut picks, mut weights) = (output(ops, "expert_ids", bytes)?, output(ops, "expert_weights", bytes)?);
        ops.router(self.args(&scores, &routing, [&mut picks, &mut weights]))?;
        Ok(vec![fetch(ops, &picks)?, fetch(ops, &weights)?])
    }

    fn expected(&self) -> Vec<ExpectedOutput> {
        let routing: Vec<Bytes> = self.routing_memory().iter().map(|m| m.image()).collect();
        let args = [&mut Vec::new(), &mut Vec::new()];
        let (values, weights) = plain::router(&self.args(&self.scores.image(), &routing, args));
        let columns = self.topk as usize;
        vec![
            ExpectedOutput { name: "expert_ids", expected: Expected::Integers { columns, values } },
            dense("expert_weights", weights, Dtype::F32, tolerance::EXPERT_WEIGHTS),
        ]
    }
}

impl SampleProblem {
    fn args<'a, B>(&self, [logits, temperature, seeds]: [&'a B; 3], out: &'a mut B) -> Sample<'a, B> {
        Sample { logits, temperature, seeds, out, n: self.n, vocab: self.vocab }
    }

    fn run<O: Ops>(&self, ops: &O, fill: Fill) -> Result<Vec<Bytes>, OpsError> {
        let (logits, temperature) = (self.logits.load(ops, fill)?, self.temperature.load(ops, fill)?);
        let seeds = self.seeds.load(ops, fill)?;
        let mut out = output(ops, "out", 4 * u64::from(self.n))?;
        ops.sample(self.args([&logits, &temperature, &seeds], &mut out))?;
        Ok(vec![fetch(ops, &out)?])
    }

    fn expected(&self) -> Vec<ExpectedOutput> {
        let inputs = [&self.logits.image(), &self.temperature.image(), &self.seeds.image()];
        let values = plain::sample(&self.args(inputs, &mut Vec::new()));
        vec![ExpectedOutput { name: "out", expected: Expected::Integers { columns: 1, values } }]
    }
}
