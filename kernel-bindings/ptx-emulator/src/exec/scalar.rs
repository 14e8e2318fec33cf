//! Rare instructions, one lane at a time: bit patterns in, bit pattern out.

use crate::ir::{Binary, BoolOp, Cmp, FloatClass, FloatMods, PrmtMode, Ternary, Type, Unary};
use crate::num;

/// An instruction whose result depends on its sources alone.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Scalar {
    Unary {
        op: Unary,
        ty: Type,
        mods: FloatMods,
    },
    Binary {
        op: Binary,
        ty: Type,
        mods: FloatMods,
    },
    Ternary {
        op: Ternary,
        ty: Type,
        mods: FloatMods,
    },
    Cvt {
        to: Type,
        from: Type,
        mods: FloatMods,
        satfinite: bool,
        pair: bool,
    },
    CvtPack {
        to: Type,
        from: Type,
        third: bool,
    },
    Prmt(PrmtMode),
    Bfe(Type),
    Bfi {
        wide: bool,
    },
    Bmsk {
        clamp: bool,
    },
    Szext {
        clamp: bool,
        signed: bool,
    },
    Fns,
    Dp4a {
        a_signed: bool,
        b_signed: bool,
    },
    Dp2a {
        hi: bool,
        a_signed: bool,
        b_signed: bool,
    },
    Slct {
        sel: Type,
        ftz: bool,
    },
    Testp {
        class: FloatClass,
        ty: Type,
    },
    /// `set`; the third argument is the combining predicate.
    Set {
        cmp: Cmp,
        combine: Option<BoolOp>,
        to: Type,
        ty: Type,
        ftz: bool,
    },
    /// `setp` of types without a lane function; with `upper`, of the upper half of a pair.
    Test {
        cmp: Cmp,
        ty: Type,
        ftz: bool,
        upper: bool,
    },
}

/// The value of an integer register read as a signed or unsigned type of that many bits.
fn extend(x: u64, bits: u32, signed: bool) -> i128 {
    let cut = if bits >= 64 { x } else { x & ((1 << bits) - 1) };
    if signed && cut >> (bits - 1) & 1 == 1 { i128::from(cut) - (1i128 << bits) } else { i128::from(cut) }
}

fn signed(ty: Type) -> bool {
    matches!(ty, Type::S8 | Type::S16 | Type::S32 | Type::S64 | Type::S16x2 | Type::S4)
}

/// True for types whose arithmetic is done by [`num`].
pub(crate) fn is_float(ty: Type) -> bool {
    use Type::*;
    !matches!(
        ty,
        Pred | B1 | B8 | B16 | B32 | B64 | B128 | U4 | S4 | U8 | U16 | U32 | U64 | S8 | S16 | S32 | S64 | U16x2 | S16x2
    )
}

fn halves(a: u64, b: u64, f: impl Fn(u64, u64) -> u64) -> u64 {
    f(a & 0xffff, b & 0xffff) & 0xffff | (f(a >> 16 & 0xffff, b >> 16 & 0xffff) & 0xffff) << 16
}

fn clamp_to(value: i128, bits: u32, signed: bool) -> u64 {
    let (low, high) =
        if signed { (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1) } else { (0, (1i128 << bits) - 1) };
    value.clamp(low, high) as u64
}

fn int_unary(op: Unary, ty: Type, a: u64) -> Option<u64> {
    let bits = ty.bits();
    let low = extend(a, bits, false) as u64;
    let value = extend(a, bits, signed(ty));
    Some(match op {
        Unary::Neg => value.wrapping_neg() as u64,
        Unary::Abs => value.wrapping_abs() as u64,
        Unary::Not => !a,
        Unary::CNot => u64::from(low == 0),
        Unary::Popc => u64::from(low.count_ones()),
        Unary::Clz => u64::from(low.leading_zeros() - (64 - bits)),
        Unary::Brev => low.reverse_bits() >> (64 - bits),
        Unary::Bfind { shift_amount } => {
            let x = if value < 0 { !value as u64 } else { low };
            if x == 0 {
                0xffff_ffff
            } else {
                let position = u64::from(x.ilog2());
                if shift_amount { u64::from(bits) - 1 - position } else { position }
            }
        }
        _ => return None,
    })
}

