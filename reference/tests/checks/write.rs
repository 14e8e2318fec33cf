//! What the writers of cache rows refuse.

use reference::ops::*;

use super::{Size, expect, len};

#[derive(Clone)]
struct Write {
    rows: Size,
    mapping: Size,
    cache: Size,
    pages: Pages,
    t: u32,
    stride_rows: u64,
}

#[test]
fn kv_write() {
    let valid = Write {
        rows: (2 * 520 + 512) * 2,
        mapping: 3 * 4,
        cache: 37_440 + 37_376,
        pages: Pages::kv(KvFormat::V4Fp8, 2, 64),
        t: 3,
        stride_rows: 520,
    };
    let check = |a: &Write| {
        let mut cache = a.cache;
        KvWrite {
            dtype: Dtype::Bf16,
            format: KvFormat::V4Fp8,
            rows: &a.rows,
            slot_mapping: &a.mapping,
            cache: &mut cache,
            pages: a.pages,
            t: a.t,
            stride_rows: a.stride_rows,
        }
        .check(len)
    };
    expect(
        &valid,
        check,
        &[
            (|a| a.t = 1 << 31, "kv_write: t: expected at most 2147483647, got 2147483648"),
            (|a| a.pages.page_size = 0, "kv_write: cache.page_size: expected at least 1, got 0"),
            (
                |a| a.pages.page_stride_bytes = 37_376,
                "kv_write: cache.page_stride_bytes: expected a multiple of 576 bytes (v4_fp8 pages), got 37376",
            ),
            (|a| a.stride_rows = 511, "kv_write: stride_rows: expected at least 512 elements, got 511"),
            (|a| a.stride_rows = 514, "kv_write: stride_rows: expected a multiple of 8 elements, got 514"),
            (|a| a.rows -= 1, "kv_write: rows: expected at least 3104 bytes, got 3103 bytes"),
            (|a| a.mapping = 8, "kv_write: slot_mapping: expected at least 12 bytes, got 8 bytes"),
            (|a| a.cache -= 1, "kv_write: cache: expected at least 74816 bytes, got 74815 bytes"),
        ],
    );
}

#[test]
fn index_k_write() {
    let valid = Write {
        rows: (2 * 136 + 128) * 2,
        mapping: 3 * 4,
        cache: 2 * 8448,
        pages: Pages::index_k(IndexKFormat::Fp8, 2, 64),
        t: 3,
        stride_rows: 136,
    };
    let check = |a: &Write| {
        let mut cache = a.cache;
        IndexKWrite {
            dtype: Dtype::Bf16,
            format: IndexKFormat::Fp8,
            scale_rule: ScaleRule::Exact,
            rows: &a.rows,
            slot_mapping: &a.mapping,
            cache: &mut cache,
            pages: a.pages,
            t: a.t,
            stride_rows: a.stride_rows,
        }
        .check(len)
    };
    expect(
        &valid,
        check,
        &[
            (
                |a| a.pages.page_stride_bytes = 8192,
                "index_k_write: cache.page_stride_bytes: expected at least 8448 bytes (64 fp8 rows), got 8192",
            ),
            (|a| a.stride_rows = 120, "index_k_write: stride_rows: expected at least 128 elements, got 120"),
            (|a| a.rows -= 1, "index_k_write: rows: expected at least 800 bytes, got 799 bytes"),
            (|a| a.cache -= 1, "index_k_write: cache: expected at least 16896 bytes, got 16895 bytes"),
        ],
    );
}
