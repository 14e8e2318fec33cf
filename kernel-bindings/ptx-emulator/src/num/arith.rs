//! Floating-point arithmetic of PTX on bit patterns: one exact result, rounded once.
//!
//! Nearest-even f32 and f64 use the CPU's own instructions. The directed modes of f32, and all of f16 and bf16, compute
//! in f64 *rounded to odd* (the exact result, with the last bit set when anything was cut off) and round that once:
//! f64 keeps more than two bits beyond any of the three formats, so the second rounding is right. The directed modes of
//! f64 use [`super::soft`].

use super::approx;
use super::formats::{NAN_16, NAN_F32, bf16_to_f32, f16_to_f32, format_of};
use super::soft::{self, Format, Value};
use crate::ir::{Binary, Cmp, FloatClass, FloatMods, Rounding, Ternary, Type, Unary};

const NAN_F64: u64 = 0x7ff8_0000_0000_0000;

/// Flushes a sub-normal f32 to a zero of its sign.
#[inline(always)]
pub const fn flush(bits: u32) -> u32 {
    if bits & 0x7f80_0000 == 0 { bits & 0x8000_0000 } else { bits }
}

#[inline(always)]
fn flush_if(ftz: bool, bits: u32) -> u32 {
    if ftz { flush(bits) } else { bits }
}

/// Clamps to [0, 1]; NaN becomes +0.
#[inline(always)]
pub fn saturate(value: f32) -> f32 {
    // `max` returns the other operand for NaN; adding +0 turns -0 into +0.
    if value > 1.0 { 1.0 } else { value.max(0.0) + 0.0 }
}

/// Canonical NaN, `.ftz` and `.sat` of an f32 result.
#[inline(always)]
fn finish_f32(value: f32, mods: &FloatMods) -> u64 {
    let value = if mods.relu && !value.is_nan() { value.max(0.0) + 0.0 } else { value };
    if mods.sat {
        return flush_if(mods.ftz, saturate(value).to_bits()) as u64;
    }
    if value.is_nan() { NAN_F32 as u64 } else { flush_if(mods.ftz, value.to_bits()) as u64 }
}

fn finish_f64(value: f64) -> u64 {
    if value.is_nan() { NAN_F64 } else { value.to_bits() }
}

#[inline(always)]
fn f32_in(bits: u64, mods: &FloatMods) -> f32 {
    f32::from_bits(flush_if(mods.ftz, bits as u32))
}

/// Nudges `value`, the nearest f64 of some exact number, to that number rounded to odd. `below` and `above` say that
/// the exact number lies below or above `value`.
#[inline(always)]
fn to_odd(value: f64, below: bool, above: bool) -> f64 {
    let bits = value.to_bits();
    if !(below || above) || bits & 1 == 1 || !value.is_finite() {
        return value;
    }
    // Toward zero is one less in the magnitude, away one more; either neighbour of an even number is odd.
    let away = above == (value > 0.0);
    f64::from_bits(if away { bits + 1 } else { bits - 1 })
}

/// `a + b` rounded to odd in f64.
#[inline(always)]
pub(crate) fn add_odd(a: f64, b: f64) -> f64 {
    let sum = a + b;
    // The error of the sum, exactly (two-sum).
    let from_b = sum - a;
    let error = (a - (sum - from_b)) + (b - from_b);
    to_odd(sum, error < 0.0, error > 0.0)
}

fn div_odd(a: f64, b: f64) -> f64 {
    let quotient = a / b;
    if !quotient.is_finite() || quotient == 0.0 {
        return quotient;
    }
    // a - quotient * b has the sign of the error times the sign of b, and is exact in one fused operation.
    let rest = (-quotient).mul_add(b, a) * b.signum();
    to_odd(quotient, rest < 0.0, rest > 0.0)
}

fn sqrt_odd(a: f64) -> f64 {
    let root = a.sqrt();
    if root.is_nan() || root == 0.0 || root.is_infinite() {
        return root;
    }
    let rest = (-root).mul_add(root, a);
    to_odd(root, rest < 0.0, rest > 0.0)
}

