//! Byte layouts of the caches, from the constants that the kernels are compiled with.

use kernels::params;
use reference::ops::{IndexKFormat, KvFormat, Pages};

/// Bytes of one KV row, padding of the page not counted: 584, 1,024 or `4 * d`.
pub const fn kv_row_bytes(format: KvFormat) -> u64 {
    match format {
        KvFormat::V4Fp8 => (params::SM120_V4_FP8_DATA_BYTES + params::SM120_V4_FP8_FOOTER_BYTES) as u64,
        KvFormat::Bf16 => params::SM120_BF16_KV_BYTES as u64,
        KvFormat::F32 { d } => 4 * d as u64,
    }
}

/// Bytes of one index-K row: 132, 256, 68 or `4 * d`.
pub const fn index_k_row_bytes(format: IndexKFormat) -> u64 {
    match format {
        IndexKFormat::Fp8 => params::SM120_INDEX_K_FP8_BYTES as u64,
        IndexKFormat::Bf16 => params::SM120_INDEX_K_BF16_BYTES as u64,
        IndexKFormat::Fp4 => params::SM120_INDEX_K_FP4_BYTES as u64,
        IndexKFormat::F32 { d } => 4 * d as u64,
    }
}

/// Tight page of `page_size` KV rows. `v4_fp8` pages are rounded up to a multiple of 576 B, so that the pool is one
/// two-dimensional tensor of 576 B rows.
pub const fn kv_pages(format: KvFormat, num_pages: u32, page_size: u32) -> Pages {
    let bytes = kv_row_bytes(format) * page_size as u64;
    let align = match format {
        KvFormat::V4Fp8 => params::SM120_V4_FP8_PAGE_ALIGN as u64,
        KvFormat::Bf16 | KvFormat::F32 { .. } => 16,
    };
    Pages { num_pages, page_size, page_stride_bytes: bytes.next_multiple_of(align) }
}

/// Tight page of `page_size` index-K rows.
pub const fn index_k_pages(format: IndexKFormat, num_pages: u32, page_size: u32) -> Pages {
    let bytes = index_k_row_bytes(format) * page_size as u64;
    Pages { num_pages, page_size, page_stride_bytes: bytes.next_multiple_of(16) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Page lengths written down in the description of the formats.
    #[test]
    fn page_strides() {
        let stride = |format, page_size| kv_pages(format, 1, page_size).page_stride_bytes;
        assert_eq!(stride(KvFormat::V4Fp8, 256), 149_760);
        assert_eq!(stride(KvFormat::V4Fp8, 64), 37_440);
        assert_eq!(stride(KvFormat::V4Fp8, 2), 1_728);
        assert_eq!(stride(KvFormat::Bf16, 64), 65_536);
        assert_eq!(index_k_pages(IndexKFormat::Fp8, 1, 64).page_stride_bytes, 8_448);
        assert_eq!(index_k_pages(IndexKFormat::Bf16, 1, 64).page_stride_bytes, 16_384);
        assert_eq!(index_k_pages(IndexKFormat::Fp4, 1, 64).page_stride_bytes, 4_352);
        assert_eq!(index_k_pages(IndexKFormat::Fp4, 1, 2).page_stride_bytes, 144);
        assert_eq!(index_k_pages(IndexKFormat::F32 { d: 64 }, 1, 64).page_stride_bytes, 16_384);
        assert_eq!(stride(KvFormat::F32 { d: 80 }, 64), 20_480);
    }
}
