//! Cases of `split_combine`: empty splits whose partial output is NaN, all empty, far apart, sinks of every kind.

use super::Size;
use crate::formats::f32_bytes;
use crate::layout::D_KV;
use crate::problem::{CombineProblem, Memory, Problem};
use crate::rng::Rng;
use crate::suite::Case;

pub use super::sparse_mla_decode::Sink;

/// Which splits are empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Empty {
    /// None.
    Nothing,
    /// About half.
    Half,
    /// All of every second (token, head).
    EverySecond,
    /// All.
    All,
}

/// A problem in words.
#[derive(Debug, Clone)]
pub struct Shape {
    /// Query tokens.
    pub t: u32,
    /// Heads.
    pub h: u32,
    /// Splits.
    pub num_splits: u32,
    /// Which splits are empty.
    pub empty: Empty,
    /// Sink.
    pub sink: Sink,
    /// Standard deviation of the log-sum-exps, base 2.
    pub spread: f64,
    /// Elements between heads beyond 512, and between tokens beyond the heads; multiples of 8.
    pub pads: [u64; 2],
}

impl Default for Shape {
    fn default() -> Shape {
        Shape { t: 2, h: 8, num_splits: 3, empty: Empty::Nothing, sink: Sink::Normal, spread: 2.0, pads: [0; 2] }
    }
}

impl Shape {
    /// The data for `seed`.
    pub fn build(&self, seed: u64) -> CombineProblem {
        let mut rng = Rng::named(seed, "split_combine");
        let lines = (self.t * self.h) as usize;
        let count = self.num_splits as usize * lines;
        let mut o_partial = Memory::undefined("o_partial", (4 * count * D_KV) as u64);
        let mut lse2 = Vec::new();
        for i in 0..count {
            let empty = match self.empty {
                Empty::Nothing => false,
                Empty::Half => rng.chance(0.5),
                Empty::EverySecond => (i % lines) % 2 == 1,
                Empty::All => true,
            };
            lse2.push(if empty { f32::NEG_INFINITY } else { (self.spread * rng.normal()) as f32 });
            if !empty {
                let row: Vec<f32> = (0..D_KV).map(|_| rng.normal() as f32).collect();
                o_partial.put((4 * i * D_KV) as u64, &f32_bytes(&row));
            }
        }
        let attn_sink = (self.sink != Sink::Absent).then(|| {
            let sink = (0..self.h as usize).map(|head| match (self.sink, head % 3) {
                (Sink::PlusInfinity, _) | (Sink::Mixed, 0) => f32::INFINITY,
                (Sink::MinusInfinity, _) | (Sink::Mixed, 1) => f32::NEG_INFINITY,
                _ => 2.0 * rng.normal() as f32,
            });
            Memory::full("attn_sink", f32_bytes(&sink.collect::<Vec<_>>()))
        });
        let stride_h = D_KV as u64 + self.pads[0];
        CombineProblem {
            o_partial,
            lse2_partial: Memory::full("lse2_partial", f32_bytes(&lse2)),
            attn_sink,
            t: self.t,
            h: self.h,
            num_splits: self.num_splits,
            stride_out: [u64::from(self.h) * stride_h + self.pads[1], stride_h],
        }
    }
}

/// All cases of this operation.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |size: Size, what: &str, shape: Shape| {
        cases.push(Case::new("split_combine", what, size, move |seed| Problem::SplitCombine(shape.build(seed))));
    };
    let small = Shape::default;
    use Size::{Full, Quick};
    add(Quick, "random_3_splits", small());
    for num_splits in [1, 2, 4, 7, 33] {
        add(Quick, &format!("{num_splits}_splits"), Shape { num_splits, empty: Empty::Half, t: 1, ..small() });
    }
    add(Quick, "no_sink", Shape { sink: Sink::Absent, ..small() });
    add(Quick, "sinks_of_every_kind", Shape { sink: Sink::Mixed, ..small() });
    add(Quick, "sink_plus_infinity", Shape { sink: Sink::PlusInfinity, ..small() });
    add(Quick, "sink_minus_infinity", Shape { sink: Sink::MinusInfinity, ..small() });
    add(Quick, "every_second_row_empty", Shape { empty: Empty::EverySecond, sink: Sink::Mixed, ..small() });
    add(Quick, "all_empty", Shape { empty: Empty::All, ..small() });
    add(Quick, "all_empty_no_sink", Shape { empty: Empty::All, sink: Sink::Absent, ..small() });
    add(Quick, "far_apart", Shape { spread: 300.0, num_splits: 5, ..small() });
    add(Quick, "padded_strides", Shape { pads: [8, 24], ..small() });
    add(Quick, "empty_batch", Shape { t: 0, ..small() });
    add(Full, "160_splits_64_heads", Shape { num_splits: 160, h: 64, t: 1, empty: Empty::Half, ..small() });
    add(Full, "128_heads_33_tokens", Shape { h: 128, t: 33, num_splits: 2, sink: Sink::Mixed, ..small() });
    for h in [16, 32, 64] {
        add(Full, &format!("{h}_heads"), Shape { h, num_splits: 6, ..small() });
    }
    cases
}