/// An f64 (exact, or rounded to odd) to f32 in the given mode.
pub fn f64_to_f32(value: f64, rounding: Rounding) -> f32 {
    let nearest = value as f32;
    let wide = nearest as f64;
    if wide == value || value.is_nan() {
        return nearest;
    }
    let (below, above) = (wide < value, wide > value);
    let (toward_zero, away) = if value.is_sign_negative() { (below, above) } else { (above, below) };
    debug_assert!(toward_zero != away);
    match rounding {
        // The neighbour toward zero has the magnitude bits minus one; after infinity comes the largest finite number.
        Rounding::Rz | Rounding::Rzi if toward_zero => f32::from_bits(nearest.to_bits() - 1),
        Rounding::Rm | Rounding::Rmi if above => nearest.next_down(),
        Rounding::Rp | Rounding::Rpi if below => nearest.next_up(),
        _ => nearest,
    }
}

/// An f64 (exact, or rounded to odd) to f16 or bf16 in the given mode.
pub fn f64_to_16(value: f64, format: Format, rounding: Rounding) -> u16 {
    Value::unpack(value.to_bits(), Format::F64).pack(format, rounding, false) as u16
}

/// Applies `f` to both halves of a register.
fn halves2(a: u64, b: u64, f: impl Fn(u16, u16) -> u16) -> u64 {
    f(a as u16, b as u16) as u64 | (f((a >> 16) as u16, (b >> 16) as u16) as u64) << 16
}

fn wide16(bits: u16, bf16: bool) -> f64 {
    (if bf16 { bf16_to_f32(bits) } else { f16_to_f32(bits) }) as f64
}

fn is_nan16(bits: u16, bf16: bool) -> bool {
    bits & 0x7fff > if bf16 { 0x7f80 } else { 0x7c00 }
}

/// Rounds a 16-bit result and applies `.sat`, `.relu` and `.ftz` (f16 only has `.ftz`).
fn finish16(odd: f64, bf16: bool, mods: &FloatMods) -> u16 {
    let format = if bf16 { Format::BF16 } else { Format::F16 };
    if odd.is_nan() {
        return if mods.sat { 0 } else { NAN_16 };
    }
    let mut odd = odd;
    if mods.sat {
        odd = odd.clamp(0.0, 1.0) + 0.0;
    }
    if mods.relu {
        odd = odd.max(0.0) + 0.0;
    }
    let bits = f64_to_16(odd, format, mods.rounding.unwrap_or(Rounding::Rn));
    if mods.ftz && !bf16 && bits & 0x7c00 == 0 { bits & 0x8000 } else { bits }
}

fn in16(bits: u16, bf16: bool, mods: &FloatMods) -> f64 {
    let bits = if mods.ftz && !bf16 && bits & 0x7c00 == 0 { bits & 0x8000 } else { bits };
    wide16(bits, bf16)
}

/// `min`/`max` on sign-magnitude bits of any float format: the number beats the NaN unless `.NaN`, -0 is below +0.
/// `top` is the bit pattern of +infinity.
fn min_max(a: u64, b: u64, sign: u64, top: u64, nan: u64, maximum: bool, mods: &FloatMods) -> u64 {
    let magnitude = |x: u64| x & (sign - 1);
    let xor_sign = (a ^ b) & sign;
    let (a, b) = if mods.xorsign_abs { (magnitude(a), magnitude(b)) } else { (a, b) };
    let (a_nan, b_nan) = (magnitude(a) > top, magnitude(b) > top);
    if (a_nan && b_nan) || (mods.nan && (a_nan || b_nan)) {
        return nan;
    }
    // Monotone integer order of sign-magnitude numbers, -0 just below +0.
    let order = |x: u64| if x & sign != 0 { -(magnitude(x) as i128) - 1 } else { x as i128 };
    let pick = if a_nan {
        b
    } else if b_nan || (order(a) < order(b)) != maximum {
        a
    } else {
        b
    };
    if mods.xorsign_abs { magnitude(pick) | xor_sign } else { pick }
}

