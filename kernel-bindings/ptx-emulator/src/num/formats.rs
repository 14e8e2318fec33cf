//! The small number formats, to and from f32. Every value of every one of them is an f32 exactly.
//!
//! Decoding e4m3 and its smaller relatives is a table look-up; encoding to nearest is a few integer operations; the
//! other rounding modes go through [`soft`](super::soft).
//!
//! | format | bits | exponent, mantissa, bias | largest | special |
//! |---|---|---|---|---|
//! | f16 | 16 | 5, 10, 15 | 65504 | inf, NaN |
//! | bf16 | 16 | 8, 7, 127 | 3.39e38 | inf, NaN |
//! | tf32 | 19 in 32 | 8, 10, 127 | 3.40e38 | inf, NaN; the low 13 register bits are ignored |
//! | e4m3 | 8 | 4, 3, 7 | 448 | NaN 0x7f, no inf |
//! | e5m2 | 8 | 5, 2, 15 | 57344 | inf, NaN |
//! | e3m2 | 6 | 3, 2, 3 | 28 | none |
//! | e2m3 | 6 | 2, 3, 1 | 7.5 | none |
//! | e2m1 | 4 | 2, 1, 1 | 6 | none |
//! | ue8m0 | 8 | 8, 0, 127, no sign | 2^127 | NaN 0xff; 0 is 2^-127 |

use super::soft::{Format, Specials, Value};
use crate::ir::{Rounding, Type};

/// The NaN that f32 instructions write.
pub const NAN_F32: u32 = 0x7fff_ffff;
/// The NaN that f16 and bf16 instructions write.
pub const NAN_16: u16 = 0x7fff;

const fn decode_table<const N: usize>(format: Format) -> [f32; N] {
    let mut table = [0.0; N];
    let mut bits = 0;
    while bits < N {
        table[bits] = decode_small(bits as u32, format);
        bits += 1;
    }
    table
}

const fn decode_small(bits: u32, format: Format) -> f32 {
    let sign = (bits >> (format.bits() - 1) & 1) << 31;
    let exponent = bits >> format.mantissa & ((1 << format.exponent) - 1);
    let mantissa = bits & ((1 << format.mantissa) - 1);
    let top = exponent == (1 << format.exponent) - 1;
    let magnitude = match format.specials {
        Specials::Ieee if top && mantissa == 0 => 0x7f80_0000,
        Specials::Ieee if top => NAN_F32,
        Specials::NanOnly if top && mantissa == (1 << format.mantissa) - 1 => NAN_F32,
        _ if exponent == 0 => {
            // mantissa * 2^(1 - bias - mantissa bits), exact in f32 for every format here.
            let power = 128 - ((1 << (format.exponent - 1)) - 1) - format.mantissa;
            (mantissa as f32 * f32::from_bits(power << 23)).to_bits()
        }
        _ => (exponent + 127 - ((1 << (format.exponent - 1)) - 1)) << 23 | mantissa << (23 - format.mantissa),
    };
    if magnitude == NAN_F32 { f32::from_bits(NAN_F32) } else { f32::from_bits(sign | magnitude) }
}

/// e4m3 by byte.
pub static E4M3: [f32; 256] = decode_table(Format::E4M3);
/// e5m2 by byte.
pub static E5M2: [f32; 256] = decode_table(Format::E5M2);
/// e3m2 by its six bits.
pub static E3M2: [f32; 64] = decode_table(Format::E3M2);
/// e2m3 by its six bits.
pub static E2M3: [f32; 64] = decode_table(Format::E2M3);
/// e2m1 by its four bits.
pub static E2M1: [f32; 16] = decode_table(Format::E2M1);

/// bf16 to f32, NaN payload kept.
#[inline(always)]
pub const fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits((bits as u32) << 16)
}

/// f16 to f32, NaN payload kept; branch-free, so that a loop over lanes vectorises.
#[inline(always)]
pub const fn f16_to_f32(bits: u16) -> f32 {
    let shifted = ((bits & 0x7fff) as u32) << 13;
    // Rebias by 112; an exponent of 31 needs another 112 to reach 255.
    let normal = shifted + (112 << 23);
    let special = shifted + (224 << 23);
    // Sub-normal: put the mantissa under the exponent of 2^-14 and subtract 2^-14, an exact f32 operation.
    let subnormal = (f32::from_bits(shifted + (113 << 23)) - f32::from_bits(113 << 23)).to_bits();
    let exponent = bits & 0x7c00;
    let magnitude = if exponent == 0x7c00 {
        special
    } else if exponent == 0 {
        subnormal
    } else {
        normal
    };
    f32::from_bits(((bits & 0x8000) as u32) << 16 | magnitude)
}

/// f32 to bf16, nearest even; NaN becomes 0x7fff.
#[inline(always)]
pub const fn f32_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = (bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16) as u16;
    if bits & 0x7fff_ffff > 0x7f80_0000 { NAN_16 } else { rounded }
}

