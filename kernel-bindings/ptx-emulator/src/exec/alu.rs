//! The lane functions of the hot arithmetic: chosen once per instruction when an entry is decoded.
//!
//! What has no function here goes through [`super::scalar`], one lane at a time.

use super::lanes::{L32, L64, map1, map2, map3, test2};
use super::program::Rule;
use crate::ir::{Binary, Cmp, FloatMods, Rounding, Ternary, Type, Unary};

pub(crate) type W1 = fn(&L32) -> L32;
pub(crate) type W2 = fn(&L32, &L32) -> L32;
pub(crate) type W3 = fn(&L32, &L32, &L32) -> L32;
pub(crate) type X1 = fn(&L64) -> L64;
pub(crate) type X2 = fn(&L64, &L64) -> L64;
pub(crate) type X3 = fn(&L64, &L64, &L64) -> L64;
pub(crate) type Xxw = fn(&L64, &L32) -> L64;
pub(crate) type Xw = fn(&L32) -> L64;
pub(crate) type Wx = fn(&L64) -> L32;
pub(crate) type Xww = fn(&L32, &L32) -> L64;
pub(crate) type Xwwx = fn(&L32, &L32, &L64) -> L64;
pub(crate) type TestW = fn(&L32, &L32) -> u32;
pub(crate) type TestX = fn(&L64, &L64) -> u32;

const CANONICAL_NAN: u32 = 0x7fff_ffff;

#[inline(always)]
pub(super) fn f(bits: u32) -> f32 {
    f32::from_bits(bits)
}

/// Result bits: a NaN is the canonical one.
#[inline(always)]
pub(super) fn out(x: f32) -> u32 {
    if x.is_nan() { CANONICAL_NAN } else { x.to_bits() }
}

/// Input with sub-normals flushed.
#[inline(always)]
pub(super) fn fz(bits: u32) -> f32 {
    f32::from_bits(if bits & 0x7f80_0000 == 0 { bits & 0x8000_0000 } else { bits })
}

/// Result bits with sub-normals flushed.
#[inline(always)]
pub(super) fn outz(x: f32) -> u32 {
    let bits = out(x);
    if bits & 0x7f80_0000 == 0 { bits & 0x8000_0000 } else { bits }
}

#[inline(always)]
pub(super) fn max_f32(a: f32, b: f32) -> u32 {
    if a > b || b.is_nan() {
        out(a)
    } else if a < b || a.is_nan() {
        out(b)
    } else {
        a.to_bits() & b.to_bits()
    }
}

#[inline(always)]
pub(super) fn min_f32(a: f32, b: f32) -> u32 {
    if a < b || b.is_nan() {
        out(a)
    } else if a > b || a.is_nan() {
        out(b)
    } else {
        a.to_bits() | b.to_bits()
    }
}

/// Whether the modifiers leave the plain nearest-even form, with or without `.ftz`.
fn plain(mods: &FloatMods) -> bool {
    let FloatMods { rounding, ftz: _, sat, approx, full, nan, relu, xorsign_abs, oob } = *mods;
    matches!(rounding, None | Some(Rounding::Rn)) && !(sat || approx || full || nan || relu || xorsign_abs || oob)
}

fn is_signed(ty: Type) -> bool {
    matches!(ty, Type::S8 | Type::S16 | Type::S32 | Type::S64)
}

/// Shift left; amounts past the width give zero.
#[inline(always)]
fn shl32(a: u32, n: u32) -> u32 {
    if n < 32 { a << (n & 31) } else { 0 }
}

#[inline(always)]
fn shr32(a: u32, n: u32) -> u32 {
    if n < 32 { a >> (n & 31) } else { 0 }
}

#[inline(always)]
fn sar32(a: u32, n: u32) -> u32 {
    (a as i32 >> n.min(31)) as u32
}

#[inline(always)]
fn s16(a: u32) -> i32 {
    a as u16 as i16 as i32
}