fn min_max_f32(a: u64, b: u64, maximum: bool, mods: &FloatMods) -> u64 {
    let a = flush_if(mods.ftz, a as u32) as u64;
    let b = flush_if(mods.ftz, b as u32) as u64;
    min_max(a, b, 1 << 31, 0x7f80_0000, NAN_F32 as u64, maximum, mods)
}

fn min_max16(a: u16, b: u16, bf16: bool, maximum: bool, mods: &FloatMods) -> u16 {
    let flush16 = |x: u16| if mods.ftz && !bf16 && x & 0x7c00 == 0 { x & 0x8000 } else { x };
    let top = if bf16 { 0x7f80 } else { 0x7c00 };
    min_max(flush16(a) as u64, flush16(b) as u64, 0x8000, top, NAN_16 as u64, maximum, mods) as u16
}

fn soft2(op: fn(Value, Value, Rounding) -> Value, a: u64, b: u64, rounding: Rounding) -> u64 {
    let value = op(Value::unpack(a, Format::F64), Value::unpack(b, Format::F64), rounding);
    value.pack(Format::F64, rounding, false)
}

/// Is this a 16-bit float type, and is it bf16 and packed?
const fn sixteen(ty: Type) -> Option<(bool, bool)> {
    match ty {
        Type::F16 => Some((false, false)),
        Type::F16x2 => Some((false, true)),
        Type::BF16 => Some((true, false)),
        Type::BF16x2 => Some((true, true)),
        _ => None,
    }
}

/// Two-source floating-point arithmetic: add, sub, mul (`MulLo`), div, min, max, copysign of f32, f64, f16, bf16, f16x2,
/// bf16x2 and f32x2. `None` when the operation does not exist for the type.
pub fn binary(op: Binary, ty: Type, mods: &FloatMods, a: u64, b: u64) -> Option<u64> {
    let rounding = mods.rounding.unwrap_or(Rounding::Rn);
    match ty {
        Type::F32 => {
            if op == Binary::CopySign {
                return Some((a & 0x8000_0000) | (b & 0x7fff_ffff));
            }
            if matches!(op, Binary::Min | Binary::Max) {
                return Some(min_max_f32(a, b, op == Binary::Max, mods));
            }
            let (x, y) = (f32_in(a, mods), f32_in(b, mods));
            let value = match op {
                Binary::Div if mods.approx || mods.full => approx::div_f32(x, y, mods.full),
                Binary::Add if rounding == Rounding::Rn => x + y,
                Binary::Sub if rounding == Rounding::Rn => x - y,
                Binary::MulLo if rounding == Rounding::Rn => x * y,
                Binary::Div if rounding == Rounding::Rn => x / y,
                Binary::Add => signed_zero(x, y, f64_to_f32(add_odd(x as f64, y as f64), rounding), rounding),
                Binary::Sub => signed_zero(x, -y, f64_to_f32(add_odd(x as f64, -(y as f64)), rounding), rounding),
                Binary::MulLo => f64_to_f32(x as f64 * y as f64, rounding),
                Binary::Div => f64_to_f32(div_odd(x as f64, y as f64), rounding),
                _ => return None,
            };
            Some(finish_f32(value, mods))
        }
        Type::F32x2 => {
            let low = binary(op, Type::F32, mods, a & 0xffff_ffff, b & 0xffff_ffff)?;
            let high = binary(op, Type::F32, mods, a >> 32, b >> 32)?;
            Some(low | high << 32)
        }
        Type::F64 => {
            let (x, y) = (f64::from_bits(a), f64::from_bits(b));
            let nearest = rounding == Rounding::Rn;
            Some(match op {
                Binary::CopySign => (a & 1 << 63) | (b & !(1 << 63)),
                Binary::Min | Binary::Max => {
                    min_max(a, b, 1 << 63, 0x7ff0_0000_0000_0000, NAN_F64, op == Binary::Max, mods)
                }
                Binary::Add if nearest => finish_f64(x + y),
                Binary::Sub if nearest => finish_f64(x - y),
                Binary::MulLo if nearest => finish_f64(x * y),
                Binary::Div if nearest => finish_f64(x / y),
                Binary::Add => soft2(soft::add, a, b, rounding),
                Binary::Sub => soft2(|a, b, r| soft::add(a, b.negated(), r), a, b, rounding),
                Binary::MulLo => soft2(|a, b, _| soft::mul(a, b), a, b, rounding),
                Binary::Div => soft2(|a, b, _| soft::div(a, b), a, b, rounding),
                _ => return None,
            })
        }
        _ => {
            let (bf16, packed) = sixteen(ty)?;
            let one = |a: u16, b: u16| -> u16 {
                match op {
                    Binary::Min | Binary::Max => min_max16(a, b, bf16, op == Binary::Max, mods),
                    _ => {
                        let (x, y) = (in16(a, bf16, mods), in16(b, bf16, mods));
                        let odd = match op {
                            Binary::Add => add_odd(x, y),
                            Binary::Sub => add_odd(x, -y),
                            _ => x * y,
                        };
                        finish16(odd, bf16, mods)
                    }
                }
            };
            if !matches!(op, Binary::Add | Binary::Sub | Binary::MulLo | Binary::Min | Binary::Max) {
                return None;
            }
            Some(if packed { halves2(a, b, one) } else { one(a as u16, b as u16) as u64 })
        }
    }
}

