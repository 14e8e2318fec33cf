//! What an instruction reads and writes.

/// Index of a register in [`Entry::registers`](super::Entry::registers).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reg(pub u32);

/// A reference to a variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Symbol {
    /// [`Module::variables`](super::Module::variables)
    Module(u32),
    /// [`Entry::variables`](super::Entry::variables)
    Entry(u32),
    /// [`Entry::params`](super::Entry::params)
    Param(u32),
}

/// Special registers.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Special {
    Tid(u8),
    Ntid(u8),
    Ctaid(u8),
    Nctaid(u8),
    LaneId,
    WarpId,
    NWarpId,
    SmId,
    NSmId,
    GridId,
    LaneMaskEq,
    LaneMaskLe,
    LaneMaskLt,
    LaneMaskGe,
    LaneMaskGt,
    Clock,
    ClockHi,
    Clock64,
    GlobalTimer,
    GlobalTimerLo,
    GlobalTimerHi,
    ClusterId(u8),
    NClusterId(u8),
    ClusterCtaid(u8),
    ClusterNctaid(u8),
    ClusterCtaRank,
    ClusterNctaRank,
    /// A predicate.
    IsExplicitCluster,
    DynamicSmemSize,
    TotalSmemSize,
    AggrSmemSize,
}

/// A source operand.
#[derive(Debug, Clone, PartialEq)]
pub enum Operand {
    /// A register.
    Reg(Reg),
    /// A bit pattern, already in the type of the position it stands in (f32 immediates of an f32 instruction are f32
    /// bits, negative integers are sign-extended to 64 bits and then truncated to the type).
    Imm(u64),
    /// A special register.
    Special(Special),
    /// Address of a variable plus a byte offset, in the variable's own space.
    Symbol(Symbol, i64),
    /// `!%p` where a negated predicate operand is allowed.
    NotPred(Reg),
    /// `{a, b, ...}` in a source position.
    Vector(Vec<Operand>),
}

/// A destination operand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Dst {
    /// A register.
    Reg(Reg),
    /// `_`
    Sink,
    /// `{a, b, _, ...}`
    Vector(Vec<Dst>),
}

/// `[base + offset]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Address {
    /// What the address starts from.
    pub base: AddressBase,
    /// Byte offset.
    pub offset: i64,
}

/// Start of an address expression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressBase {
    /// 32- or 64-bit register.
    Reg(Reg),
    /// A variable or parameter.
    Symbol(Symbol),
    /// An absolute address (in `offset`).
    Absolute,
}
