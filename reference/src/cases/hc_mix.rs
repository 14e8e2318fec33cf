//! Cases of `hc_mix`: zero, equal, huge, tiny and undefined streams, saturated sigmoids, Sinkhorn near a permutation.

use super::Size;
use super::activations::{DTYPES, normals, numbers, stored};
use crate::ops::Dtype;
use crate::problem::streams::{HcMixProblem, StreamsProblem};
use crate::problem::{Memory, Problem};
use crate::rng::Rng;
use crate::suite::Case;

/// Values of the streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Streams {
    /// Normal, every token of another size.
    Random,
    /// The same channels four times: the state after the embedding.
    Equal,
    /// Every second token zero.
    Zeros,
    /// 1e16 and 1e-30 by turns.
    FarFromOne,
    /// A NaN, +inf or -inf in two of three tokens.
    NotFinite,
    /// Streams whose weighted sum nearly vanishes.
    Opposed,
}

/// Sizes of the mixing parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mixing {
    /// Arguments of order 1.
    Ordinary,
    /// Arguments of order 20: sigmoids near 0 and 1, Sinkhorn near a permutation.
    Steep,
    /// Arguments beyond the range of the exponential, of either sign.
    Saturated,
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
    /// Values of the streams.
    pub streams: Streams,
    /// Mixing parameters.
    pub mixing: Mixing,
    /// Normalisations; `None` for the head.
    pub sinkhorn_iters: Option<u32>,
    /// `norm_eps` and `hc_eps`.
    pub eps: [f32; 2],
}

impl Shape {
    /// The data for `seed`.
    pub fn build(&self, seed: u64) -> HcMixProblem {
        let mut rng = Rng::named(seed, "hc_mix");
        let (t, d) = (self.t as usize, self.d as usize);
        let rows = if self.sinkhorn_iters.is_some() { 24 } else { 4 };
        let streams: Vec<f32> = (0..t).flat_map(|token| self.token(&mut rng, token)).collect();
        // Products with the normed streams are of order 1.
        let weight = normals(&mut rng, rows * 4 * d, 1.0 / (4.0 * d as f64).sqrt());
        let base: Vec<f32> = (0..rows)
            .map(|i| match self.mixing {
                Mixing::Ordinary | Mixing::Steep => rng.normal() as f32,
                Mixing::Saturated => [100.0, -100.0, 30.0, 1e30, -1e30, -87.0, 0.0][(i + i / 8) % 7],
            })
            .collect();
        let size = if self.mixing == Mixing::Steep { 20.0 } else { 1.0 };
        let scales = if rows == 4 { 1 } else { 3 };
        let scale: Vec<f32> = (0..scales).map(|_| (size * (0.5 + rng.uniform())) as f32).collect();
        let norm_weight: Vec<f32> = (0..d).map(|_| (1.0 + 0.3 * rng.normal()) as f32).collect();
        HcMixProblem {
            dtype: self.dtype,
            streams: Memory::full("streams", stored(self.dtype, &streams)),
            weight: numbers("weight", &weight),
            base: numbers("base", &base),
            scale: numbers("scale", &scale),
            norm_weight: numbers("norm_weight", &norm_weight),
            sinkhorn_iters: self.sinkhorn_iters,
            t: self.t,
            d: self.d,
            norm_eps: self.eps[0],
            hc_eps: self.eps[1],
        }
    }

    fn token(&self, rng: &mut Rng, token: usize) -> Vec<f32> {
        let d = self.d as usize;
        let size = rng.normal().exp();
        match self.streams {
            Streams::Random => normals(rng, 4 * d, size),
            Streams::Equal => normals(rng, d, size).repeat(4),
            Streams::Zeros => normals(rng, 4 * d, if token.is_multiple_of(2) { 0.0 } else { size }),
            Streams::FarFromOne => normals(rng, 4 * d, if token.is_multiple_of(2) { 1e15 } else { 1e-30 }),
            Streams::NotFinite => {
                let mut values = normals(rng, 4 * d, size);
                if !token.is_multiple_of(3) {
                    let odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY][rng.below(3) as usize];
                    values[rng.below(4 * d as u64) as usize] = odd;
                }
                values
            }
            Streams::Opposed => {
                let first = normals(rng, d, size);
                let noise = normals(rng, 4 * d, 1e-2 * size);
                let sign = |stream: usize| if stream.is_multiple_of(2) { 1.0 } else { -1.0 };
                (0..4 * d).map(|i| sign(i / d) * first[i % d] + noise[i]).collect()
            }
        }
    }
}

/// All cases of this operation.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in DTYPES {
        let mut add = |size: Size, what: &str, shape: Shape| {
            let build = move |seed| Problem::Streams(StreamsProblem::HcMix(shape.build(seed)));
            cases.push(Case::new("hc_mix", format!("{}/{what}", dtype.name()), size, build));
        };
        let small = Shape {
            dtype,
            t: 3,
            d: 64,
            streams: Streams::Random,
            mixing: Mixing::Ordinary,
            sinkhorn_iters: Some(20),
            eps: [1e-6; 2],
        };
        let head = Shape { sinkhorn_iters: None, ..small.clone() };
        use Size::{Full, Quick};
        add(Quick, "random_3_tokens", small.clone());
        add(Quick, "random_3_tokens_head", head.clone());
        add(Quick, "one_token", Shape { t: 1, d: 520, ..small.clone() });
        add(Quick, "one_token_head", Shape { t: 1, d: 520, ..head.clone() });
        add(Quick, "9_tokens_8_channels", Shape { t: 9, d: 8, ..small.clone() });
        add(Quick, "6_tokens_136_channels", Shape { t: 6, d: 136, ..small.clone() });
        add(Quick, "6_tokens_136_channels_head", Shape { t: 6, d: 136, ..head.clone() });
        add(Quick, "72_channels", Shape { d: 72, ..small.clone() });
        add(Quick, "7_channels", Shape { d: 7, ..small.clone() });
        for sinkhorn_iters in [1, 2, 3] {
            let shape = Shape { sinkhorn_iters: Some(sinkhorn_iters), mixing: Mixing::Steep, ..small.clone() };
            add(Quick, &format!("{sinkhorn_iters}_normalisations"), shape);
        }
        add(Quick, "steep", Shape { mixing: Mixing::Steep, t: 5, ..small.clone() });
        add(Quick, "saturated", Shape { mixing: Mixing::Saturated, ..small.clone() });
        add(Quick, "saturated_head", Shape { mixing: Mixing::Saturated, ..head.clone() });
        add(Quick, "large_epsilons", Shape { eps: [0.5, 0.1], ..small.clone() });
        add(Quick, "no_epsilons", Shape { eps: [0.0; 2], ..small.clone() });
        for (what, streams) in [
            ("equal_streams", Streams::Equal),
            ("zero_streams", Streams::Zeros),
            ("far_from_one", Streams::FarFromOne),
            ("not_finite", Streams::NotFinite),
            ("opposed", Streams::Opposed),
        ] {
            add(Quick, what, Shape { streams, t: 6, d: 32, ..small.clone() });
        }
        add(Quick, "empty_batch", Shape { t: 0, ..small.clone() });
        add(Full, "9_tokens_4096_channels", Shape { t: 9, d: 4096, ..small.clone() });
        add(Full, "3_tokens_4096_channels_head", Shape { d: 4096, ..head });
        add(Full, "2_tokens_8192_channels", Shape { t: 2, d: 8192, ..small.clone() });
        add(Full, "70_tokens_128_channels", Shape { t: 70, d: 128, mixing: Mixing::Steep, ..small });
    }
    cases
}
