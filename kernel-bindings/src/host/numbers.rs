//! Numbers in memory, e4m3 by bit arithmetic, e2m1 by its thresholds.

use reference::ops::Dtype;

use super::simd::amax;

/// Value of an e4m3 code, without a branch: loops over codes become vector arithmetic.
#[inline(always)]
pub(super) const fn e4m3(code: u8) -> f32 {
    let (sign, magnitude) = ((code as u32 & 0x80) << 24, (code as u32 & 0x7f) << 20);
    // The exponent fields of the formats differ by 120. Field 0 stands for the exponent of field 1, less the implicit 1.
    let normal = f32::from_bits(magnitude + (120 << 23));
    let subnormal = f32::from_bits(magnitude + (121 << 23)) - 1.0 / 64.0;
    let value = if magnitude < 1 << 23 { subnormal } else { normal };
    let value = if code & 0x7f == 0x7f { f32::NAN } else { value };
    f32::from_bits(value.to_bits() | sign)
}

/// f32 to e4m3, nearest even, saturating; NaN stays NaN. Without a branch.
#[inline(always)]
pub(super) fn to_e4m3(value: f32) -> u8 {
    let bits = value.to_bits();
    let (sign, magnitude) = (bits >> 24 & 0x80, bits & 0x7fff_ffff);
    // Below 2^-6: adding 1.5 * 2^14 leaves the multiple of 2^-9, rounded to nearest even, in the low bits.
    let small = (f32::from_bits(magnitude) + 24_576.0).to_bits().wrapping_sub(24_576f32.to_bits());
    // Round at bit 20 with ties to even, then move the exponent.
    let rounded = (magnitude + 0x7_ffff + ((magnitude >> 20) & 1)) >> 20;
    let large = rounded.wrapping_sub(120 << 3).min(0x7e);
    let code = if magnitude < 121 << 23 { small } else { large };
    let code = if magnitude > 0x7f80_0000 { 0x7f } else { code };
    (sign | code) as u8
}

/// Value of a ue8m0 byte.
#[inline(always)]
pub(super) fn from_ue8m0(byte: u8) -> f32 {
    match byte {
        0 => f32::MIN_POSITIVE / 2.0,
        255 => f32::NAN,
        _ => f32::from_bits(u32::from(byte) << 23),
    }
}

/// Exponent byte of the smallest power of two that is not below a positive normal number.
pub(super) fn power_of_two_above(value: f32) -> u8 {
    let bits = value.to_bits();
    // Any mantissa bit carries into the exponent.
    ((bits + 0x7f_ffff) >> 23) as u8
}

/// Largest magnitude of some values, from 1e-4 to the largest finite number, NaN left out.
pub(super) fn clamped_amax(values: &[f32]) -> f32 {
    amax_from(1e-4, values)
}

fn amax_from(floor: f32, values: &[f32]) -> f32 {
    amax(values).max(floor).min(f32::MAX)
}

/// Value of an e2m1 code, without a branch.
#[inline(always)]
pub(super) const fn e2m1(code: u8) -> f32 {
    let (sign, magnitude) = ((code as u32 & 8) << 28, (code as u32 & 7) << 22);
    let normal = f32::from_bits(magnitude + (126 << 23));
    let value = if magnitude < 1 << 23 { f32::from_bits(magnitude + (127 << 23)) - 1.0 } else { normal };
    f32::from_bits(value.to_bits() | sign)
}

/// f32 to e2m1, nearest with ties to the even code, saturating; NaN becomes 0.
pub(super) fn to_e2m1(value: f32) -> u8 {
    // The code counts the thresholds below the value; a value on a threshold goes to the even code next to it.
    let x = value.abs();
    let above = [x > 0.25, x >= 0.75, x > 1.25, x >= 1.75, x > 2.5, x >= 3.5, x > 5.0];
    let code = above.iter().map(|&more| u8::from(more)).sum::<u8>();
    if value.is_nan() { 0 } else { code | u8::from(value.is_sign_negative()) << 3 }
}

/// Channels that share a scale of the fp4 format.
pub(super) const FP4_GROUP: usize = 32;

/// Codes (two to a byte, low nibble first) and scales of an fp4 row.
pub(super) fn fp4_row(values: &[f32], codes: &mut [u8], scales: &mut [u8]) {
    for ((group, codes), scale) in values.chunks_exact(FP4_GROUP).zip(codes.chunks_exact_mut(FP4_GROUP / 2)).zip(scales)
    {
        *scale = power_of_two_above(amax_from(6.0 * f32::MIN_POSITIVE, group) / 6.0);
        let s = from_ue8m0(*scale);
        for (pair, byte) in group.chunks_exact(2).zip(codes) {
            *byte = to_e2m1(pair[0] / s) | to_e2m1(pair[1] / s) << 4;
        }
    }
}

