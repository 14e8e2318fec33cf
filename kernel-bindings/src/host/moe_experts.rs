//! Routed experts: picks sorted by expert, one product per expert with all its tokens, sums in the order of each list.

use std::cell::Cell;
use std::ops::Range;

use pulp::bytemuck::{cast_slice, cast_slice_mut};
use reference::ops::{Dtype, MoeExperts};

use super::HostBuffer;
use super::numbers::{exponential, f32_at, s32_at};
use super::products::{Matrix, Rows, Shared, multiply, parallel, room};
use super::simd::widest;
use super::threads;

/// Rows of an expert's matrix that one task multiplies.
const TASK_ROWS: usize = 64;
/// Bytes of partial results, above which the batch is done in pieces. A token's result does not depend on the others.
const PARTIAL_BYTES: usize = 64 << 20;

/// Memory that calls on one thread use again.
#[derive(Default)]
struct Scratch {
    rows: Vec<f32>,
    /// First entry of every expert in `picks`, and one more.
    starts: Vec<usize>,
    /// Experts with tokens.
    used: Vec<usize>,
    /// Picks by expert, in the order of the batch.
    picks: Vec<usize>,
    /// `[picks, 2 * inter]`, `[picks, inter]` and `[picks, d]` f32, in the order of `picks`.
    gate_up: Vec<f32>,
    hidden: Vec<f32>,
    partial: Vec<f32>,
    /// Where a pick stands in `picks`.
    places: Vec<usize>,
}

thread_local! {
    static SCRATCH: Cell<Scratch> = Cell::default();
}

/// A pick of an expert that is not here.
const ELSEWHERE: usize = usize::MAX;

pub(super) fn run(mut args: MoeExperts<'_, HostBuffer>) {
    let mut scratch = SCRATCH.take();
    let (t, d, topk) = (args.t as usize, args.d as usize, args.topk as usize);
    let per_token = topk * 4 * (d + 3 * args.inter as usize);
    let together = (PARTIAL_BYTES / per_token).max(1);
    for first in (0..t).step_by(together) {
        tokens(&mut args, first..t.min(first + together), &mut scratch);
    }
    SCRATCH.set(scratch);
}

/// Sorts the picks of some tokens by expert, stable.
fn sort(args: &MoeExperts<'_, HostBuffer>, tokens: Range<usize>, scratch: &mut Scratch) {
    let (topk, experts) = (args.topk as usize, args.num_experts as usize);
    let local = |pick: usize| {
        let expert = i64::from(s32_at(&args.expert_ids.bytes, pick)) - i64::from(args.first_expert);
        usize::try_from(expert).ok().filter(|&expert| expert < experts)
    };
    let picks = tokens.start * topk..tokens.end * topk;
    let Scratch { starts, picks: sorted, places, .. } = scratch;
    starts.clear();
    starts.resize(experts + 1, 0);
    picks.clone().filter_map(local).for_each(|expert| starts[expert + 1] += 1);
    for expert in 0..experts {
        starts[expert + 1] += starts[expert];
    }
    sorted.clear();
    sorted.resize(starts[experts], 0);
    places.clear();
    for pick in picks {
        places.push(match local(pick) {
            Some(expert) => {
                let place = starts[expert];
                sorted[place] = pick;
                starts[expert] += 1;
                place
            }
            None => ELSEWHERE,
        });
    }
    // Every start has moved to the start of the next expert.
    starts.rotate_right(1);
    starts[0] = 0;
}

