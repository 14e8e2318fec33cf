//! What outputs must hold, and how they are compared.

use std::ops::Range;

use super::{BEFORE, Bytes};
use crate::compare::{self, Bound, Float, Verdict};
use crate::layout::{D_INDEX, D_KV, D_NOPE};
use crate::ops::{IndexKFormat, KvFormat, Pages};
use crate::plain::Cells;

/// What one output must hold.
#[derive(Debug, Clone)]
pub enum Expected {
    /// Elements within a bound of the exact value.
    Floats {
        /// Exact values.
        cells: Cells,
        /// Type of the elements.
        float: Float,
        /// Strides in elements, one per axis.
        strides: Vec<u64>,
        /// Bound.
        bound: Bound,
    },
    /// Equal integers, `columns` to a row.
    Integers {
        /// Row length.
        columns: usize,
        /// Values.
        values: Vec<i32>,
    },
    /// Equal bytes, row after row.
    Rows {
        /// Bytes.
        bytes: Bytes,
        /// Row length.
        row_bytes: u64,
        /// e4m3 codes: both kinds of NaN are equal.
        e4m3: bool,
    },
    /// Equal bytes of a pool.
    Pages {
        /// Bytes of the watched regions, one after the other.
        bytes: Bytes,
        /// What is watched, as offsets in the pool.
        regions: Vec<Range<u64>>,
        /// Geometry.
        pages: Pages,
        /// Format.
        format: RowFormat,
    },
}

/// Row format of a written cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowFormat {
    /// KV rows.
    Kv(KvFormat),
    /// Index-K rows.
    IndexK(IndexKFormat),
}

impl RowFormat {
    /// What lies at `offset` of a pool, in words, and whether it is an e4m3 code.
    fn place(self, pages: &Pages, offset: u64) -> (String, bool) {
        let (page, at) = (offset / pages.page_stride_bytes, offset % pages.page_stride_bytes);
        let p = u64::from(pages.page_size);
        let (data, footer) = match self {
            RowFormat::Kv(KvFormat::V4Fp8) => (576, 8),
            RowFormat::Kv(KvFormat::Bf16) => (2 * D_KV as u64, 0),
            RowFormat::IndexK(IndexKFormat::Fp8) => (D_INDEX as u64, 4),
            RowFormat::IndexK(IndexKFormat::Bf16) => (2 * D_INDEX as u64, 0),
            RowFormat::IndexK(IndexKFormat::Fp4) => (D_INDEX as u64 / 2, 4),
            RowFormat::Kv(KvFormat::F32 { d }) | RowFormat::IndexK(IndexKFormat::F32 { d }) => (4 * u64::from(d), 0),
        };
        if at < p * data {
            let code = match self {
                RowFormat::Kv(KvFormat::V4Fp8) => at % data < D_NOPE as u64,
                RowFormat::IndexK(IndexKFormat::Fp8) => true,
                _ => false,
            };
            (format!("page {page}, row {}, data byte {}", at / data, at % data), code)
        } else if at < p * (data + footer) {
            let at = at - p * data;
            (format!("page {page}, row {}, scale byte {}", at / footer, at % footer), false)
        } else {
            (format!("page {page}, padding"), false)
        }
    }
}

/// Offset in the pool of byte `offset` of the watched regions.
fn in_pool(regions: &[Range<u64>], mut offset: u64) -> u64 {
    for region in regions {
        let len = region.end - region.start;
        if offset < len {
            return region.start + offset;
        }
        offset -= len;
    }
    offset
}

/// One output by name.
#[derive(Debug, Clone)]
pub struct ExpectedOutput {
    /// Name.
    pub name: &'static str,
    /// Contents.
    pub expected: Expected,
}

impl ExpectedOutput {
    /// Compares what an implementation wrote.
    pub fn compare(&self, got: &[u8]) -> Verdict {
        match &self.expected {
            Expected::Floats { cells, float, strides, bound } => {
                let before = vec![BEFORE; got.len()];
                compare::floats(self.name, got, &before, *float, strides, cells, bound)
            }
            Expected::Integers { columns, values } => compare::integers(self.name, got, *columns, values),
            Expected::Rows { bytes, row_bytes, e4m3 } => {
                let place = |at: usize| format!("row {}, byte {}", at as u64 / row_bytes, at as u64 % row_bytes);
                compare::bytes(self.name, got, bytes, |_| *e4m3, place)
            }
            Expected::Pages { bytes, regions, pages, format } => {
                let place = |offset: usize| format.place(pages, in_pool(regions, offset as u64));
                compare::bytes(self.name, got, bytes, |offset| place(offset).1, |offset| place(offset).0)
            }
        }
    }
}
