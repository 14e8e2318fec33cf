//! Where the bytes of a cache row are.
//!
//! A paged cache is an array of pages, `page_stride_bytes` apart; a page holds `page_size` rows. Slot `s` is row
//! `s % page_size` of page `s / page_size`. Written from the format description alone; nothing here is shared with the
//! headers of the kernels.

use crate::ops::{IndexKFormat, KvFormat, Pages};

/// Channels of a KV row; every row is key and value at once.
pub const D_KV: usize = 512;
/// Channels of a KV row without rotation, the first ones.
pub const D_NOPE: usize = 448;
/// Rotated channels of a KV row, the last ones.
pub const D_ROPE: usize = 64;
/// Channels that share one scale in a `v4_fp8` row.
pub const NOPE_TILE: usize = 64;
/// Scales of a `v4_fp8` row.
pub const NOPE_TILES: usize = D_NOPE / NOPE_TILE;
/// Channels of an index-K row.
pub const D_INDEX: usize = 128;
/// Heads of the indexer of V4.
pub const INDEX_HEADS: usize = 64;
/// Most heads of an indexer.
pub const MAX_INDEX_HEADS: u32 = 128;
/// Most heads of attention.
pub const MAX_HEADS: u32 = 256;
/// Most channels of an f32 row.
pub const MAX_F32_CHANNELS: u32 = 8192;
/// Largest `topk` of a selection.
pub const MAX_TOPK: u32 = 2048;
/// The row stride of index logits is a multiple of this many elements (1,024 bytes).
pub const LOGITS_STRIDE_MULTIPLE: u64 = 256;

/// Bytes of a `v4_fp8` row that stand in the data part: 448 e4m3 + 64 bf16.
const V4_DATA: u64 = 576;
/// Bytes of a `v4_fp8` row that stand in the footer: 7 ue8m0 and a zero.
const V4_FOOTER: u64 = 8;

impl KvFormat {
    /// Name in messages and reports.
    pub fn name(self) -> &'static str {
        match self {
            KvFormat::V4Fp8 => "v4_fp8",
            KvFormat::Bf16 => "bf16",
            KvFormat::F32 { .. } => "f32",
        }
    }

    /// Channels of a row.
    pub fn d(self) -> u32 {
        match self {
            KvFormat::V4Fp8 | KvFormat::Bf16 => D_KV as u32,
            KvFormat::F32 { d } => d,
        }
    }

    /// Bytes of one row, all its parts together.
    pub fn row_bytes(self) -> u64 {
        match self {
            KvFormat::V4Fp8 => V4_DATA + V4_FOOTER,
            KvFormat::Bf16 => 2 * D_KV as u64,
            KvFormat::F32 { d } => 4 * u64::from(d),
        }
    }

    /// What the page stride must be a multiple of, in bytes.
    pub fn page_align(self) -> u64 {
        match self {
            KvFormat::V4Fp8 => 576,
            KvFormat::Bf16 | KvFormat::F32 { .. } => 16,
        }
    }

    /// Bytes that the rows of a page occupy, without padding behind them.
    pub fn page_bytes(self, page_size: u32) -> u64 {
        self.row_bytes() * u64::from(page_size)
    }

    /// Smallest page stride: the page rounded up to [`KvFormat::page_align`].
    pub fn page_stride_bytes(self, page_size: u32) -> u64 {
        self.page_bytes(page_size).next_multiple_of(self.page_align())
    }
}

impl IndexKFormat {
    /// Name in messages and reports.
    pub fn name(self) -> &'static str {
        match self {
            IndexKFormat::Fp8 => "fp8",
            IndexKFormat::Bf16 => "bf16",
            IndexKFormat::Fp4 => "fp4",
            IndexKFormat::F32 { .. } => "f32",
        }
    }

    /// Channels of a row, and of the query of a head.
    pub fn d(self) -> u32 {
        match self {
            IndexKFormat::Fp8 | IndexKFormat::Bf16 | IndexKFormat::Fp4 => D_INDEX as u32,
            IndexKFormat::F32 { d } => d,
        }
    }

    /// Bytes of one row, all its parts together.
    pub fn row_bytes(self) -> u64 {
        match self {
            IndexKFormat::Fp8 => D_INDEX as u64 + 4,
            IndexKFormat::Bf16 => 2 * D_INDEX as u64,
            IndexKFormat::Fp4 => D_INDEX as u64 / 2 + 4,
            IndexKFormat::F32 { d } => 4 * u64::from(d),
        }
    }

    /// Bytes of the query of one head: 128, 256, 68 (codes, then scales) or `4 * d`.
    pub fn query_head_bytes(self) -> u64 {
        match self {
            IndexKFormat::Fp8 => D_INDEX as u64,
            IndexKFormat::Bf16 | IndexKFormat::Fp4 | IndexKFormat::F32 { .. } => self.row_bytes(),
        }
    }

    /// What the page stride must be a multiple of, in bytes.
    pub fn page_align(self) -> u64 {
        16
    }

    /// Bytes that the rows of a page occupy, without padding behind them.
    pub fn page_bytes(self, page_size: u32) -> u64 {
        self.row_bytes() * u64::from(page_size)
    }

    /// Smallest page stride: the page rounded up to [`IndexKFormat::page_align`].
    pub fn page_stride_bytes(self, page_size: u32) -> u64 {
        self.page_bytes(page_size).next_multiple_of(self.page_align())
    }
}

