//! `linear` and `moe_experts` with their data.

use super::{BEFORE, Expected, ExpectedOutput, Fill, Memory, fetch, output};
use crate::compare::{Bound, Float};
use crate::formats::f32_bytes;
use crate::ops::{Dtype, Linear, MoeExperts, Ops, OpsError, Weight, WeightFormat};
use crate::plain::{self, Bytes};
use crate::tolerance;

/// A product with a weight, or the experts made of such.
#[derive(Debug, Clone)]
pub enum ProductsProblem {
    /// A call of `linear`.
    Linear(LinearProblem),
    /// A call of `moe_experts`.
    MoeExperts(MoeProblem),
}

/// A weight matrix; shapes as in [`Weight`].
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct WeightMemory {
    pub format: WeightFormat,
    pub data: Memory,
    pub scale: Option<Memory>,
}

/// A weight in place.
struct Loaded<B> {
    data: B,
    scale: Option<B>,
}

impl WeightMemory {
    fn load<O: Ops>(&self, ops: &O, fill: Fill) -> Result<Loaded<O::Buffer>, OpsError> {
        let scale = self.scale.as_ref().map(|scale| scale.load(ops, fill)).transpose()?;
        Ok(Loaded { data: self.data.load(ops, fill)?, scale })
    }

    fn image(&self) -> Loaded<Bytes> {
        Loaded { data: self.data.image(), scale: self.scale.as_ref().map(Memory::image) }
    }

    fn operand<'a, B>(&self, loaded: &'a Loaded<B>) -> Weight<'a, B> {
        Weight { format: self.format, data: &loaded.data, scale: loaded.scale.as_ref() }
    }
}

/// Operands of `linear`; shapes as in [`Linear`].
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct LinearProblem {
    pub dtype: Dtype,
    pub x: Memory,
    pub weight: WeightMemory,
    pub out_dtype: Dtype,
    /// `[t, groups * n]`: what `out` holds, to be added to.
    pub accumulate: Option<Vec<f32>>,
    pub t: u32,
    pub groups: u32,
    pub n: u32,
    pub k: u32,
    pub stride_x: u64,
    pub stride_out: u64,
}

/// Operands of `moe_experts`; shapes as in [`MoeExperts`].
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct MoeProblem {
    pub dtype: Dtype,
    pub x: Memory,
    pub expert_ids: Memory,
    pub expert_weights: Memory,
    pub w13: WeightMemory,
    pub w2: WeightMemory,
    pub t: u32,
    pub d: u32,
    pub inter: u32,
    pub topk: u32,
    pub first_expert: u32,
    pub num_experts: u32,
    pub limit: f32,
}

impl ProductsProblem {
    /// Name of the operation.
    pub(super) fn op(&self) -> &'static str {
        match self {
            ProductsProblem::Linear(_) => "linear",
            ProductsProblem::MoeExperts(_) => "moe_experts",
        }
    }

    pub(super) fn run<O: Ops>(&self, ops: &O, fill: Fill) -> Result<Vec<Bytes>, OpsError> {
        match self {
            ProductsProblem::Linear(p) => p.run(ops, fill),
            ProductsProblem::MoeExperts(p) => p.run(ops, fill),
        }
    }

    pub(super) fn expected(&self) -> Vec<ExpectedOutput> {
        match self {
            ProductsProblem::Linear(p) => p.expected(),
            ProductsProblem::MoeExperts(p) => p.expected(),
        }
    }

    /// Puts the tokens in reverse order with `turn` (memory, rows, bytes from row to row); returns how the output is cut
    /// into tokens: count, bytes from one to the next, bytes of one.
    pub(crate) fn reverse(&mut self, turn: impl Fn(&Memory, u64, u64) -> Memory) -> (u32, u64, u64) {
        match self {
            ProductsProblem::Linear(p) => {
                p.x = turn(&p.x, u64::from(p.t), p.dtype.bytes() * p.stride_x);
                let columns = (p.groups * p.n) as usize;
                p.accumulate =
                    p.accumulate.as_ref().map(|rows| rows.chunks(columns).rev().flatten().copied().collect());
                (p.t, p.out_dtype.bytes() * p.stride_out, p.out_dtype.bytes() * columns as u64)
            }
            ProductsProblem::MoeExperts(p) => {
                let (t, picks) = (u64::from(p.t), 4 * u64::from(p.topk));
                p.x = turn(&p.x, t, p.dtype.bytes() * u64::from(p.d));
                p.expert_ids = turn(&p.expert_ids, t, picks);
                p.expert_weights = turn(&p.expert_weights, t, picks);
                (p.t, 4 * u64::from(p.d), 4 * u64::from(p.d))
            }
        }
    }
}

