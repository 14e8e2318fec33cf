//! Problems of the writers of cache rows.

use std::ops::Range;

use super::{Bytes, Expected, ExpectedOutput, Fill, Memory, RowFormat};
use crate::ops::{Dtype, IndexKWrite, KvWrite, Ops, OpsError, Pages, ScaleRule};
use crate::plain;

/// Operands of the two writers; shapes as in [`KvWrite`] and [`IndexKWrite`].
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct WriteProblem {
    /// Type of `rows`.
    pub dtype: Dtype,
    pub format: RowFormat,
    /// Of fp8 index rows.
    pub scale_rule: ScaleRule,
    pub rows: Memory,
    pub slot_mapping: Memory,
    /// Contents before the call: defined wherever it is watched, so that a byte too many is seen.
    pub cache: Memory,
    /// What is downloaded and compared, as offsets in the pool: all of it, but for virtual pools.
    pub watched: Vec<Range<u64>>,
    pub pages: Pages,
    pub t: u32,
    pub stride_rows: u64,
}

impl WriteProblem {
    pub(super) fn run<O: Ops>(&self, ops: &O, fill: Fill) -> Result<Vec<Bytes>, OpsError> {
        let rows = self.rows.load(ops, fill)?;
        let slot_mapping = self.slot_mapping.load(ops, fill)?;
        let mut cache = self.cache.load(ops, fill)?;
        match self.format {
            RowFormat::Kv(_) => ops.kv_write(self.kv(&rows, &slot_mapping, &mut cache))?,
            RowFormat::IndexK(_) => ops.index_k_write(self.index_k(&rows, &slot_mapping, &mut cache))?,
        }
        let mut bytes = Vec::new();
        for region in &self.watched {
            let mut part = vec![0; (region.end - region.start) as usize];
            ops.download(&cache, region.start, &mut part)?;
            bytes.extend(part);
        }
        Ok(vec![bytes])
    }

    fn kv<'a, B>(&self, rows: &'a B, slot_mapping: &'a B, cache: &'a mut B) -> KvWrite<'a, B> {
        let RowFormat::Kv(format) = self.format else { unreachable!("called for KV rows") };
        KvWrite {
            dtype: self.dtype,
            format,
            rows,
            slot_mapping,
            cache,
            pages: self.pages,
            t: self.t,
            stride_rows: self.stride_rows,
        }
    }

    fn index_k<'a, B>(&self, rows: &'a B, slot_mapping: &'a B, cache: &'a mut B) -> IndexKWrite<'a, B> {
        let RowFormat::IndexK(format) = self.format else { unreachable!("called for index-K rows") };
        IndexKWrite {
            dtype: self.dtype,
            format,
            scale_rule: self.scale_rule,
            rows,
            slot_mapping,
            cache,
            pages: self.pages,
            t: self.t,
            stride_rows: self.stride_rows,
        }
    }

    pub(super) fn expected(&self) -> Vec<ExpectedOutput> {
        let (rows, slot_mapping, mut cache) = (self.rows.image(), self.slot_mapping.image(), self.cache.image());
        match self.format {
            RowFormat::Kv(_) => plain::kv_write(&mut self.kv(&rows, &slot_mapping, &mut cache)),
            RowFormat::IndexK(_) => plain::index_k_write(&mut self.index_k(&rows, &slot_mapping, &mut cache)),
        }
        let watched = self.watched.iter().flat_map(|r| &cache[r.start as usize..r.end as usize]);
        let bytes = watched.copied().collect();
        let regions = self.watched.clone();
        vec![ExpectedOutput {
            name: "cache",
            expected: Expected::Pages { bytes, regions, pages: self.pages, format: self.format },
        }]
    }
}