/// `x + y` of opposite numbers is -0 when rounding down, +0 otherwise; f64 arithmetic said +0.
fn signed_zero(x: f32, y: f32, sum: f32, rounding: Rounding) -> f32 {
    if sum == 0.0 && rounding == Rounding::Rm && (x != 0.0 || x.is_sign_negative() != y.is_sign_negative()) {
        if x == -y { -0.0 } else { sum }
    } else {
        sum
    }
}

fn fma_f32(a: u64, b: u64, c: u64, mods: &FloatMods) -> u64 {
    let (x, y, z) = (f32_in(a, mods), f32_in(b, mods), f32_in(c, mods));
    let rounding = mods.rounding.unwrap_or(Rounding::Rn);
    let value = if rounding == Rounding::Rn {
        x.mul_add(y, z)
    } else {
        let product = x as f64 * y as f64;
        let sum = f64_to_f32(add_odd(product, z as f64), rounding);
        if sum == 0.0 && rounding == Rounding::Rm && product == -(z as f64) && (product != 0.0 || opposite(product, z))
        {
            -0.0
        } else {
            sum
        }
    };
    finish_f32(value, mods)
}

fn opposite(product: f64, c: f32) -> bool {
    product.is_sign_negative() != c.is_sign_negative()
}

/// Three-source floating-point arithmetic: fma (also `mad` of a float type, as `MadLo`), three-way min and max.
/// `None` when the operation does not exist for the type.
pub fn ternary(op: Ternary, ty: Type, mods: &FloatMods, a: u64, b: u64, c: u64) -> Option<u64> {
    match op {
        Ternary::Min3 | Ternary::Max3 => {
            let op = if op == Ternary::Min3 { Binary::Min } else { Binary::Max };
            if ty != Type::F32 || mods.xorsign_abs {
                return None;
            }
            let first = binary(op, ty, mods, a, b)?;
            return binary(op, ty, mods, first, c);
        }
        Ternary::Fma | Ternary::MadLo => {}
        _ => return None,
    }
    match ty {
        Type::F32 => Some(fma_f32(a, b, c, mods)),
        Type::F32x2 => {
            let low = fma_f32(a & 0xffff_ffff, b & 0xffff_ffff, c & 0xffff_ffff, mods);
            Some(low | fma_f32(a >> 32, b >> 32, c >> 32, mods) << 32)
        }
        Type::F64 => {
            let rounding = mods.rounding.unwrap_or(Rounding::Rn);
            if rounding == Rounding::Rn {
                return Some(finish_f64(f64::from_bits(a).mul_add(f64::from_bits(b), f64::from_bits(c))));
            }
            let product = soft::mul(Value::unpack(a, Format::F64), Value::unpack(b, Format::F64));
            Some(soft::add(product, Value::unpack(c, Format::F64), rounding).pack(Format::F64, rounding, false))
        }
        _ => {
            let (bf16, packed) = sixteen(ty)?;
            let one = |a: u64, b: u64, c: u64| -> u16 {
                let (x, y, z) = (in16(a as u16, bf16, mods), in16(b as u16, bf16, mods), in16(c as u16, bf16, mods));
                finish16(add_odd(x * y, z), bf16, mods)
            };
            let low = one(a, b, c) as u64;
            Some(if packed { low | (one(a >> 16, b >> 16, c >> 16) as u64) << 16 } else { low })
        }
    }
}

