//! Matrix instructions: shapes, element types, scales.

use super::operand::Operand;
use super::types::Type;

/// Matrix shapes by m, n, k.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Shape {
    /// Rows of A and D.
    pub m: u32,
    /// Columns of B and D.
    pub n: u32,
    /// Reduction length.
    pub k: u32,
}

/// `.kind::` of `mma`.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MmaKind {
    Plain,
    F8f6f4,
    Mxf8f6f4,
    Mxf4,
    Mxf4nvf4,
}

/// What kind of `mma.sync` this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MmaDesc {
    /// m, n, k.
    pub shape: Shape,
    /// `.kind::`
    pub kind: MmaKind,
    /// Element type of A.
    pub a: Type,
    /// Element type of B.
    pub b: Type,
    /// Type of C.
    pub c: Type,
    /// Type of D.
    pub d: Type,
    /// `.scale_vec::NX` and the scale type, when `.block_scale` is given.
    pub block_scale: Option<BlockScale>,
    /// `.satfinite` of the integer forms: saturate the s32 accumulator instead of wrapping.
    pub satfinite: bool,
}

/// `.block_scale` parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockScale {
    /// Scales per row of A / column of B: 1, 2 or 4.
    pub scale_vec: u32,
    /// `UE8M0` (or `E4M3`, i.e. ue4m3, for mxf4nvf4).
    pub ty: Type,
}

/// Selectors of one scale operand: `{byte_id, thread_id}`.
#[derive(Debug, Clone, PartialEq)]
pub struct ScaleOperand {
    /// 32-bit register with the scale bytes.
    pub data: Operand,
    /// Byte selector (immediate or register).
    pub byte_id: Operand,
    /// Thread selector (immediate or register).
    pub thread_id: Operand,
}

/// Layout of `ldmatrix`/`stmatrix`/`movmatrix`.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MatrixShape {
    M8n8,
    M16n16,
    M8n16,
    M16n8,
}

/// Element handling of `ldmatrix`/`stmatrix`.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MatrixElement {
    B16,
    B8,
    /// `.b8x16.b6x16_p32`
    B8x16B6x16P32,
    /// `.b8x16.b4x16_p64`
    B8x16B4x16P64,
}