fn int_binary(op: Binary, ty: Type, mods: &FloatMods, a: u64, b: u64) -> Option<u64> {
    if matches!(ty, Type::U16x2 | Type::S16x2) {
        let half = if ty == Type::U16x2 { Type::U16 } else { Type::S16 };
        int_binary(op, half, mods, a & 0xffff, b & 0xffff)?;
        return Some(halves(a, b, |x, y| int_binary(op, half, mods, x, y).unwrap_or(0)));
    }
    let bits = ty.bits();
    let sign = signed(ty);
    let (x, y) = (extend(a, bits, sign), extend(b, bits, sign));
    Some(match op {
        Binary::Add if mods.sat => clamp_to(x + y, bits, sign),
        Binary::Sub if mods.sat => clamp_to(x - y, bits, sign),
        Binary::Add => (x + y) as u64,
        Binary::Sub => (x - y) as u64,
        Binary::MulLo | Binary::MulWide => x.wrapping_mul(y) as u64,
        Binary::MulHi => (x.wrapping_mul(y) >> bits) as u64,
        Binary::Mul24Lo => (extend(a, 24, sign) * extend(b, 24, sign)) as u64 & 0xffff_ffff,
        Binary::Mul24Hi => ((extend(a, 24, sign) * extend(b, 24, sign)) >> 16) as u64 & 0xffff_ffff,
        Binary::Div | Binary::Rem if y == 0 => u64::MAX,
        Binary::Div => (x / y) as u64,
        Binary::Rem => (x % y) as u64,
        Binary::Min => x.min(y) as u64,
        Binary::Max => x.max(y) as u64,
        Binary::And => a & b,
        Binary::Or => a | b,
        Binary::Xor => a ^ b,
        Binary::Shl => {
            let n = b as u32;
            if n >= bits { 0 } else { a << n }
        }
        Binary::Shr => {
            let n = (b as u32).min(if sign { bits - 1 } else { bits });
            (x >> n) as u64
        }
        Binary::CopySign => return None,
    })
}

fn int_ternary(op: Ternary, ty: Type, mods: &FloatMods, a: u64, b: u64, c: u64) -> Option<u64> {
    let bits = ty.bits();
    let sign = signed(ty);
    let (x, y, z) = (extend(a, bits, sign), extend(b, bits, sign), extend(c, bits, sign));
    Some(match op {
        Ternary::MadLo => x.wrapping_mul(y).wrapping_add(z) as u64,
        Ternary::MadHi => {
            let sum = (x.wrapping_mul(y) >> bits) + z;
            if mods.sat { clamp_to(sum, bits, sign) } else { sum as u64 }
        }
        Ternary::MadWide => (x * y).wrapping_add(extend(c, bits * 2, sign)) as u64,
        Ternary::Mad24Lo => (extend(a, 24, sign) * extend(b, 24, sign)).wrapping_add(z) as u64,
        Ternary::Mad24Hi => {
            let high = extend(((extend(a, 24, sign) * extend(b, 24, sign)) >> 16) as u64, 32, sign) + z;
            if mods.sat { clamp_to(high, bits, sign) } else { high as u64 }
        }
        Ternary::Sad => (z + (x - y).abs()) as u64,
        Ternary::Min3 => x.min(y).min(z) as u64,
        Ternary::Max3 => x.max(y).max(z) as u64,
        Ternary::Fma => return None,
    })
}

fn prmt(mode: PrmtMode, a: u32, b: u32, selector: u32) -> u32 {
    let bytes = u64::from(b) << 32 | u64::from(a);
    let byte = |i: u32| (bytes >> ((i & 7) * 8) & 0xff) as u32;
    let pick =
        |indices: [u32; 4]| indices.iter().enumerate().fold(0, |word, (i, index)| word | byte(*index) << (i * 8));
    let s = selector & 3;
    match mode {
        PrmtMode::Default => (0..4).fold(0, |word, i| {
            let nibble = selector >> (i * 4) & 0xf;
            let value = byte(nibble & 7);
            let value = if nibble & 8 != 0 { if value & 0x80 != 0 { 0xff } else { 0 } } else { value };
            word | value << (i * 8)
        }),
        PrmtMode::F4e => pick([s, s + 1, s + 2, s + 3]),
        PrmtMode::B4e => pick([s, s.wrapping_sub(1), s.wrapping_sub(2), s.wrapping_sub(3)]),
        PrmtMode::Rc8 => pick([s; 4]),
        PrmtMode::Ecl => pick([0, 1, 2, 3].map(|i: u32| i.max(s))),
        PrmtMode::Ecr => pick([0, 1, 2, 3].map(|i: u32| i.min(s))),
        PrmtMode::Rc16 => {
            let low = (s & 1) * 2;
            pick([low, low + 1, low, low + 1])
        }
    }
}

