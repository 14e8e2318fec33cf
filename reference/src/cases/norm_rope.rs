//! Cases of `norm_rope`: every width that a model has, rows of zeros and NaN, positions outside the table, both turns.

use super::{Draw, Size, invalid};
use crate::formats::{bf16_bytes, f32_bytes, s32_bytes};
use crate::ops::Dtype;
use crate::problem::{Memory, NormRopeProblem, Problem, RopeProblem, RowsProblem};
use crate::rng::Rng;
use crate::suite::Case;

/// Values of the rows.
#[derive(Debug, Clone, Copy)]
enum Values {
    /// Independent draws, every row of another size.
    Random(Draw),
    /// Zeros of either sign in every second row.
    Zeros,
    /// A NaN or an infinity in two rows of three.
    NotFinite,
    /// Of the size of the root of epsilon and far below it.
    Tiny,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Norm {
    None,
    Unweighted,
    Weighted,
}

/// A problem in words.
#[derive(Debug, Clone)]
struct Shape {
    dtype: Dtype,
    t: u32,
    h: u32,
    d: u32,
    norm: Norm,
    /// Channels that turn, and whether back.
    rope: Option<(u32, bool)>,
    /// Share of positions outside the table.
    outside: f64,
    values: Values,
    pad_x: u64,
    pad_out: u64,
}

/// Bytes of values in the type of the activations.
pub(super) fn bytes(dtype: Dtype, values: &[f32]) -> Vec<u8> {
    match dtype {
        Dtype::F32 => f32_bytes(values),
        Dtype::Bf16 => bf16_bytes(values),
    }
}

impl Shape {
    fn build(&self, seed: u64) -> NormRopeProblem {
        let mut rng = Rng::named(seed, "norm_rope");
        let width = self.h as usize * self.d as usize;
        let (stride_x, stride_out) = (width as u64 + self.pad_x, width as u64 + self.pad_out);
        let size = self.dtype.bytes();
        let mut x = Memory::undefined("x", size * u64::from(self.t) * stride_x);
        for token in 0..u64::from(self.t) {
            let row: Vec<f32> = (0..self.h).flat_map(|head| self.row(&mut rng, token as u32 + head)).collect();
            x.put(size * token * stride_x, &bytes(self.dtype, &row));
        }
        let weight: Vec<f32> = (0..self.d).map(|_| 1.0 + 0.5 * rng.normal() as f32).collect();
        NormRopeProblem {
            dtype: self.dtype,
            x,
            normed: self.norm != Norm::None,
            weight: (self.norm == Norm::Weighted).then(|| Memory::full("norm weight", f32_bytes(&weight))),
            rope: self.rope.map(|(d_rope, inverse)| self.rope(&mut rng, d_rope, inverse)),
            t: self.t,
            h: self.h,
            d: self.d,
            stride_x,
            stride_out,
            eps: 1e-6,
        }
    }

    /// A table of which only the rows that positions name are defined.
    fn rope(&self, rng: &mut Rng, d_rope: u32, inverse: bool) -> RopeProblem {
        let max_positions = 90;
        let positions: Vec<i32> = (0..self.t as usize)
            .map(|i| match i {
                _ if rng.chance(self.outside) => invalid(i, max_positions),
                0 => 0,
                1 => max_positions as i32 - 1,
                _ => rng.below(max_positions) as i32,
            })
            .collect();
        let row = 4 * u64::from(d_rope);
        let mut table = Memory::undefined("rope table", max_positions * row);
        for position in (0..max_positions).filter(|p| positions.contains(&(*p as i32))) {
            let angles =
                (0..d_rope / 2).map(|i| position as f64 * 1e4f64.powf(-2.0 * f64::from(i) / f64::from(d_rope)));
            let pairs: Vec<f32> = angles.flat_map(|a| [a.cos() as f32, a.sin() as f32]).collect();
            table.put(position * row, &f32_bytes(&pairs));
        }
        let positions = Memory::full("positions", s32_bytes(&positions));
        RopeProblem { table, positions, max_positions: max_positions as u32, d_rope, inverse }
    }

