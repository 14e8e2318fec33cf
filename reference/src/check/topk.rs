//! Checks of `topk_select`.

use super::{addressed, buffer, narrow, refuse, size, stride_least, stride_multiple, within};
use crate::layout::{LOGITS_STRIDE_MULTIPLE, MAX_TOPK};
use crate::ops::{OpsError, TopkSelect};

impl<B> TopkSelect<'_, B> {
    /// Refuses operands that do not fit together; `len_bytes` is the size of a buffer.
    pub fn check(&self, len_bytes: impl Fn(&B) -> u64) -> Result<(), OpsError> {
        const OP: &str = "topk_select";
        size(OP, "rows", self.rows, 0)?;
        within(OP, "topk", self.topk, 1, MAX_TOPK)?;
        if self.sequence_of_row.is_some() {
            size(OP, "num_sequences", self.num_sequences, 0)?;
        } else {
            size(OP, "rows_per_sequence", self.rows_per_sequence, 1)?;
            if !self.rows.is_multiple_of(self.rows_per_sequence) {
                let why = format!("a multiple of rows_per_sequence ({})", self.rows_per_sequence);
                return refuse(OP, "rows", why, self.rows);
            }
        }
        narrow(OP, "stride_logits", self.stride_logits)?;
        if self.topk_positions.is_none() && self.topk_slots.is_none() {
            return refuse(OP, "topk_positions, topk_slots", "at least one of them", "none");
        }
        match (&self.topk_slots, self.block_table) {
            (Some(_), None) => return refuse(OP, "block_table", "a table, because topk_slots is asked for", "none"),
            (None, Some(_)) => {
                return refuse(OP, "block_table", "none, because topk_slots is not asked for", "a table");
            }
            (Some(_), Some(_)) => {
                size(OP, "page_size", self.page_size, 1)?;
                size(OP, "max_pages", self.max_pages, 0)?;
            }
            (None, None) if self.sequence_of_row.is_some() => {
                return refuse(OP, "sequence_of_row", "none, because there is no block table", "a list");
            }
            (None, None) => {}
        }

        stride_multiple(OP, "stride_logits", self.stride_logits, LOGITS_STRIDE_MULTIPLE)?;
        if self.block_table.is_some() {
            stride_least(OP, "stride_block_table", self.stride_block_table, u64::from(self.max_pages))?;
        }

        let rows = u64::from(self.rows);
        let logits = addressed(&[(rows, self.stride_logits)], self.stride_logits);
        buffer(OP, "index_logits", logits, 4, len_bytes(self.index_logits))?;
        buffer(OP, "context_lens", u128::from(rows), 4, len_bytes(self.context_lens))?;
        if let Some(block_table) = self.block_table {
            let sequences = match self.sequence_of_row {
                Some(_) => u64::from(self.num_sequences),
                None => rows / u64::from(self.rows_per_sequence),
            };
            let table = addressed(&[(sequences, self.stride_block_table)], u64::from(self.max_pages));
            buffer(OP, "block_table", table, 4, len_bytes(block_table))?;
        }
        if let Some(lines) = self.sequence_of_row {
            buffer(OP, "sequence_of_row", u128::from(rows), 4, len_bytes(lines))?;
        }
        let chosen = u128::from(rows) * u128::from(self.topk);
        if let Some(positions) = &self.topk_positions {
            buffer(OP, "topk_positions", chosen, 4, len_bytes(positions))?;
        }
        if let Some(slots) = &self.topk_slots {
            buffer(OP, "topk_slots", chosen, 4, len_bytes(slots))?;
        }
        if let Some(lens) = &self.topk_lens {
            buffer(OP, "topk_lens", u128::from(rows), 4, len_bytes(lens))?;
        }
        Ok(())
    }
}
