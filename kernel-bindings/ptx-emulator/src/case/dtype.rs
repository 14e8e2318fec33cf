//! Element types of buffers and scalars.

use crate::ir::{Rounding, Type};
use crate::num::formats;
use crate::num::soft::{Format, Value};
use serde::Deserialize;

/// Element type of a buffer or scalar, named as in case files.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    Bf16,
    F16,
    F32,
    F64,
    E4m3,
    E5m2,
    S8,
    U8,
    S16,
    U16,
    S32,
    U32,
    S64,
    U64,
}

impl Dtype {
    /// Every type with its name.
    const NAMES: [(&'static str, Dtype); 14] = [
        ("bf16", Dtype::Bf16),
        ("f16", Dtype::F16),
        ("f32", Dtype::F32),
        ("f64", Dtype::F64),
        ("e4m3", Dtype::E4m3),
        ("e5m2", Dtype::E5m2),
        ("s8", Dtype::S8),
        ("u8", Dtype::U8),
        ("s16", Dtype::S16),
        ("u16", Dtype::U16),
        ("s32", Dtype::S32),
        ("u32", Dtype::U32),
        ("s64", Dtype::S64),
        ("u64", Dtype::U64),
    ];

    /// The type of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(known, _)| *known == name).map(|(_, dtype)| *dtype)
    }

    /// Name in case files.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, dtype)| *dtype == self).map_or("?", |(name, _)| name)
    }

    /// Size in bytes.
    pub const fn bytes(self) -> usize {
        match self {
            Dtype::E4m3 | Dtype::E5m2 | Dtype::S8 | Dtype::U8 => 1,
            Dtype::Bf16 | Dtype::F16 | Dtype::S16 | Dtype::U16 => 2,
            Dtype::F32 | Dtype::S32 | Dtype::U32 => 4,
            Dtype::F64 | Dtype::S64 | Dtype::U64 => 8,
        }
    }

    /// The number format that elements of this type have.
    pub const fn format(self) -> ElementFormat {
        match self {
            Dtype::Bf16 => ElementFormat::Float(Type::BF16),
            Dtype::F16 => ElementFormat::Float(Type::F16),
            Dtype::F32 => ElementFormat::Float(Type::F32),
            Dtype::F64 => ElementFormat::Float(Type::F64),
            Dtype::E4m3 => ElementFormat::Float(Type::E4M3),
            Dtype::E5m2 => ElementFormat::Float(Type::E5M2),
            Dtype::S8 => ElementFormat::Integer { bits: 8, signed: true },
            Dtype::U8 => ElementFormat::Integer { bits: 8, signed: false },
            Dtype::S16 => ElementFormat::Integer { bits: 16, signed: true },
            Dtype::U16 => ElementFormat::Integer { bits: 16, signed: false },
            Dtype::S32 => ElementFormat::Integer { bits: 32, signed: true },
            Dtype::U32 => ElementFormat::Integer { bits: 32, signed: false },
            Dtype::S64 => ElementFormat::Integer { bits: 64, signed: true },
            Dtype::U64 => ElementFormat::Integer { bits: 64, signed: false },
        }
    }

    /// Little-endian bytes of a JSON number. Floats are rounded to nearest; `"nan"`, `"inf"` and `"-inf"` are accepted
    /// for them, since JSON has no such numbers.
    pub(super) fn encode(self, value: &serde_json::Value) -> Result<Vec<u8>, String> {
        let refuse = || Err(format!("{value} is not a value of type {}", self.name()));
        match self.format() {
            ElementFormat::Integer { bits, signed } => {
                let wide = match (value.as_i64(), value.as_u64()) {
                    (Some(x), _) => x as i128,
                    (None, Some(x)) => x as i128,
                    _ => return refuse(),
                };
                let (low, high) =
                    if signed { (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1) } else { (0, (1i128 << bits) - 1) };
                if wide < low || wide > high {
                    return refuse();
                }
                Ok((wide as u64).to_le_bytes()[..self.bytes()].to_vec())
            }
            ElementFormat::Float(ty) => {
                let wide = match value.as_str() {
                    Some("nan") => f64::NAN,
                    Some("inf") => f64::INFINITY,
                    Some("-inf") => f64::NEG_INFINITY,
                    Some(_) => return refuse(),
                    None => match value.as_f64() {
                        Some(x) => x,
                        None => return refuse(),
                    },
                };
                let Some(format) = formats::format_of(ty) else { return refuse() };
                let bits = Value::unpack(wide.to_bits(), Format::F64).pack(format, Rounding::Rn, false);
                Ok(bits.to_le_bytes()[..self.bytes()].to_vec())
            }
        }
    }
}

/// How the bits of an element are read as a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ElementFormat {
    /// A floating-point format of `ir::Type` (also ue8m0).
    Float(Type),
    /// An integer.
    Integer {
        /// Width.
        bits: u32,
        /// Two's complement.
        signed: bool,
    },
}

impl ElementFormat {
    /// The format of that name: every dtype and the formats of at most eight bits.
    pub(super) fn from_name(name: &str) -> Option<Self> {
        let small = match name {
            "e2m1" => Type::E2M1,
            "e2m3" => Type::E2M3,
            "e3m2" => Type::E3M2,
            "ue8m0" => Type::UE8M0,
            "tf32" => Type::TF32,
            _ => return Dtype::from_name(name).map(Dtype::format),
        };
        Some(ElementFormat::Float(small))
    }

    /// Width in bits.
    pub(super) fn bits(self) -> u32 {
        match self {
            ElementFormat::Float(ty) => ty.bits(),
            ElementFormat::Integer { bits, .. } => bits,
        }
    }

    /// The number in the low bits of an element.
    pub(super) fn value(self, bits: u64) -> f64 {
        match self {
            ElementFormat::Float(Type::F64) => f64::from_bits(bits),
            ElementFormat::Float(Type::F32) => f32::from_bits(bits as u32) as f64,
            ElementFormat::Float(Type::TF32) => f32::from_bits(bits as u32 & 0xffff_e000) as f64,
            ElementFormat::Float(ty) => formats::decode(bits as u16, ty) as f64,
            ElementFormat::Integer { bits: width, signed: true } => {
                let shift = 64 - width;
                ((bits << shift) as i64 >> shift) as f64
            }
            ElementFormat::Integer { bits: width, signed: false } => {
                (if width == 64 { bits } else { bits & ((1 << width) - 1) }) as f64
            }
        }
    }

    /// Is it a float that is NaN?
    pub(super) fn is_nan(self, bits: u64) -> bool {
        matches!(self, ElementFormat::Float(_)) && self.value(bits).is_nan()
    }
}
