//! What sparse attention and the merge of its splits refuse.

use proptest::prelude::*;
use reference::ops::*;

use super::{Change, Size, expect, len, numbers, strides};

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

proptest! {
    /// Whatever the numbers are, a check answers: no overflow, no panic.
    #[test]
    fn checks_never_panic(numbers in numbers(), strides in strides(), size in any::<u64>()) {
        let [a, b, c, d, e, f] = numbers;
        let pages = Pages { num_pages: a, page_size: b, page_stride_bytes: strides[0] };
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
