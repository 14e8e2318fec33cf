//! What is refused, and in which words. A buffer is only its size here: checks need no device.

#[path = "checks/products.rs"]
mod products;
#[path = "checks/rows.rs"]
mod rows;
#[path = "checks/streams.rs"]
mod streams;

use proptest::prelude::*;
use reference::check::{narrow, narrow_stride};
use reference::ops::*;

type Size = u64;

fn len(size: &Size) -> u64 {
    *size
}

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

/// A change to a valid record, and the message that it must give.
type Change<'a, T> = (fn(&mut T), &'a str);

/// Applies each change to a valid record and compares the message.
fn expect<T: Clone>(valid: &T, check: impl Fn(&T) -> Result<(), OpsError>, table: &[Change<'_, T>]) {
    check(valid).expect("the record is valid before the change");
    for (change, message) in table {
        let mut changed = valid.clone();
        change(&mut changed);
        match check(&changed) {
            Ok(()) => panic!("accepted, expected: {message}"),
            Err(error) => assert_eq!(error.to_string(), *message),
        }
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

#[derive(Clone)]
struct Topk {
    logits: Size,
    lens: Size,
    table: Option<Size>,
    positions: Option<Size>,
    slots: Option<Size>,
    counts: Option<Size>,
    rows: u32,
    rows_per_sequence: u32,
    lines: Option<Size>,
    num_sequences: u32,
    topk: u32,
    page_size: u32,
    max_pages: u32,
    stride_logits: u64,
    stride_block_table: u64,
}

impl Topk {
    fn valid() -> Topk {
        Topk {
            logits: 6 * 1024 * 4,
            lens: 6 * 4,
            table: Some((2 * 20 + 16) * 4),
            positions: Some(6 * 512 * 4),
            slots: Some(6 * 512 * 4),
            counts: Some(6 * 4),
            rows: 6,
            rows_per_sequence: 2,
            lines: None,
            num_sequences: 0,
            topk: 512,
            page_size: 64,
            max_pages: 16,
            stride_logits: 1024,
            stride_block_table: 20,
        }
    }

    fn check(&self) -> Result<(), OpsError> {
        let mut this = self.clone();
        TopkSelect {
            index_logits: &self.logits,
            context_lens: &self.lens,
            block_table: self.table.as_ref(),
            sequence_of_row: self.lines.as_ref(),
            topk_positions: this.positions.as_mut(),
            topk_slots: this.slots.as_mut(),
            topk_lens: this.counts.as_mut(),
            rows: self.rows,
            rows_per_sequence: self.rows_per_sequence,
            num_sequences: self.num_sequences,
            topk: self.topk,
            page_size: self.page_size,
            max_pages: self.max_pages,
            stride_logits: self.stride_logits,
            stride_block_table: self.stride_block_table,
        }
        .check(len)
    }
}

#[test]
fn topk_select() {
    expect(
        &Topk::valid(),
        Topk::check,
        &[
            (|a| a.topk = 0, "topk_select: topk: expected 1 to 2048, got 0"),
            (|a| a.topk = 2049, "topk_select: topk: expected 1 to 2048, got 2049"),
            (|a| a.rows_per_sequence = 0, "topk_select: rows_per_sequence: expected at least 1, got 0"),
            (|a| a.rows_per_sequence = 4, "topk_select: rows: expected a multiple of rows_per_sequence (4), got 6"),
            (|a| a.stride_logits = 1 << 31, "topk_select: stride_logits: expected at most 2147483647, got 2147483648"),
            (
                |a| {
                    a.positions = None;
                    a.slots = None;
                    a.table = None;
                },
                "topk_select: topk_positions, topk_slots: expected at least one of them, got none",
            ),
            (
                |a| a.table = None,
                "topk_select: block_table: expected a table, because topk_slots is asked for, got none",
            ),
            (
                |a| a.slots = None,
                "topk_select: block_table: expected none, because topk_slots is not asked for, got a table",
            ),
            (|a| a.page_size = 0, "topk_select: page_size: expected at least 1, got 0"),
            (|a| a.stride_logits = 1000, "topk_select: stride_logits: expected a multiple of 256 elements, got 1000"),
            (|a| a.stride_block_table = 15, "topk_select: stride_block_table: expected at least 16 elements, got 15"),
            (|a| a.logits -= 1, "topk_select: index_logits: expected at least 24576 bytes, got 24575 bytes"),
            (|a| a.lens -= 1, "topk_select: context_lens: expected at least 24 bytes, got 23 bytes"),
            (|a| a.table = Some(223), "topk_select: block_table: expected at least 224 bytes, got 223 bytes"),
            (|a| a.positions = Some(0), "topk_select: topk_positions: expected at least 12288 bytes, got 0 bytes"),
            (|a| a.slots = Some(12287), "topk_select: topk_slots: expected at least 12288 bytes, got 12287 bytes"),
            (|a| a.counts = Some(20), "topk_select: topk_lens: expected at least 24 bytes, got 20 bytes"),
        ],
    );
    expect(
        &Topk { lines: Some(24), num_sequences: 3, rows_per_sequence: 0, ..Topk::valid() },
        Topk::check,
        &[
            (|a| a.num_sequences = 1 << 31, "topk_select: num_sequences: expected at most 2147483647, got 2147483648"),
            (|a| a.num_sequences = 4, "topk_select: block_table: expected at least 304 bytes, got 224 bytes"),
            (|a| a.lines = Some(23), "topk_select: sequence_of_row: expected at least 24 bytes, got 23 bytes"),
            (|a| a.lines = None, "topk_select: rows_per_sequence: expected at least 1, got 0"),
            (
                |a| (a.table, a.slots) = (None, None),
                "topk_select: sequence_of_row: expected none, because there is no block table, got a list",
            ),
        ],
    );
    let mut positions_only = Topk::valid();
    (positions_only.table, positions_only.slots, positions_only.counts) = (None, None, None);
    (positions_only.page_size, positions_only.max_pages) = (0, 0);
    positions_only.check().expect("without slots the pages do not matter");
    let mut empty = Topk::valid();
    (empty.rows, empty.logits, empty.lens) = (0, 0, 0);
    (empty.table, empty.positions, empty.slots, empty.counts) = (Some(0), Some(0), Some(0), Some(0));
    empty.check().expect("an empty batch needs no memory");
}

#[derive(Clone)]
struct List {
    cache: Size,
    pages: Pages,
    slots: Size,
    lens: Option<Size>,
    width: u32,
    stride: u64,
}

impl List {
    fn operand(&self) -> SlotList<'_, Size> {
        SlotList {
            cache: Paged { buffer: &self.cache, pages: self.pages },
            slots: &self.slots,
            lens: self.lens.as_ref(),
            width: self.width,
            stride_slots: self.stride,
        }
    }
}

#[derive(Clone)]
struct Mla {
    dtype: Dtype,
    format: KvFormat,
    q: Size,
    window: List,
    compressed: Option<List>,
    sink: Option<Size>,
    out: Size,
    lse: Size,
    t: u32,
    h: u32,
    stride_q: [u64; 2],
    stride_out: [u64; 2],
    sm_scale: f32,
    num_splits: Option<u32>,
}

impl Mla {
    fn valid(format: KvFormat) -> Mla {
        let list = |num_pages: u32, page_size, width: u32| {
            let pages = Pages::kv(format, num_pages, page_size);
            List {
                cache: u64::from(num_pages - 1) * pages.page_stride_bytes + format.page_bytes(page_size),
                pages,
                slots: 2 * u64::from(width) * 4,
                lens: Some(2 * 4),
                width,
                stride: u64::from(width),
            }
        };
        Mla {
            dtype: Dtype::Bf16,
            format,
            q: 2 * 8 * 512 * 2,
            window: list(3, 128, 16),
            compressed: Some(list(2, 64, 24)),
            sink: Some(8 * 4),
            out: (4104 + 7 * 512 + 512) * 2,
            lse: 2 * 8 * 4,
            t: 2,
            h: 8,
            stride_q: [4096, 512],
            stride_out: [4104, 512],
            sm_scale: 0.044,
            num_splits: None,
        }
    }

    fn check(&self) -> Result<(), OpsError> {
        self.with(|attention| attention.check(len))
    }

    /// As `sparse_mla_prefill`, with the size of `max_logits`.
    fn check_prefill(&self, max_logits: Option<Size>) -> Result<(), OpsError> {
        let mut max_logits = max_logits;
        self.with(|attention| SparseMlaPrefill { attention, max_logits: max_logits.as_mut() }.check(len))
    }

    fn with<R>(&self, f: impl FnOnce(SparseMlaDecode<'_, Size>) -> R) -> R {
        let (mut out, mut lse) = (self.out, self.lse);
        f(SparseMlaDecode {
            dtype: self.dtype,
            format: self.format,
            q: &self.q,
            window: self.window.operand(),
            compressed: self.compressed.as_ref().map(List::operand),
            attn_sink: self.sink.as_ref(),
            out: &mut out,
            lse: &mut lse,
            t: self.t,
            h: self.h,
            stride_q: self.stride_q,
            stride_out: self.stride_out,
            sm_scale: self.sm_scale,
            num_splits: self.num_splits,
        })
    }

    fn second(&mut self) -> &mut List {
        self.compressed.as_mut().expect("two lists")
    }
}

#[test]
fn sparse_mla_prefill() {
    let valid = Mla::valid(KvFormat::V4Fp8);
    valid.check_prefill(None).expect("the largest logits need not be asked for");
    let table: [Change<'_, Mla>; 2] = [
        (|a| a.h = 0, "sparse_mla_prefill: h: expected 1 to 256, got 0"),
        (|a| a.lse -= 1, "sparse_mla_prefill: lse: expected at least 64 bytes, got 63 bytes"),
    ];
    expect(&valid, |a| a.check_prefill(Some(64)), &table);
    let error = valid.check_prefill(Some(63)).expect_err("too small");
    assert_eq!(error.to_string(), "sparse_mla_prefill: max_logits: expected at least 64 bytes, got 63 bytes");
}

#[test]
fn sparse_mla_decode() {
    expect(
        &Mla::valid(KvFormat::V4Fp8),
        Mla::check,
        &[
            (|a| a.h = 257, "sparse_mla_decode: h: expected 1 to 256, got 257"),
            (|a| a.h = 0, "sparse_mla_decode: h: expected 1 to 256, got 0"),
            (|a| a.t = 1 << 28, "sparse_mla_decode: t * h: expected at most 2147483647, got 2147483648"),
            (|a| a.num_splits = Some(0), "sparse_mla_decode: num_splits: expected at least 1, got 0"),
            (|a| a.sm_scale = f32::NAN, "sparse_mla_decode: sm_scale: expected a finite number, got NaN"),
            (|a| a.window.pages.page_size = 0, "sparse_mla_decode: window_kv.page_size: expected at least 1, got 0"),
            (
                |a| a.window.width = u32::MAX,
                "sparse_mla_decode: window_topk: expected at most 2147483647, got 4294967295",
            ),
            (
                |a| {
                    a.window.width = i32::MAX as u32;
                    a.window.stride = 1 << 31;
                },
                "sparse_mla_decode: window_topk + topk: expected at most 2147483647, got 2147483671",
            ),
            (
                |a| a.window.pages.page_stride_bytes = 74_752,
                "sparse_mla_decode: window_kv.page_stride_bytes: expected a multiple of 576 bytes (v4_fp8 pages), got 74752",
            ),
            (
                |a| a.second().pages.page_stride_bytes = 36_864,
                "sparse_mla_decode: compressed_kv.page_stride_bytes: expected at least 37376 bytes (64 v4_fp8 rows), got 36864",
            ),
            (|a| a.window.stride = 15, "sparse_mla_decode: stride_window_slots: expected at least 16 elements, got 15"),
            (|a| a.second().stride = 23, "sparse_mla_decode: stride_topk_slots: expected at least 24 elements, got 23"),
            (|a| a.stride_q[1] = 504, "sparse_mla_decode: stride_q_h: expected at least 512 elements, got 504"),
            (|a| a.stride_q[1] = 516, "sparse_mla_decode: stride_q_h: expected a multiple of 8 elements, got 516"),
            (|a| a.stride_q[0] = 4095, "sparse_mla_decode: stride_q_t: expected at least 4096 elements, got 4095"),
            (
                |a| a.stride_out[0] = 4100,
                "sparse_mla_decode: stride_out_t: expected a multiple of 8 elements, got 4100",
            ),
            (|a| a.stride_out[1] = 520, "sparse_mla_decode: stride_out_t: expected at least 4152 elements, got 4104"),
            (|a| a.q -= 2, "sparse_mla_decode: q: expected at least 16384 bytes, got 16382 bytes"),
            (|a| a.window.cache -= 1, "sparse_mla_decode: window_kv: expected at least 224512 bytes, got 224511 bytes"),
            (|a| a.window.slots -= 1, "sparse_mla_decode: window_slots: expected at least 128 bytes, got 127 bytes"),
            (|a| a.window.lens = Some(4), "sparse_mla_decode: window_lens: expected at least 8 bytes, got 4 bytes"),
            (
                |a| a.second().cache -= 1,
                "sparse_mla_decode: compressed_kv: expected at least 74816 bytes, got 74815 bytes",
            ),
            (|a| a.second().slots -= 1, "sparse_mla_decode: topk_slots: expected at least 192 bytes, got 191 bytes"),
            (|a| a.second().lens = Some(7), "sparse_mla_decode: topk_lens: expected at least 8 bytes, got 7 bytes"),
            (|a| a.sink = Some(31), "sparse_mla_decode: attn_sink: expected at least 32 bytes, got 31 bytes"),
            (|a| a.out -= 1, "sparse_mla_decode: out: expected at least 16400 bytes, got 16399 bytes"),
            (|a| a.lse -= 1, "sparse_mla_decode: lse: expected at least 64 bytes, got 63 bytes"),
        ],
    );
    expect(
        &Mla::valid(KvFormat::Bf16),
        Mla::check,
        &[
            (
                |a| a.second().pages.page_stride_bytes += 8,
                "sparse_mla_decode: compressed_kv.page_stride_bytes: expected a multiple of 16 bytes (bf16 pages), got 65544",
            ),
            // Rows of one format in a pool of the other.
            (
                |a| a.format = KvFormat::V4Fp8,
                "sparse_mla_decode: window_kv.page_stride_bytes: expected a multiple of 576 bytes (v4_fp8 pages), got 131072",
            ),
        ],
    );
    let f32_rows = Mla {
        dtype: Dtype::F32,
        q: (642 + 7 * 80 + 80) * 4,
        out: (647 + 7 * 80 + 80) * 4,
        stride_q: [642, 80],
        stride_out: [647, 80],
        ..Mla::valid(KvFormat::F32 { d: 80 })
    };
    expect(
        &f32_rows,
        Mla::check,
        &[
            (|a| a.format = KvFormat::F32 { d: 0 }, "sparse_mla_decode: format.d: expected 1 to 8192, got 0"),
            (|a| a.format = KvFormat::F32 { d: 8193 }, "sparse_mla_decode: format.d: expected 1 to 8192, got 8193"),
            (|a| a.dtype = Dtype::Bf16, "sparse_mla_decode: stride_q_t: expected a multiple of 8 elements, got 642"),
            (|a| a.stride_q[1] = 79, "sparse_mla_decode: stride_q_h: expected at least 80 elements, got 79"),
            (|a| a.q -= 1, "sparse_mla_decode: q: expected at least 5128 bytes, got 5127 bytes"),
            (|a| a.out -= 1, "sparse_mla_decode: out: expected at least 5148 bytes, got 5147 bytes"),
        ],
    );
    let mut bare = Mla::valid(KvFormat::V4Fp8);
    (bare.compressed, bare.sink, bare.window.lens) = (None, None, None);
    bare.check().expect("one list, no lengths, no sink");
    let mut empty = Mla::valid(KvFormat::V4Fp8);
    (empty.t, empty.q, empty.out, empty.lse, empty.window.slots, empty.second().slots) = (0, 0, 0, 0, 0, 0);
    empty.check().expect("an empty batch needs no memory but the caches");
}

#[derive(Clone)]
struct Combine {
    partial: Size,
    lse2: Size,
    sink: Option<Size>,
    out: Size,
    lse: Size,
    t: u32,
    h: u32,
    num_splits: u32,
    stride_out: [u64; 2],
}

#[test]
fn split_combine() {
    let valid = Combine {
        partial: 3 * 2 * 8 * 512 * 4,
        lse2: 3 * 2 * 8 * 4,
        sink: None,
        out: 2 * 8 * 512 * 2,
        lse: 2 * 8 * 4,
        t: 2,
        h: 8,
        num_splits: 3,
        stride_out: [4096, 512],
    };
    let check = |a: &Combine| {
        let (mut out, mut lse) = (a.out, a.lse);
        SplitCombine {
            o_partial: &a.partial,
            lse2_partial: &a.lse2,
            attn_sink: a.sink.as_ref(),
            out: &mut out,
            lse: &mut lse,
            t: a.t,
            h: a.h,
            num_splits: a.num_splits,
            stride_out: a.stride_out,
        }
        .check(len)
    };
    expect(
        &valid,
        check,
        &[
            (|a| a.h = 257, "split_combine: h: expected 1 to 256, got 257"),
            (|a| a.num_splits = 0, "split_combine: num_splits: expected at least 1, got 0"),
            (
                |a| a.num_splits = 1 << 27,
                "split_combine: num_splits * t * h: expected at most 2147483647, got 2147483648",
            ),
            (|a| a.stride_out[1] = 8, "split_combine: stride_out_h: expected at least 512 elements, got 8"),
            (|a| a.partial -= 1, "split_combine: o_partial: expected at least 98304 bytes, got 98303 bytes"),
            (|a| a.lse2 -= 1, "split_combine: lse2_partial: expected at least 192 bytes, got 191 bytes"),
            (|a| a.sink = Some(1), "split_combine: attn_sink: expected at least 32 bytes, got 1 bytes"),
            (|a| a.out -= 1, "split_combine: out: expected at least 16384 bytes, got 16383 bytes"),
            (|a| a.lse -= 1, "split_combine: lse: expected at least 64 bytes, got 63 bytes"),
        ],
    );
}

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

#[test]
fn narrowing() {
    assert_eq!(narrow("op", "x", i32::MAX as u64).unwrap(), i32::MAX);
    let error = narrow("op", "x", 1 << 31).unwrap_err().to_string();
    assert_eq!(error, "op: x: expected at most 2147483647, got 2147483648");
    assert_eq!(narrow_stride("op", "x", i64::MAX as u64).unwrap(), i64::MAX);
    assert!(narrow_stride("op", "x", 1 << 63).is_err());
}

proptest! {
    /// Whatever the numbers are, a check answers: no overflow, no panic.
    #[test]
    fn checks_never_panic(
        numbers in prop::array::uniform6(prop_oneof![0..200u32, any::<u32>()]),
        strides in prop::array::uniform4(prop_oneof![(0..4000u64).prop_map(|s| 8 * s), any::<u64>()]),
        size in any::<u64>(),
    ) {
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
        let _ = Topk {
            logits: size,
            lens: size,
            table: Some(size),
            positions: Some(size),
            slots: Some(size),
            counts: Some(size),
            rows: a,
            rows_per_sequence: b,
            lines: (f % 2 == 0).then_some(size),
            num_sequences: f,
            topk: c,
            page_size: d,
            max_pages: e,
            stride_logits: strides[1],
            stride_block_table: strides[2],
        }
        .check();
        let list = List { cache: size, pages, slots: size, lens: Some(size), width: e, stride: strides[1] };
        let _ = Mla {
            dtype: [Dtype::F32, Dtype::Bf16][(b % 2) as usize],
            format: KvFormat::V4Fp8,
            q: size,
            window: list.clone(),
            compressed: Some(list),
            sink: Some(size),
            out: size,
            lse: size,
            t: c,
            h: 8 << (d % 6),
            stride_q: [strides[2], strides[3]],
            stride_out: [strides[3], strides[2]],
            sm_scale: 1.0,
            num_splits: Some(f),
        }
        .check();
    }
}
