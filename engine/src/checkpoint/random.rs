//! Random weights: a pure function of seed, tensor name and element, so that neither threads nor shards matter.
//!
//! Magnitudes keep activations of order 1: a linear layer has variance 1.44 / k. Linear and expert weights lie on the grid of
//! their released format and other matrices on that of bf16, so that one seed is the same model in every store. Linear
//! weights get a gain per 128 x 128 block, or all their block scales would be equal.

use super::decode::{FP4_BLOCK, FP8_BLOCK, ue8m0};
use super::names::{Class, TensorSpec};
use half::bf16;
use std::ops::Range;

/// Rows that are made at once: one row of fp8 blocks.
pub(super) const ROWS: usize = FP8_BLOCK;

/// Step of the sequence and mixing function of SplitMix64 (Steele, Lea, Flood 2014).
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The random words of a tensor.
#[derive(Clone, Copy)]
struct Words {
    key: u64,
}

impl Words {
    fn new(seed: u64, name: &str, purpose: u8) -> Self {
        // FNV-1a over the name, then over what the words are for.
        let bytes = name.bytes().chain([0, purpose]);
        let hash = bytes.fold(0xcbf2_9ce4_8422_2325, |h: u64, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
        Self { key: mix(seed.wrapping_add(STEP)) ^ hash }
    }

    fn word(self, index: u64) -> u64 {
        mix(self.key.wrapping_add(index.wrapping_mul(STEP)))
    }

    /// Mean 0, variance 1, the sum of four uniform variables: nearly normal and within 3.5.
    fn normal(self, index: u64) -> f32 {
        let word = self.word(index);
        let sum: u64 = (0..4).map(|part| word >> (16 * part) & 0xffff).sum();
        (sum as f32 - 131_070.0) * (1.0 / 37_837.23)
    }
}

/// Rows of a tensor as they stand in a file: codes and scales, or values.
pub(super) struct Rows {
    pub(super) bytes: Vec<u8>,
    pub(super) scales: Vec<u8>,
}

/// What is drawn for a tensor.
pub(super) struct Source<'a> {
    spec: &'a TensorSpec,
    words: Words,
    gains: Words,
    row_len: usize,
    mean: f32,
    deviation: f32,
    /// Expert ids lie below this.
    experts: u32,
}

impl<'a> Source<'a> {
    pub(super) fn new(seed: u64, spec: &'a TensorSpec, experts: u32) -> Self {
        let row_len = spec.shape[1..].iter().map(|&axis| axis as usize).product();
        let per_input = 1.0 / (row_len as f32).sqrt();
        let ends = |suffix: &str| spec.name.ends_with(suffix);
        let (mean, deviation) = match spec.class {
            // The gains 1/2, 1 and 2 have mean square 1.75.
            Class::Linear => (0.0, 1.2 * per_input / 1.75f32.sqrt()),
            _ if ends("norm.weight") => (1.0, 0.1),
            _ if ends("attn_sink") || ends(".ape") => (0.0, 0.7),
            _ if ends("gate.bias") => (0.0, 0.2),
            _ if ends("_scale") => (1.0, 0.2),
            _ if ends("_base") => (0.0, 0.5),
            _ if ends("_fn") => (0.0, per_input),
            _ if spec.name == "embed.weight" => (0.0, 1.0),
            _ => (0.0, 1.2 * per_input),
        };
        let (words, gains) = (Words::new(seed, &spec.name, 0), Words::new(seed, &spec.name, 1));
        Self { spec, words, gains, row_len, mean, deviation, experts }
    }

    /// Rows in the released format of the class: fp8, fp4, bf16, f32 or s64. Ranges start at a multiple of [`ROWS`] and are no
    /// longer.
    pub(super) fn rows(&self, rows: Range<usize>) -> Rows {
        let plain = |bytes| Rows { bytes, scales: Vec::new() };
        match self.spec.class {
            Class::Linear => self.fp8(rows),
            Class::Expert => self.fp4(rows),
            Class::Bf16 => plain(self.values(rows).flat_map(|x| bf16::from_f32(x).to_le_bytes()).collect()),
            Class::F32 => plain(self.values(rows).flat_map(f32::to_le_bytes).collect()),
            Class::Ids => plain(rows.flat_map(|row| self.picks(row)).flat_map(i64::to_le_bytes).collect()),
        }
    }

    fn value(&self, index: usize) -> f32 {
        self.mean + self.deviation * self.words.normal(index as u64)
    }