/// Two sources in the 32-bit file.
pub(crate) fn binary_w(op: Binary, ty: Type, mods: &FloatMods) -> Option<(W2, Rule)> {
    use Binary::*;
    use Type::*;
    let logic: Option<W2> = match op {
        And => Some(|a, b| map2(a, b, |x, y| x & y)),
        Or => Some(|a, b| map2(a, b, |x, y| x | y)),
        Xor => Some(|a, b| map2(a, b, |x, y| x ^ y)),
        _ => None,
    };
    if let (Some(function), B8 | B16 | B32) = (logic, ty) {
        return Some((function, Rule::Logic));
    }
    if mods.sat && !matches!(ty, F32) {
        return None;
    }
    let function: W2 = match (ty, op) {
        (B32, Shl) => return Some((|a, b| map2(a, b, shl32), Rule::Bits(1))),
        (B32 | U32, Shr) => return Some((|a, b| map2(a, b, shr32), Rule::Bits(1))),
        (S32, Shr) => return Some((|a, b| map2(a, b, sar32), Rule::Bits(1))),
        (B16, Shl) => return Some((|a, b| map2(a, b, |x: u32, n: u32| shl32(x, n) & 0xffff), Rule::Bits(1))),
        (B16 | U16, Shr) => return Some((|a, b| map2(a, b, shr32), Rule::Bits(1))),
        (S16, Shr) => {
            return Some((|a, b| map2(a, b, |x: u32, n: u32| (s16(x) >> n.min(31)) as u32 & 0xffff), Rule::Bits(1)));
        }
        (S32 | U32, Add) => |a, b| map2(a, b, |x: u32, y: u32| x.wrapping_add(y)),
        (S32 | U32, Sub) => |a, b| map2(a, b, |x: u32, y: u32| x.wrapping_sub(y)),
        (S32 | U32, MulLo) => |a, b| map2(a, b, |x: u32, y: u32| x.wrapping_mul(y)),
        (U32, MulHi) => |a, b| map2(a, b, |x: u32, y: u32| ((u64::from(x) * u64::from(y)) >> 32) as u32),
        (S32, MulHi) => {
            |a, b| map2(a, b, |x: u32, y: u32| (i64::from(x as i32).wrapping_mul(i64::from(y as i32)) >> 32) as u32)
        }
        (U32, Min) => |a, b| map2(a, b, |x: u32, y: u32| x.min(y)),
        (U32, Max) => |a, b| map2(a, b, |x: u32, y: u32| x.max(y)),
        (S32, Min) => |a, b| map2(a, b, |x: u32, y: u32| (x as i32).min(y as i32) as u32),
        (S32, Max) => |a, b| map2(a, b, |x: u32, y: u32| (x as i32).max(y as i32) as u32),
        (U32, Div) => |a, b| map2(a, b, |x: u32, y: u32| x.checked_div(y).unwrap_or(u32::MAX)),
        (U32, Rem) => |a, b| map2(a, b, |x: u32, y: u32| x.checked_rem(y).unwrap_or(u32::MAX)),
        (S32, Div) => {
            |a, b| map2(a, b, |x: u32, y: u32| if y == 0 { u32::MAX } else { (x as i32).wrapping_div(y as i32) as u32 })
        }
        (S32, Rem) => {
            |a, b| map2(a, b, |x: u32, y: u32| if y == 0 { u32::MAX } else { (x as i32).wrapping_rem(y as i32) as u32 })
        }
        (S16 | U16, Add) => |a, b| map2(a, b, |x: u32, y: u32| x.wrapping_add(y) & 0xffff),
        (S16 | U16, Sub) => |a, b| map2(a, b, |x: u32, y: u32| x.wrapping_sub(y) & 0xffff),
        (S16 | U16, MulLo) => |a, b| map2(a, b, |x: u32, y: u32| x.wrapping_mul(y) & 0xffff),
        (S16, MulWide) => |a, b| map2(a, b, |x: u32, y: u32| s16(x).wrapping_mul(s16(y)) as u32),
        (U16, MulWide) => |a, b| map2(a, b, |x: u32, y: u32| x.wrapping_mul(y)),
        (U16, Min) => |a, b| map2(a, b, |x: u32, y: u32| x.min(y)),
        (U16, Max) => |a, b| map2(a, b, |x: u32, y: u32| x.max(y)),
        (S16, Min) => |a, b| map2(a, b, |x: u32, y: u32| s16(x).min(s16(y)) as u32 & 0xffff),
        (S16, Max) => |a, b| map2(a, b, |x: u32, y: u32| s16(x).max(s16(y)) as u32 & 0xffff),
        (F32, Div) => super::alu_float::binary(op, mods)?,
        (F32, Min | Max) if mods.nan => super::alu_float::binary(op, mods)?,
        (F32, _) if plain(mods) => match (op, mods.ftz) {
            (Add, false) => |a, b| map2(a, b, |x, y| out(f(x) + f(y))),
            (Sub, false) => |a, b| map2(a, b, |x, y| out(f(x) - f(y))),
            (MulLo, false) => |a, b| map2(a, b, |x, y| out(f(x) * f(y))),
            (Min, false) => |a, b| map2(a, b, |x, y| min_f32(f(x), f(y))),
            (Max, false) => |a, b| map2(a, b, |x, y| max_f32(f(x), f(y))),
            (Add, true) => |a, b| map2(a, b, |x, y| outz(fz(x) + fz(y))),
            (Sub, true) => |a, b| map2(a, b, |x, y| outz(fz(x) - fz(y))),
            (MulLo, true) => |a, b| map2(a, b, |x, y| outz(fz(x) * fz(y))),
            (Min, true) => |a, b| map2(a, b, |x, y| min_f32(fz(x), fz(y))),
            (Max, true) => |a, b| map2(a, b, |x, y| max_f32(fz(x), fz(y))),
            _ => return None,
        },
        _ => return None,
    };
    Some((function, Rule::All))
}

