//! Cases of `hadamard`: every length, cancellation, zeros, NaN and infinities.

use super::norm_rope::bytes;
use super::{Draw, Size};
use crate::ops::Dtype;
use crate::problem::{HadamardProblem, Memory, Problem, RowsProblem};
use crate::rng::Rng;
use crate::suite::Case;

/// Values of the rows.
#[derive(Debug, Clone, Copy)]
enum Values {
    Random(Draw),
    /// 0, 1, 2, ...: most results are 0, sums of large terms.
    Ramp,
    Zeros,
    /// One value that is not 0, at every place in turn: the columns of the matrix.
    Unit,
    /// NaN, one infinity, two of one sign, two of both signs.
    NotFinite,
}

fn row(values: Values, rng: &mut Rng, number: usize, d: usize) -> Vec<f32> {
    let size = (2.0 * rng.normal()).exp() as f32;
    (0..d)
        .map(|c| match values {
            Values::Random(draw) => size * draw.value(rng),
            Values::Ramp => c as f32,
            Values::Zeros => [0.0, -0.0][c % 2],
            Values::Unit => f32::from(u8::from(c == number % d)) * size,
            Values::NotFinite => match (number % 5, c % 64) {
                (0, 7) => f32::NAN,
                (1, 3) if c < 64 => f32::NEG_INFINITY,
                (2, 3 | 40) => f32::INFINITY,
                (3, 5) => f32::INFINITY,
                (3, 6) => f32::NEG_INFINITY,
                _ => rng.normal() as f32,
            },
        })
        .collect()
}

fn build(dtype: Dtype, rows: u32, d: u32, values: Values, seed: u64) -> HadamardProblem {
    let mut rng = Rng::named(seed, "hadamard");
    let x: Vec<f32> = (0..rows as usize).flat_map(|r| row(values, &mut rng, r, d as usize)).collect();
    HadamardProblem { dtype, x: Memory::full("x", bytes(dtype, &x)), rows, d }
}

/// All cases of this operation.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in [Dtype::F32, Dtype::Bf16] {
        let mut add = |size: Size, what: String, rows: u32, d: u32, values: Values| {
            cases.push(Case::new("hadamard", format!("{}/{what}", dtype.name()), size, move |seed| {
                Problem::Rows(Box::new(RowsProblem::Hadamard(build(dtype, rows, d, values, seed))))
            }));
        };
        use Size::{Full, Quick};
        let random = Values::Random(Draw::Normal);
        for d in [1, 2, 4, 8, 16, 32, 64, 128, 256, 512] {
            add(Quick, format!("random_rows_of_{d}"), 17, d, random);
        }
        add(Quick, "heavy_tails".into(), 19, 128, Values::Random(Draw::Heavy));
        add(Quick, "ramp".into(), 1, 128, Values::Ramp);
        add(Quick, "zeros".into(), 3, 128, Values::Zeros);
        add(Quick, "columns_of_128".into(), 128, 128, Values::Unit);
        add(Quick, "columns_of_32".into(), 32, 32, Values::Unit);
        add(Quick, "not_finite".into(), 10, 128, Values::NotFinite);
        add(Quick, "empty_batch".into(), 0, 128, random);
        add(Full, "2048_rows".into(), 2048, 128, random);
    }
    cases
}
