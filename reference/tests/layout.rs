//! Byte layouts, against figures of the format description and against what every layout must satisfy.

use proptest::prelude::*;
use reference::layout::*;
use reference::ops::{IndexKFormat, KvFormat, Pages};

#[test]
fn page_sizes_of_the_format_description() {
    for (page_size, bytes) in [(256, 149_760), (128, 74_880), (64, 37_440), (2, 1_728)] {
        assert_eq!(KvFormat::V4Fp8.page_stride_bytes(page_size), bytes, "{page_size} rows");
    }
    assert_eq!(KvFormat::Bf16.page_stride_bytes(64), 65_536);
    assert_eq!(IndexKFormat::Fp8.page_stride_bytes(64), 8_448);
    assert_eq!(IndexKFormat::Bf16.page_stride_bytes(64), 16_384);
    assert_eq!([KvFormat::V4Fp8.row_bytes(), KvFormat::Bf16.row_bytes()].map(|b| b as usize), [448 + 128 + 8, 1024]);
    assert_eq!([IndexKFormat::Fp8.row_bytes(), IndexKFormat::Bf16.row_bytes()], [132, 256]);
    assert_eq!([IndexKFormat::Fp4.row_bytes(), IndexKFormat::Fp4.page_stride_bytes(64)], [68, 4352]);
    assert_eq!(IndexKFormat::Fp4.page_stride_bytes(2), 144, "136 rounded up to 16");
    assert_eq!([KvFormat::F32 { d: 80 }.row_bytes(), IndexKFormat::F32 { d: 64 }.row_bytes()], [320, 256]);
    let formats = [IndexKFormat::Fp8, IndexKFormat::Bf16, IndexKFormat::Fp4, IndexKFormat::F32 { d: 64 }];
    assert_eq!(formats.map(IndexKFormat::query_head_bytes), [128, 256, 68, 256]);
}

#[test]
fn addresses_by_hand() {
    let pages = Pages { num_pages: 9, page_size: 64, page_stride_bytes: 37_440 };
    assert_eq!(v4_fp8_data(&pages, 3, 5), 3 * 37_440 + 5 * 576);
    assert_eq!(v4_fp8_rope(&pages, 3, 5), 3 * 37_440 + 5 * 576 + 448);
    assert_eq!(v4_fp8_footer(&pages, 3, 5), 3 * 37_440 + 64 * 576 + 5 * 8);
    let pages = Pages { num_pages: 9, page_size: 64, page_stride_bytes: 8_448 };
    assert_eq!(index_k_fp8_data(&pages, 2, 7), 2 * 8_448 + 7 * 128);
    assert_eq!(index_k_fp8_scale(&pages, 2, 7), 2 * 8_448 + 8_192 + 7 * 4);
    let pages = Pages { num_pages: 9, page_size: 64, page_stride_bytes: 65_536 };
    assert_eq!(bf16_kv(&pages, 8, 63), 8 * 65_536 + 63 * 1024);
    assert_eq!(index_k_bf16(&pages, 1, 63), 65_536 + 63 * 256);
    assert_eq!(f32_row(&pages, 1, 63, 80), 65_536 + 63 * 320);
    let pages = Pages { num_pages: 9, page_size: 64, page_stride_bytes: 4_352 };
    assert_eq!(index_k_fp4_data(&pages, 2, 7), 2 * 4_352 + 7 * 64);
    assert_eq!(index_k_fp4_scale(&pages, 2, 7), 2 * 4_352 + 4_096 + 7 * 4);
}

#[test]
fn slots_outside_the_pool_are_none() {
    let pages = Pages::kv(KvFormat::Bf16, 3, 61);
    for slot in [-1, i32::MIN, 183, i32::MAX] {
        assert_eq!(pages.locate(slot), None, "{slot}");
    }
    assert_eq!(pages.locate(0), Some((0, 0)));
    assert_eq!(pages.locate(182), Some((2, 60)));
    assert_eq!(Pages::kv(KvFormat::Bf16, 0, 61).locate(0), None);
}

