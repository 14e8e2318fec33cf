//! Types and state spaces.

/// Fundamental and packed types.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Type {
    Pred,
    B8,
    B16,
    B32,
    B64,
    B128,
    U8,
    U16,
    U32,
    U64,
    S8,
    S16,
    S32,
    S64,
    U16x2,
    S16x2,
    F16,
    F16x2,
    BF16,
    BF16x2,
    F32,
    F32x2,
    F64,
    TF32,
    E4M3,
    E5M2,
    E2M1,
    E2M3,
    E3M2,
    UE8M0,
    E4M3x2,
    E5M2x2,
    E2M1x2,
    E2M3x2,
    E3M2x2,
    UE8M0x2,
    E4M3x4,
    E5M2x4,
    S4,
    U4,
    B1,
}

impl Type {
    /// Width in bits of a register or memory operand of this type.
    pub const fn bits(self) -> u32 {
        use Type::*;
        match self {
            Pred | B1 => 1,
            S4 | U4 | E2M1 => 4,
            E2M3 | E3M2 | B8 | U8 | S8 | E4M3 | E5M2 | UE8M0 | E2M1x2 => 8,
            B16 | U16 | S16 | F16 | BF16 | E4M3x2 | E5M2x2 | E2M3x2 | E3M2x2 | UE8M0x2 => 16,
            B32 | U32 | S32 | F32 | TF32 | U16x2 | S16x2 | F16x2 | BF16x2 | E4M3x4 | E5M2x4 => 32,
            B64 | U64 | S64 | F64 | F32x2 => 64,
            B128 => 128,
        }
    }
    /// Width in bytes, at least one.
    pub const fn bytes(self) -> u32 {
        self.bits().div_ceil(8)
    }
}

/// State spaces of variables and memory instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Space {
    /// No `.space` given: a generic address.
    Generic,
    /// `.global`
    Global,
    /// `.shared`, `.shared::cta`
    Shared,
    /// `.shared::cluster`
    SharedCluster,
    /// `.local`
    Local,
    /// `.const`
    Const,
    /// `.param` of the entry
    Param,
}
