//! The batch in reverse order: the same rows must give the same bytes, wherever in the batch they stand.
//!
//! Results that depend on neighbours (work split over blocks by position, scratch that is not reset, rows that share a
//! tile) show when the order changes; a comparison within a tolerance would let most of them pass.

mod streams;

use crate::formats::{s32_bytes, s32s};
use crate::ops::{Dtype, Ops, OpsError};
use crate::plain::Bytes;
use crate::problem::{Fill, Memory, Problem, SparseMlaProblem};

/// Rows in reverse order, each with what is defined of it. The last row may be shorter than the stride.
pub(crate) fn memory(given: &Memory, rows: u64, stride_bytes: u64) -> Memory {
    let mut lines: Vec<Vec<(u64, &[u8])>> = vec![Vec::new(); rows as usize];
    for (offset, bytes) in &given.pieces {
        let (mut offset, mut bytes) = (*offset, bytes.as_slice());
        while !bytes.is_empty() {
            let (row, at) = (offset / stride_bytes, offset % stride_bytes);
            let (here, rest) = bytes.split_at(bytes.len().min((stride_bytes - at) as usize));
            lines[row as usize].push((at, here));
            offset += here.len() as u64;
            bytes = rest;
        }
    }
    let mut reversed = Memory::undefined(given.label, rows * stride_bytes);
    for (row, line) in lines.into_iter().rev().enumerate() {
        for (at, bytes) in line {
            reversed.put(row as u64 * stride_bytes + at, bytes);
        }
    }
    reversed
}

/// How an output is cut into rows of the batch: rows, bytes from one to the next, bytes of one.
pub(crate) struct Lines {
    rows: usize,
    stride: usize,
    len: usize,
}

impl Lines {
    pub(crate) fn of(rows: u32, stride: u64, len: u64) -> Lines {
        Lines { rows: rows as usize, stride: stride as usize, len: len as usize }
    }

    fn row<'a>(&self, output: &'a [u8], row: usize) -> &'a [u8] {
        &output[row * self.stride..row * self.stride + self.len]
    }
}

/// The problem with its batch in reverse order, and the cuts of its outputs; `None` for the writers, whose output is
/// where the slots say.
fn reversed(problem: &Problem) -> Option<(Problem, Vec<Lines>)> {
    let mut problem = problem.clone();
    let lines = match &mut problem {
        Problem::Write(_) => return None,
        Problem::Streams(p) => streams::reverse(p),
        Problem::Rows(p) => p.reverse(),
        Problem::IndexLogitsDecode(p) => {
            // Sequences change places; the queries of one stay in order.
            let (b, s_q) = (u64::from(p.b), u64::from(p.s_q));
            p.index_q = memory(&p.index_q, b, s_q * u64::from(p.index_heads) * p.format.query_head_bytes());
            p.index_weights = memory(&p.index_weights, b, s_q * u64::from(p.index_heads) * 4);
            p.block_table = memory(&p.block_table, b, 4 * p.stride_block_table);
            p.context_lens = memory(&p.context_lens, b, 4 * s_q);
            let row = 4 * s_q * p.stride_logits;
            vec![Lines::of(p.b, row, row)]
        }
        Problem::IndexLogitsPrefill(p) => {
            // Sequences change places, and the queries of each: every query stands for itself.
            let (t, b) = (u64::from(p.t), u64::from(p.b));
            p.index_q = memory(&p.index_q, t, u64::from(p.index_heads) * p.format.query_head_bytes());
            p.index_weights = memory(&p.index_weights, t, u64::from(p.index_heads) * 4);
            p.starts = p.starts.as_ref().map(|starts| memory(starts, t, 4));
            p.ends = memory(&p.ends, t, 4);
            p.block_table = memory(&p.block_table, b, 4 * p.stride_block_table);
            let turned: Vec<i32> =
                s32s(&p.cu_seqlens_q.image()).iter().rev().map(|&first| p.t as i32 - first).collect();
            p.cu_seqlens_q = Memory::full(p.cu_seqlens_q.label, s32_bytes(&turned));
            vec![Lines::of(p.t, 4 * p.stride_logits, 4 * p.stride_logits)]
        }
        Problem::TopkSelect(p) => {
            // Rows that name their line of the table change places one by one, and the table stays.
            let named = p.sequence_of_row.is_some();
            let together = if named { 1 } else { u64::from(p.rows_per_sequence) };
            let sequences = p.rows / together as u32;
            let count = u64::from(sequences);
            p.index_logits = memory(&p.index_logits, count, 4 * together * p.stride_logits);
            p.context_lens = memory(&p.context_lens, count, 4 * together);
            p.sequence_of_row = p.sequence_of_row.as_ref().map(|lines| memory(lines, count, 4));
            if let Some(table) = p.block_table.as_ref().filter(|_| !named) {
                p.block_table = Some(memory(table, count, 4 * p.stride_block_table));
            }
            let chosen = 4 * together * u64::from(p.topk);
            let mut lines = Vec::new();
            lines.extend(p.want_positions.then(|| Lines::of(sequences, chosen, chosen)));
            lines.extend(p.block_table.is_some().then(|| Lines::of(sequences, chosen, chosen)));
            lines.extend(p.want_lens.then(|| Lines::of(sequences, 4 * together, 4 * together)));
            lines
        }
        Problem::SparseMlaDecode(p) => attention(p),
        Problem::SparseMlaPrefill(p) => {
            let mut lines = attention(&mut p.attention);
            let row = 4 * u64::from(p.attention.h);
            lines.extend(p.max_logits.then(|| Lines::of(p.attention.t, row, row)));
            lines
        }
        Problem::SplitCombine(p) => {
            let h = u64::from(p.h);
            // One batch per split.
            let each = |given: &Memory, row: u64| {
                let splits = u64::from(p.num_splits);
                memory(&memory(given, splits * u64::from(p.t), row), splits, u64::from(p.t) * row)
            };
            if p.t > 0 {
                p.o_partial = each(&p.o_partial, 4 * h * 512);
                p.lse2_partial = each(&p.lse2_partial, 4 * h);
            }
            attention_lines(Dtype::Bf16, p.t, p.h, 512, p.stride_out)
        }
        Problem::Products(p) => {
            let (tokens, stride, len) = p.reverse(memory);
            vec![Lines::of(tokens, stride, len)]
        }
    };
    Some((problem, lines))
}

