//! What the index logits refuse.

use proptest::prelude::*;
use reference::ops::*;

use super::{Size, expect, len, numbers, strides};

/// Operands of `index_logits_decode` as values; `with` borrows them.
#[derive(Clone)]
struct Index {
    format: IndexKFormat,
    buffers: [Size; 6],
    pages: Pages,
    b: u32,
    s_q: u32,
    index_heads: u32,
    max_pages: u32,
    stride_block_table: u64,
    stride_logits: u64,
}

impl Index {
    fn valid(format: IndexKFormat) -> Index {
        let head = format.query_head_bytes();
        Index {
            format,
            // q, weights, keys, table, lens, logits of b = 3, s_q = 2 with 5 pages of 64 rows
            buffers: [6 * 64 * head, 6 * 64 * 4, 10 * 64 * format.row_bytes(), (2 * 7 + 5) * 4, 6 * 4, 6 * 512 * 4],
            pages: Pages::index_k(format, 10, 64),
            b: 3,
            s_q: 2,
            index_heads: 64,
            max_pages: 5,
            stride_block_table: 7,
            stride_logits: 512,
        }
    }

    fn check(&self) -> Result<(), OpsError> {
        let mut logits = self.buffers[5];
        IndexLogitsDecode {
            format: self.format,
            index_q: &self.buffers[0],
            index_weights: &self.buffers[1],
            index_k: Paged { buffer: &self.buffers[2], pages: self.pages },
            block_table: &self.buffers[3],
            context_lens: &self.buffers[4],
            index_logits: &mut logits,
            b: self.b,
            s_q: self.s_q,
            index_heads: self.index_heads,
            max_pages: self.max_pages,
            stride_block_table: self.stride_block_table,
            stride_logits: self.stride_logits,
            clean_logits: true,
        }
        .check(len)
    }
}