/// Two sources in the 64-bit file (shifts are [`shift_x`]).
pub(crate) fn binary_x(op: Binary, ty: Type, mods: &FloatMods) -> Option<(X2, Rule)> {
    use Binary::*;
    use Type::*;
    if mods.sat {
        return None;
    }
    let function: X2 = match (ty, op) {
        (B64, And) => return Some((|a, b| map2(a, b, |x, y| x & y), Rule::Logic)),
        (B64, Or) => return Some((|a, b| map2(a, b, |x, y| x | y), Rule::Logic)),
        (B64, Xor) => return Some((|a, b| map2(a, b, |x, y| x ^ y), Rule::Logic)),
        (S64 | U64, Add) => |a, b| map2(a, b, |x: u64, y: u64| x.wrapping_add(y)),
        (S64 | U64, Sub) => |a, b| map2(a, b, |x: u64, y: u64| x.wrapping_sub(y)),
        (S64 | U64, MulLo) => |a, b| map2(a, b, |x: u64, y: u64| x.wrapping_mul(y)),
        (U64, MulHi) => |a, b| map2(a, b, |x: u64, y: u64| ((u128::from(x) * u128::from(y)) >> 64) as u64),
        (S64, MulHi) => {
            |a, b| map2(a, b, |x: u64, y: u64| ((i128::from(x as i64) * i128::from(y as i64)) >> 64) as u64)
        }
        (U64, Min) => |a, b| map2(a, b, |x: u64, y: u64| x.min(y)),
        (U64, Max) => |a, b| map2(a, b, |x: u64, y: u64| x.max(y)),
        (S64, Min) => |a, b| map2(a, b, |x: u64, y: u64| (x as i64).min(y as i64) as u64),
        (S64, Max) => |a, b| map2(a, b, |x: u64, y: u64| (x as i64).max(y as i64) as u64),
        (U64, Div) => |a, b| map2(a, b, |x: u64, y: u64| x.checked_div(y).unwrap_or(u64::MAX)),
        (U64, Rem) => |a, b| map2(a, b, |x: u64, y: u64| x.checked_rem(y).unwrap_or(u64::MAX)),
        (S64, Div) => {
            |a, b| map2(a, b, |x: u64, y: u64| if y == 0 { u64::MAX } else { (x as i64).wrapping_div(y as i64) as u64 })
        }
        (S64, Rem) => {
            |a, b| map2(a, b, |x: u64, y: u64| if y == 0 { u64::MAX } else { (x as i64).wrapping_rem(y as i64) as u64 })
        }
        _ => return None,
    };
    Some((function, Rule::All))
}

/// Shifts of 64-bit values by 32-bit amounts.
pub(crate) fn shift_x(op: Binary, ty: Type) -> Option<Xxw> {
    match (op, ty) {
        (Binary::Shl, Type::B64) => Some(|a, b| map2(a, b, |x: u64, n: u32| x.checked_shl(n).unwrap_or(0))),
        (Binary::Shr, Type::B64 | Type::U64) => Some(|a, b| map2(a, b, |x: u64, n: u32| x.checked_shr(n).unwrap_or(0))),
        (Binary::Shr, Type::S64) => Some(|a, b| map2(a, b, |x: u64, n: u32| (x as i64 >> n.min(63)) as u64)),
        _ => None,
    }
}

