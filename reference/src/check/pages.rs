//! Geometry of paged caches.

use super::{addressed, buffer, narrow, narrow_stride, refuse, size};
use crate::ops::{IndexKFormat, KvFormat, OpsError, Pages};

/// Page geometry of one operand: what it is called, and what its row format asks for.
pub(super) struct PageRule {
    pub(super) op: &'static str,
    num_pages: &'static str,
    page_size: &'static str,
    stride: &'static str,
    slots: &'static str,
    cache: &'static str,
    format: &'static str,
    row_bytes: u64,
    align: u64,
}

impl PageRule {
    fn new(op: &'static str, names: [&'static str; 5], format: &'static str, row_bytes: u64, align: u64) -> PageRule {
        let [cache, num_pages, page_size, stride, slots] = names;
        PageRule { op, num_pages, page_size, stride, slots, cache, format, row_bytes, align }
    }

    pub(super) fn sizes(&self, pages: &Pages) -> Result<(), OpsError> {
        size(self.op, self.num_pages, pages.num_pages, 0)?;
        size(self.op, self.page_size, pages.page_size, 1)?;
        narrow(self.op, self.slots, pages.num_slots()).map(|_| ())
    }

    pub(super) fn strides(&self, pages: &Pages) -> Result<(), OpsError> {
        narrow_stride(self.op, self.stride, pages.page_stride_bytes)?;
        let page = self.row_bytes * u64::from(pages.page_size);
        if pages.page_stride_bytes < page {
            let why = format!("at least {page} bytes ({} {} rows)", pages.page_size, self.format);
            return refuse(self.op, self.stride, why, pages.page_stride_bytes);
        }
        if !pages.page_stride_bytes.is_multiple_of(self.align) {
            let why = format!("a multiple of {} bytes ({} pages)", self.align, self.format);
            return refuse(self.op, self.stride, why, pages.page_stride_bytes);
        }
        Ok(())
    }

    /// The last page need not be padded.
    pub(super) fn length(&self, pages: &Pages, len_bytes: u64) -> Result<(), OpsError> {
        let page = self.row_bytes * u64::from(pages.page_size);
        let bytes = addressed(&[(u64::from(pages.num_pages), pages.page_stride_bytes)], page);
        buffer(self.op, self.cache, bytes, 1, len_bytes)
    }
}

pub(super) fn kv_rule(op: &'static str, format: KvFormat, names: [&'static str; 5]) -> PageRule {
    PageRule::new(op, names, format.name(), format.row_bytes(), format.page_align())
}

pub(super) fn index_rule(op: &'static str, format: IndexKFormat, names: [&'static str; 5]) -> PageRule {
    PageRule::new(op, names, format.name(), format.row_bytes(), format.page_align())
}

pub(super) const WINDOW: [&str; 5] = [
    "window_kv",
    "window_kv.num_pages",
    "window_kv.page_size",
    "window_kv.page_stride_bytes",
    "window_kv.num_pages * page_size",
];
pub(super) const COMPRESSED: [&str; 5] = [
    "compressed_kv",
    "compressed_kv.num_pages",
    "compressed_kv.page_size",
    "compressed_kv.page_stride_bytes",
    "compressed_kv.num_pages * page_size",
];
pub(super) const INDEX_K: [&str; 5] =
    ["index_k", "index_k.num_pages", "index_k.page_size", "index_k.page_stride_bytes", "index_k.num_pages * page_size"];
pub(super) const CACHE: [&str; 5] =
    ["cache", "cache.num_pages", "cache.page_size", "cache.page_stride_bytes", "cache.num_pages * page_size"];
