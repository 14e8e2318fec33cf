//! Problems of `topk_select`.

use super::{Bytes, Expected, ExpectedOutput, Fill, Memory, fetch, output};
use crate::ops::{Ops, OpsError, TopkSelect};
use crate::plain;

/// Operands of `topk_select`; shapes as in [`TopkSelect`].
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct TopkProblem {
    pub index_logits: Memory,
    pub context_lens: Memory,
    /// With it, slots are asked for.
    pub block_table: Option<Memory>,
    pub sequence_of_row: Option<Memory>,
    pub want_positions: bool,
    pub want_lens: bool,
    pub rows: u32,
    pub rows_per_sequence: u32,
    pub num_sequences: u32,
    pub topk: u32,
    pub page_size: u32,
    pub max_pages: u32,
    pub stride_logits: u64,
    pub stride_block_table: u64,
}

impl TopkProblem {
    pub(super) fn run<O: Ops>(&self, ops: &O, fill: Fill) -> Result<Vec<Bytes>, OpsError> {
        let index_logits = self.index_logits.load(ops, fill)?;
        let context_lens = self.context_lens.load(ops, fill)?;
        let block_table = self.block_table.as_ref().map(|t| t.load(ops, fill)).transpose()?;
        let sequence_of_row = self.sequence_of_row.as_ref().map(|s| s.load(ops, fill)).transpose()?;
        let chosen = 4 * u64::from(self.rows) * u64::from(self.topk);
        let wanted = |name, len, want: bool| want.then(|| output(ops, name, len)).transpose();
        let mut positions = wanted("topk_positions", chosen, self.want_positions)?;
        let mut slots = wanted("topk_slots", chosen, self.block_table.is_some())?;
        let mut lens = wanted("topk_lens", 4 * u64::from(self.rows), self.want_lens)?;
        let tables = [block_table.as_ref(), sequence_of_row.as_ref()];
        let outputs = [positions.as_mut(), slots.as_mut(), lens.as_mut()];
        ops.topk_select(self.operands(&index_logits, &context_lens, tables, outputs))?;
        [positions, slots, lens].iter().flatten().map(|buffer| fetch(ops, buffer)).collect()
    }

    fn operands<'a, B>(
        &self,
        index_logits: &'a B,
        context_lens: &'a B,
        [block_table, sequence_of_row]: [Option<&'a B>; 2],
        [topk_positions, topk_slots, topk_lens]: [Option<&'a mut B>; 3],
    ) -> TopkSelect<'a, B> {
        TopkSelect {
            index_logits,
            context_lens,
            block_table,
            sequence_of_row,
            topk_positions,
            topk_slots,
            topk_lens,
            rows: self.rows,
            rows_per_sequence: self.rows_per_sequence,
            num_sequences: self.num_sequences,
            topk: self.topk,
            page_size: self.page_size,
            max_pages: self.max_pages,
            stride_logits: self.stride_logits,
            stride_block_table: self.stride_block_table,
        }
    }

    pub(super) fn expected(&self) -> Vec<ExpectedOutput> {
        let (index_logits, context_lens) = (self.index_logits.image(), self.context_lens.image());
        let tables = [&self.block_table, &self.sequence_of_row].map(|t| t.as_ref().map(Memory::image));
        let tables = tables.each_ref().map(Option::as_ref);
        let chosen = plain::topk_select(&self.operands(&index_logits, &context_lens, tables, [None, None, None]));
        let integers = |name, columns, values: &[i32]| ExpectedOutput {
            name,
            expected: Expected::Integers { columns, values: values.to_vec() },
        };
        let mut outputs = Vec::new();
        if self.want_positions {
            outputs.push(integers("topk_positions", self.topk as usize, &chosen.positions));
        }
        if self.block_table.is_some() {
            outputs.push(integers("topk_slots", self.topk as usize, &chosen.slots));
        }
        if self.want_lens {
            outputs.push(integers("topk_lens", 1, &chosen.lens));
        }
        outputs
    }
}
