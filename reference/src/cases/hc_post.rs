//! Cases of `hc_post`: streams that cancel, vanish or overflow, a comb that is not symmetric.

use super::Size;
use super::activations::{DTYPES, normals, numbers, stored};
use crate::ops::Dtype;
use crate::problem::streams::{HcPostProblem, StreamsProblem};
use crate::problem::{Memory, Problem};
use crate::rng::Rng;
use crate::suite::Case;

/// Values of the streams and of `y`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Values {
    /// Normal.
    Random,
    /// Streams zero in every second token, `y` in every third.
    Zeros,
    /// A NaN or an infinity in a stream or in `y`.
    NotFinite,
    /// What is added nearly cancels what is there.
    Cancel,
    /// 1e30 and 1e-30 by turns.
    FarFromOne,
}

/// A problem in words.
#[derive(Debug, Clone)]
pub struct Shape {
    /// Type.
    pub dtype: Dtype,
    /// Tokens.
    pub t: u32,
    /// Channels.
    pub d: u32,
    /// Values.
    pub values: Values,
}

impl Shape {
    /// The data for `seed`.
    pub fn build(&self, seed: u64) -> HcPostProblem {
        let mut rng = Rng::named(seed, "hc_post");
        let (t, d) = (self.t as usize, self.d as usize);
        let (mut streams, mut y) = (normals(&mut rng, 4 * t * d, 1.0), normals(&mut rng, t * d, 1.0));
        let post: Vec<f32> = (0..4 * t).map(|_| 2.0 * rng.uniform() as f32).collect();
        let mut comb: Vec<f32> = (0..16 * t).map(|_| 0.5 * rng.uniform() as f32).collect();
        for token in 0..t {
            let (x, y) = (&mut streams[4 * token * d..4 * (token + 1) * d], &mut y[token * d..(token + 1) * d]);
            match self.values {
                Values::Random => {}
                Values::Zeros => {
                    if token % 2 == 0 {
                        x.fill(0.0);
                    }
                    if token % 3 == 0 {
                        y.fill(-0.0);
                    }
                }
                Values::NotFinite => {
                    let odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
                    x[rng.below(4 * d as u64) as usize] = odd[rng.below(3) as usize];
                    y[rng.below(d as u64) as usize] = odd[token % 3];
                    // 0 times infinity.
                    comb[16 * token + rng.below(16) as usize] = 0.0;
                }
                Values::Cancel => {
                    for c in 0..d {
                        let sum: f32 = (0..4).map(|j| comb[16 * token + 4 * j] * x[j * d + c]).sum();
                        y[c] = -sum / post[4 * token] * (1.0 + 1e-3 * rng.normal() as f32);
                    }
                }
                Values::FarFromOne => {
                    let size = if token % 2 == 0 { 1e30 } else { 1e-30 };
                    x.iter_mut().chain(y).for_each(|v| *v *= size);
                }
            }
        }
        HcPostProblem {
            dtype: self.dtype,
            streams: Memory::full("streams", stored(self.dtype, &streams)),
            y: numbers("y", &y),
            post: numbers("post", &post),
            comb: numbers("comb", &comb),
            t: self.t,
            d: self.d,
        }
    }
}

/// All cases of this operation.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in DTYPES {
        let mut add = |size: Size, what: &str, shape: Shape| {
            let build = move |seed| Problem::Streams(StreamsProblem::HcPost(shape.build(seed)));
            cases.push(Case::new("hc_post", format!("{}/{what}", dtype.name()), size, build));
        };
        let small = Shape { dtype, t: 3, d: 64, values: Values::Random };
        use Size::{Full, Quick};
        add(Quick, "random_3_tokens", small.clone());
        add(Quick, "one_token", Shape { t: 1, d: 2056, ..small.clone() });
        add(Quick, "8_channels", Shape { t: 17, d: 8, ..small.clone() });
        add(Quick, "5_channels", Shape { d: 5, ..small.clone() });
        for (what, values) in [
            ("zeros", Values::Zeros),
            ("not_finite", Values::NotFinite),
            ("cancel", Values::Cancel),
            ("far_from_one", Values::FarFromOne),
        ] {
            add(Quick, what, Shape { values, t: 6, ..small.clone() });
        }
        add(Quick, "empty_batch", Shape { t: 0, ..small.clone() });
        add(Full, "33_tokens_4096_channels", Shape { t: 33, d: 4096, ..small });
    }
    cases
}