#[test]
fn index_logits_decode() {
    expect(
        &Index::valid(IndexKFormat::Fp8),
        Index::check,
        &[
            (|a| a.b = 1 << 31, "index_logits_decode: b: expected at most 2147483647, got 2147483648"),
            (|a| a.s_q = 0, "index_logits_decode: s_q: expected 1 to 4, got 0"),
            (|a| a.s_q = 5, "index_logits_decode: s_q: expected 1 to 4, got 5"),
            (|a| a.b = 1 << 30, "index_logits_decode: b * s_q: expected at most 2147483647, got 2147483648"),
            (|a| a.index_heads = 0, "index_logits_decode: index_heads: expected 1 to 128, got 0"),
            (|a| a.index_heads = 129, "index_logits_decode: index_heads: expected 1 to 128, got 129"),
            (|a| a.pages.page_size = 0, "index_logits_decode: index_k.page_size: expected at least 1, got 0"),
            (
                |a| a.pages.num_pages = 1 << 26,
                "index_logits_decode: index_k.num_pages * page_size: expected at most 2147483647, got 4294967296",
            ),
            (
                |a| a.max_pages = 1 << 25,
                "index_logits_decode: max_pages * page_size: expected at most 2147483647, got 2147483648",
            ),
            (
                |a| a.pages.page_stride_bytes = 8192,
                "index_logits_decode: index_k.page_stride_bytes: expected at least 8448 bytes (64 fp8 rows), got 8192",
            ),
            (
                |a| a.pages.page_stride_bytes = 8452,
                "index_logits_decode: index_k.page_stride_bytes: expected a multiple of 16 bytes (fp8 pages), got 8452",
            ),
            (
                |a| a.pages.page_stride_bytes = 1 << 63,
                "index_logits_decode: index_k.page_stride_bytes: expected at most 9223372036854775807, got 9223372036854775808",
            ),
            (
                |a| a.stride_block_table = 4,
                "index_logits_decode: stride_block_table: expected at least 5 elements, got 4",
            ),
            (
                |a| a.stride_logits = 320,
                "index_logits_decode: stride_logits: expected a multiple of 256 elements, got 320",
            ),
            (|a| a.stride_logits = 256, "index_logits_decode: stride_logits: expected at least 320 elements, got 256"),
            (|a| a.buffers[0] -= 1, "index_logits_decode: index_q: expected at least 49152 bytes, got 49151 bytes"),
            (|a| a.buffers[1] -= 4, "index_logits_decode: index_weights: expected at least 1536 bytes, got 1532 bytes"),
            (|a| a.buffers[2] -= 1, "index_logits_decode: index_k: expected at least 84480 bytes, got 84479 bytes"),
            (|a| a.buffers[3] -= 1, "index_logits_decode: block_table: expected at least 76 bytes, got 75 bytes"),
            (|a| a.buffers[4] = 0, "index_logits_decode: context_lens: expected at least 24 bytes, got 0 bytes"),
            (
                |a| a.buffers[5] -= 1,
                "index_logits_decode: index_logits: expected at least 12288 bytes, got 12287 bytes",
            ),
            // Queries of one format in place of the other.
            (
                |a| a.format = IndexKFormat::Bf16,
                "index_logits_decode: index_k.page_stride_bytes: expected at least 16384 bytes (64 bf16 rows), got 8448",
            ),
        ],
    );
    expect(
        &Index::valid(IndexKFormat::Bf16),
        Index::check,
        &[(|a| a.buffers[0] /= 2, "index_logits_decode: index_q: expected at least 98304 bytes, got 49152 bytes")],
    );
    expect(
        &Index::valid(IndexKFormat::F32 { d: 80 }),
        Index::check,
        &[
            (|a| a.format = IndexKFormat::F32 { d: 0 }, "index_logits_decode: format.d: expected 1 to 8192, got 0"),
            (
                |a| a.format = IndexKFormat::F32 { d: u32::MAX },
                "index_logits_decode: format.d: expected 1 to 8192, got 4294967295",
            ),
            (|a| a.buffers[0] -= 1, "index_logits_decode: index_q: expected at least 122880 bytes, got 122879 bytes"),
            (
                |a| a.pages.page_stride_bytes -= 16,
                "index_logits_decode: index_k.page_stride_bytes: expected at least 20480 bytes (64 f32 rows), got 20464",
            ),
        ],
    );
    expect(
        &Index::valid(IndexKFormat::Fp4),
        Index::check,
        &[
            (|a| a.buffers[0] -= 1, "index_logits_decode: index_q: expected at least 26112 bytes, got 26111 bytes"),
            (|a| a.index_heads = 65, "index_logits_decode: index_q: expected at least 26520 bytes, got 26112 bytes"),
            (|a| a.buffers[2] -= 1, "index_logits_decode: index_k: expected at least 43520 bytes, got 43519 bytes"),
        ],
    );
    let empty = Index { b: 0, buffers: [0, 0, 84480, 0, 0, 0], ..Index::valid(IndexKFormat::Fp8) };
    empty.check().expect("an empty batch needs no memory");
}

/// Operands of `index_logits_prefill` as values.
#[derive(Clone)]
struct IndexPrefill {
    format: IndexKFormat,
    /// q, weights, keys, table, cu_seqlens_q, ends, logits
    buffers: [Size; 7],
    starts: Option<Size>,
    pages: Pages,
    t: u32,
    b: u32,
    index_heads: u32,
    max_pages: u32,
    stride_block_table: u64,
    stride_logits: u64,
}

impl IndexPrefill {
    fn valid() -> IndexPrefill {
        IndexPrefill {
            format: IndexKFormat::Fp8,
            // t = 6, b = 3, with 5 pages of 64 rows
            buffers: [6 * 8192, 6 * 64 * 4, 10 * 64 * 132, (2 * 7 + 5) * 4, 4 * 4, 6 * 4, 6 * 512 * 4],
            starts: Some(6 * 4),
            pages: Pages::index_k(IndexKFormat::Fp8, 10, 64),
            t: 6,
            b: 3,
            index_heads: 64,
            max_pages: 5,
            stride_block_table: 7,
            stride_logits: 512,
        }
    }