/// 32 x 32 -> 64 bit products.
pub(crate) fn mul_wide(ty: Type) -> Option<Xww> {
    match ty {
        Type::U32 => Some(|a, b| map2(a, b, |x: u32, y: u32| u64::from(x) * u64::from(y))),
        Type::S32 => {
            Some(|a, b| map2(a, b, |x: u32, y: u32| i64::from(x as i32).wrapping_mul(i64::from(y as i32)) as u64))
        }
        _ => None,
    }
}

/// 32 x 32 + 64 -> 64 bit.
pub(crate) fn mad_wide(ty: Type) -> Option<Xwwx> {
    match ty {
        Type::U32 => {
            Some(|a, b, c| map3(a, b, c, |x: u32, y: u32, z: u64| (u64::from(x) * u64::from(y)).wrapping_add(z)))
        }
        Type::S32 => Some(|a, b, c| {
            map3(a, b, c, |x: u32, y: u32, z: u64| {
                (i64::from(x as i32).wrapping_mul(i64::from(y as i32)) as u64).wrapping_add(z)
            })
        }),
        _ => None,
    }
}

/// One source in the 32-bit file.
pub(crate) fn unary_w(op: Unary, ty: Type, mods: &FloatMods) -> Option<(W1, Rule)> {
    use Type::*;
    use Unary::*;
    let function: W1 = match (ty, op) {
        (B32, Not) => return Some((|a| map1(a, |x: u32| !x), Rule::Bits(1))),
        (B16, Not) => return Some((|a| map1(a, |x: u32| !x & 0xffff), Rule::Bits(1))),
        (B32, Brev) => return Some((|a| map1(a, |x: u32| x.reverse_bits()), Rule::Bits(1))),
        (B32, Popc) => |a| map1(a, |x: u32| x.count_ones()),
        (B32, Clz) => |a| map1(a, |x: u32| x.leading_zeros()),
        (B32, CNot) => |a| map1(a, |x: u32| u32::from(x == 0)),
        (U32, Bfind { shift_amount: false }) => |a| map1(a, |x: u32| 31u32.wrapping_sub(x.leading_zeros())),
        (S32, Neg) => |a| map1(a, |x: u32| x.wrapping_neg()),
        (S32, Abs) => |a| map1(a, |x: u32| (x as i32).wrapping_abs() as u32),
        (S16, Neg) => |a| map1(a, |x: u32| x.wrapping_neg() & 0xffff),
        (F32, Ex2 | Lg2 | Rsqrt | Rcp | Sqrt) => super::alu_float::unary(op, mods)?,
        (F32, Neg) if plain(mods) && !mods.ftz => |a| map1(a, |x: u32| x ^ 0x8000_0000),
        (F32, Abs) if plain(mods) && !mods.ftz => |a| map1(a, |x: u32| x & 0x7fff_ffff),
        _ => return None,
    };
    Some((function, Rule::All))
}

/// One source in the 64-bit file.
pub(crate) fn unary_x(op: Unary, ty: Type) -> Option<(X1, Rule)> {
    use Type::*;
    use Unary::*;
    match (ty, op) {
        (B64, Not) => Some((|a| map1(a, |x: u64| !x), Rule::Bits(1))),
        (B64, Brev) => Some((|a| map1(a, |x: u64| x.reverse_bits()), Rule::Bits(1))),
        (S64, Neg) => Some((|a| map1(a, |x: u64| x.wrapping_neg()), Rule::All)),
        (S64, Abs) => Some((|a| map1(a, |x: u64| (x as i64).wrapping_abs() as u64), Rule::All)),
        _ => None,
    }
}

/// Three sources in the 32-bit file.
pub(crate) fn ternary_w(op: Ternary, ty: Type, mods: &FloatMods) -> Option<W3> {
    use Ternary::*;
    use Type::*;
    if mods.sat {
        return None;
    }
    Some(match (ty, op) {
        (S32 | U32, MadLo) => |a, b, c| map3(a, b, c, |x: u32, y: u32, z: u32| x.wrapping_mul(y).wrapping_add(z)),
        (U32, MadHi) => |a, b, c| {
            map3(a, b, c, |x: u32, y: u32, z: u32| (((u64::from(x) * u64::from(y)) >> 32) as u32).wrapping_add(z))
        },
        (S16 | U16, MadLo) => {
            |a, b, c| map3(a, b, c, |x: u32, y: u32, z: u32| x.wrapping_mul(y).wrapping_add(z) & 0xffff)
        }
        (F32, Fma) if plain(mods) && !mods.ftz => |a, b, c| map3(a, b, c, |x, y, z| out(f(x).mul_add(f(y), f(z)))),
        (F32, Fma) if plain(mods) => |a, b, c| map3(a, b, c, |x, y, z| outz(fz(x).mul_add(fz(y), fz(z)))),
        _ => return None,
    })
}