/// One-source floating-point arithmetic: neg, abs, rcp, sqrt, rsqrt, ex2, lg2, sin, cos, tanh. `None` when the
/// operation does not exist for the type.
pub fn unary(op: Unary, ty: Type, mods: &FloatMods, a: u64) -> Option<u64> {
    let rounding = mods.rounding.unwrap_or(Rounding::Rn);
    match ty {
        Type::F32 => {
            let flushed = flush_if(mods.ftz, a as u32);
            match op {
                Unary::Neg => return Some((flushed ^ 0x8000_0000) as u64),
                Unary::Abs => return Some((flushed & 0x7fff_ffff) as u64),
                _ => {}
            }
            let x = f32::from_bits(flushed);
            let value = match op {
                Unary::Rcp if mods.approx => approx::rcp_f32(x),
                Unary::Sqrt if mods.approx => approx::sqrt_f32(x),
                Unary::Rcp => f64_to_f32(div_odd(1.0, x as f64), rounding),
                Unary::Sqrt => f64_to_f32(sqrt_odd(x as f64), rounding),
                Unary::Rsqrt => approx::rsqrt_f32(x),
                Unary::Ex2 => approx::ex2_f32(x),
                Unary::Lg2 => approx::lg2_f32(x),
                Unary::Sin => approx::sin_f32(x),
                Unary::Cos => approx::cos_f32(x),
                Unary::Tanh => approx::tanh_f32(x),
                _ => return None,
            };
            Some(finish_f32(value, mods))
        }
        Type::F32x2 => match op {
            Unary::Neg | Unary::Abs => {
                Some(unary(op, Type::F32, mods, a & 0xffff_ffff)? | unary(op, Type::F32, mods, a >> 32)? << 32)
            }
            _ => None,
        },
        Type::F64 => Some(match op {
            Unary::Neg => a ^ 1 << 63,
            Unary::Abs => a & !(1 << 63),
            Unary::Rcp if mods.approx => approx::rcp_ftz_f64(a),
            Unary::Rsqrt if mods.ftz => approx::rsqrt_ftz_f64(a),
            Unary::Rsqrt => finish_f64(1.0 / f64::from_bits(a).sqrt()),
            Unary::Rcp => {
                soft::div(Value::integer(1), Value::unpack(a, Format::F64)).pack(Format::F64, rounding, false)
            }
            Unary::Sqrt if rounding == Rounding::Rn => finish_f64(f64::from_bits(a).sqrt()),
            Unary::Sqrt => soft::sqrt(Value::unpack(a, Format::F64)).pack(Format::F64, rounding, false),
            _ => return None,
        }),
        _ => {
            let (bf16, packed) = sixteen(ty)?;
            let one = |bits: u16| -> Option<u16> {
                let flushed = if mods.ftz && !bf16 && bits & 0x7c00 == 0 { bits & 0x8000 } else { bits };
                let x = wide16(flushed, bf16);
                let value = match op {
                    Unary::Neg => return Some(flushed ^ 0x8000),
                    Unary::Abs => return Some(flushed & 0x7fff),
                    Unary::Ex2 => approx::exp2(x),
                    Unary::Tanh => approx::tanh(x),
                    _ => return None,
                };
                if is_nan16(bits, bf16) {
                    return Some(NAN_16);
                }
                // `ex2.approx.ftz.bf16` flushes sub-normal results; `finish16` does so for f16.
                let bits = finish16(value, bf16, mods);
                Some(if mods.ftz && bf16 && bits & 0x7f80 == 0 { bits & 0x8000 } else { bits })
            };
            let low = one(a as u16)? as u64;
            Some(if packed { low | (one((a >> 16) as u16)? as u64) << 16 } else { low })
        }
    }
}

