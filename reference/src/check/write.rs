//! Checks of the writers of cache rows.

use super::pages::{CACHE, PageRule, index_rule, kv_rule};
use super::{addressed, buffer, channels, size, stride_least, stride_vector};
use crate::ops::{Dtype, IndexKWrite, KvWrite, OpsError, Pages};

/// Rows that a writer reads; the two writers differ in format and row width only.
struct Written<'a> {
    rule: PageRule,
    pages: &'a Pages,
    dtype: Dtype,
    t: u32,
    d: u32,
    stride_rows: u64,
}

impl Written<'_> {
    /// With the sizes of `rows`, `slot_mapping` and `cache`.
    fn check(&self, [rows, mapping, cache]: [u64; 3]) -> Result<(), OpsError> {
        let (op, d) = (self.rule.op, u64::from(self.d));
        size(op, "t", self.t, 0)?;
        channels(op, self.d)?;
        self.rule.sizes(self.pages)?;
        self.rule.strides(self.pages)?;
        stride_least(op, "stride_rows", self.stride_rows, d)?;
        stride_vector(op, "stride_rows", self.stride_rows, self.dtype)?;
        let elements = addressed(&[(u64::from(self.t), self.stride_rows)], d);
        buffer(op, "rows", elements, self.dtype.bytes(), rows)?;
        buffer(op, "slot_mapping", u128::from(self.t), 4, mapping)?;
        self.rule.length(self.pages, cache)
    }
}

impl<B> KvWrite<'_, B> {
    /// Refuses operands that do not fit together; `len_bytes` is the size of a buffer.
    pub fn check(&self, len_bytes: impl Fn(&B) -> u64) -> Result<(), OpsError> {
        Written {
            rule: kv_rule("kv_write", self.format, CACHE),
            pages: &self.pages,
            dtype: self.dtype,
            t: self.t,
            d: self.format.d(),
            stride_rows: self.stride_rows,
        }
        .check([len_bytes(self.rows), len_bytes(self.slot_mapping), len_bytes(self.cache)])
    }
}

impl<B> IndexKWrite<'_, B> {
    /// Refuses operands that do not fit together; `len_bytes` is the size of a buffer.
    pub fn check(&self, len_bytes: impl Fn(&B) -> u64) -> Result<(), OpsError> {
        Written {
            rule: index_rule("index_k_write", self.format, CACHE),
            pages: &self.pages,
            dtype: self.dtype,
            t: self.t,
            d: self.format.d(),
            stride_rows: self.stride_rows,
        }
        .check([len_bytes(self.rows), len_bytes(self.slot_mapping), len_bytes(self.cache)])
    }
}