impl Pages {
    /// Rows of the pool.
    pub fn num_slots(&self) -> u64 {
        u64::from(self.num_pages) * u64::from(self.page_size)
    }

    /// Page and row of a slot, or `None` if the slot lies outside the pool. -1, the smallest and the largest integer
    /// are ordinary ways to say "no slot".
    pub fn locate(&self, slot: i32) -> Option<(u32, u32)> {
        let slot = u32::try_from(slot).ok()?;
        (u64::from(slot) < self.num_slots()).then(|| (slot / self.page_size, slot % self.page_size))
    }

    /// First byte of a page.
    pub fn page_start(&self, page: u32) -> u64 {
        u64::from(page) * self.page_stride_bytes
    }

    /// Geometry of a pool with the smallest stride for KV rows of `format`.
    pub fn kv(format: KvFormat, num_pages: u32, page_size: u32) -> Pages {
        Pages { num_pages, page_size, page_stride_bytes: format.page_stride_bytes(page_size) }
    }

    /// Geometry of a pool with the smallest stride for index-K rows of `format`.
    pub fn index_k(format: IndexKFormat, num_pages: u32, page_size: u32) -> Pages {
        Pages { num_pages, page_size, page_stride_bytes: format.page_stride_bytes(page_size) }
    }
}

/// First byte of the 448 e4m3 (then 64 bf16) of a `v4_fp8` row.
pub fn v4_fp8_data(pages: &Pages, page: u32, row: u32) -> u64 {
    pages.page_start(page) + u64::from(row) * V4_DATA
}

/// First byte of the 64 bf16 of a `v4_fp8` row.
pub fn v4_fp8_rope(pages: &Pages, page: u32, row: u32) -> u64 {
    v4_fp8_data(pages, page, row) + D_NOPE as u64
}

/// First of the 7 scale bytes (and a zero) of a `v4_fp8` row.
pub fn v4_fp8_footer(pages: &Pages, page: u32, row: u32) -> u64 {
    pages.page_start(page) + u64::from(pages.page_size) * V4_DATA + u64::from(row) * V4_FOOTER
}

/// First byte of a bf16 KV row.
pub fn bf16_kv(pages: &Pages, page: u32, row: u32) -> u64 {
    pages.page_start(page) + u64::from(row) * 2 * D_KV as u64
}

/// First byte of an f32 row of `d` channels, KV or index-K.
pub fn f32_row(pages: &Pages, page: u32, row: u32, d: u32) -> u64 {
    pages.page_start(page) + u64::from(row) * 4 * u64::from(d)
}

/// First byte of the 128 e4m3 of an fp8 index-K row.
pub fn index_k_fp8_data(pages: &Pages, page: u32, row: u32) -> u64 {
    pages.page_start(page) + u64::from(row) * D_INDEX as u64
}

/// First byte of the f32 scale of an fp8 index-K row: all scales of a page stand behind all its codes.
pub fn index_k_fp8_scale(pages: &Pages, page: u32, row: u32) -> u64 {
    pages.page_start(page) + u64::from(pages.page_size) * D_INDEX as u64 + u64::from(row) * 4
}

/// First byte of a bf16 index-K row.
pub fn index_k_bf16(pages: &Pages, page: u32, row: u32) -> u64 {
    pages.page_start(page) + u64::from(row) * 2 * D_INDEX as u64
}

/// First byte of the 64 of an fp4 index-K row, two e2m1 codes each, the low nibble first.
pub fn index_k_fp4_data(pages: &Pages, page: u32, row: u32) -> u64 {
    pages.page_start(page) + u64::from(row) * D_INDEX as u64 / 2
}

/// First of the 4 ue8m0 scales of an fp4 index-K row, one per 32 channels, behind all codes of the page.
pub fn index_k_fp4_scale(pages: &Pages, page: u32, row: u32) -> u64 {
    pages.page_start(page) + u64::from(pages.page_size) * D_INDEX as u64 / 2 + u64::from(row) * 4
}