    fn row(&self, rng: &mut Rng, number: u32) -> Vec<f32> {
        let size = (2.0 * rng.normal()).exp() as f32;
        let d = u64::from(self.d);
        let mut row: Vec<f32> = (0..d)
            .map(|_| match self.values {
                Values::Random(draw) => size * draw.value(rng),
                Values::Tiny => rng.normal() as f32 * [1e-3, 1e-5, 1e-20][number as usize % 3],
                _ => rng.normal() as f32,
            })
            .collect();
        match self.values {
            Values::Zeros if number.is_multiple_of(2) => {
                row.iter_mut().for_each(|x| *x = if rng.chance(0.5) { 0.0 } else { -0.0 });
            }
            Values::NotFinite => {
                let place = rng.below(d) as usize;
                match number % 6 {
                    0 | 1 => row[place] = f32::NAN,
                    2 => row[place] = f32::INFINITY,
                    3 => {
                        row[place] = f32::NEG_INFINITY;
                        row[(place + 1) % d as usize] = f32::INFINITY;
                    }
                    _ => {}
                }
            }
            _ => {}
        }
        row
    }
}

/// All cases of this operation.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in [Dtype::F32, Dtype::Bf16] {
        let mut add = |size: Size, what: &str, shape: Shape| {
            cases.push(Case::new("norm_rope", format!("{}/{what}", dtype.name()), size, move |seed| {
                Problem::Rows(Box::new(RowsProblem::NormRope(shape.build(seed))))
            }));
        };
        let values = Values::Random(Draw::Normal);
        let of = |t, h, d, norm, rope| Shape { dtype, t, h, d, norm, rope, outside: 0.0, values, pad_x: 0, pad_out: 0 };
        use Norm::{None as Plain, Unweighted, Weighted};
        use Size::{Full, Quick};
        let (forth, back) = (Some((64, false)), Some((64, true)));
        let kv = |t| of(t, 1, 512, Weighted, forth);
        add(Quick, "random_kv_rows", kv(17));
        add(Quick, "random_queries", of(2, 16, 512, Unweighted, forth));
        add(Quick, "index_queries", of(3, 16, 128, Plain, forth));
        add(Quick, "latent_rows", of(5, 1, 1024, Weighted, None));
        add(Quick, "outputs_turned_back", of(3, 8, 512, Plain, back));
        add(Quick, "back_after_norm", of(3, 2, 128, Weighted, back));
        for d in [8, 264, 1032, 4096, 7168, 8192] {
            add(Quick, &format!("rows_of_{d}"), of(2, 1, d, Weighted, None));
        }
        add(Quick, "rows_of_80", of(5, 3, 80, Unweighted, Some((16, false))));
        add(Quick, "rows_of_10", of(5, 3, 10, Weighted, Some((6, false))));
        add(Quick, "all_channels_turn", of(4, 2, 128, Weighted, Some((128, false))));
        add(Quick, "no_channel_turns", of(4, 2, 128, Weighted, Some((0, false))));
        add(Quick, "neither", of(4, 2, 128, Plain, None));
        add(Quick, "positions_outside", Shape { outside: 0.6, ..of(13, 2, 128, Unweighted, forth) });
        add(Quick, "heavy_tails", Shape { values: Values::Random(Draw::Heavy), ..kv(9) });
        add(Quick, "zero_rows", Shape { values: Values::Zeros, ..kv(6) });
        add(Quick, "tiny_rows", Shape { values: Values::Tiny, ..kv(6) });
        add(Quick, "not_finite", Shape { values: Values::NotFinite, ..kv(12) });
        add(Quick, "not_finite_without_norm", Shape { values: Values::NotFinite, ..of(12, 1, 128, Plain, forth) });
        add(Quick, "padded_strides", Shape { pad_x: 40, pad_out: 8, ..of(5, 3, 128, Unweighted, forth) });
        add(Quick, "out_of_a_wider_row", Shape { pad_x: 512, ..kv(5) });
        add(Quick, "one_token", kv(1));
        add(Quick, "empty_batch", kv(0));
        add(Full, "600_kv_rows", Shape { outside: 0.1, ..kv(600) });
        add(Full, "40_queries_of_64_heads", of(40, 64, 512, Unweighted, forth));
    }
    cases
}