/// Three sources in the 64-bit file.
pub(crate) fn ternary_x(op: Ternary, ty: Type, mods: &FloatMods) -> Option<X3> {
    match (ty, op) {
        (Type::S64 | Type::U64, Ternary::MadLo) if !mods.sat => {
            Some(|a, b, c| map3(a, b, c, |x: u64, y: u64, z: u64| x.wrapping_mul(y).wrapping_add(z)))
        }
        _ => None,
    }
}

macro_rules! compare {
    ($cmp:expr, $conv:expr) => {
        match $cmp {
            Cmp::Eq => Some(|a, b| test2(a, b, |x, y| $conv(x) == $conv(y))),
            Cmp::Ne => Some(|a, b| test2(a, b, |x, y| $conv(x) != $conv(y))),
            Cmp::Lt | Cmp::Lo => Some(|a, b| test2(a, b, |x, y| $conv(x) < $conv(y))),
            Cmp::Le | Cmp::Ls => Some(|a, b| test2(a, b, |x, y| $conv(x) <= $conv(y))),
            Cmp::Gt | Cmp::Hi => Some(|a, b| test2(a, b, |x, y| $conv(x) > $conv(y))),
            Cmp::Ge | Cmp::Hs => Some(|a, b| test2(a, b, |x, y| $conv(x) >= $conv(y))),
            _ => None,
        }
    };
}

macro_rules! compare_float {
    ($cmp:expr, $conv:expr) => {
        match $cmp {
            Cmp::Eq => Some(|a, b| test2(a, b, |x, y| $conv(x) == $conv(y))),
            // Ordered: a NaN makes it false.
            Cmp::Ne => Some(|a, b| test2(a, b, |x, y| $conv(x) < $conv(y) || $conv(x) > $conv(y))),
            Cmp::Lt => Some(|a, b| test2(a, b, |x, y| $conv(x) < $conv(y))),
            Cmp::Le => Some(|a, b| test2(a, b, |x, y| $conv(x) <= $conv(y))),
            Cmp::Gt => Some(|a, b| test2(a, b, |x, y| $conv(x) > $conv(y))),
            Cmp::Ge => Some(|a, b| test2(a, b, |x, y| $conv(x) >= $conv(y))),
            // Unordered: a NaN makes it true.
            Cmp::Equ => Some(|a, b| test2(a, b, |x, y| !($conv(x) < $conv(y) || $conv(x) > $conv(y)))),
            Cmp::Neu => Some(|a, b| test2(a, b, |x, y| $conv(x) != $conv(y))),
            Cmp::Ltu => Some(|a, b| test2(a, b, |x, y| !($conv(x) >= $conv(y)))),
            Cmp::Leu => Some(|a, b| test2(a, b, |x, y| !($conv(x) > $conv(y)))),
            Cmp::Gtu => Some(|a, b| test2(a, b, |x, y| !($conv(x) <= $conv(y)))),
            Cmp::Geu => Some(|a, b| test2(a, b, |x, y| !($conv(x) < $conv(y)))),
            Cmp::Num => Some(|a, b| test2(a, b, |x, y| !$conv(x).is_nan() && !$conv(y).is_nan())),
            Cmp::Nan => Some(|a, b| test2(a, b, |x, y| $conv(x).is_nan() || $conv(y).is_nan())),
            _ => None,
        }
    };
}

#[inline(always)]
fn id32(x: u32) -> u32 {
    x
}
#[inline(always)]
fn i32_of(x: u32) -> i32 {
    x as i32
}
#[inline(always)]
fn id64(x: u64) -> u64 {
    x
}
#[inline(always)]
fn i64_of(x: u64) -> i64 {
    x as i64
}