#[test]
fn offsets_do_not_stop_at_32_bits() {
    let pages = Pages::kv(KvFormat::V4Fp8, 1 << 20, 64);
    assert_eq!(v4_fp8_footer(&pages, (1 << 20) - 1, 63), ((1u64 << 20) - 1) * 37_440 + 37_368);
}

/// Parts of row (page, row) as (start, length).
fn kv_parts(format: KvFormat, pages: &Pages, page: u32, row: u32) -> Vec<(u64, u64)> {
    match format {
        KvFormat::V4Fp8 => vec![
            (v4_fp8_data(pages, page, row), 448),
            (v4_fp8_rope(pages, page, row), 128),
            (v4_fp8_footer(pages, page, row), 8),
        ],
        KvFormat::Bf16 => vec![(bf16_kv(pages, page, row), 1024)],
        KvFormat::F32 { d } => vec![(f32_row(pages, page, row, d), 4 * u64::from(d))],
    }
}

fn index_parts(format: IndexKFormat, pages: &Pages, page: u32, row: u32) -> Vec<(u64, u64)> {
    match format {
        IndexKFormat::Fp8 => {
            vec![(index_k_fp8_data(pages, page, row), 128), (index_k_fp8_scale(pages, page, row), 4)]
        }
        IndexKFormat::Bf16 => vec![(index_k_bf16(pages, page, row), 256)],
        IndexKFormat::Fp4 => vec![(index_k_fp4_data(pages, page, row), 64), (index_k_fp4_scale(pages, page, row), 4)],
        IndexKFormat::F32 { d } => vec![(f32_row(pages, page, row, d), 4 * u64::from(d))],
    }
}

proptest! {
    /// Rows tile their page: no two parts overlap, none leaves the page, together they are all of it but the padding,
    /// and 16-byte loads of the data are aligned.
    #[test]
    fn rows_tile_their_pages(
        page_size in 1u32..300, pad in 0u64..4, page in 0u32..5, which in 0usize..7, quarter in 1u32..140
    ) {
        // 16-byte loads of f32 rows are aligned when their width is a multiple of 4
        let d = 4 * quarter;
        let kv = [KvFormat::V4Fp8, KvFormat::Bf16, KvFormat::F32 { d }].get(which).copied();
        let index_k = [IndexKFormat::Fp8, IndexKFormat::Bf16, IndexKFormat::Fp4, IndexKFormat::F32 { d }];
        let index_k = index_k[which.max(3) - 3];
        let (mut pages, page_bytes, align) = match kv {
            Some(format) => (Pages::kv(format, 5, page_size), format.page_bytes(page_size), format.page_align()),
            None => (Pages::index_k(index_k, 5, page_size), index_k.page_bytes(page_size), index_k.page_align()),
        };
        prop_assert!(pages.page_stride_bytes < page_bytes + align, "the smallest stride that fits");
        pages.page_stride_bytes += pad * align;
        let mut parts: Vec<(u64, u64)> = (0..page_size)
            .flat_map(|row| match kv {
                Some(format) => kv_parts(format, &pages, page, row),
                None => index_parts(index_k, &pages, page, row),
            })
            .collect();
        for &(start, length) in &parts {
            prop_assert_eq!(start % length.min(16), 0, "a part of {} bytes at {}", length, start);
        }
        parts.sort_unstable();
        let mut next = u64::from(page) * pages.page_stride_bytes;
        for (start, length) in parts {
            prop_assert_eq!(start, next, "parts follow each other");
            next = start + length;
        }
        prop_assert_eq!(next, u64::from(page) * pages.page_stride_bytes + page_bytes);
        prop_assert!(next <= u64::from(page + 1) * pages.page_stride_bytes);
    }

    /// Slots and places are two names of the same thing.
    #[test]
    fn locate_inverts_numbering(num_pages in 1u32..50, page_size in 1u32..300, pick in any::<u32>()) {
        let pages = Pages::kv(KvFormat::V4Fp8, num_pages, page_size);
        let slot = pick % (num_pages * page_size);
        let (page, row) = pages.locate(slot as i32).unwrap();
        prop_assert_eq!(page * page_size + row, slot);
        prop_assert!(row < page_size && page < num_pages);
    }
}
