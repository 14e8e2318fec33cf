//! Problems of sparse attention and of the merge of its splits.

use super::{Bytes, Expected, ExpectedOutput, Fill, Memory, fetch, output};
use crate::compare::{Bound, Float};
use crate::layout::D_KV;
use crate::ops::{
    Dtype, KvFormat, Ops, OpsError, Paged, Pages, SlotList, SparseMlaDecode, SparseMlaPrefill, SplitCombine,
};
use crate::plain::{self, Cells};
use crate::tolerance;

/// A slot list and its cache; shapes as in [`SlotList`].
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct ListProblem {
    pub cache: Memory,
    pub pages: Pages,
    pub slots: Memory,
    pub lens: Option<Memory>,
    pub width: u32,
    pub stride_slots: u64,
}

/// Operands of `sparse_mla_decode`; shapes as in [`SparseMlaDecode`].
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct SparseMlaProblem {
    pub dtype: Dtype,
    pub format: KvFormat,
    pub q: Memory,
    pub window: ListProblem,
    pub compressed: Option<ListProblem>,
    pub attn_sink: Option<Memory>,
    pub t: u32,
    pub h: u32,
    pub stride_q: [u64; 2],
    pub stride_out: [u64; 2],
    pub sm_scale: f32,
    pub num_splits: Option<u32>,
}

/// Operands of `sparse_mla_prefill`; shapes as in [`SparseMlaPrefill`].
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct SparseMlaPrefillProblem {
    pub attention: SparseMlaProblem,
    /// Whether the largest logits are asked for.
    pub max_logits: bool,
}

/// Operands of `split_combine`; shapes as in [`SplitCombine`].
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct CombineProblem {
    pub o_partial: Memory,
    pub lse2_partial: Memory,
    pub attn_sink: Option<Memory>,
    pub t: u32,
    pub h: u32,
    pub num_splits: u32,
    pub stride_out: [u64; 2],
}

/// Bytes of a `[t, h, d]` output with strides along t and h, up to its last element.
fn out_bytes(dtype: Dtype, t: u32, h: u32, d: u32, strides: [u64; 2]) -> u64 {
    if t == 0 {
        return 0;
    }
    dtype.bytes() * (u64::from(t - 1) * strides[0] + u64::from(h - 1) * strides[1] + u64::from(d))
}

/// A list with its memory in place.
struct LoadedList<B> {
    cache: B,
    slots: B,
    lens: Option<B>,
}

impl ListProblem {
    fn load<O: Ops>(&self, ops: &O, fill: Fill) -> Result<LoadedList<O::Buffer>, OpsError> {
        Ok(LoadedList {
            cache: self.cache.load(ops, fill)?,
            slots: self.slots.load(ops, fill)?,
            lens: self.lens.as_ref().map(|l| l.load(ops, fill)).transpose()?,
        })
    }

    fn images(&self) -> LoadedList<Bytes> {
        LoadedList { cache: self.cache.image(), slots: self.slots.image(), lens: self.lens.as_ref().map(Memory::image) }
    }

    fn operand<'a, B>(&self, loaded: &'a LoadedList<B>) -> SlotList<'a, B> {
        SlotList {
            cache: Paged { buffer: &loaded.cache, pages: self.pages },
            slots: &loaded.slots,
            lens: loaded.lens.as_ref(),
            width: self.width,
            stride_slots: self.stride_slots,
        }
    }
}

impl SparseMlaProblem {
    pub(super) fn run<O: Ops>(&self, ops: &O, fill: Fill) -> Result<Vec<Bytes>, OpsError> {
        self.run_with(ops, fill, |attention| ops.sparse_mla_decode(attention))
    }

    /// Uploads the operands, runs `call` on them, and downloads `out` and `lse`.
    fn run_with<O: Ops>(
        &self,
        ops: &O,
        fill: Fill,
        call: impl FnOnce(SparseMlaDecode<'_, O::Buffer>) -> Result<(), OpsError>,
    ) -> Result<Vec<Bytes>, OpsError> {
        let q = self.q.load(ops, fill)?;
        let window = self.window.load(ops, fill)?;
        let compressed = self.compressed.as_ref().map(|c| c.load(ops, fill)).transpose()?;
        let sink = self.attn_sink.as_ref().map(|s| s.load(ops, fill)).transpose()?;
        let bytes = out_bytes(self.dtype, self.t, self.h, self.format.d(), self.stride_out);
        let mut out = output(ops, "out", bytes)?;
        let mut lse = output(ops, "lse", 4 * u64::from(self.t) * u64::from(self.h))?;
        call(self.operands(&q, &window, compressed.as_ref(), sink.as_ref(), &mut out, &mut lse))?;
        Ok(vec![fetch(ops, &out)?, fetch(ops, &lse)?])
    }

    fn operands<'a, B>(
        &self,
        q: &'a B,
        window: &'a LoadedList<B>,
        compressed: Option<&'a LoadedList<B>>,
        attn_sink: Option<&'a B>,
        out: &'a mut B,
        lse: &'a mut B,
    ) -> SparseMlaDecode<'a, B> {
        SparseMlaDecode {
            dtype: self.dtype,
            format: self.format,
            q,
            window: self.window.operand(window),
            compressed: self.compressed.as_ref().zip(compressed).map(|(list, loaded)| list.operand(loaded)),
            attn_sink,
            out,
            lse,
            t: self.t,
            h: self.h,
            stride_q: self.stride_q,
            stride_out: self.stride_out,
            sm_scale: self.sm_scale,
            num_splits: self.num_splits,
        }
    }

    /// What a plain operation makes of the operands.
    fn on_images<T>(&self, operation: impl FnOnce(&SparseMlaDecode<'_, Bytes>) -> T) -> T {
        let (q, window) = (self.q.image(), self.window.images());
        let compressed = self.compressed.as_ref().map(ListProblem::images);
        let sink = self.attn_sink.as_ref().map(Memory::image);
        let (mut no_out, mut no_lse) = (Vec::new(), Vec::new());
        operation(&self.operands(&q, &window, compressed.as_ref(), sink.as_ref(), &mut no_out, &mut no_lse))
    }

    pub(super) fn expected(&self) -> Vec<ExpectedOutput> {
        let (mut out, lse) = self.on_images(plain::sparse_mla);
        let out_bound = match self.dtype {
            Dtype::Bf16 => tolerance::ATTENTION_OUT,
            Dtype::F32 => {
                tolerance::scale_by_scores(&mut out, &lse);
                tolerance::ATTENTION_OUT_F32
            }
        };
        attention_outputs((out, lse), self.dtype, self.stride_out, self.h, [out_bound, tolerance::ATTENTION_LSE])
    }
}

