//! Cases of `swiglu`: values at, inside and far outside the clamps, gates whose exponential leaves the range of f32.

use super::Size;
use super::activations::{DTYPES, stored};
use crate::ops::Dtype;
use crate::problem::streams::{StreamsProblem, SwigluProblem};
use crate::problem::{Memory, Problem};
use crate::rng::Rng;
use crate::suite::Case;

/// Values of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Values {
    /// Normal with a standard deviation that reaches the clamps now and then.
    Random,
    /// The limit, its neighbours, its double and the largest numbers, both signs.
    Edges,
    /// Gates from -130 to -80, where e^-a overflows; some ordinary ones, so that the whole tensor is not below f32.
    DeepNegative,
    /// NaN and infinities among ordinary values.
    NotFinite,
    /// Zeros and the smallest numbers beside a few ones.
    Small,
}

/// A problem in words.
#[derive(Debug, Clone)]
pub struct Shape {
    /// Type.
    pub dtype: Dtype,
    /// Tokens.
    pub t: u32,
    /// Channels.
    pub inter: u32,
    /// Clamp.
    pub limit: f32,
    /// Values.
    pub values: Values,
}

impl Shape {
    /// The data for `seed`.
    pub fn build(&self, seed: u64) -> SwigluProblem {
        let mut rng = Rng::named(seed, "swiglu");
        let count = 2 * self.t as usize * self.inter as usize;
        let values: Vec<f32> = (0..count).map(|i| self.value(&mut rng, i)).collect();
        SwigluProblem {
            dtype: self.dtype,
            gate_up: Memory::full("gate_up", stored(self.dtype, &values)),
            t: self.t,
            inter: self.inter,
            limit: self.limit,
        }
    }

    fn value(&self, rng: &mut Rng, i: usize) -> f32 {
        let gate = (i / self.inter as usize).is_multiple_of(2);
        let limit = if self.limit.is_finite() { self.limit } else { 10.0 };
        let ordinary = (0.5 * f64::from(limit) * rng.normal()) as f32;
        match self.values {
            Values::Random => ordinary,
            Values::Edges => {
                let sizes = [limit, 0.99 * limit, 1.01 * limit, 2.0 * limit, 3.3e38, 0.0];
                let size = sizes[rng.below(6) as usize];
                if rng.chance(0.5) { size } else { -size }
            }
            Values::DeepNegative if gate && !i.is_multiple_of(8) => -(80.0 + 50.0 * rng.uniform()) as f32,
            Values::NotFinite if rng.chance(0.2) => [f32::NAN, f32::INFINITY, f32::NEG_INFINITY][rng.below(3) as usize],
            Values::DeepNegative | Values::NotFinite => ordinary,
            Values::Small => [0.0, -0.0, 1e-38, -1e-38, 1e-20, f32::from_bits(1), 1.0][rng.below(7) as usize],
        }
    }
}

/// All cases of this operation.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in DTYPES {
        let mut add = |size: Size, what: &str, shape: Shape| {
            let build = move |seed| Problem::Streams(StreamsProblem::Swiglu(shape.build(seed)));
            cases.push(Case::new("swiglu", format!("{}/{what}", dtype.name()), size, build));
        };
        let small = Shape { dtype, t: 3, inter: 64, limit: 10.0, values: Values::Random };
        use Size::{Full, Quick};
        add(Quick, "random_3_tokens", small.clone());
        add(Quick, "one_token", Shape { t: 1, inter: 2056, ..small.clone() });
        add(Quick, "8_channels", Shape { t: 35, inter: 8, ..small.clone() });
        add(Quick, "5_channels", Shape { inter: 5, ..small.clone() });
        add(Quick, "limit_2", Shape { limit: 2.0, ..small.clone() });
        add(Quick, "no_limit", Shape { limit: f32::INFINITY, ..small.clone() });
        for (what, values) in [
            ("edges", Values::Edges),
            ("deep_negative", Values::DeepNegative),
            ("not_finite", Values::NotFinite),
            ("small", Values::Small),
        ] {
            add(Quick, what, Shape { values, t: 6, ..small.clone() });
        }
        add(Quick, "empty_batch", Shape { t: 0, ..small.clone() });
        add(Full, "40_tokens_2048_channels", Shape { t: 40, inter: 2048, ..small });
    }
    cases
}
