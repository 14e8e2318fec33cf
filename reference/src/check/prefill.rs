//! Checks of the prefill operations.

use super::{INDEX_K, addressed, buffer, channels, index_rule, narrow, size, stride_least, stride_multiple, within};
use crate::layout::{LOGITS_STRIDE_MULTIPLE, MAX_INDEX_HEADS};
use crate::ops::{IndexLogitsPrefill, OpsError, SparseMlaPrefill};

impl<B> IndexLogitsPrefill<'_, B> {
    /// Refuses operands that do not fit together; `len_bytes` is the size of a buffer.
    pub fn check(&self, len_bytes: impl Fn(&B) -> u64) -> Result<(), OpsError> {
        const OP: &str = "index_logits_prefill";
        size(OP, "t", self.t, 0)?;
        size(OP, "b", self.b, 0)?;
        narrow(OP, "t + b", u64::from(self.t) + u64::from(self.b))?;
        within(OP, "index_heads", self.index_heads, 1, MAX_INDEX_HEADS)?;
        channels(OP, self.format.d())?;
        size(OP, "max_pages", self.max_pages, 0)?;
        let rule = index_rule(OP, self.format, INDEX_K);
        rule.sizes(&self.index_k.pages)?;
        let columns = u64::from(self.max_pages) * u64::from(self.index_k.pages.page_size);
        narrow(OP, "max_pages * page_size", columns)?;

        rule.strides(&self.index_k.pages)?;
        stride_least(OP, "stride_block_table", self.stride_block_table, u64::from(self.max_pages))?;
        stride_multiple(OP, "stride_logits", self.stride_logits, LOGITS_STRIDE_MULTIPLE)?;
        stride_least(OP, "stride_logits", self.stride_logits, columns)?;

        let (t, b, heads) = (u64::from(self.t), u64::from(self.b), u64::from(self.index_heads));
        let query = heads * self.format.query_head_bytes();
        buffer(OP, "index_q", addressed(&[(t, query)], query), 1, len_bytes(self.index_q))?;
        buffer(OP, "index_weights", addressed(&[(t, heads)], heads), 4, len_bytes(self.index_weights))?;
        rule.length(&self.index_k.pages, len_bytes(self.index_k.buffer))?;
        let table = addressed(&[(b, self.stride_block_table)], u64::from(self.max_pages));
        buffer(OP, "block_table", table, 4, len_bytes(self.block_table))?;
        buffer(OP, "cu_seqlens_q", u128::from(b + 1), 4, len_bytes(self.cu_seqlens_q))?;
        if let Some(starts) = self.starts {
            buffer(OP, "starts", u128::from(t), 4, len_bytes(starts))?;
        }
        buffer(OP, "ends", u128::from(t), 4, len_bytes(self.ends))?;
        let logits = addressed(&[(t, self.stride_logits)], self.stride_logits);
        buffer(OP, "index_logits", logits, 4, len_bytes(self.index_logits))
    }
}

impl<B> SparseMlaPrefill<'_, B> {
    /// Refuses operands that do not fit together; `len_bytes` is the size of a buffer.
    pub fn check(&self, len_bytes: impl Fn(&B) -> u64) -> Result<(), OpsError> {
        const OP: &str = "sparse_mla_prefill";
        self.attention.check_as(OP, &len_bytes)?;
        if let Some(max_logits) = &self.max_logits {
            let rows = u128::from(self.attention.t) * u128::from(self.attention.h);
            buffer(OP, "max_logits", rows, 4, len_bytes(max_logits))?;
        }
        Ok(())
    }
}
