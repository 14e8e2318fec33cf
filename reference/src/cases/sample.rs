//! Cases of `sample`: no noise, little and much of it, rows of -inf and NaN, ties.
//!
//! The seed of a row is drawn again until its winner leads by 1e-3 and by 2^-18 of its size over every row entry that is not
//! equal to it: f32 noise, good to 1e-5, and the rounding of the sum cannot change who wins.

use super::activations::{normals, numbers};
use super::{Draw, Size};
use crate::formats::s32_bytes;
use crate::plain::streams::{largest, sample_keys};
use crate::problem::streams::{SampleProblem, StreamsProblem};
use crate::problem::{Memory, Problem};
use crate::rng::Rng;
use crate::suite::Case;

/// Logits of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Logits {
    /// Normal, standard deviation 3.
    Random,
    /// Heavy-tailed.
    Heavy,
    /// All equal: only the noise decides, or the lowest id.
    Equal,
    /// The largest value several times.
    Ties,
    /// Most entries -inf.
    MostlyMinusInfinity,
    /// Nothing else.
    MinusInfinity,
    /// Nothing else.
    Nan,
    /// Among ordinary values.
    SomeNan,
    /// +inf twice, and -inf and NaN.
    Infinity,
    /// Up to 1e38: the quotient overflows.
    Huge,
    /// The largest entry is the last one.
    LastWins,
}

/// A problem in words: the logits and the temperature of every row.
#[derive(Debug, Clone)]
pub struct Shape {
    /// Tokens of the vocabulary.
    pub vocab: u32,
    /// Rows.
    pub rows: Vec<(Logits, f32)>,
}

impl Shape {
    /// The data for `seed`.
    pub fn build(&self, seed: u64) -> SampleProblem {
        let mut rng = Rng::named(seed, "sample");
        let (mut logits, mut seeds) = (Vec::new(), Vec::new());
        for &(kind, temperature) in &self.rows {
            let (row, key) = loop {
                let row = row(&mut rng, kind, self.vocab as usize);
                let key = [rng.bits() as u32, rng.bits() as u32];
                if leads(&sample_keys(&row, temperature, key)) {
                    break (row, key);
                }
            };
            logits.extend(row);
            seeds.extend(key.map(|word| word as i32));
        }
        let temperatures: Vec<f32> = self.rows.iter().map(|row| row.1).collect();
        SampleProblem {
            logits: numbers("logits", &logits),
            temperature: numbers("temperature", &temperatures),
            seeds: Memory::full("seeds", s32_bytes(&seeds)),
            n: self.rows.len() as u32,
            vocab: self.vocab,
        }
    }
}

fn row(rng: &mut Rng, kind: Logits, vocab: usize) -> Vec<f32> {
    let mut row = normals(rng, vocab, 3.0);
    let mut at = || rng.below(vocab as u64) as usize;
    match kind {
        Logits::Random => {}
        Logits::Heavy => row.iter_mut().for_each(|x| *x = Draw::Heavy.value(rng)),
        Logits::Equal => row.fill(-1.25),
        Logits::Ties => (0..5).for_each(|_| row[at()] = 40.0),
        Logits::MostlyMinusInfinity => {
            let kept: Vec<usize> = (0..4).map(|_| at()).collect();
            for (v, x) in row.iter_mut().enumerate().filter(|(v, _)| !kept.contains(v)) {
                *x = if v % 2 == 0 { f32::NEG_INFINITY } else { *x - 1e4 };
            }
        }
        Logits::MinusInfinity => row.fill(f32::NEG_INFINITY),
        Logits::Nan => row.fill(f32::NAN),
        Logits::SomeNan => (0..vocab / 4).for_each(|i| row[at()] = if i % 2 == 0 { f32::NAN } else { -f32::NAN }),
        Logits::Infinity => {
            for odd in [f32::NAN, f32::NEG_INFINITY, f32::INFINITY, f32::INFINITY] {
                row[at()] = odd;
            }
        }
        Logits::Huge => row.iter_mut().for_each(|x| *x *= 1e37),
        Logits::LastWins => row[vocab - 1] = 60.0,
    }
    row
}

fn leads(keys: &[f64]) -> bool {
    let best = keys[largest(keys)];
    let margin = (best.abs() / f64::from(1 << 18)).max(1e-3);
    // Equal keys are equal logits without noise, or infinities; NaN compares as false.
    !keys.iter().any(|&key| key != best && key > best - margin)
}

/// All cases of this operation.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |size: Size, what: &str, shape: Shape| {
        let build = move |seed| Problem::Streams(StreamsProblem::Sample(shape.build(seed)));
        cases.push(Case::new("sample", what, size, build));
    };
    const KINDS: [Logits; 11] = [
        Logits::Random,
        Logits::Heavy,
        Logits::Equal,
        Logits::Ties,
        Logits::MostlyMinusInfinity,
        Logits::MinusInfinity,
        Logits::Nan,
        Logits::SomeNan,
        Logits::Infinity,
        Logits::Huge,
        Logits::LastWins,
    ];
    let all = |temperature: f32| KINDS.map(|kind| (kind, temperature)).to_vec();
    use Size::{Full, Quick};
    add(Quick, "random_one_row", Shape { vocab: 256, rows: vec![(Logits::Random, 1.0)] });
    for (what, temperature) in [
        ("no_noise", 0.0),
        ("temperature_half", 0.5),
        ("temperature_small", 2e-3),
        ("temperature_large", 1e4),
        ("temperature_below_the_floor", 1e-5),
        ("temperature_negative", -1.0),
        ("temperature_nan", f32::NAN),
    ] {
        add(Quick, what, Shape { vocab: 256, rows: all(temperature) });
    }
    add(Quick, "temperature_infinite", Shape { vocab: 64, rows: vec![(Logits::Random, f32::INFINITY); 3] });
    for vocab in [4, 252, 260, 1028] {
        let rows = vec![(Logits::Random, 0.0), (Logits::Random, 1.0), (Logits::LastWins, 0.7), (Logits::Equal, 1.0)];
        add(Quick, &format!("vocabulary_of_{vocab}"), Shape { vocab, rows });
    }
    add(Quick, "vocabulary_of_1", Shape { vocab: 1, rows: vec![(Logits::Random, 1.0), (Logits::Nan, 0.0)] });
    add(Quick, "vocabulary_of_257", Shape { vocab: 257, rows: all(0.8) });
    add(Quick, "empty_batch", Shape { vocab: 256, rows: Vec::new() });
    let rows = vec![(Logits::Random, 0.0), (Logits::Heavy, 0.6), (Logits::Equal, 1.0), (Logits::LastWins, 1.0)];
    add(Full, "vocabulary_of_129280", Shape { vocab: 129_280, rows });
    cases
}