/// `bfe`: position and length are bytes of their registers.
pub(crate) fn bfe(ty: Type, a: u64, pos: u64, len: u64) -> u64 {
    let bits = ty.bits();
    let (pos, len) = ((pos & 0xff) as u32, (len & 0xff) as u32);
    let msb = bits - 1;
    let value = extend(a, bits, false) as u64;
    let sign_bit = if !signed(ty) || len == 0 { 0 } else { value >> (pos + len - 1).min(msb) & 1 };
    let field = if pos >= bits || len == 0 {
        0
    } else {
        let shifted = value >> pos;
        if len >= 64 { shifted } else { shifted & ((1u64 << len) - 1) }
    };
    // Bits above the field or above the source are copies of the sign.
    let have = len.min(bits.saturating_sub(pos));
    let ones = if have >= 64 { 0 } else { u64::MAX << have };
    if sign_bit == 1 { field | ones } else { field }
}

/// `bfi`: `a` inserted into `b`.
pub(crate) fn bfi(bits: u32, a: u64, b: u64, pos: u64, len: u64) -> u64 {
    let (pos, len) = ((pos & 0xff) as u32, (len & 0xff) as u32);
    if pos >= bits || len == 0 {
        return b;
    }
    let len = len.min(bits - pos);
    let mask = (if len >= 64 { u64::MAX } else { (1u64 << len) - 1 }) << pos;
    b & !mask | a << pos & mask
}

fn fns(mask: u32, base: u32, offset: i32) -> u32 {
    if base > 31 {
        return u32::MAX;
    }
    if offset == 0 {
        return if mask >> base & 1 == 1 { base } else { u32::MAX };
    }
    let step: i64 = if offset > 0 { 1 } else { -1 };
    let mut left = offset.unsigned_abs();
    let mut at = i64::from(base);
    while (0..32).contains(&at) {
        if mask >> at & 1 == 1 {
            left -= 1;
            if left == 0 {
                return at as u32;
            }
        }
        at += step;
    }
    u32::MAX
}

fn byte_of(x: u64, i: u32, signed: bool) -> i64 {
    let byte = (x >> (i * 8)) as u8;
    if signed { i64::from(byte as i8) } else { i64::from(byte) }
}

fn half_of(x: u64, i: u32, signed: bool) -> i64 {
    let half = (x >> (i * 16)) as u16;
    if signed { i64::from(half as i16) } else { i64::from(half) }
}

/// A comparison, of integers or floats.
pub(crate) fn compare(cmp: Cmp, ty: Type, ftz: bool, a: u64, b: u64) -> bool {
    num::compare(cmp, ty, ftz, a, b)
}

fn combine(result: bool, op: Option<BoolOp>, c: u64) -> bool {
    match op {
        None => result,
        Some(BoolOp::And) => result && c != 0,
        Some(BoolOp::Or) => result || c != 0,
        Some(BoolOp::Xor) => result ^ (c != 0),
    }
}

/// The value that `set` writes for true: all ones for integers, one for floats.
fn true_of(to: Type) -> u64 {
    match to {
        Type::F32 => 0x3f80_0000,
        Type::F64 => 0x3ff0_0000_0000_0000,
        Type::F16 => 0x3c00,
        Type::BF16 => 0x3f80,
        Type::F16x2 => 0x3c00_3c00,
        Type::BF16x2 => 0x3f80_3f80,
        Type::U16 | Type::S16 => 0xffff,
        _ => 0xffff_ffff,
    }
}

fn half_type(ty: Type) -> Option<Type> {
    match ty {
        Type::F16x2 => Some(Type::F16),
        Type::BF16x2 => Some(Type::BF16),
        _ => None,
    }
}

impl Scalar {
    /// Whether this instruction exists with these types and modifiers.
    pub(crate) fn is_supported(&self) -> bool {
        self.eval([0x3f80_3f80; 4]).is_some()
    }

