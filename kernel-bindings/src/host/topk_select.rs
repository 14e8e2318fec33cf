//! Top-k: every value becomes an integer that is larger the better the entry is; the k-th is found in linear time.

use rayon::prelude::*;
use reference::ops::TopkSelect;

use super::HostBuffer;
use super::numbers::{f32_at, s32_at};

/// An integer that orders entries: by value, then lower positions first. `None` for NaN and -inf.
fn key(value: f32, position: usize) -> Option<u64> {
    if value.is_nan() || value == f32::NEG_INFINITY {
        return None;
    }
    let bits = if value == 0.0 { 0 } else { value.to_bits() };
    // Positive numbers above negative ones, negative ones in reverse.
    let ordered = if bits >> 31 == 0 { bits | 0x8000_0000 } else { !bits };
    Some(u64::from(ordered) << 32 | u64::from(!(position as u32)))
}

fn position(key: u64) -> u32 {
    !(key as u32)
}

/// Ascending positions of the best entries of `n` values.
fn select(logits: &[u8], n: usize, topk: usize) -> Vec<u32> {
    if n <= topk {
        return (0..n as u32).collect();
    }
    let mut keys: Vec<u64> = (0..n).filter_map(|j| key(f32_at(logits, j), j)).collect();
    if keys.len() > topk {
        keys.select_nth_unstable_by(topk, |a, b| b.cmp(a));
        keys.truncate(topk);
    }
    let mut positions: Vec<u32> = keys.into_iter().map(position).collect();
    positions.sort_unstable();
    positions
}

pub(super) fn run(args: TopkSelect<'_, HostBuffer>) {
    let (rows, topk, stride) = (args.rows as usize, args.topk as usize, args.stride_logits as usize);
    let (logits, lens) = (&args.index_logits.bytes, &args.context_lens.bytes);
    let chosen: Vec<Vec<u32>> = (0..rows)
        .into_par_iter()
        .map(|row| {
            let n = (s32_at(lens, row).max(0) as usize).min(stride);
            select(&logits[4 * row * stride..], n, topk)
        })
        .collect();

    let write = |out: &mut HostBuffer, of: &dyn Fn(usize, u32) -> i32| {
        for (row, (line, chosen)) in out.bytes.chunks_exact_mut(4 * topk).zip(&chosen).enumerate() {
            let entries = chosen.iter().map(|&j| of(row, j)).chain(std::iter::repeat(-1));
            line.chunks_exact_mut(4).zip(entries).for_each(|(out, v)| out.copy_from_slice(&v.to_le_bytes()));
        }
    };
    if let Some(positions) = args.topk_positions {
        write(positions, &|_, j| j as i32);
    }
    if let (Some(slots), Some(table)) = (args.topk_slots, args.block_table) {
        let (page_size, stride_table) = (args.page_size, args.stride_block_table as usize);
        write(slots, &|row, j| {
            let (column, offset) = (j / page_size, j % page_size);
            if column >= args.max_pages {
                return -1;
            }
            let sequence = match args.sequence_of_row {
                Some(of_row) => s32_at(&of_row.bytes, row),
                None => (row / args.rows_per_sequence as usize) as i32,
            };
            if sequence < 0 || args.sequence_of_row.is_some() && sequence as u32 >= args.num_sequences {
                return -1;
            }
            let page = s32_at(&table.bytes, sequence as usize * stride_table + column as usize);
            if page < 0 { -1 } else { page.wrapping_mul(page_size as i32).wrapping_add(offset as i32) }
        });
    }
    if let Some(lens) = args.topk_lens {
        for (out, chosen) in lens.bytes.chunks_exact_mut(4).zip(&chosen) {
            out.copy_from_slice(&(chosen.len() as i32).to_le_bytes());
        }
    }
}
