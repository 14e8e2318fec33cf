//! Exact binary floating point: unpack any format, operate without loss, round once into any format.
//!
//! A finite value is `mantissa * 2^exponent` with a 128-bit mantissa whose lowest bit may be *sticky* (it stands for
//! "and something smaller"). Every operation keeps at least two bits below the last bit of the widest result format
//! above the sticky bit, so one rounding at the end is the rounding of the exact result. This file is the slow, obvious
//! path; hot paths elsewhere are tested against it.

use crate::ir::Rounding;

/// What a format does with the largest exponent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Specials {
    /// Infinity and NaN as in IEEE 754.
    Ieee,
    /// No infinity; only the all-ones pattern is NaN (e4m3).
    NanOnly,
    /// Neither (e2m1, e2m3, e3m2).
    FiniteOnly,
}

/// A binary floating-point format: sign, exponent and mantissa field, bias `2^(exponent bits - 1) - 1`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Format {
    /// Width of the exponent field.
    pub exponent: u32,
    /// Width of the mantissa field.
    pub mantissa: u32,
    /// Meaning of the largest exponent.
    pub specials: Specials,
}

impl Format {
    /// binary64
    pub const F64: Self = Self::new(11, 52, Specials::Ieee);
    /// binary32
    pub const F32: Self = Self::new(8, 23, Specials::Ieee);
    /// The 19 significant bits of tf32; its register form carries 13 more low bits.
    pub const TF32: Self = Self::new(8, 10, Specials::Ieee);
    /// binary16
    pub const F16: Self = Self::new(5, 10, Specials::Ieee);
    /// bfloat16
    pub const BF16: Self = Self::new(8, 7, Specials::Ieee);
    /// 8-bit, 4 exponent bits
    pub const E4M3: Self = Self::new(4, 3, Specials::NanOnly);
    /// 8-bit, 5 exponent bits
    pub const E5M2: Self = Self::new(5, 2, Specials::Ieee);
    /// 6-bit, 2 exponent bits
    pub const E2M3: Self = Self::new(2, 3, Specials::FiniteOnly);
    /// 6-bit, 3 exponent bits
    pub const E3M2: Self = Self::new(3, 2, Specials::FiniteOnly);
    /// 4-bit
    pub const E2M1: Self = Self::new(2, 1, Specials::FiniteOnly);

    const fn new(exponent: u32, mantissa: u32, specials: Specials) -> Self {
        Format { exponent, mantissa, specials }
    }

    /// Width in bits, sign included.
    pub const fn bits(self) -> u32 {
        1 + self.exponent + self.mantissa
    }

    const fn bias(self) -> i32 {
        (1 << (self.exponent - 1)) - 1
    }

    const fn exponent_mask(self) -> u64 {
        (1 << self.exponent) - 1
    }

    const fn mantissa_mask(self) -> u64 {
        (1 << self.mantissa) - 1
    }

    /// The sign bit.
    pub const fn sign_bit(self) -> u64 {
        1 << (self.exponent + self.mantissa)
    }

    /// Bits of +infinity; `None` where the format has none.
    pub const fn infinity(self) -> Option<u64> {
        match self.specials {
            Specials::Ieee => Some(self.exponent_mask() << self.mantissa),
            _ => None,
        }
    }

    /// Bits of the largest finite value.
    pub const fn max_finite(self) -> u64 {
        match self.specials {
            Specials::Ieee => (self.exponent_mask() << self.mantissa) - 1,
            Specials::NanOnly => self.sign_bit() - 2,
            Specials::FiniteOnly => self.sign_bit() - 1,
        }
    }

    /// The NaN that instructions produce: all ones under a clear sign, `0x7ff8000000000000` for f64. Formats without
    /// NaN turn one into +MAX (`cvt`, PTX ISA: "positive MAX_NORM").
    pub const fn canonical_nan(self) -> u64 {
        match self.specials {
            Specials::FiniteOnly => self.max_finite(),
            _ if self.exponent == 11 => 0x7ff8_0000_0000_0000,
            _ => self.sign_bit() - 1,
        }
    }
}