    fn values(&self, rows: Range<usize>) -> impl Iterator<Item = f32> + '_ {
        (rows.start * self.row_len..rows.end * self.row_len).map(|index| self.value(index))
    }

    fn fp8(&self, rows: Range<usize>) -> Rows {
        let blocks = self.row_len.div_ceil(FP8_BLOCK);
        let mut out = Rows { bytes: vec![0; rows.len() * self.row_len], scales: vec![0; blocks] };
        for block in 0..blocks {
            let columns = block * FP8_BLOCK..self.row_len.min((block + 1) * FP8_BLOCK);
            let gain = [0.5, 1.0, 2.0][(self.gains.word((rows.start / ROWS * blocks + block) as u64) % 3) as usize];
            let at = |row: usize| columns.clone().map(move |column| gain * self.value(row * self.row_len + column));
            let values: Vec<f32> = rows.clone().flat_map(at).collect();
            let scale = scale_of(&values, 1e-4, 448.0);
            out.scales[block] = scale;
            let inverse = 1.0 / ue8m0(scale);
            for (row, values) in values.chunks_exact(columns.len()).enumerate() {
                let target = &mut out.bytes[row * self.row_len..][columns.clone()];
                target.iter_mut().zip(values).for_each(|(code, &x)| *code = e4m3(x * inverse));
            }
        }
        out
    }

    fn fp4(&self, rows: Range<usize>) -> Rows {
        let mut out = Rows { bytes: Vec::new(), scales: Vec::new() };
        let mut values = [0.0; FP4_BLOCK];
        for start in (rows.start * self.row_len..rows.end * self.row_len).step_by(FP4_BLOCK) {
            values.iter_mut().enumerate().for_each(|(i, x)| *x = self.value(start + i));
            let scale = scale_of(&values, 6.0 * f32::MIN_POSITIVE, 6.0);
            out.scales.push(scale);
            let inverse = 1.0 / ue8m0(scale);
            let pairs = values.as_chunks::<2>().0.iter();
            out.bytes.extend(pairs.map(|&[low, high]| e2m1(low * inverse) | e2m1(high * inverse) << 4));
        }
        out
    }

    /// Distinct experts of a token: the first steps of a shuffle.
    fn picks(&self, row: usize) -> Vec<i64> {
        let mut experts: Vec<i64> = (0..i64::from(self.experts)).collect();
        for at in 0..self.row_len {
            let word = self.words.word((row * self.row_len + at) as u64);
            let left = (experts.len() - at) as u64;
            experts.swap(at, at + (word % left) as usize);
        }
        experts.truncate(self.row_len);
        experts
    }
}

/// The smallest power of two under which no value of a block exceeds `largest`, as ue8m0.
fn scale_of(values: &[f32], floor: f32, largest: f32) -> u8 {
    let amax = values.iter().fold(floor, |amax, x| amax.max(x.abs()));
    let bits = (amax * (1.0 / largest)).to_bits();
    ((bits >> 23) + u32::from(bits & 0x7f_ffff != 0)) as u8
}

/// To e4m3, nearest even. Magnitudes are at most 448.
fn e4m3(x: f32) -> u8 {
    let (sign, magnitude) = ((x.to_bits() >> 24 & 0x80) as u8, x.abs());
    if magnitude < 1.0 / 64.0 {
        // Multiples of 2^-9; the eighth is the smallest normal, whose code follows.
        return sign | (magnitude * 512.0).round_ties_even() as u8;
    }
    let bits = magnitude.to_bits();
    let rounded = bits + 0x7_ffff + (bits >> 20 & 1);
    sign | ((rounded >> 20) - (120 << 3)).min(0x7e) as u8
}

/// To e2m1, nearest even. Magnitudes are at most 6.
fn e2m1(x: f32) -> u8 {
    let (sign, magnitude) = ((x.to_bits() >> 28 & 8) as u8, x.abs());
    let code = match magnitude {
        ..2.0 => (magnitude * 2.0).round_ties_even() as u8,
        ..4.0 => magnitude.round_ties_even() as u8 + 2,
        _ => ((magnitude * 0.5).round_ties_even() as u8 + 4).min(7),
    };
    sign | code
}

#[cfg(test)]
mod tests {
    use super::*;
    use reference::formats;

    #[test]
    fn codes_agree_with_the_reference() {
        for step in -1_000_000i32..=1_000_000 {
            let x = step as f32 * 448e-6;
            assert_eq!(e4m3(x), formats::e4m3_encode(x), "{x}");
            let x = step as f32 * 6e-6;
            assert_eq!(e2m1(x), formats::e2m1_encode(x), "{x}");
            let x = step as f32 * 2e-8;
            assert_eq!(e4m3(x), formats::e4m3_encode(x), "{x}");
        }
        for tie in [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0] {
            assert_eq!(e2m1(-tie), formats::e2m1_encode(-tie), "{tie}");
        }
        for amax in [1e-9, 0.01, 1.75, 3.0, 448.0, 449.0] {
            let want = formats::ue8m0_ceil(f32::max(amax, 1e-4) / 448.0);
            assert_eq!(scale_of(&[0.0, -amax], 1e-4, 448.0), want, "{amax}");
        }
    }

    #[test]
    fn moments() {
        let words = Words::new(7, "x", 0);
        let n = 200_000;
        let values: Vec<f64> = (0..n).map(|i| f64::from(words.normal(i))).collect();
        let mean = values.iter().sum::<f64>() / n as f64;
        let variance = values.iter().map(|x| x * x).sum::<f64>() / n as f64;
        // Five standard errors of 200,000 samples.
        assert!(mean.abs() < 0.012, "{mean}");
        assert!((variance - 1.0).abs() < 0.012, "{variance}");
        assert_ne!(words.word(0), Words::new(8, "x", 0).word(0));
        assert_ne!(words.word(0), Words::new(7, "y", 0).word(0));
        assert_ne!(words.word(0), Words::new(7, "x", 1).word(0));
    }
}
