//! Cases of `index_q_quantise`: the rows of `index_k_write`, as heads of queries, and weights of every kind.

use super::norm_rope::bytes;
use super::write::{Rows, Shape as WriteShape};
use super::{Draw, Size};
use crate::ops::{Dtype, IndexKFormat, ScaleRule};
use crate::problem::{IndexQProblem, Memory, Problem, RowFormat, RowsProblem};
use crate::rng::Rng;
use crate::suite::Case;

/// A problem in words.
#[derive(Debug, Clone)]
struct Shape {
    dtype: Dtype,
    format: IndexKFormat,
    scale_rule: ScaleRule,
    t: u32,
    h: u32,
    rows: Rows,
    /// Elements between the weights of two tokens beyond `h`.
    pad: u64,
    /// NaN, infinities and zeros among the weights.
    odd_weights: bool,
}

impl Shape {
    fn build(&self, seed: u64) -> IndexQProblem {
        let mut rng = Rng::named(seed, "index_q_quantise");
        let heads = WriteShape::of(RowFormat::IndexK(self.format), self.t, self.rows);
        let q: Vec<f32> = (0..(self.t * self.h) as usize).flat_map(|head| heads.row(&mut rng, head)).collect();
        let stride_weights = u64::from(self.h) + self.pad;
        let size = self.dtype.bytes();
        let mut weights = Memory::undefined("weights", size * u64::from(self.t) * stride_weights);
        for token in 0..u64::from(self.t) {
            let odd = [0.0, -0.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
            let row: Vec<f32> = (0..self.h)
                .map(|_| match self.odd_weights && rng.chance(0.3) {
                    true => odd[rng.below(5) as usize],
                    false => rng.normal() as f32,
                })
                .collect();
            weights.put(size * token * stride_weights, &bytes(self.dtype, &row));
        }
        IndexQProblem {
            dtype: self.dtype,
            format: self.format,
            scale_rule: self.scale_rule,
            q: Memory::full("q", bytes(self.dtype, &q)),
            weights,
            t: self.t,
            h: self.h,
            stride_weights,
            weight_scale: (128.0 * f32::from(self.h as u8)).sqrt().recip(),
        }
    }
}

/// All cases of this operation.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let formats = [
        ("fp8", IndexKFormat::Fp8, ScaleRule::Exact),
        ("fp8_power_of_two", IndexKFormat::Fp8, ScaleRule::PowerOfTwo),
        ("bf16", IndexKFormat::Bf16, ScaleRule::Exact),
        ("fp4", IndexKFormat::Fp4, ScaleRule::Exact),
        ("f32", IndexKFormat::F32 { d: 128 }, ScaleRule::Exact),
        ("f32_rows_of_32", IndexKFormat::F32 { d: 32 }, ScaleRule::Exact),
    ];
    for (dtype, (name, format, scale_rule)) in
        [Dtype::F32, Dtype::Bf16].into_iter().flat_map(|dtype| formats.map(|format| (dtype, format)))
    {
        let mut add = |size: Size, what: &str, shape: Shape| {
            let what = format!("{name}_of_{}/{what}", dtype.name());
            cases.push(Case::new("index_q_quantise", what, size, move |seed| {
                Problem::Rows(Box::new(RowsProblem::IndexQQuantise(shape.build(seed))))
            }));
        };
        let of = |t, h, rows| Shape { dtype, format, scale_rule, t, h, rows, pad: 0, odd_weights: false };
        let random = Rows::Random(Draw::Normal);
        use Size::{Full, Quick};
        add(Quick, "random_3_tokens", of(3, 64, random));
        add(Quick, "one_head", of(5, 1, random));
        add(Quick, "16_heads", of(3, 16, Rows::Random(Draw::Heavy)));
        add(Quick, "empty_batch", of(0, 64, random));
        add(Quick, "thresholds", of(5, 8, Rows::Thresholds));
        add(Quick, "small_rows", of(2, 5, Rows::Small));
        add(Quick, "ties", of(3, 4, Rows::Ties));
        add(Quick, "not_finite", of(2, 7, Rows::NotFinite));
        add(Quick, "extremes", of(3, 3, Rows::Extremes));
        add(Quick, "padded_weights", Shape { pad: 24, ..of(3, 8, random) });
        add(Quick, "odd_weights", Shape { odd_weights: true, ..of(4, 8, random) });
        add(Full, "100_tokens", of(100, 64, Rows::Thresholds));
    }
    cases
}