/// A comparison of `setp`/`set`/`slct` for any scalar type. `lo`, `ls`, `hi`, `hs` compare unsigned whatever the type.
pub fn compare(cmp: Cmp, ty: Type, ftz: bool, a: u64, b: u64) -> bool {
    use std::cmp::Ordering::{Equal, Greater, Less};
    let bits = ty.bits();
    let mask = if bits >= 64 { u64::MAX } else { (1 << bits) - 1 };
    let order = match ty {
        Type::F32 => {
            let (a, b) = (flush_if(ftz, a as u32), flush_if(ftz, b as u32));
            f32::from_bits(a).partial_cmp(&f32::from_bits(b))
        }
        Type::F64 => f64::from_bits(a).partial_cmp(&f64::from_bits(b)),
        Type::F16 | Type::BF16 => {
            let mods = FloatMods { ftz, ..FloatMods::default() };
            let bf16 = ty == Type::BF16;
            in16(a as u16, bf16, &mods).partial_cmp(&in16(b as u16, bf16, &mods))
        }
        _ => {
            let signed = matches!(ty, Type::S8 | Type::S16 | Type::S32 | Type::S64)
                && !matches!(cmp, Cmp::Lo | Cmp::Ls | Cmp::Hi | Cmp::Hs);
            if signed {
                let extend = |x: u64| (x << (64 - bits)) as i64;
                Some(extend(a).cmp(&extend(b)))
            } else {
                Some((a & mask).cmp(&(b & mask)))
            }
        }
    };
    match cmp {
        Cmp::Eq => order == Some(Equal),
        // The ordered `ne` is false for NaN; `neu` is the one that is true.
        Cmp::Ne => matches!(order, Some(Less | Greater)),
        Cmp::Lt | Cmp::Lo => order == Some(Less),
        Cmp::Le | Cmp::Ls => matches!(order, Some(Less | Equal)),
        Cmp::Gt | Cmp::Hi => order == Some(Greater),
        Cmp::Ge | Cmp::Hs => matches!(order, Some(Greater | Equal)),
        Cmp::Equ => matches!(order, None | Some(Equal)),
        Cmp::Neu => order != Some(Equal),
        Cmp::Ltu => matches!(order, None | Some(Less)),
        Cmp::Leu => order != Some(Greater),
        Cmp::Gtu => matches!(order, None | Some(Greater)),
        Cmp::Geu => order != Some(Less),
        Cmp::Num => order.is_some(),
        Cmp::Nan => order.is_none(),
    }
}

/// `testp` of f32 and f64.
pub fn testp(class: FloatClass, ty: Type, a: u64) -> Option<bool> {
    let format = format_of(ty)?;
    let value = Value::unpack(a, format);
    let subnormal = a & format.infinity()? == 0 && !matches!(value, Value::Zero { .. });
    let number = !matches!(value, Value::Nan);
    let infinite = matches!(value, Value::Inf { .. });
    Some(match class {
        FloatClass::Finite => number && !infinite,
        FloatClass::Infinite => infinite,
        FloatClass::Number => number,
        FloatClass::NotANumber => !number,
        // The ISA counts both zeros as normal numbers.
        FloatClass::Normal => number && !infinite && !subnormal,
        FloatClass::Subnormal => subnormal,
    })
}