fn attention_outputs(
    (out, lse): (Cells, Cells),
    dtype: Dtype,
    stride_out: [u64; 2],
    h: u32,
    bounds: [Bound; 2],
) -> Vec<ExpectedOutput> {
    let out = Expected::Floats {
        cells: out,
        float: dtype.into(),
        strides: vec![stride_out[0], stride_out[1], 1],
        bound: bounds[0],
    };
    let lse = Expected::Floats { cells: lse, float: Float::F32, strides: vec![u64::from(h), 1], bound: bounds[1] };
    vec![ExpectedOutput { name: "out", expected: out }, ExpectedOutput { name: "lse", expected: lse }]
}

impl SparseMlaPrefillProblem {
    pub(super) fn run<O: Ops>(&self, ops: &O, fill: Fill) -> Result<Vec<Bytes>, OpsError> {
        let rows = u64::from(self.attention.t) * u64::from(self.attention.h);
        let mut max_logits = self.max_logits.then(|| output(ops, "max_logits", 4 * rows)).transpose()?;
        let mut outputs = self.attention.run_with(ops, fill, |attention| {
            ops.sparse_mla_prefill(SparseMlaPrefill { attention, max_logits: max_logits.as_mut() })
        })?;
        outputs.extend(max_logits.map(|buffer| fetch(ops, &buffer)).transpose()?);
        Ok(outputs)
    }

    pub(super) fn expected(&self) -> Vec<ExpectedOutput> {
        let mut outputs = self.attention.expected();
        if self.max_logits {
            let cells = self.attention.on_images(plain::max_logits);
            let strides = vec![u64::from(self.attention.h), 1];
            let expected = Expected::Floats { cells, float: Float::F32, strides, bound: tolerance::ATTENTION_LSE };
            outputs.push(ExpectedOutput { name: "max_logits", expected });
        }
        outputs
    }
}

impl CombineProblem {
    pub(super) fn run<O: Ops>(&self, ops: &O, fill: Fill) -> Result<Vec<Bytes>, OpsError> {
        let o_partial = self.o_partial.load(ops, fill)?;
        let lse2_partial = self.lse2_partial.load(ops, fill)?;
        let sink = self.attn_sink.as_ref().map(|s| s.load(ops, fill)).transpose()?;
        let mut out = output(ops, "out", out_bytes(Dtype::Bf16, self.t, self.h, D_KV as u32, self.stride_out))?;
        let mut lse = output(ops, "lse", 4 * u64::from(self.t) * u64::from(self.h))?;
        ops.split_combine(self.operands(&o_partial, &lse2_partial, sink.as_ref(), &mut out, &mut lse))?;
        Ok(vec![fetch(ops, &out)?, fetch(ops, &lse)?])
    }

    fn operands<'a, B>(
        &self,
        o_partial: &'a B,
        lse2_partial: &'a B,
        attn_sink: Option<&'a B>,
        out: &'a mut B,
        lse: &'a mut B,
    ) -> SplitCombine<'a, B> {
        SplitCombine {
            o_partial,
            lse2_partial,
            attn_sink,
            out,
            lse,
            t: self.t,
            h: self.h,
            num_splits: self.num_splits,
            stride_out: self.stride_out,
        }
    }

    pub(super) fn expected(&self) -> Vec<ExpectedOutput> {
        let (o_partial, lse2_partial) = (self.o_partial.image(), self.lse2_partial.image());
        let sink = self.attn_sink.as_ref().map(Memory::image);
        let (mut no_out, mut no_lse) = (Vec::new(), Vec::new());
        let cells =
            plain::split_combine(&self.operands(&o_partial, &lse2_partial, sink.as_ref(), &mut no_out, &mut no_lse));
        attention_outputs(cells, Dtype::Bf16, self.stride_out, self.h, [tolerance::COMBINE_OUT, tolerance::COMBINE_LSE])
    }
}