/// Values of an fp4 row.
#[inline(always)]
pub(super) fn fp4_values(codes: &[u8], scales: &[u8], out: &mut [f32]) {
    for ((codes, &scale), out) in codes.chunks_exact(FP4_GROUP / 2).zip(scales).zip(out.chunks_exact_mut(FP4_GROUP)) {
        let s = from_ue8m0(scale);
        for (&byte, pair) in codes.iter().zip(out.chunks_exact_mut(2)) {
            pair[0] = e2m1(byte & 15) * s;
            pair[1] = e2m1(byte >> 4) * s;
        }
    }
}

#[inline(always)]
pub(super) fn f32_at(bytes: &[u8], element: usize) -> f32 {
    f32::from_bits(u32_at(bytes, element))
}

#[inline(always)]
pub(super) fn s32_at(bytes: &[u8], element: usize) -> i32 {
    u32_at(bytes, element) as i32
}

fn u32_at(bytes: &[u8], element: usize) -> u32 {
    let at = 4 * element;
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Widens bf16 elements.
#[inline(always)]
pub(super) fn widen_bf16(bytes: &[u8], out: &mut [f32]) {
    for (pair, x) in bytes.chunks_exact(2).zip(out) {
        *x = f32::from_bits(u32::from(u16::from_le_bytes([pair[0], pair[1]])) << 16);
    }
}

/// Value of a bf16 element.
pub(super) fn bf16_at(bytes: &[u8], element: usize) -> f32 {
    let at = 2 * element;
    f32::from_bits(u32::from(u16::from_le_bytes([bytes[at], bytes[at + 1]])) << 16)
}

/// f32 elements.
#[inline(always)]
pub(super) fn load_f32(bytes: &[u8], out: &mut [f32]) {
    for (word, x) in bytes.chunks_exact(4).zip(out) {
        *x = f32::from_le_bytes([word[0], word[1], word[2], word[3]]);
    }
}

/// Elements of a tensor.
#[inline(always)]
pub(super) fn load(dtype: Dtype, bytes: &[u8], out: &mut [f32]) {
    match dtype {
        Dtype::F32 => load_f32(bytes, out),
        Dtype::Bf16 => widen_bf16(bytes, out),
    }
}

/// Writes elements of a tensor.
#[inline(always)]
pub(super) fn store(dtype: Dtype, values: &[f32], bytes: &mut [u8]) {
    match dtype {
        Dtype::F32 => {
            values.iter().zip(bytes.chunks_exact_mut(4)).for_each(|(x, b)| b.copy_from_slice(&x.to_le_bytes()))
        }
        Dtype::Bf16 => narrow_bf16(values, bytes),
    }
}

/// Copies elements of one type into memory of another; equal types bit by bit.
pub(super) fn convert(from: Dtype, to: Dtype, given: &[u8], out: &mut [u8]) {
    match (from, to) {
        (Dtype::F32, Dtype::F32) | (Dtype::Bf16, Dtype::Bf16) => out.copy_from_slice(given),
        (Dtype::F32, Dtype::Bf16) => {
            for (word, pair) in given.chunks_exact(4).zip(out.chunks_exact_mut(2)) {
                let x = f32::from_le_bytes([word[0], word[1], word[2], word[3]]);
                narrow_bf16(&[x], pair);
            }
        }
        (Dtype::Bf16, Dtype::F32) => {
            for (pair, word) in given.chunks_exact(2).zip(out.chunks_exact_mut(4)) {
                word.copy_from_slice(&[0, 0, pair[0], pair[1]]);
            }
        }
    }
}

/// Rounds to bf16, to nearest even; a NaN becomes quiet.
#[inline(always)]
pub(super) fn narrow_bf16(values: &[f32], bytes: &mut [u8]) {
    for (x, pair) in values.iter().zip(bytes.chunks_exact_mut(2)) {
        let bits = x.to_bits();
        let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
        let nearest = if x.is_nan() { bits >> 16 | 0x40 } else { rounded };
        pair.copy_from_slice(&(nearest as u16).to_le_bytes());
    }
}

/// e^x, good to 2 units in the last place over all of f32, without a branch.
#[inline(always)]
pub(super) fn exponential(x: f32) -> f32 {
    // Beyond these the result is infinite, or rounds to 0.
    let clamped = if x > 89.0 { 89.0 } else { x };
    let clamped = if clamped < -104.0 { -104.0 } else { clamped };
    // x = n ln 2 + r with abs(r) <= ln 2 / 2; adding 1.5 * 2^23 leaves the nearest integer in the low bits.
    let shifted = clamped * std::f32::consts::LOG2_E + 12_582_912.0;
    let n = shifted - 12_582_912.0;
    // ln 2 in two parts; n times the first is exact.
    let r = (clamped - n * 0.693_359_4) + n * 2.121_944_4e-4;
    let p = 1.987_569_1e-4;
    let p = p * r + 1.398_2e-3;
    let p = p * r + 8.333_452e-3;
    let p = p * r + 4.166_579_6e-2;
    let p = p * r + 1.666_666_5e-1;
    let p = p * r + 0.5;
    let p = p * r * r + r + 1.0;
    // 2^n in two factors, each a normal number, so that the product underflows gradually.
    let n = (shifted.to_bits() as i32).wrapping_sub(12_582_912f32.to_bits() as i32);
    let power = |n: i32| f32::from_bits((n.wrapping_add(127) as u32) << 23);
    p * power(n >> 1) * power(n - (n >> 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use reference::formats;

    #[test]
    fn e4m3_agrees_with_the_reference() {
        for code in 0..=255u8 {
            let (here, there) = (e4m3(code), formats::e4m3_decode(code));
            assert!(here.to_bits() == there.to_bits() || (here.is_nan() && there.is_nan()), "code {code:#x}");
        }
        let check = |x: f32| {
            let (here, there) = (to_e4m3(x), formats::e4m3_encode(x));
            assert!(here == there || (x.is_nan() && here & 0x7f == 0x7f), "{x:e}: {here:#x} and {there:#x}");
        };
        for upper in 0..=u16::MAX {
            for lower in [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
                check(f32::from_bits(u32::from(upper) << 16 | lower));
            }
        }
    }

    #[test]
    fn e2m1_agrees_with_the_reference() {
        for code in 0..16u8 {
            assert_eq!(e2m1(code).to_bits(), formats::e2m1_decode(code).to_bits(), "code {code:#x}");
        }
        for upper in 0..=u16::MAX {
            for lower in [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
                let x = f32::from_bits(u32::from(upper) << 16 | lower);
                assert_eq!(to_e2m1(x), formats::e2m1_encode(x), "{x:e}");
            }
        }
    }

    #[test]
    fn bf16_agrees_with_the_reference() {
        for upper in 0..=u16::MAX {
            for lower in [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
                let x = f32::from_bits(u32::from(upper) << 16 | lower);
                let mut bytes = [0; 2];
                narrow_bf16(&[x], &mut bytes);
                assert_eq!(bytes, formats::bf16::from_f32(x).to_le_bytes(), "{x:e}");
            }
        }
    }

    /// Every 1,021st number of either sign, and the ends of the ranges.
    #[test]
    fn exponential_is_good_to_two_units() {
        let check = |x: f32| {
            let (got, want) = (exponential(x), f64::from(x).exp());
            // the spacing of f32 at the result, subnormal numbers included
            let unit = (want as f32).to_bits().max(0x0080_0000) & 0x7f80_0000;
            let unit = f64::from(f32::from_bits(unit)) * f64::from(f32::EPSILON);
            let right = if want as f32 == f32::INFINITY {
                got == f32::INFINITY
            } else {
                (f64::from(got) - want).abs() <= 2.0 * unit
            };
            assert!(right, "e^{x:e}: {got:e}, not {want:e}");
        };
        (0..0x7f80_0000u32).step_by(1021).for_each(|bits| {
            check(f32::from_bits(bits));
            check(-f32::from_bits(bits));
        });
        for x in [88.722_83, 88.722_84, 89.0, 1e30, -87.336_54, -87.34, -103.97, -103.98, -104.1, f32::NEG_INFINITY] {
            check(x);
        }
        assert_eq!(exponential(f32::INFINITY), f32::INFINITY);
        assert_eq!(exponential(0.0), 1.0);
        assert!(exponential(f32::NAN).is_nan());
    }

    #[test]
    fn scales_agree_with_the_reference() {
        for byte in 0..=254u8 {
            assert_eq!(from_ue8m0(byte), formats::ue8m0_decode(byte));
        }
        assert!(from_ue8m0(255).is_nan());
        for bits in (0x0080_0000..0x7f00_0000u32).step_by(4099) {
            for bits in [bits, bits & 0xff80_0000, bits | 1, bits | 0x7f_ffff] {
                let x = f32::from_bits(bits);
                assert_eq!(power_of_two_above(x), formats::ue8m0_ceil(x), "{x:e}");
            }
        }
        let odd = [f32::NAN, -3.0, f32::NAN, 2.0];
        assert_eq!(clamped_amax(&odd), 3.0);
        assert_eq!(clamped_amax(&[f32::NEG_INFINITY]), f32::MAX);
        assert_eq!(clamped_amax(&[0.0]), 1e-4);
    }
}
