//! Problems of the index logits.

use super::{Bytes, Expected, ExpectedOutput, Fill, Memory, fetch, output};
use crate::compare::Float;
use crate::ops::{IndexKFormat, IndexLogitsDecode, IndexLogitsPrefill, Ops, OpsError, Paged, Pages};
use crate::plain;
use crate::tolerance;

/// Operands of `index_logits_decode`; shapes as in [`IndexLogitsDecode`].
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct IndexLogitsProblem {
    pub format: IndexKFormat,
    pub index_q: Memory,
    pub index_weights: Memory,
    pub index_k: Memory,
    pub pages: Pages,
    pub block_table: Memory,
    pub context_lens: Memory,
    pub b: u32,
    pub s_q: u32,
    pub index_heads: u32,
    pub max_pages: u32,
    pub stride_block_table: u64,
    pub stride_logits: u64,
    pub clean_logits: bool,
}

impl IndexLogitsProblem {
    fn rows(&self) -> u64 {
        u64::from(self.b) * u64::from(self.s_q)
    }

    pub(super) fn run<O: Ops>(&self, ops: &O, fill: Fill) -> Result<Vec<Bytes>, OpsError> {
        let index_q = self.index_q.load(ops, fill)?;
        let index_weights = self.index_weights.load(ops, fill)?;
        let index_k = self.index_k.load(ops, fill)?;
        let block_table = self.block_table.load(ops, fill)?;
        let context_lens = self.context_lens.load(ops, fill)?;
        let mut index_logits = output(ops, "index_logits", 4 * self.rows() * self.stride_logits)?;
        let operands = [&index_q, &index_weights, &index_k, &block_table, &context_lens];
        ops.index_logits_decode(self.operands(operands, &mut index_logits))?;
        Ok(vec![fetch(ops, &index_logits)?])
    }

    fn operands<'a, B>(
        &self,
        [index_q, index_weights, index_k, block_table, context_lens]: [&'a B; 5],
        index_logits: &'a mut B,
    ) -> IndexLogitsDecode<'a, B> {
        IndexLogitsDecode {
            format: self.format,
            index_q,
            index_weights,
            index_k: Paged { buffer: index_k, pages: self.pages },
            block_table,
            context_lens,
            index_logits,
            b: self.b,
            s_q: self.s_q,
            index_heads: self.index_heads,
            max_pages: self.max_pages,
            stride_block_table: self.stride_block_table,
            stride_logits: self.stride_logits,
            clean_logits: self.clean_logits,
        }
    }

    pub(super) fn expected(&self) -> Vec<ExpectedOutput> {
        let memories = [&self.index_q, &self.index_weights, &self.index_k, &self.block_table, &self.context_lens];
        let images = memories.map(Memory::image);
        let cells = plain::index_logits(&self.operands(images.each_ref(), &mut Vec::new()));
        vec![ExpectedOutput {
            name: "index_logits",
            expected: Expected::Floats {
                cells,
                float: Float::F32,
                strides: vec![self.stride_logits, 1],
                bound: tolerance::INDEX_LOGITS,
            },
        }]
    }
}

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
