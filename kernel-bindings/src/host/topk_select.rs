//! Top-k: every value becomes an integer that is larger the better the entry is. A sample says how good the chosen ones are
//! about; among the few that may be as good, the k-th is found in linear time.

use reference::ops::TopkSelect;

use super::HostBuffer;
use super::numbers::{f32_at, s32_at};
use super::rows::piece;
use super::simd::{Simd, WithSimd, widest};
use super::threads;

/// Values that are looked at to guess the k-th best.
const SAMPLE: usize = 512;
/// Values that are skipped together when none is good enough.
const BLOCK: usize = 16;

/// An integer that orders numbers.
#[inline(always)]
fn ordered(value: f32) -> u32 {
    // -0.0 becomes 0.0.
    let bits = (value + 0.0).to_bits();
    // Positive numbers above negative ones, negative ones in reverse.
    if bits >> 31 == 0 { bits | 0x8000_0000 } else { !bits }
}

/// A number that the `topk` best of `n` values reach, about, and not many others.
fn guess(logits: &[u8], n: usize, topk: usize) -> f32 {
    let places = (0..n).step_by(n.div_ceil(SAMPLE));
    let rank = topk * places.len() / n;
    // Four deviations lower, so that too few are hardly ever found.
    let rank = rank + 4 * rank.isqrt() + 4;
    let mut sample: Vec<f32> = places.map(|j| f32_at(logits, j)).filter(|&value| value > f32::NEG_INFINITY).collect();
    if rank >= sample.len() {
        return f32::MIN;
    }
    *sample.select_nth_unstable_by(rank, |a, b| b.total_cmp(a)).1
}

/// Ascending positions of the best entries of `n` values.
struct Select<'a> {
    logits: &'a [u8],
    n: usize,
    topk: usize,
}

impl WithSimd for Select<'_> {
    type Output = Vec<u32>;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> Vec<u32> {
        let Select { logits, n, topk } = self;
        if n <= topk {
            return (0..n as u32).collect();
        }
        let logits = &logits[..4 * n];
        let mut bound = guess(logits, n, topk);
        let mut good = 0;
        for value in logits.as_chunks::<4>().0 {
            good += u32::from(f32::from_le_bytes(*value) >= bound);
        }
        if (good as usize) < topk {
            bound = f32::MIN;
        }
        // The value above, the lower position better. NaN and -inf reach no bound.
        let mut candidates: Vec<u64> = Vec::with_capacity(good as usize);
        for (block, values) in logits.chunks(4 * BLOCK).enumerate() {
            let (values, _) = values.as_chunks::<4>();
            let mut any = false;
            for value in values {
                any |= f32::from_le_bytes(*value) >= bound;
            }
            if any {
                for (place, value) in values.iter().enumerate() {
                    let value = f32::from_le_bytes(*value);
                    if value >= bound {
                        let position = (block * BLOCK + place) as u32;
                        candidates.push(u64::from(ordered(value)) << 32 | u64::from(!position));
                    }
                }
            }
        }
        let mut last = 0;
        if candidates.len() > topk {
            let mut rest = candidates.clone();
            last = *rest.select_nth_unstable_by(topk - 1, |a, b| b.cmp(a)).1;
        }
        candidates.into_iter().filter(|&candidate| candidate >= last).map(|candidate| !(candidate as u32)).collect()
    }
}

pub(super) fn run(args: TopkSelect<'_, HostBuffer>) {
    let (rows, topk, stride) = (args.rows as usize, args.topk as usize, args.stride_logits as usize);
    let (logits, lens) = (&args.index_logits.bytes, &args.context_lens.bytes);
    let select = |row: usize| {
        let n = (s32_at(lens, row).max(0) as usize).min(stride);
        widest(Select { logits: &logits[4 * row * stride..], n, topk })
    };
    let mut chosen: Vec<Vec<u32>> = vec![Vec::new(); rows];
    let together = piece(rows, stride);
    threads::share(chosen.chunks_mut(together).enumerate(), |(first, chosen)| {
        chosen.iter_mut().enumerate().for_each(|(row, chosen)| *chosen = select(first * together + row));
    });

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