/// Comparison of the 32-bit file.
#[allow(clippy::neg_cmp_op_on_partial_ord)]
pub(crate) fn test_w(cmp: Cmp, ty: Type, ftz: bool) -> Option<TestW> {
    let unsigned_name = matches!(cmp, Cmp::Lo | Cmp::Ls | Cmp::Hi | Cmp::Hs);
    match ty {
        Type::S32 if !unsigned_name => compare!(cmp, i32_of),
        Type::S16 if !unsigned_name => compare!(cmp, s16),
        Type::B16 | Type::U16 | Type::S16 | Type::B32 | Type::U32 | Type::S32 => compare!(cmp, id32),
        Type::F32 if ftz => compare_float!(cmp, fz),
        Type::F32 => compare_float!(cmp, f),
        _ => None,
    }
}

/// Comparison of the 64-bit file.
#[allow(clippy::neg_cmp_op_on_partial_ord)]
pub(crate) fn test_x(cmp: Cmp, ty: Type) -> Option<TestX> {
    let unsigned_name = matches!(cmp, Cmp::Lo | Cmp::Ls | Cmp::Hi | Cmp::Hs);
    match ty {
        Type::S64 if !unsigned_name => compare!(cmp, i64_of),
        Type::B64 | Type::U64 | Type::S64 => compare!(cmp, id64),
        Type::F64 => compare_float!(cmp, f64::from_bits),
        _ => None,
    }
}

/// Integer conversions between register widths, as a function of (source type, destination type, destination register
/// bits); the value is extended from the source type, cut to the destination type and extended to the register.
pub(crate) enum CvtInt {
    /// 32-bit file to 32-bit file.
    W(W1),
    /// To the 64-bit file.
    Xw(Xw),
    /// From the 64-bit file.
    Wx(Wx),
}

/// The fast integer conversions.
pub(crate) fn cvt_int(from: Type, to: Type, register_bits: u32) -> Option<CvtInt> {
    use Type::*;
    let widening = to.bits() >= from.bits();
    Some(match (from, to, register_bits) {
        (U64 | S64, U32 | S32, 32) => CvtInt::Wx(|a| map1(a, |x: u64| x as u32)),
        (U64 | S64, U16 | S16, 16) => CvtInt::Wx(|a| map1(a, |x: u64| x as u32 & 0xffff)),
        (U32, U64 | S64, 64) => CvtInt::Xw(|a| map1(a, u64::from)),
        (S32, U64 | S64, 64) => CvtInt::Xw(|a| map1(a, |x: u32| x as i32 as i64 as u64)),
        (U16, U64 | S64, 64) => CvtInt::Xw(|a| map1(a, |x: u32| u64::from(x & 0xffff))),
        (S16, U64 | S64, 64) => CvtInt::Xw(|a| map1(a, |x: u32| x as i16 as i64 as u64)),
        (U8, U64 | S64, 64) => CvtInt::Xw(|a| map1(a, |x: u32| u64::from(x & 0xff))),
        (S8, U64 | S64, 64) => CvtInt::Xw(|a| map1(a, |x: u32| x as i8 as i64 as u64)),
        (U8, U8 | U16 | S16 | U32 | S32, _) => CvtInt::W(|a| map1(a, |x: u32| x & 0xff)),
        (S8, U32 | S32, 32) => CvtInt::W(|a| map1(a, |x: u32| x as i8 as i32 as u32)),
        (S8, U16 | S16, 16) => CvtInt::W(|a| map1(a, |x: u32| x as i8 as u16 as u32)),
        (U16, U16 | U32 | S32, _) => CvtInt::W(|a| map1(a, |x: u32| x & 0xffff)),
        (S16, U32 | S32, 32) => CvtInt::W(|a| map1(a, |x: u32| x as i16 as i32 as u32)),
        (U32 | S32, U32 | S32, 32) => CvtInt::W(|a| *a),
        (U32 | S32 | U16 | S16, U16 | S16, 16) => CvtInt::W(|a| map1(a, |x: u32| x & 0xffff)),
        (_, U8, 8 | 16 | 32) if !widening && from.bits() <= 32 => CvtInt::W(|a| map1(a, |x: u32| x & 0xff)),
        _ => return None,
    })
}

/// Whether a type counts as a plain integer for `cvt`.
pub(crate) fn is_integer(ty: Type) -> bool {
    use Type::*;
    matches!(ty, U8 | S8 | U16 | S16 | U32 | S32 | U64 | S64) || is_signed(ty)
}
