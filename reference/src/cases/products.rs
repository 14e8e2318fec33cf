//! Weights and activations of the cases of `linear` and `moe_experts`.

use crate::formats::{bf16_bytes, e2m1_encode, e4m3_encode, f32_bytes};
use crate::ops::{Dtype, WeightFormat};
use crate::problem::{Memory, WeightMemory};
use crate::rng::Rng;

/// What the weights and activations are like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Values {
    /// Normal, weights of size `k^-1/2`; block scales over eight binades.
    Random,
    /// Heavy tails.
    Heavy,
    /// All terms positive, so that roundings add up.
    Positive,
    /// Scale byte 0 up to input 127 and 254 from there on, and activations that bring the products back to ordinary size.
    ExtremeScales,
    /// NaN and infinities in some rows of the activations and some of the weights.
    NotFinite,
}

impl Values {
    fn draw(self, rng: &mut Rng) -> f64 {
        match self {
            Values::Heavy => rng.heavy(),
            Values::Positive => 0.5 + rng.uniform(),
            _ => rng.normal(),
        }
    }

    /// `rows` rows of `k` activations.
    pub fn activations(self, rng: &mut Rng, rows: usize, k: usize) -> Vec<Vec<f32>> {
        (0..rows)
            .map(|row| {
                let row_size = (0.5 * rng.normal()).exp();
                let size = |input: usize| match self {
                    Values::ExtremeScales => 2f64.powi(if input < 128 { 124 } else { -124 }),
                    _ => row_size,
                };
                let mut x: Vec<f32> = (0..k).map(|input| (size(input) * self.draw(rng)) as f32).collect();
                if self == Values::NotFinite && row % 3 != 0 {
                    let odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY][rng.below(3) as usize];
                    x[rng.below(k as u64) as usize] = odd;
                }
                x
            })
            .collect()
    }

    /// A matrix `[rows, k]`.
    pub fn weight(self, rng: &mut Rng, format: WeightFormat, rows: usize, k: usize) -> WeightMemory {
        let size = (k as f64).powf(-0.5);
        let draws = |rng: &mut Rng, size: f64| -> Vec<f32> { (0..k).map(|_| (size * self.draw(rng)) as f32).collect() };
        let (mut data, mut scale) = (Vec::new(), Vec::new());
        for row in 0..rows {
            let not_finite = self == Values::NotFinite && row % 7 == 3;
            let place = rng.below(k as u64) as usize;
            match format {
                WeightFormat::F32 | WeightFormat::Bf16 => {
                    let mut w = draws(rng, size);
                    if not_finite {
                        w[place] = [f32::NAN, f32::INFINITY][rng.below(2) as usize];
                    }
                    data.extend(if format == WeightFormat::F32 { f32_bytes(&w) } else { bf16_bytes(&w) });
                }
                WeightFormat::Fp8Block128 => {
                    let mut codes: Vec<u8> = match self {
                        // Magnitudes from 2^-3 to below 2: times 2^127 finite, times 2^-127 exact in bf16.
                        Values::ExtremeScales => (0..k).map(|_| 0x20 + rng.below(0x20) as u8).collect(),
                        _ => draws(rng, 8.0).into_iter().map(e4m3_encode).collect(),
                    };
                    if not_finite {
                        codes[place] = 0x7f;
                    }
                    data.extend(codes);
                    if row % 128 == 0 {
                        scale.extend((0..k).step_by(128).map(|input| self.scale(rng, input, size / 8.0)));
                    }
                }
                WeightFormat::Fp4Block32 => {
                    let codes: Vec<u8> = match self {
                        // 0.5, 1 and 1.5
                        Values::ExtremeScales => (0..k).map(|_| 1 + rng.below(3) as u8).collect(),
                        _ => draws(rng, 2.0).into_iter().map(e2m1_encode).collect(),
                    };
                    data.extend(codes.chunks_exact(2).map(|pair| pair[0] | pair[1] << 4));
                    scale.extend((0..k).step_by(32).map(|input| self.scale(rng, input, size / 2.0)));
                    if not_finite {
                        let last = scale.len() - 1;
                        scale[last] = 255;
                    }
                }
            }
        }
        let scale = (!scale.is_empty()).then(|| Memory::full("weight.scale", scale));
        WeightMemory { format, data: Memory::full("weight.data", data), scale }
    }

    /// Scale byte of a block from that input on, whose values should be of that size.
    fn scale(self, rng: &mut Rng, input: usize, size: f64) -> u8 {
        match self {
            Values::ExtremeScales => [0, 254][usize::from(input >= 128)],
            _ => (127.0 + size.log2().round()) as u8 - 4 + rng.below(8) as u8,
        }
    }
}

/// Bytes of values in a type.
pub(super) fn bytes_of(dtype: Dtype, values: &[f32]) -> Vec<u8> {
    match dtype {
        Dtype::F32 => f32_bytes(values),
        Dtype::Bf16 => bf16_bytes(values),
    }
}

/// Rows `stride` elements apart, nothing between them; the last row is as long as its values.
pub(super) fn rows_of(label: &'static str, dtype: Dtype, rows: &[Vec<f32>], stride: u64) -> Memory {
    let len = rows.last().map_or(0, |last| (rows.len() as u64 - 1) * stride + last.len() as u64);
    let mut memory = Memory::undefined(label, dtype.bytes() * len);
    for (row, values) in rows.iter().enumerate() {
        memory.put(dtype.bytes() * stride * row as u64, &bytes_of(dtype, values));
    }
    memory
}