/// An unpacked number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value {
    /// Any NaN.
    Nan,
    /// Infinity.
    Inf {
        /// True for negative.
        negative: bool,
    },
    /// Signed zero.
    Zero {
        /// True for -0.
        negative: bool,
    },
    /// `mantissa * 2^exponent`; the mantissa is not zero and its lowest bit may be sticky.
    Finite {
        /// True for negative.
        negative: bool,
        /// Power of two of the mantissa's lowest bit.
        exponent: i32,
        /// Magnitude.
        mantissa: u128,
    },
}

impl Value {
    /// Reads `bits` as a number of `format`.
    pub fn unpack(bits: u64, format: Format) -> Value {
        let negative = bits & format.sign_bit() != 0;
        let exponent = (bits >> format.mantissa) & format.exponent_mask();
        let mantissa = bits & format.mantissa_mask();
        if exponent == format.exponent_mask() {
            match format.specials {
                Specials::Ieee if mantissa == 0 => return Value::Inf { negative },
                Specials::Ieee => return Value::Nan,
                Specials::NanOnly if mantissa == format.mantissa_mask() => return Value::Nan,
                _ => {}
            }
        }
        if exponent == 0 && mantissa == 0 {
            return Value::Zero { negative };
        }
        let (mantissa, exponent) =
            if exponent == 0 { (mantissa, 1) } else { (mantissa | 1 << format.mantissa, exponent) };
        Value::Finite {
            negative,
            exponent: exponent as i32 - format.bias() - format.mantissa as i32,
            mantissa: mantissa as u128,
        }
    }

    /// An integer.
    pub fn integer(value: i128) -> Value {
        match value.unsigned_abs() {
            0 => Value::Zero { negative: false },
            mantissa => Value::Finite { negative: value < 0, exponent: 0, mantissa },
        }
    }

    /// Sign, also of a zero or an infinity.
    pub fn is_negative(self) -> bool {
        match self {
            Value::Nan => false,
            Value::Inf { negative } | Value::Zero { negative } | Value::Finite { negative, .. } => negative,
        }
    }

    /// The number with the other sign.
    pub fn negated(self) -> Value {
        match self {
            Value::Nan => Value::Nan,
            Value::Inf { negative } => Value::Inf { negative: !negative },
            Value::Zero { negative } => Value::Zero { negative: !negative },
            Value::Finite { negative, exponent, mantissa } => Value::Finite { negative: !negative, exponent, mantissa },
        }
    }

    /// Rounds into `format`. Overflow goes to infinity or to the largest finite number as the rounding mode says; with
    /// `satfinite`, or where the format has no infinity, always to the largest finite number of that sign.
    pub fn pack(self, format: Format, rounding: Rounding, satfinite: bool) -> u64 {
        let sign = |negative: bool| if negative { format.sign_bit() } else { 0 };
        match self {
            Value::Nan => format.canonical_nan(),
            Value::Zero { negative } => sign(negative),
            Value::Inf { negative } => match format.infinity() {
                Some(infinity) if !satfinite => sign(negative) | infinity,
                _ => sign(negative) | format.max_finite(),
            },
            Value::Finite { negative, exponent, mantissa } => {
                let magnitude = round_magnitude(negative, exponent, mantissa, format, rounding);
                if magnitude <= format.max_finite() {
                    return sign(negative) | magnitude;
                }
                let to_infinity = match rounding {
                    Rounding::Rz | Rounding::Rzi => false,
                    Rounding::Rm | Rounding::Rmi => negative,
                    Rounding::Rp | Rounding::Rpi => !negative,
                    _ => true,
                };
                sign(negative)
                    | match format.infinity() {
                        Some(infinity) if to_infinity && !satfinite => infinity,
                        _ => format.max_finite(),
                    }
            }
        }
    }