fn tokens(args: &mut MoeExperts<'_, HostBuffer>, tokens: Range<usize>, scratch: &mut Scratch) {
    sort(args, tokens.clone(), scratch);
    let [d, inter, topk] = [args.d, args.inter, args.topk].map(|size| size as usize);
    let Scratch { rows, starts, used, picks, gate_up, hidden, partial, places } = scratch;
    let x = Rows::new(args.dtype, &args.x.bytes, [args.t as usize, d, d], rows);
    used.clear();
    used.extend((0..starts.len() - 1).filter(|&expert| starts[expert] < starts[expert + 1]));
    let work = Work { starts, experts: used, parallel: parallel(picks.len(), 3 * d * inter * used.len().min(1)) };

    let (w13, w2) = (Matrix::new(&args.w13, args.d), Matrix::new(&args.w2, args.inter));
    let token_of = |place: usize| picks[place] / topk;
    let gate_up = room(gate_up, picks.len() * 2 * inter);
    work.products(w13, 2 * inter, |place| x.row(token_of(place), 0, d), gate_up);
    let hidden = room(hidden, picks.len() * inter);
    gate(args.dtype, args.limit, inter, gate_up, hidden);
    let (hidden, partial) = (&hidden[..], room(partial, picks.len() * d));
    work.products(w2, d, |place| cast_slice(&hidden[inter * place..][..inter]), partial);

    for (token, places) in tokens.zip(places.chunks_exact(topk)) {
        let out = &mut args.out.bytes[4 * token * d..4 * (token + 1) * d];
        out.fill(0);
        for (choice, &place) in places.iter().enumerate().filter(|(_, place)| **place != ELSEWHERE) {
            let weight = f32_at(&args.expert_weights.bytes, token * topk + choice);
            for (sum, term) in out.chunks_exact_mut(4).zip(&partial[place * d..(place + 1) * d]) {
                let value = f32_at(sum, 0) + weight * term;
                sum.copy_from_slice(&value.to_le_bytes());
            }
        }
    }
}

/// Experts with tokens, and where those stand.
struct Work<'a> {
    starts: &'a [usize],
    experts: &'a [usize],
    parallel: bool,
}

impl Work<'_> {
    /// `out[place, row] = matrix[expert of place, row] . x(place)` for matrices of `rows` rows, one after the other.
    fn products<'x>(&self, matrix: Matrix<'_>, rows: usize, x: impl Fn(usize) -> &'x [u8] + Sync, out: &mut [f32]) {
        let out = Shared::new(cast_slice_mut(out));
        let task = |expert: usize, part: Range<usize>| {
            let places = self.starts[expert]..self.starts[expert + 1];
            let from = expert * rows;
            let vectors = |token| x(places.start + token);
            multiply(matrix, from + part.start..from + part.end, places.len(), vectors, |token, row, values| {
                // SAFETY: `out` is borrowed until the end of `products`; the rows of a place belong to one task, and tasks
                // have different experts (so different places) or different rows.
                let bytes = unsafe { out.piece(4 * ((places.start + token) * rows + row - from), 4 * values.len()) };
                bytes.chunks_exact_mut(4).zip(values).for_each(|(b, v)| b.copy_from_slice(&v.to_le_bytes()));
            });
        };
        if self.parallel {
            let parts = rows.div_ceil(TASK_ROWS);
            threads::share(0..self.experts.len() * parts, |i| {
                let first = i % parts * TASK_ROWS;
                task(self.experts[i / parts], first..rows.min(first + TASK_ROWS));
            });
        } else {
            self.experts.iter().for_each(|&expert| task(expert, 0..rows));
        }
    }
}

/// `silu(min(a, limit)) * clamp(b, -limit, limit)`, stored values in between; NaN passes: comparisons do not drop it.
fn gate(dtype: Dtype, limit: f32, inter: usize, gate_up: &[f32], hidden: &mut [f32]) {
    let rows = || gate_up.chunks_exact(2 * inter).map(|row| row.split_at(inter));
    match dtype {
        Dtype::F32 => widest(|| {
            for ((gates, ups), out) in rows().zip(hidden.chunks_exact_mut(inter)) {
                for ((h, &a), &b) in out.iter_mut().zip(gates).zip(ups) {
                    *h = gated(a, b, limit);
                }
            }
        }),
        Dtype::Bf16 => {
            let store = |value: f32| half::bf16::from_f32(value).to_f32();
            for ((gates, ups), out) in rows().zip(hidden.chunks_exact_mut(inter)) {
                for ((h, &a), &b) in out.iter_mut().zip(gates).zip(ups) {
                    *h = store(gated(store(a), store(b), limit));
                }
            }
        }
    }
}

#[inline(always)]
fn gated(a: f32, b: f32, limit: f32) -> f32 {
    let a = if a > limit { limit } else { a };
    let b = if b > limit { limit } else { b };
    let b = if b < -limit { -limit } else { b };
    a / (1.0 + exponential(-a)) * b
}
