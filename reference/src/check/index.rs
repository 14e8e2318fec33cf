//! Checks of the index logits.

use super::pages::{INDEX_K, index_rule};
use super::{addressed, buffer, channels, narrow, product, size, stride_least, stride_multiple, within};
use crate::layout::{LOGITS_STRIDE_MULTIPLE, MAX_INDEX_HEADS};
use crate::ops::{IndexKFormat, IndexLogitsDecode, IndexLogitsPrefill, OpsError, Pages};

/// What decode and prefill have in common.
struct Scored {
    op: &'static str,
    format: IndexKFormat,
    index_heads: u32,
    pages: Pages,
    max_pages: u32,
    stride_block_table: u64,
    stride_logits: u64,
}

impl Scored {
    fn sizes_and_strides(&self) -> Result<(), OpsError> {
        let op = self.op;
        within(op, "index_heads", self.index_heads, 1, MAX_INDEX_HEADS)?;
        channels(op, self.format.d())?;
        size(op, "max_pages", self.max_pages, 0)?;
        let rule = index_rule(op, self.format, INDEX_K);
        rule.sizes(&self.pages)?;
        let columns = u64::from(self.max_pages) * u64::from(self.pages.page_size);
        narrow(op, "max_pages * page_size", columns)?;

        rule.strides(&self.pages)?;
        stride_least(op, "stride_block_table", self.stride_block_table, u64::from(self.max_pages))?;
        stride_multiple(op, "stride_logits", self.stride_logits, LOGITS_STRIDE_MULTIPLE)?;
        stride_least(op, "stride_logits", self.stride_logits, columns)
    }

    /// `rows` queries over `lines` of the block table, with the sizes of `index_q`, `index_weights`, `index_k` and
    /// `block_table`.
    fn lengths(&self, rows: u64, lines: u64, [index_q, weights, keys, table]: [u64; 4]) -> Result<(), OpsError> {
        let (op, heads) = (self.op, u64::from(self.index_heads));
        let query = heads * self.format.query_head_bytes();
        buffer(op, "index_q", addressed(&[(rows, query)], query), 1, index_q)?;
        buffer(op, "index_weights", addressed(&[(rows, heads)], heads), 4, weights)?;
        index_rule(op, self.format, INDEX_K).length(&self.pages, keys)?;
        let entries = addressed(&[(lines, self.stride_block_table)], u64::from(self.max_pages));
        buffer(op, "block_table", entries, 4, table)
    }

    fn logits(&self, rows: u64, len_bytes: u64) -> Result<(), OpsError> {
        let logits = addressed(&[(rows, self.stride_logits)], self.stride_logits);
        buffer(self.op, "index_logits", logits, 4, len_bytes)
    }
}

impl<B> IndexLogitsDecode<'_, B> {
    /// Refuses operands that do not fit together; `len_bytes` is the size of a buffer.
    pub fn check(&self, len_bytes: impl Fn(&B) -> u64) -> Result<(), OpsError> {
        const OP: &str = "index_logits_decode";
        size(OP, "b", self.b, 0)?;
        within(OP, "s_q", self.s_q, 1, 4)?;
        product(OP, "b * s_q", &[self.b, self.s_q])?;
        let scored = Scored {
            op: OP,
            format: self.format,
            index_heads: self.index_heads,
            pages: self.index_k.pages,
            max_pages: self.max_pages,
            stride_block_table: self.stride_block_table,
            stride_logits: self.stride_logits,
        };
        scored.sizes_and_strides()?;

        let (b, rows) = (u64::from(self.b), u64::from(self.b) * u64::from(self.s_q));
        let inputs = [self.index_q, self.index_weights, self.index_k.buffer, self.block_table];
        scored.lengths(rows, b, inputs.map(&len_bytes))?;
        buffer(OP, "context_lens", u128::from(rows), 4, len_bytes(self.context_lens))?;
        scored.logits(rows, len_bytes(self.index_logits))
    }
}

impl<B> IndexLogitsPrefill<'_, B> {
    /// Refuses operands that do not fit together; `len_bytes` is the size of a buffer.
    pub fn check(&self, len_bytes: impl Fn(&B) -> u64) -> Result<(), OpsError> {
        const OP: &str = "index_logits_prefill";
        size(OP, "t", self.t, 0)?;
        size(OP, "b", self.b, 0)?;
        narrow(OP, "t + b", u64::from(self.t) + u64::from(self.b))?;
        let scored = Scored {
            op: OP,
            format: self.format,
            index_heads: self.index_heads,
            pages: self.index_k.pages,
            max_pages: self.max_pages,
            stride_block_table: self.stride_block_table,
            stride_logits: self.stride_logits,
        };
        scored.sizes_and_strides()?;

        let (t, b) = (u64::from(self.t), u64::from(self.b));
        let inputs = [self.index_q, self.index_weights, self.index_k.buffer, self.block_table];
        scored.lengths(t, b, inputs.map(&len_bytes))?;
        buffer(OP, "cu_seqlens_q", u128::from(b + 1), 4, len_bytes(self.cu_seqlens_q))?;
        if let Some(starts) = self.starts {
            buffer(OP, "starts", u128::from(t), 4, len_bytes(starts))?;
        }
        buffer(OP, "ends", u128::from(t), 4, len_bytes(self.ends))?;
        scored.logits(t, len_bytes(self.index_logits))
    }
}