    /// Rounds to an integer; `None` for NaN and infinities.
    pub fn to_integer(self, rounding: Rounding) -> Option<i128> {
        match self {
            Value::Nan | Value::Inf { .. } => None,
            Value::Zero { .. } => Some(0),
            Value::Finite { negative, exponent, mantissa } => {
                let magnitude = if exponent >= 0 {
                    // Larger than any integer type: saturate well above them.
                    if exponent as u32 > mantissa.leading_zeros().saturating_sub(2) {
                        i128::MAX as u128
                    } else {
                        mantissa << exponent
                    }
                } else {
                    round_shift(mantissa, exponent.unsigned_abs(), negative, rounding)
                };
                let magnitude = magnitude.min(i128::MAX as u128) as i128;
                Some(if negative { -magnitude } else { magnitude })
            }
        }
    }
}

/// `mantissa / 2^shift`, rounded to an integer.
fn round_shift(mantissa: u128, shift: u32, negative: bool, rounding: Rounding) -> u128 {
    if shift == 0 {
        return mantissa;
    }
    let (kept, above_half, half, inexact) = if shift > 128 || (shift == 128 && mantissa >> 127 == 0) {
        (0, false, false, mantissa != 0)
    } else if shift == 128 {
        (0, mantissa > 1 << 127, mantissa == 1 << 127, true)
    } else {
        let rest = mantissa & ((1 << shift) - 1);
        let half = 1u128 << (shift - 1);
        (mantissa >> shift, rest > half, rest == half, rest != 0)
    };
    let up = match rounding {
        Rounding::Rn | Rounding::Rni => above_half || (half && kept & 1 == 1),
        Rounding::Rna => above_half || half,
        Rounding::Rz | Rounding::Rzi => false,
        Rounding::Rm | Rounding::Rmi => inexact && negative,
        Rounding::Rp | Rounding::Rpi => inexact && !negative,
    };
    kept + u128::from(up)
}

/// Exponent and mantissa fields of the rounded magnitude, not yet compared with the largest finite number.
fn round_magnitude(negative: bool, exponent: i32, mantissa: u128, format: Format, rounding: Rounding) -> u64 {
    let top = 127 - mantissa.leading_zeros() as i32;
    let smallest = 1 - format.bias();
    let leading = (exponent + top).max(smallest);
    if leading > 2 * format.bias() + 4 {
        // Far above the range: any number that compares greater than max_finite.
        return format.sign_bit();
    }
    let shift = leading - format.mantissa as i32 - exponent;
    let kept = if shift <= 0 { mantissa << -shift } else { round_shift(mantissa, shift as u32, negative, rounding) };
    // The biased exponent is 1 for sub-normals too, where `kept` lacks the implicit bit: the same sum serves both, and a
    // carry out of the mantissa runs into the exponent as it should.
    let biased = (leading + format.bias()) as u64;
    (biased << format.mantissa) + kept as u64 - (1 << format.mantissa)
}

/// Shifts right and keeps what falls off as a sticky bit.
fn shift_sticky(mantissa: u128, shift: u32) -> u128 {
    if shift >= 128 {
        u128::from(mantissa != 0)
    } else {
        let rest = mantissa & ((1u128 << shift) - 1);
        (mantissa >> shift) | u128::from(rest != 0)
    }
}

/// Moves the leading bit to bit 124, where two numbers can be added without overflow.
fn normalise(exponent: i32, mantissa: u128) -> (i32, u128) {
    let shift = mantissa.leading_zeros() as i32 - 3;
    if shift >= 0 {
        (exponent - shift, mantissa << shift)
    } else {
        (exponent - shift, shift_sticky(mantissa, -shift as u32))
    }
}

