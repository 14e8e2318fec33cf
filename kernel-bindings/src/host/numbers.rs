//! Numbers in memory, e4m3 by bit arithmetic, e2m1 by its thresholds.

use reference::ops::Dtype;

/// Value of every e4m3 code.
pub(super) static E4M3: [f32; 256] = {
    let mut table = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        table[code] = e4m3_value(code as u32);
        code += 1;
    }
    table
};

/// An e4m3 normal is an f32 with the exponent field 120 higher; a subnormal counts 2^-9.
const fn e4m3_value(code: u32) -> f32 {
    let sign = (code & 0x80) << 24;
    let magnitude = code & 0x7f;
    let bits = match magnitude {
        0x7f => 0x7fc0_0000,
        0..8 => (magnitude as f32 * (1.0 / 512.0)).to_bits(),
        _ => (magnitude + (120 << 3)) << 20,
    };
    f32::from_bits(sign | bits)
}

/// f32 to e4m3, nearest even, saturating; NaN stays NaN.
pub(super) fn to_e4m3(value: f32) -> u8 {
    let bits = value.to_bits();
    let sign = (bits >> 24) as u8 & 0x80;
    let magnitude = bits & 0x7fff_ffff;
    let code = if magnitude > 0x7f80_0000 {
        0x7f
    } else if magnitude < (121 << 23) {
        // Below 2^-6: adding 1.5 * 2^14 leaves the multiple of 2^-9, rounded to nearest even, in the low bits.
        (f32::from_bits(magnitude) + 24_576.0).to_bits() - 24_576f32.to_bits()
    } else {
        // Round at bit 20 with ties to even, then move the exponent.
        let rounded = magnitude + 0x7_ffff + ((magnitude >> 20) & 1);
        ((rounded >> 20) - (120 << 3)).min(0x7e)
    };
    sign | code as u8
}

/// Value of a ue8m0 byte.
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
    let mut most = floor;
    for &x in values {
        if x.abs() > most {
            most = x.abs();
        }
    }
    most.min(f32::MAX)
}

/// Value of every e2m1 code.
pub(super) const E2M1: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

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
pub(super) fn widen_fp4(codes: &[u8], scales: &[u8], out: &mut [f32]) {
    for ((codes, &scale), out) in codes.chunks_exact(FP4_GROUP / 2).zip(scales).zip(out.chunks_exact_mut(FP4_GROUP)) {
        let s = from_ue8m0(scale);
        for (&byte, pair) in codes.iter().zip(out.chunks_exact_mut(2)) {
            pair[0] = E2M1[(byte & 15) as usize] * s;
            pair[1] = E2M1[(byte >> 4) as usize] * s;
        }
    }
}

pub(super) fn f32_at(bytes: &[u8], element: usize) -> f32 {
    f32::from_bits(u32_at(bytes, element))
}

pub(super) fn s32_at(bytes: &[u8], element: usize) -> i32 {
    u32_at(bytes, element) as i32
}

fn u32_at(bytes: &[u8], element: usize) -> u32 {
    let at = 4 * element;
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Widens bf16 elements.
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
pub(super) fn load_f32(bytes: &[u8], out: &mut [f32]) {
    for (word, x) in bytes.chunks_exact(4).zip(out) {
        *x = f32::from_le_bytes([word[0], word[1], word[2], word[3]]);
    }
}

/// Elements of a tensor.
pub(super) fn load(dtype: Dtype, bytes: &[u8], out: &mut [f32]) {
    match dtype {
        Dtype::F32 => load_f32(bytes, out),
        Dtype::Bf16 => widen_bf16(bytes, out),
    }
}

/// Writes elements of a tensor.
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
                pair.copy_from_slice(&half::bf16::from_f32(x).to_le_bytes());
            }
        }
        (Dtype::Bf16, Dtype::F32) => {
            for (pair, word) in given.chunks_exact(2).zip(out.chunks_exact_mut(4)) {
                word.copy_from_slice(&[0, 0, pair[0], pair[1]]);
            }
        }
    }
}

/// Rounds to bf16.
pub(super) fn narrow_bf16(values: &[f32], bytes: &mut [u8]) {
    for (x, pair) in values.iter().zip(bytes.chunks_exact_mut(2)) {
        pair.copy_from_slice(&half::bf16::from_f32(*x).to_le_bytes());
    }
}

/// Scalar product with 16 partial sums, so that it is vector arithmetic and its order is fixed. Lengths are equal.
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0f32; 16];
    let whole = a.len() / 16 * 16;
    for (lane, (x, y)) in a[whole..].iter().zip(&b[whole..]).enumerate() {
        sums[lane] = x * y;
    }
    for (x, y) in a.chunks_exact(16).zip(b.chunks_exact(16)) {
        for lane in 0..16 {
            sums[lane] += x[lane] * y[lane];
        }
    }
    let mut width = 8;
    while width > 0 {
        for lane in 0..width {
            sums[lane] += sums[lane + width];
        }
        width /= 2;
    }
    sums[0]
}

#[cfg(test)]
mod tests {
    use super::*;
    use reference::formats;

    #[test]
    fn e4m3_agrees_with_the_reference() {
        for code in 0..=255u8 {
            let (here, there) = (E4M3[code as usize], formats::e4m3_decode(code));
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
            assert_eq!(E2M1[code as usize].to_bits(), formats::e2m1_decode(code).to_bits(), "code {code:#x}");
        }
        for upper in 0..=u16::MAX {
            for lower in [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
                let x = f32::from_bits(u32::from(upper) << 16 | lower);
                assert_eq!(to_e2m1(x), formats::e2m1_encode(x), "{x:e}");
            }
        }
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
