//! Number formats, and the quantisers that the caches use.
//!
//! Small floats are decoded by their definition (sign, exponent, mantissa) and encoded by rounding to the nearest
//! multiple of the unit in the last place, ties to even. bf16 and f16 are those of the crate `half`; the tests check
//! them against the same definition.

pub use half::{bf16, f16};

use crate::layout::{D_INDEX, NOPE_TILE};
use crate::ops::ScaleRule;

/// A sign bit, an exponent field and a mantissa field in one byte; no infinities are produced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Small {
    exponent_bits: u32,
    mantissa_bits: u32,
    bias: i32,
    /// Code of the largest finite value, without sign.
    largest: u8,
    /// Code that stands for NaN, without sign; `None` where the format has no NaN.
    nan: Option<u8>,
    /// Code of infinity, without sign.
    infinity: Option<u8>,
}

const E4M3: Small =
    Small { exponent_bits: 4, mantissa_bits: 3, bias: 7, largest: 0x7e, nan: Some(0x7f), infinity: None };
const E5M2: Small =
    Small { exponent_bits: 5, mantissa_bits: 2, bias: 15, largest: 0x7b, nan: Some(0x7f), infinity: Some(0x7c) };
const E2M1: Small = Small { exponent_bits: 2, mantissa_bits: 1, bias: 1, largest: 0x7, nan: None, infinity: None };

impl Small {
    fn sign_bit(self) -> u8 {
        1 << (self.exponent_bits + self.mantissa_bits)
    }

    fn decode(self, code: u8) -> f32 {
        let magnitude = code & (self.sign_bit() - 1);
        let exponent = i32::from(magnitude >> self.mantissa_bits);
        let mantissa = f32::from(magnitude & ((1 << self.mantissa_bits) - 1));
        let steps = mantissa / (1u32 << self.mantissa_bits) as f32;
        let value = match () {
            () if self.infinity == Some(magnitude) => f32::INFINITY,
            () if magnitude > self.largest => f32::NAN,
            () if exponent == 0 => steps * 2f32.powi(1 - self.bias),
            () => (1.0 + steps) * 2f32.powi(exponent - self.bias),
        };
        if code & self.sign_bit() != 0 { -value } else { value }
    }

    /// To nearest, ties to the even code; what exceeds the largest finite value becomes it; NaN becomes NaN, or +0
    /// where the format has none. The sign is kept, also of zero.
    fn encode(self, value: f32) -> u8 {
        let sign = if value.is_sign_negative() { self.sign_bit() } else { 0 };
        if value.is_nan() {
            return self.nan.map_or(0, |nan| sign | nan);
        }
        let magnitude = f64::from(value.abs());
        if magnitude >= f64::from(self.decode(self.largest)) {
            return sign | self.largest;
        }
        let least_exponent = 1 - self.bias;
        let exponent = if magnitude == 0.0 { least_exponent } else { exponent_of(magnitude).max(least_exponent) };
        let unit = 2f64.powi(exponent - self.mantissa_bits as i32);
        let steps = (magnitude / unit).round_ties_even() as u32;
        // A mantissa that rounds up to the next power of two carries into the exponent by itself.
        let code = (((exponent - least_exponent) as u32) << self.mantissa_bits) + steps;
        sign | (code as u8).min(self.largest)
    }
}

/// floor(log2(x)) of a positive normal number.
fn exponent_of(x: f64) -> i32 {
    ((x.to_bits() >> 52) & 0x7ff) as i32 - 1023
}

/// Largest finite e4m3 value.
pub const E4M3_MAX: f32 = 448.0;
/// Largest e2m1 value.
pub const E2M1_MAX: f32 = 6.0;
/// Below this, a tile counts as this large.
pub const AMAX_FLOOR: f32 = 1e-4;

/// e4m3 (no infinity, NaN 0x7f and 0xff) to f32, exact.
pub fn e4m3_decode(code: u8) -> f32 {
    E4M3.decode(code)
}

/// f32 to e4m3, to nearest even, saturating at 448; NaN gives 0x7f with the sign of the input.
pub fn e4m3_encode(value: f32) -> u8 {
    E4M3.encode(value)
}

/// e5m2 to f32, exact; has infinities (0x7c, 0xfc).
pub fn e5m2_decode(code: u8) -> f32 {
    E5M2.decode(code)
}

/// f32 to e5m2, to nearest even, saturating at 57,344; NaN gives 0x7f with the sign of the input.
pub fn e5m2_encode(value: f32) -> u8 {
    E5M2.encode(value)
}

/// Low four bits of `code` as e2m1 to f32: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives.
pub fn e2m1_decode(code: u8) -> f32 {
    E2M1.decode(code & 0xf)
}

/// f32 to e2m1 in the low four bits, to nearest even, saturating at 6. e2m1 has no NaN: a NaN gives 0.
pub fn e2m1_encode(value: f32) -> u8 {
    E2M1.encode(value)
}

/// ue8m0 to f32: `2^(byte - 127)`; byte 255 is NaN, byte 0 is a subnormal f32.
pub fn ue8m0_decode(byte: u8) -> f32 {
    match byte {
        255 => f32::NAN,
        0 => f32::from_bits(1 << 22),
        exponent => f32::from_bits(u32::from(exponent) << 23),
    }
}

