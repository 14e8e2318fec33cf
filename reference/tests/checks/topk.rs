//! What the choice of the best refuses.

use proptest::prelude::*;
use reference::ops::*;

use super::{Size, expect, len, numbers, strides};

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

proptest! {
    /// Whatever the numbers are, a check answers: no overflow, no panic.
    #[test]
    fn checks_never_panic(numbers in numbers(), strides in strides(), size in any::<u64>()) {
        let [a, b, c, d, e, f] = numbers;
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
    }
}
