//! The problems of prefill: many queries of ragged sequences.

use super::{Expected, ExpectedOutput, Fill, Memory, SparseMlaProblem, fetch, output};
use crate::compare::Float;
use crate::ops::{IndexKFormat, IndexLogitsPrefill, Ops, OpsError, Paged, Pages, SparseMlaPrefill};
use crate::plain::{self, Bytes};
use crate::tolerance;

/// Operands of `index_logits_prefill`; shapes as in [`IndexLogitsPrefill`].
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct IndexLogitsPrefillProblem {
    pub format: IndexKFormat,
    pub index_q: Memory,
    pub index_weights: Memory,
    pub index_k: Memory,
    pub pages: Pages,
    pub block_table: Memory,
    pub cu_seqlens_q: Memory,
    pub starts: Option<Memory>,
    pub ends: Memory,
    pub t: u32,
    pub b: u32,
    pub index_heads: u32,
    pub max_pages: u32,
    pub stride_block_table: u64,
    pub stride_logits: u64,
    pub clean_logits: bool,
}

/// Operands of `sparse_mla_prefill`; shapes as in [`SparseMlaPrefill`].
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct SparseMlaPrefillProblem {
    pub attention: SparseMlaProblem,
    /// Whether the largest logits are asked for.
    pub max_logits: bool,
}

impl IndexLogitsPrefillProblem {
    pub(super) fn run<O: Ops>(&self, ops: &O, fill: Fill) -> Result<Vec<Bytes>, OpsError> {
        let index_q = self.index_q.load(ops, fill)?;
        let index_weights = self.index_weights.load(ops, fill)?;
        let index_k = self.index_k.load(ops, fill)?;
        let block_table = self.block_table.load(ops, fill)?;
        let cu_seqlens_q = self.cu_seqlens_q.load(ops, fill)?;
        let starts = self.starts.as_ref().map(|s| s.load(ops, fill)).transpose()?;
        let ends = self.ends.load(ops, fill)?;
        let mut index_logits = output(ops, "index_logits", 4 * u64::from(self.t) * self.stride_logits)?;
        let operands = [&index_q, &index_weights, &index_k, &block_table, &cu_seqlens_q, &ends];
        ops.index_logits_prefill(self.operands(operands, starts.as_ref(), &mut index_logits))?;
        Ok(vec![fetch(ops, &index_logits)?])
    }

    fn operands<'a, B>(
        &self,
        [index_q, index_weights, index_k, block_table, cu_seqlens_q, ends]: [&'a B; 6],
        starts: Option<&'a B>,
        index_logits: &'a mut B,
    ) -> IndexLogitsPrefill<'a, B> {
        IndexLogitsPrefill {
            format: self.format,
            index_q,
            index_weights,
            index_k: Paged { buffer: index_k, pages: self.pages },
            block_table,
            cu_seqlens_q,
            starts,
            ends,
            index_logits,
            t: self.t,
            b: self.b,
            index_heads: self.index_heads,
            max_pages: self.max_pages,
            stride_block_table: self.stride_block_table,
            stride_logits: self.stride_logits,
            clean_logits: self.clean_logits,
        }
    }

    pub(super) fn expected(&self) -> Vec<ExpectedOutput> {
        let operands =
            [&self.index_q, &self.index_weights, &self.index_k, &self.block_table, &self.cu_seqlens_q, &self.ends];
        let images = operands.map(Memory::image);
        let starts = self.starts.as_ref().map(Memory::image);
        let mut no_logits = Vec::new();
        let operands = self.operands(images.each_ref(), starts.as_ref(), &mut no_logits);
        let expected = Expected::Floats {
            cells: plain::index_logits_prefill(&operands),
            float: Float::F32,
            strides: vec![self.stride_logits, 1],
            bound: tolerance::INDEX_LOGITS,
        };
        vec![ExpectedOutput { name: "index_logits", expected }]
    }
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