fn floats(cells: plain::Cells, dtype: Dtype, stride: u64, bound: Bound) -> Vec<ExpectedOutput> {
    let float = match dtype {
        Dtype::F32 => Float::F32,
        Dtype::Bf16 => Float::Bf16,
    };
    vec![ExpectedOutput { name: "out", expected: Expected::Floats { cells, float, strides: vec![stride, 1], bound } }]
}

impl LinearProblem {
    /// Contents of `out` before the call: what is to be added to, or NaN, so that adding to it shows.
    fn before(&self) -> Bytes {
        let columns = (self.groups * self.n) as usize;
        let (element, stride) = (self.out_dtype.bytes() as usize, self.stride_out as usize);
        let elements = if self.t == 0 { 0 } else { (self.t as usize - 1) * stride + columns };
        let mut bytes = vec![BEFORE; elements * element];
        for (row, bytes) in bytes.chunks_mut(element * stride).enumerate() {
            let values = &mut bytes[..element * columns];
            match &self.accumulate {
                Some(all) => values.copy_from_slice(&f32_bytes(&all[row * columns..(row + 1) * columns])),
                None => values.fill(0xff),
            }
        }
        bytes
    }

    fn run<O: Ops>(&self, ops: &O, fill: Fill) -> Result<Vec<Bytes>, OpsError> {
        let x = self.x.load(ops, fill)?;
        let weight = self.weight.load(ops, fill)?;
        let before = self.before();
        let mut out = output(ops, "out", before.len() as u64)?;
        ops.upload(&mut out, 0, &before)?;
        ops.linear(self.operands(&x, &weight, &mut out))?;
        Ok(vec![fetch(ops, &out)?])
    }

    fn operands<'a, B>(&self, x: &'a B, weight: &'a Loaded<B>, out: &'a mut B) -> Linear<'a, B> {
        Linear {
            dtype: self.dtype,
            x,
            weight: self.weight.operand(weight),
            out,
            out_dtype: self.out_dtype,
            accumulate: self.accumulate.is_some(),
            t: self.t,
            groups: self.groups,
            n: self.n,
            k: self.k,
            stride_x: self.stride_x,
            stride_out: self.stride_out,
        }
    }

    fn expected(&self) -> Vec<ExpectedOutput> {
        let (x, weight, mut out) = (self.x.image(), self.weight.image(), self.before());
        let cells = plain::products::linear(&self.operands(&x, &weight, &mut out));
        floats(cells, self.out_dtype, self.stride_out, tolerance::products::linear(self.out_dtype))
    }
}

impl MoeProblem {
    fn run<O: Ops>(&self, ops: &O, fill: Fill) -> Result<Vec<Bytes>, OpsError> {
        let (x, ids) = (self.x.load(ops, fill)?, self.expert_ids.load(ops, fill)?);
        let weights = self.expert_weights.load(ops, fill)?;
        let (w13, w2) = (self.w13.load(ops, fill)?, self.w2.load(ops, fill)?);
        let mut out = output(ops, "out", 4 * u64::from(self.t) * u64::from(self.d))?;
        ops.moe_experts(self.operands([&x, &ids, &weights], [&w13, &w2], &mut out))?;
        Ok(vec![fetch(ops, &out)?])
    }

    fn operands<'a, B>(
        &self,
        [x, expert_ids, expert_weights]: [&'a B; 3],
        [w13, w2]: [&'a Loaded<B>; 2],
        out: &'a mut B,
    ) -> MoeExperts<'a, B> {
        MoeExperts {
            dtype: self.dtype,
            x,
            expert_ids,
            expert_weights,
            w13: self.w13.operand(w13),
            w2: self.w2.operand(w2),
            out,
            t: self.t,
            d: self.d,
            inter: self.inter,
            topk: self.topk,
            first_expert: self.first_expert,
            num_experts: self.num_experts,
            limit: self.limit,
        }
    }

    fn expected(&self) -> Vec<ExpectedOutput> {
        let (x, ids, weights) = (self.x.image(), self.expert_ids.image(), self.expert_weights.image());
        let (w13, w2) = (self.w13.image(), self.w2.image());
        let cells = plain::products::moe_experts(&self.operands([&x, &ids, &weights], [&w13, &w2], &mut Vec::new()));
        floats(cells, Dtype::F32, u64::from(self.d), tolerance::products::moe_experts(self.dtype))
    }
}