/// f32 to f16, nearest even; NaN becomes 0x7fff.
#[inline(always)]
pub const fn f32_to_f16(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = (bits >> 16 & 0x8000) as u16;
    let magnitude = bits & 0x7fff_ffff;
    // Adding half a unit minus one plus the parity bit rounds to nearest even; a carry runs into the exponent.
    let normal = (magnitude.wrapping_sub(112 << 23)).wrapping_add(0xfff + (magnitude >> 13 & 1)) >> 13;
    // 0.5 has the unit 2^-24 of f16 sub-normals: the f32 addition rounds to nearest even there.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
    if magnitude > 0x7f80_0000 {
        NAN_16
    } else if magnitude >= 0x477f_f000 {
        sign | 0x7c00
    } else if magnitude < 113 << 23 {
        sign | subnormal as u16
    } else {
        sign | normal as u16
    }
}

/// f32 to tf32 in its 32-bit register form, in the given rounding mode (`rna` is what `cvt.rna.tf32.f32` names).
pub fn f32_to_tf32(value: f32, rounding: Rounding, satfinite: bool) -> u32 {
    let value = Value::unpack(value.to_bits() as u64, Format::F32);
    let bits = (value.pack(Format::TF32, rounding, satfinite) as u32) << 13;
    if matches!(value, Value::Nan) { NAN_F32 } else { bits }
}

/// f32 to a format of at most 8 bits, nearest even, saturating to the largest finite number; NaN becomes the format's
/// NaN, or its largest number where it has none.
#[inline(always)]
pub const fn encode_small(value: f32, format: Format) -> u8 {
    let bits = value.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    if magnitude > 0x7f80_0000 {
        return format.canonical_nan() as u8;
    }
    let bias = (1u32 << (format.exponent - 1)) - 1;
    let drop = 23 - format.mantissa;
    let smallest_normal = (128 - bias) << 23;
    let encoded = if magnitude < smallest_normal {
        // A number whose last bit weighs the format's smallest unit, 2^(1 - bias - mantissa): adding it rounds there.
        let magic = (128 - bias + drop) << 23;
        (f32::from_bits(magnitude) + f32::from_bits(magic)).to_bits() - magic
    } else {
        ((magnitude + ((1 << (drop - 1)) - 1) + (magnitude >> drop & 1)) >> drop) - ((127 - bias) << format.mantissa)
    };
    let max = format.max_finite() as u32;
    let encoded = if encoded > max { max } else { encoded };
    encoded as u8 | ((bits >> 31) << (format.bits() - 1)) as u8
}

/// ue8m0 to f32: 2^(bits - 127), NaN for 255.
#[inline(always)]
pub const fn ue8m0_to_f32(bits: u8) -> f32 {
    match bits {
        255 => f32::from_bits(NAN_F32),
        0 => f32::from_bits(0x0040_0000),
        _ => f32::from_bits((bits as u32) << 23),
    }
}

/// ue8m0 to f64, for products that leave the range of f32.
#[inline(always)]
pub const fn ue8m0_to_f64(bits: u8) -> f64 {
    if bits == 255 { f64::NAN } else { f64::from_bits((bits as u64 + 1023 - 127) << 52) }
}

/// f32 to ue8m0, rounding the power of two toward zero (`rz`) or up (`rp`). The sign does not count. Below 2^-127
/// everything becomes 2^-127; NaN becomes 255; what rounds above 2^127, infinity included, becomes 254 with
/// `satfinite` and 255 without.
pub fn f32_to_ue8m0(value: f32, up: bool, satfinite: bool) -> u8 {
    let magnitude = value.to_bits() & 0x7fff_ffff;
    if magnitude > 0x7f80_0000 {
        return 255;
    }
    let mut exponent = magnitude >> 23;
    // 2^-127 is the sub-normal 0x00400000: sub-normals up to it stay at 0, larger ones round up to 2^-126.
    if up && magnitude & 0x007f_ffff != 0 && magnitude > 0x0040_0000 {
        exponent += 1;
    }
    if exponent >= 255 && satfinite { 254 } else { exponent.min(255) as u8 }
}

/// The format of a scalar floating-point type; `None` for integers, packed types and ue8m0.
pub const fn format_of(ty: Type) -> Option<Format> {
    Some(match ty {
        Type::F64 => Format::F64,
        Type::F32 => Format::F32,
        Type::TF32 => Format::TF32,
        Type::F16 => Format::F16,
        Type::BF16 => Format::BF16,
        Type::E4M3 => Format::E4M3,
        Type::E5M2 => Format::E5M2,
        Type::E2M3 => Format::E2M3,
        Type::E3M2 => Format::E3M2,
        Type::E2M1 => Format::E2M1,
        _ => return None,
    })
}

/// Decodes one element of a format of at most 16 bits. Bits above the format are ignored.
#[inline(always)]
pub fn decode(bits: u16, ty: Type) -> f32 {
    match ty {
        Type::E4M3 => E4M3[bits as usize & 0xff],
        Type::E5M2 => E5M2[bits as usize & 0xff],
        Type::E3M2 => E3M2[bits as usize & 0x3f],
        Type::E2M3 => E2M3[bits as usize & 0x3f],
        Type::E2M1 => E2M1[bits as usize & 0xf],
        Type::F16 => f16_to_f32(bits),
        Type::BF16 => bf16_to_f32(bits),
        Type::UE8M0 => ue8m0_to_f32(bits as u8),
        _ => f32::from_bits(NAN_F32),
    }
}
