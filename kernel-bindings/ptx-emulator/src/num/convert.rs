//! `cvt`: between any two scalar types, and the packed forms.

use super::arith::flush;
use super::formats::{NAN_F32, encode_small, f32_to_ue8m0, format_of, ue8m0_to_f32};
use super::soft::{Format, Value};
use crate::ir::{FloatMods, Rounding, Type};

/// The elements of a packed type; `None` for scalars.
const fn element(ty: Type) -> Option<(Type, u32)> {
    Some(match ty {
        Type::F16x2 => (Type::F16, 2),
        Type::BF16x2 => (Type::BF16, 2),
        Type::E4M3x2 => (Type::E4M3, 2),
        Type::E5M2x2 => (Type::E5M2, 2),
        Type::E2M1x2 => (Type::E2M1, 2),
        Type::E2M3x2 => (Type::E2M3, 2),
        Type::E3M2x2 => (Type::E3M2, 2),
        Type::UE8M0x2 => (Type::UE8M0, 2),
        Type::E4M3x4 => (Type::E4M3, 4),
        Type::E5M2x4 => (Type::E5M2, 4),
        _ => return None,
    })
}

/// Distance in bits of two elements in a packed register: e2m1 sits in nibbles, 6-bit formats in bytes.
const fn spacing(ty: Type) -> u32 {
    match ty {
        Type::E2M3 | Type::E3M2 => 8,
        _ => ty.bits(),
    }
}

/// Is this an integer type, and is it signed?
const fn integer(ty: Type) -> Option<bool> {
    match ty {
        Type::S8 | Type::S16 | Type::S32 | Type::S64 => Some(true),
        Type::U8 | Type::U16 | Type::U32 | Type::U64 => Some(false),
        _ => None,
    }
}

fn cut(bits: u64, width: u32) -> u64 {
    if width >= 64 { bits } else { bits & ((1 << width) - 1) }
}

fn integer_value(bits: u64, ty: Type, signed: bool) -> i128 {
    let width = ty.bits();
    if signed { ((bits << (64 - width)) as i64 >> (64 - width)) as i128 } else { cut(bits, width) as i128 }
}

/// Clamps to the range of an integer type and extends to 64 bits.
fn clamp_integer(value: i128, ty: Type, signed: bool) -> u64 {
    let width = ty.bits();
    let (low, high) = if signed { (-(1i128 << (width - 1)), (1 << (width - 1)) - 1) } else { (0, (1 << width) - 1) };
    value.clamp(low, high) as u64
}

/// `cvt{.rnd}{.ftz}{.sat}{.relu}{.satfinite}.to.from d, a{, b}` for one lane; `None` for a pair of types that no `cvt`
/// has. `b` is the second source of the forms that pack two f32 (`a` becomes the upper half).
///
/// Rules of the ISA beyond rounding: float to integer clamps to the integer's range; NaN becomes 0, or the bit pattern
/// with only the top bit set when the source is f64 or the destination has 64 bits. Conversions to formats of at most
/// 8 bits always saturate to the largest finite number. `.relu` turns negative results into +0.
pub fn cvt(to: Type, from: Type, mods: &FloatMods, satfinite: bool, a: u64, b: Option<u64>) -> Option<u64> {
    match (element(to), element(from)) {
        (Some((to, 2)), None) => {
            let high = scalar(to, from, mods, satfinite, a)?;
            let low = scalar(to, from, mods, satfinite, b?)?;
            Some(high << spacing(to) | low)
        }
        (Some((to, n)), Some((from, m))) if n == m => {
            let mut result = 0;
            for i in 0..n {
                let part = cut(a >> (i * spacing(from)), from.bits());
                result |= scalar(to, from, mods, satfinite, part)? << (i * spacing(to));
            }
            Some(result)
        }
        (None, None) if b.is_none() => scalar(to, from, mods, satfinite, a),
        _ => None,
    }
}