/// A positive normal f32 to the next ue8m0 that is not smaller: the exponent, plus one if any mantissa bit is set. Never
/// gives 255.
pub fn ue8m0_ceil(value: f32) -> u8 {
    let bits = value.to_bits();
    let exponent = (bits >> 23) & 0xff;
    let up = u32::from(bits & 0x7f_ffff != 0);
    (exponent + up).min(254) as u8
}

/// Largest magnitude of a tile: NaN ignored, infinity counted as the largest finite number, at least `floor`.
pub fn amax(tile: &[f32], floor: f32) -> f32 {
    // f32::max returns the other operand for a NaN.
    tile.iter().fold(floor, |a, x| a.max(x.abs())).min(f32::MAX)
}

/// A tile of 64 nope channels of a KV row: the ue8m0 scale and the e4m3 codes.
pub fn quantise_nope_tile(tile: &[f32; NOPE_TILE]) -> (u8, [u8; NOPE_TILE]) {
    let scale = ue8m0_ceil(amax(tile, AMAX_FLOOR) / E4M3_MAX);
    let s = ue8m0_decode(scale);
    (scale, tile.map(|x| e4m3_encode(x / s)))
}

/// An fp8 index row, or an fp8 index query of one head: the f32 scale and the e4m3 codes.
pub fn quantise_index_row(row: &[f32; D_INDEX], rule: ScaleRule) -> (f32, [u8; D_INDEX]) {
    let exact = amax(row, AMAX_FLOOR) / E4M3_MAX;
    let scale = match rule {
        ScaleRule::Exact => exact,
        ScaleRule::PowerOfTwo => ue8m0_decode(ue8m0_ceil(exact)),
    };
    (scale, row.map(|x| e4m3_encode(x / scale)))
}

/// Channels that share one scale in the fp4 format.
pub const MXFP4_TILE: usize = 32;

/// A tile of 32 channels: the ue8m0 scale and the e2m1 codes, one per byte.
pub fn quantise_mxfp4_tile(tile: &[f32; MXFP4_TILE]) -> (u8, [u8; MXFP4_TILE]) {
    let floor = E2M1_MAX * f32::MIN_POSITIVE;
    let scale = ue8m0_ceil(amax(tile, floor) / E2M1_MAX);
    let s = ue8m0_decode(scale);
    (scale, tile.map(|x| e2m1_encode(x / s)))
}

/// An fp4 index row: 64 bytes of two codes each, the low nibble that of the even channel, and 4 scales.
pub fn quantise_fp4_row(row: &[f32; D_INDEX]) -> ([u8; D_INDEX / 2], [u8; D_INDEX / MXFP4_TILE]) {
    let mut codes = [0; D_INDEX / 2];
    let scales = std::array::from_fn(|tile| {
        let from = tile * MXFP4_TILE;
        let (scale, of_tile) = quantise_mxfp4_tile(&std::array::from_fn(|c| row[from + c]));
        for (byte, pair) in codes[from / 2..].iter_mut().zip(of_tile.chunks_exact(2)) {
            *byte = pair[0] | pair[1] << 4;
        }
        scale
    });
    (codes, scales)
}

/// Values of an fp4 index row or of the fp4 query of a head.
pub fn fp4_values(codes: &[u8], scales: &[u8]) -> Vec<f64> {
    let code = |c: usize| codes[c / 2] >> (4 * (c % 2)) & 0xf;
    let scale = |c: usize| f64::from(ue8m0_decode(scales[c / MXFP4_TILE]));
    (0..D_INDEX).map(|c| f64::from(e2m1_decode(code(c))) * scale(c)).collect()
}

/// Hadamard transform of length 128 in Sylvester order, times 128^-1/2: `H[i][j] = (-1)^popcount(i & j)`. Its own
/// inverse. Sums in f64, rounded to f32 once.
pub fn hadamard(row: &[f32; D_INDEX]) -> [f32; D_INDEX] {
    let mut x = row.map(f64::from);
    // H_2n = [[H, H], [H, -H]]: one stage of sums and differences per bit of the position.
    for half in [1, 2, 4, 8, 16, 32, 64] {
        for pair in x.chunks_exact_mut(2 * half) {
            let (a, b) = pair.split_at_mut(half);
            for (a, b) in a.iter_mut().zip(b) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
    }
    x.map(|sum| (sum / (D_INDEX as f64).sqrt()) as f32)
}

/// Little-endian elements of a byte string.
pub fn f32s(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

/// Little-endian elements of a byte string.
pub fn s32s(bytes: &[u8]) -> Vec<i32> {
    bytes.chunks_exact(4).map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

/// Little-endian bf16 elements of a byte string, widened.
pub fn bf16s(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect()
}

/// Little-endian bytes of f32 values.
pub fn f32_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// Little-endian bytes of s32 values.
pub fn s32_bytes(values: &[i32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// Little-endian bytes of values rounded to bf16.
pub fn bf16_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect()
}