/// Turns the tokens of an attention call round.
fn attention(p: &mut SparseMlaProblem) -> Vec<Lines> {
    let t = u64::from(p.t);
    p.q = memory(&p.q, t, p.dtype.bytes() * p.stride_q[0]);
    for list in std::iter::once(&mut p.window).chain(&mut p.compressed) {
        if list.width > 0 {
            list.slots = memory(&list.slots, t, 4 * list.stride_slots);
        }
        list.lens = list.lens.as_ref().map(|lens| memory(lens, t, 4));
    }
    attention_lines(p.dtype, p.t, p.h, p.format.d(), p.stride_out)
}

fn attention_lines(dtype: Dtype, t: u32, h: u32, d: u32, stride_out: [u64; 2]) -> Vec<Lines> {
    let (token, size) = (u64::from(h - 1) * stride_out[1] + u64::from(d), dtype.bytes());
    vec![Lines::of(t, size * stride_out[0], size * token), Lines::of(t, 4 * u64::from(h), 4 * u64::from(h))]
}

/// Runs a problem with its batch in reverse order and compares with `outputs` of the given order, bit for bit.
///
/// Returns the first row of the batch that differs and what differs, or `None` if none does (also for the writers, which
/// have no order).
pub fn differs<O: Ops>(ops: &O, problem: &Problem, outputs: &[Bytes], fill: Fill) -> Result<Option<String>, OpsError> {
    let Some((turned, lines)) = reversed(problem) else { return Ok(None) };
    let names: Vec<&str> = problem.output_names();
    let again = turned.run(ops, fill)?;
    for (((lines, name), forward), backward) in lines.iter().zip(names).zip(outputs).zip(&again) {
        for row in 0..lines.rows {
            let (a, b) = (lines.row(forward, row), lines.row(backward, lines.rows - 1 - row));
            if let Some(byte) = (0..lines.len).find(|&i| a[i] != b[i]) {
                return Ok(Some(format!(
                    "{name}: row {row} of the batch depends on its place: byte {byte} is {:#04x} in order and {:#04x} in \
                     reverse order",
                    a[byte], b[byte]
                )));
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases::{self, Size};
    use crate::plain::ReferenceOps;

    #[test]
    fn rows_change_places_with_their_gaps() {
        let mut given = Memory::undefined("x", 12);
        given.put(1, &[1, 2, 3]);
        given.put(6, &[6, 7, 8]);
        let turned = memory(&given, 3, 4);
        let mut image = vec![0xff; 12];
        image[0] = 8;
        image[6..8].copy_from_slice(&[6, 7]);
        image[9..12].copy_from_slice(&[1, 2, 3]);
        assert_eq!(turned.image(), image);
        assert_eq!(memory(&turned, 3, 4).image(), given.image(), "twice is nothing");
    }

    #[test]
    fn the_reference_does_not_see_the_order() {
        let mut with_order = 0;
        for case in cases::all(Size::Quick) {
            let problem = case.problem(1);
            let outputs = problem.run(&ReferenceOps, Fill::Poison).unwrap();
            assert_eq!(differs(&ReferenceOps, &problem, &outputs, Fill::Poison).unwrap(), None, "{}", case.name);
            with_order += usize::from(reversed(&problem).is_some_and(|(_, lines)| lines[0].rows > 1));
        }
        assert!(with_order > 30, "{with_order} cases have a batch");
    }

    #[test]
    fn a_row_that_depends_on_its_place_is_named() {
        let case = cases::all(Size::Quick).into_iter().find(|c| c.name.ends_with("fp8/empty_rows")).unwrap();
        let problem = case.problem(1);
        let mut outputs = problem.run(&ReferenceOps, Fill::Poison).unwrap();
        outputs[0][4 * 256 + 9] ^= 1;
        let text = differs(&ReferenceOps, &problem, &outputs, Fill::Poison).unwrap().unwrap();
        assert!(text.starts_with("index_logits: row 1 of the batch depends on its place: byte 9 is "), "{text}");
    }
}