/// `a + b`. The sign of an exact zero sum of opposite numbers depends on the rounding mode (negative for `rm`).
pub fn add(a: Value, b: Value, rounding: Rounding) -> Value {
    match (a, b) {
        (Value::Nan, _) | (_, Value::Nan) => Value::Nan,
        (Value::Inf { negative: x }, Value::Inf { negative: y }) if x != y => Value::Nan,
        (Value::Inf { .. }, _) => a,
        (_, Value::Inf { .. }) => b,
        (Value::Zero { negative: x }, Value::Zero { negative: y }) => {
            Value::Zero { negative: if rounding == Rounding::Rm { x || y } else { x && y } }
        }
        (Value::Zero { .. }, _) => b,
        (_, Value::Zero { .. }) => a,
        (
            Value::Finite { negative: na, exponent: ea, mantissa: ma },
            Value::Finite { negative: nb, exponent: eb, mantissa: mb },
        ) => {
            let (ea, ma) = normalise(ea, ma);
            let (eb, mb) = normalise(eb, mb);
            let exponent = ea.max(eb);
            let ma = shift_sticky(ma, (exponent - ea) as u32) as i128;
            let mb = shift_sticky(mb, (exponent - eb) as u32) as i128;
            let sum = if na { -ma } else { ma } + if nb { -mb } else { mb };
            match sum.unsigned_abs() {
                0 => Value::Zero { negative: rounding == Rounding::Rm },
                mantissa => Value::Finite { negative: sum < 0, exponent, mantissa },
            }
        }
    }
}

/// `a * b`, exact: the mantissas of the widest format have 53 bits each.
pub fn mul(a: Value, b: Value) -> Value {
    let negative = a.is_negative() != b.is_negative();
    match (a, b) {
        (Value::Nan, _) | (_, Value::Nan) => Value::Nan,
        (Value::Inf { .. }, Value::Zero { .. }) | (Value::Zero { .. }, Value::Inf { .. }) => Value::Nan,
        (Value::Inf { .. }, _) | (_, Value::Inf { .. }) => Value::Inf { negative },
        (Value::Zero { .. }, _) | (_, Value::Zero { .. }) => Value::Zero { negative },
        (Value::Finite { exponent: ea, mantissa: ma, .. }, Value::Finite { exponent: eb, mantissa: mb, .. }) => {
            Value::Finite { negative, exponent: ea + eb, mantissa: ma * mb }
        }
    }
}

/// `a / b` to at least 70 bits and a sticky one.
pub fn div(a: Value, b: Value) -> Value {
    let negative = a.is_negative() != b.is_negative();
    match (a, b) {
        (Value::Nan, _) | (_, Value::Nan) => Value::Nan,
        (Value::Inf { .. }, Value::Inf { .. }) | (Value::Zero { .. }, Value::Zero { .. }) => Value::Nan,
        (Value::Inf { .. }, _) | (_, Value::Zero { .. }) => Value::Inf { negative },
        (Value::Zero { .. }, _) | (_, Value::Inf { .. }) => Value::Zero { negative },
        (Value::Finite { exponent: ea, mantissa: ma, .. }, Value::Finite { exponent: eb, mantissa: mb, .. }) => {
            let (ea, ma) = normalise(ea, ma);
            let mantissa = ((ma / mb) << 1) | u128::from(ma % mb != 0);
            Value::Finite { negative, exponent: ea - eb - 1, mantissa }
        }
    }
}

/// The square root to at least 60 bits and a sticky one.
pub fn sqrt(a: Value) -> Value {
    match a {
        Value::Nan | Value::Zero { .. } | Value::Inf { negative: false } => a,
        Value::Inf { negative: true } | Value::Finite { negative: true, .. } => Value::Nan,
        Value::Finite { exponent, mantissa, .. } => {
            let (exponent, mantissa) = normalise(exponent, mantissa);
            let (exponent, mantissa) =
                if exponent & 1 == 0 { (exponent, mantissa) } else { (exponent - 1, mantissa << 1) };
            let root = mantissa.isqrt();
            Value::Finite {
                negative: false,
                exponent: exponent / 2 - 1,
                mantissa: root << 1 | u128::from(root * root != mantissa),
            }
        }
    }
}