    /// One lane. `None` only for combinations that [`Scalar::is_supported`] refuses.
    pub(crate) fn eval(&self, x: [u64; 4]) -> Option<u64> {
        let [a, b, c, d] = x;
        Some(match *self {
            Scalar::Unary { op, ty, ref mods } if is_float(ty) => return num::unary(op, ty, mods, a),
            Scalar::Unary { op, ty, .. } => return int_unary(op, ty, a),
            Scalar::Binary { op, ty, ref mods } if is_float(ty) => return num::binary(op, ty, mods, a, b),
            Scalar::Binary { op, ty, ref mods } => return int_binary(op, ty, mods, a, b),
            Scalar::Ternary { op, ty, ref mods } if is_float(ty) => return num::ternary(op, ty, mods, a, b, c),
            Scalar::Ternary { op, ty, ref mods } => return int_ternary(op, ty, mods, a, b, c),
            Scalar::Cvt { to, from, ref mods, satfinite, pair } => {
                return num::cvt(to, from, mods, satfinite, a, pair.then_some(b));
            }
            Scalar::CvtPack { to, from, third } => {
                let sign = signed(to);
                let bits = to.bits();
                let cut = |v: u64| clamp_to(extend(v, from.bits(), signed(from)), bits, sign) & ((1u64 << bits) - 1);
                let pair = cut(a) << bits | cut(b);
                if third { (c << (bits * 2) | pair) & 0xffff_ffff } else { pair }
            }
            Scalar::Prmt(mode) => u64::from(prmt(mode, a as u32, b as u32, c as u32)),
            Scalar::Bfe(ty) => bfe(ty, a, b, c),
            Scalar::Bfi { wide } => bfi(if wide { 64 } else { 32 }, a, b, c, d),
            Scalar::Bmsk { clamp } => {
                let (pos, len) =
                    if clamp { ((a as u32).min(32), (b as u32).min(32)) } else { (a as u32 & 31, b as u32 & 31) };
                let ones = if len >= 64 { u64::MAX } else { (1u64 << len) - 1 };
                (ones << pos) & 0xffff_ffff
            }
            Scalar::Szext { clamp, signed } => {
                let n = if clamp { (b as u32).min(32) } else { b as u32 & 31 };
                if n == 0 { 0 } else { extend(a, n, signed) as u64 }
            }
            Scalar::Fns => u64::from(fns(a as u32, b as u32, c as i32)),
            Scalar::Dp4a { a_signed, b_signed } => {
                let dot: i64 = (0..4).map(|i| byte_of(a, i, a_signed) * byte_of(b, i, b_signed)).sum();
                (c as i64).wrapping_add(dot) as u64
            }
            Scalar::Dp2a { hi, a_signed, b_signed } => {
                let first = if hi { 2 } else { 0 };
                let dot: i64 = (0..2).map(|i| half_of(a, i, a_signed) * byte_of(b, first + i, b_signed)).sum();
                (c as i64).wrapping_add(dot) as u64
            }
            Scalar::Slct { sel, ftz } => {
                let first = match sel {
                    Type::F32 => compare(Cmp::Ge, Type::F32, ftz, c, 0),
                    _ => c as u32 as i32 >= 0,
                };
                if first { a } else { b }
            }
            Scalar::Testp { class, ty } => u64::from(num::testp(class, ty, a)?),
            Scalar::Set { cmp, combine: op, to, ty, ftz } => {
                if let Some(half) = half_type(ty) {
                    // Both halves; a packed or 32-bit destination has a half each.
                    let low = combine(compare(cmp, half, ftz, a & 0xffff, b & 0xffff), op, c);
                    let high = combine(compare(cmp, half, ftz, a >> 16 & 0xffff, b >> 16 & 0xffff), op, c);
                    let one = true_of(to);
                    (if low { one & 0xffff } else { 0 }) | (if high { one & 0xffff_0000 } else { 0 })
                } else if combine(compare(cmp, ty, ftz, a, b), op, c) {
                    true_of(to)
                } else {
                    0
                }
            }
            Scalar::Test { cmp, ty, ftz, upper } => {
                let (ty, shift) = match half_type(ty) {
                    Some(half) => (half, if upper { 16 } else { 0 }),
                    None => (ty, 0),
                };
                let cut = |v: u64| {
                    if shift == 16 {
                        v >> 16 & 0xffff
                    } else if ty.bits() == 16 {
                        v & 0xffff
                    } else {
                        v
                    }
                };
                u64::from(compare(cmp, ty, ftz, cut(a), cut(b)))
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mods() -> FloatMods {
        FloatMods::default()
    }

    #[test]
    fn byte_permutations() {
        let (a, b) = (0x3322_1100, 0x7766_5544);
        assert_eq!(prmt(PrmtMode::Default, a, b, 0x7531), 0x7755_3311);
        assert_eq!(prmt(PrmtMode::Default, 0x80, 0, 0x8888), 0xffff_ffff);
        assert_eq!(prmt(PrmtMode::F4e, a, b, 1), 0x4433_2211);
        assert_eq!(prmt(PrmtMode::B4e, a, b, 1), 0x6677_0011);
        assert_eq!(prmt(PrmtMode::Rc8, a, b, 2), 0x2222_2222);
        assert_eq!(prmt(PrmtMode::Ecl, a, b, 2), 0x3322_2222);
        assert_eq!(prmt(PrmtMode::Ecr, a, b, 2), 0x2222_1100);
        assert_eq!(prmt(PrmtMode::Rc16, a, b, 1), 0x3322_3322);
    }

    #[test]
    fn bit_fields() {
        assert_eq!(bfe(Type::U32, 0xabcd_1234, 8, 8), 0x12);
        assert_eq!(bfe(Type::U32, 0xabcd_1234, 28, 8), 0xa);
        assert_eq!(bfe(Type::S32, 0xabcd_1234, 28, 4) as u32, 0xffff_fffa);
        assert_eq!(bfe(Type::S32, 0x8000_0000, 40, 4) as u32, 0xffff_ffff);
        assert_eq!(bfe(Type::U32, 0xffff_ffff, 0, 0), 0);
        assert_eq!(bfi(32, 0xff, 0, 8, 4), 0xf00);
        assert_eq!(bfi(32, 0xff, 0x1234, 32, 4), 0x1234);
        assert_eq!(bfi(64, 1, 0, 63, 8), 1 << 63);
    }

    #[test]
    fn integer_edges() {
        let bin = |op, ty, a, b| int_binary(op, ty, &mods(), a, b).unwrap();
        assert_eq!(bin(Binary::MulHi, Type::S16, 0x8000, 0x8000), 0x4000);
        assert_eq!(bin(Binary::Shr, Type::S64, u64::MAX << 8, 100), u64::MAX);
        assert_eq!(bin(Binary::Mul24Lo, Type::U32, 0xff00_0002, 3), 6);
        let sat = FloatMods { sat: true, ..mods() };
        assert_eq!(int_binary(Binary::Add, Type::S32, &sat, 0x7fff_ffff, 1).unwrap() as u32, 0x7fff_ffff);
        assert_eq!(int_unary(Unary::Bfind { shift_amount: false }, Type::S32, 0xffff_ff00).unwrap(), 7);
        assert_eq!(int_unary(Unary::Bfind { shift_amount: true }, Type::U32, 1).unwrap(), 31);
        assert_eq!(int_unary(Unary::Clz, Type::B64, 1).unwrap(), 63);
        assert_eq!(int_ternary(Ternary::Sad, Type::S32, &mods(), 3, 10, 1).unwrap(), 8);
        assert_eq!(fns(0b1010_1100, 0, 2), 3);
        assert_eq!(fns(0b1010_1100, 7, -2), 5);
        assert_eq!(fns(0b100, 2, 0), 2);
        assert_eq!(fns(0b100, 3, 5), u32::MAX);
    }

    #[test]
    fn dot_products() {
        let dot = Scalar::Dp4a { a_signed: true, b_signed: false };
        assert_eq!(dot.eval([0xff01_02fe, 0x0102_0304, 10, 0]).unwrap() as i64, 10 - 8 + 6 + 2 - 1);
        let dot = Scalar::Dp2a { hi: true, a_signed: false, b_signed: true };
        assert_eq!(dot.eval([0x0002_0003, 0xff05_0000, 0, 0]).unwrap() as i64, 15 - 2);
    }
}