    fn check(&self) -> Result<(), OpsError> {
        let mut logits = self.buffers[6];
        IndexLogitsPrefill {
            format: self.format,
            index_q: &self.buffers[0],
            index_weights: &self.buffers[1],
            index_k: Paged { buffer: &self.buffers[2], pages: self.pages },
            block_table: &self.buffers[3],
            cu_seqlens_q: &self.buffers[4],
            starts: self.starts.as_ref(),
            ends: &self.buffers[5],
            index_logits: &mut logits,
            t: self.t,
            b: self.b,
            index_heads: self.index_heads,
            max_pages: self.max_pages,
            stride_block_table: self.stride_block_table,
            stride_logits: self.stride_logits,
            clean_logits: true,
        }
        .check(len)
    }
}

#[test]
fn index_logits_prefill() {
    expect(
        &IndexPrefill::valid(),
        IndexPrefill::check,
        &[
            (|a| a.t = 1 << 31, "index_logits_prefill: t: expected at most 2147483647, got 2147483648"),
            (|a| a.b = 1 << 31, "index_logits_prefill: b: expected at most 2147483647, got 2147483648"),
            (
                |a| (a.t, a.b) = (i32::MAX as u32, 1),
                "index_logits_prefill: t + b: expected at most 2147483647, got 2147483648",
            ),
            (|a| a.index_heads = 0, "index_logits_prefill: index_heads: expected 1 to 128, got 0"),
            (|a| a.format = IndexKFormat::F32 { d: 0 }, "index_logits_prefill: format.d: expected 1 to 8192, got 0"),
            (|a| a.pages.page_size = 0, "index_logits_prefill: index_k.page_size: expected at least 1, got 0"),
            (
                |a| a.max_pages = 1 << 25,
                "index_logits_prefill: max_pages * page_size: expected at most 2147483647, got 2147483648",
            ),
            (
                |a| a.pages.page_stride_bytes = 8192,
                "index_logits_prefill: index_k.page_stride_bytes: expected at least 8448 bytes (64 fp8 rows), got 8192",
            ),
            (
                |a| a.stride_block_table = 4,
                "index_logits_prefill: stride_block_table: expected at least 5 elements, got 4",
            ),
            (
                |a| a.stride_logits = 320,
                "index_logits_prefill: stride_logits: expected a multiple of 256 elements, got 320",
            ),
            (|a| a.stride_logits = 256, "index_logits_prefill: stride_logits: expected at least 320 elements, got 256"),
            (|a| a.buffers[0] -= 1, "index_logits_prefill: index_q: expected at least 49152 bytes, got 49151 bytes"),
            (
                |a| a.buffers[1] -= 4,
                "index_logits_prefill: index_weights: expected at least 1536 bytes, got 1532 bytes",
            ),
            (|a| a.buffers[2] -= 1, "index_logits_prefill: index_k: expected at least 84480 bytes, got 84479 bytes"),
            (|a| a.buffers[3] -= 1, "index_logits_prefill: block_table: expected at least 76 bytes, got 75 bytes"),
            (|a| a.buffers[4] -= 1, "index_logits_prefill: cu_seqlens_q: expected at least 16 bytes, got 15 bytes"),
            (|a| a.starts = Some(23), "index_logits_prefill: starts: expected at least 24 bytes, got 23 bytes"),
            (|a| a.buffers[5] -= 1, "index_logits_prefill: ends: expected at least 24 bytes, got 23 bytes"),
            (
                |a| a.buffers[6] -= 1,
                "index_logits_prefill: index_logits: expected at least 12288 bytes, got 12287 bytes",
            ),
        ],
    );
    let empty = IndexPrefill { t: 0, b: 0, buffers: [0, 0, 84480, 0, 4, 0, 0], starts: None, ..IndexPrefill::valid() };
    empty.check().expect("an empty batch needs no memory but the first entry of cu_seqlens_q");
}

proptest! {
    /// Whatever the numbers are, a check answers: no overflow, no panic.
    #[test]
    fn checks_never_panic(numbers in numbers(), strides in strides(), size in any::<u64>()) {
        let [a, b, c, d, e, f] = numbers;
        let pages = Pages { num_pages: a, page_size: b, page_stride_bytes: strides[0] };
        let _ = Index {
            format: IndexKFormat::Fp8,
            buffers: [size; 6],
            pages,
            b: c,
            s_q: d % 6,
            index_heads: f,
            max_pages: e,
            stride_block_table: strides[1],
            stride_logits: strides[2],
        }
        .check();
    }
}