fn scalar(to: Type, from: Type, mods: &FloatMods, satfinite: bool, a: u64) -> Option<u64> {
    let rounding = mods.rounding;
    match (integer(to), integer(from)) {
        (Some(to_signed), Some(from_signed)) => {
            let value = integer_value(a, from, from_signed);
            if mods.sat {
                return Some(clamp_integer(value, to, to_signed));
            }
            Some(integer_value(value as u64, to, to_signed) as u64)
        }
        (None, Some(from_signed)) => {
            let format = float_format(to)?;
            let value = Value::integer(integer_value(a, from, from_signed));
            Some(finish(value, to, format, rounding.unwrap_or(Rounding::Rn), mods, satfinite))
        }
        (Some(to_signed), None) => {
            let format = float_format(from)?;
            let value = Value::unpack(ftz_in(a, from, mods), format);
            if matches!(value, Value::Nan) {
                let wide = from == Type::F64 || to.bits() == 64;
                return Some(if wide { integer_value(1 << (to.bits() - 1), to, to_signed) as u64 } else { 0 });
            }
            let integer = match value.to_integer(rounding.unwrap_or(Rounding::Rzi)) {
                Some(integer) => integer,
                None if value.is_negative() => i128::MIN,
                None => i128::MAX,
            };
            Some(clamp_integer(integer, to, to_signed))
        }
        (None, None) => float(to, from, mods, satfinite, a),
    }
}

/// [`format_of`], with tf32 (whose register form is an f32) only as a destination.
fn float_format(ty: Type) -> Option<Format> {
    if ty == Type::TF32 { None } else { format_of(ty) }
}

fn ftz_in(a: u64, from: Type, mods: &FloatMods) -> u64 {
    if mods.ftz && from == Type::F32 { flush(a as u32) as u64 } else { a }
}

fn float(to: Type, from: Type, mods: &FloatMods, satfinite: bool, a: u64) -> Option<u64> {
    let rounding = mods.rounding.unwrap_or(Rounding::Rn);
    if from == Type::UE8M0 {
        let wide = ue8m0_to_f32(a as u8).to_bits() as u64;
        return float(to, Type::F32, mods, satfinite, wide);
    }
    let from_format = float_format(from)?;
    let a = ftz_in(cut(a, from.bits()), from, mods);
    let value = Value::unpack(a, from_format);
    match to {
        Type::UE8M0 => {
            // Only f32 and bf16 sources exist; both are f32 exactly.
            let wide = f32::from_bits(value.pack(Format::F32, Rounding::Rn, false) as u32);
            let wide = if matches!(value, Value::Nan) { f32::from_bits(NAN_F32) } else { wide };
            return Some(f32_to_ue8m0(wide, rounding == Rounding::Rp, satfinite) as u64);
        }
        Type::TF32 => {
            let bits = finish(value, to, Format::TF32, rounding, mods, satfinite);
            return Some(if bits == Format::TF32.canonical_nan() { NAN_F32 as u64 } else { bits << 13 });
        }
        Type::E4M3 | Type::E5M2 | Type::E2M1 | Type::E2M3 | Type::E3M2
            if from != Type::F64 && rounding == Rounding::Rn =>
        {
            let format = format_of(to)?;
            let wide = f32::from_bits(value.pack(Format::F32, Rounding::Rn, false) as u32);
            let wide = if mods.relu && wide < 0.0 { 0.0 } else { wide };
            let bits = encode_small(wide, format) as u64;
            // -0 is a negative number for `.relu`.
            return Some(if mods.relu && bits == format.sign_bit() { 0 } else { bits });
        }
        _ => {}
    }
    let to_format = float_format(to)?;
    // `rni` and its kin round to an integral value in the source format first.
    let value = match rounding {
        Rounding::Rni | Rounding::Rzi | Rounding::Rmi | Rounding::Rpi => match value.to_integer(rounding) {
            Some(0) => Value::Zero { negative: value.is_negative() },
            Some(integer) if large(value) => {
                debug_assert!(integer != 0);
                value
            }
            Some(integer) => Value::integer(integer),
            None => value,
        },
        _ => value,
    };
    Some(finish(value, to, to_format, rounding, mods, satfinite))
}

/// Numbers without a fraction stay as they are (and may be larger than any integer type).
fn large(value: Value) -> bool {
    matches!(value, Value::Finite { exponent, .. } if exponent >= 0)
}

/// Rounds into the destination and applies `.relu`, `.sat`, `.ftz`.
fn finish(value: Value, to: Type, format: Format, rounding: Rounding, mods: &FloatMods, satfinite: bool) -> u64 {
    let one = Value::Finite { negative: false, exponent: 0, mantissa: 1 };
    let nan = matches!(value, Value::Nan);
    if mods.relu && !nan && value.is_negative() {
        return 0;
    }
    if mods.sat && (nan || value.is_negative()) {
        return 0;
    }
    // `.satfinite` keeps NaN where the format has one.
    let bits = value.pack(format, rounding, satfinite);
    if mods.sat {
        // Positive floats order like their bits.
        return bits.min(one.pack(format, Rounding::Rn, false));
    }
    if mods.ftz && to == Type::F32 { flush(bits as u32) as u64 } else { bits }
}
