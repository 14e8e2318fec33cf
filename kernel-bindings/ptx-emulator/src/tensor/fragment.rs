//! The fragment layouts of `mma.sync` (PTX ISA 9.0, section 9.7.14.5) as data.
//!
//! All of them follow one rule. A warp is eight *groups* of four lanes: `group = lane / 4`, `member = lane % 4`. A
//! register of 32 bits holds `32 / width` neighbouring elements of one row (A, C, D) or one column (B):
//!
//! ```text
//! A, C, D:  row = group + origin.0          column = member * step + origin.1 + i
//! B:        row = member * step + origin.1 + i    column = group
//! ```
//!
//! `origin` differs by register: `(0 or 8, 0 or half of k)`. The tables below list it for every operand.

use super::Unsupported;
use crate::ir::{MmaDesc, MmaKind, Type};

/// Layout of one operand over the registers of a warp.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fragment {
    /// Row and column offset of every 32-bit register, in operand order.
    pub origins: &'static [(u8, u8)],
    /// Width of an element in the register: 4, 8, 16 or 32 bits.
    pub width: u32,
    /// Elements from one member of a group to the next.
    pub step: u32,
}

impl Fragment {
    /// Number of 32-bit registers.
    pub const fn registers(&self) -> usize {
        self.origins.len()
    }

    /// Elements in one register.
    pub const fn per_register(&self) -> u32 {
        32 / self.width
    }

    /// Row and column in A, C or D of element `i` (0 = low bits) of `register` of `lane`. For B, read the pair as
    /// (column, row).
    pub const fn position(&self, register: usize, lane: usize, i: usize) -> (usize, usize) {
        let (row, column) = self.origins[register];
        (lane / 4 + row as usize, lane % 4 * self.step as usize + column as usize + i)
    }
}

/// The four operands of an `mma`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fragments {
    /// m x k
    pub a: Fragment,
    /// k x n, positions transposed
    pub b: Fragment,
    /// m x n
    pub c: Fragment,
    /// m x n
    pub d: Fragment,
}

const fn multiplicand(origins: &'static [(u8, u8)], width: u32) -> Fragment {
    Fragment { origins, width, step: 32 / width }
}

const fn accumulator(origins: &'static [(u8, u8)], width: u32) -> Fragment {
    Fragment { origins, width, step: 2 }
}

// One register covers 8 rows and 4 * (32 / width) columns: 4 (tf32), 8 (16 bit), 16 (8 bit), 32 (4 bit).
const ONE: &[(u8, u8)] = &[(0, 0)];
const ROWS: &[(u8, u8)] = &[(0, 0), (8, 0)];
const ROWS_BY_4: &[(u8, u8)] = &[(0, 0), (8, 0), (0, 4), (8, 4)];
const ROWS_BY_8: &[(u8, u8)] = &[(0, 0), (8, 0), (0, 8), (8, 8)];
const ROWS_BY_16: &[(u8, u8)] = &[(0, 0), (8, 0), (0, 16), (8, 16)];
const ROWS_BY_32: &[(u8, u8)] = &[(0, 0), (8, 0), (0, 32), (8, 32)];
const BY_4: &[(u8, u8)] = &[(0, 0), (0, 4)];
const BY_8: &[(u8, u8)] = &[(0, 0), (0, 8)];
const BY_16: &[(u8, u8)] = &[(0, 0), (0, 16)];
const BY_32: &[(u8, u8)] = &[(0, 0), (0, 32)];

/// Multiplicand layouts by m, k and element width.
const MULTIPLICANDS: &[(u32, u32, Fragment, Fragment)] = &[
    // m, k, A, B
    (16, 4, multiplicand(ROWS, 32), multiplicand(ONE, 32)),
    (16, 8, multiplicand(ROWS_BY_4, 32), multiplicand(BY_4, 32)),
    (16, 8, multiplicand(ROWS, 16), multiplicand(ONE, 16)),
    (16, 16, multiplicand(ROWS_BY_8, 16), multiplicand(BY_8, 16)),
    (8, 16, multiplicand(ONE, 8), multiplicand(ONE, 8)),
    (16, 16, multiplicand(ROWS, 8), multiplicand(ONE, 8)),
    (16, 32, multiplicand(ROWS_BY_16, 8), multiplicand(BY_16, 8)),
    (8, 32, multiplicand(ONE, 4), multiplicand(ONE, 4)),
    (16, 32, multiplicand(ROWS, 4), multiplicand(ONE, 4)),
    (16, 64, multiplicand(ROWS_BY_32, 4), multiplicand(BY_32, 4)),
];

/// f32 and s32 accumulators of m16n8 and m8n8, f16 accumulators of m16n8 (two to a register).
const WORDS_16: Fragment = accumulator(&[(0, 0), (0, 1), (8, 0), (8, 1)], 32);
const WORDS_8: Fragment = accumulator(&[(0, 0), (0, 1)], 32);
const HALVES_16: Fragment = accumulator(ROWS, 16);

/// The fragments of an `mma`, with its shape, types, kind and scales checked against what sm_80 to sm_120a have.
pub fn fragments(desc: &MmaDesc) -> Result<Fragments, Unsupported> {
    let refuse = |what: &str| Err(Unsupported(format!("{what} in {}", describe(desc))));
    let shape = desc.shape;
    let float8 = |ty| matches!(ty, Type::E4M3 | Type::E5M2);
    let float8_6_4 = |ty| matches!(ty, Type::E4M3 | Type::E5M2 | Type::E3M2 | Type::E2M3 | Type::E2M1);
    let int8 = |ty| matches!(ty, Type::S8 | Type::U8);
    let int4 = |ty| matches!(ty, Type::S4 | Type::U4);

    // Element width in the register and the kind of accumulator.
    let (width, integers, halves_allowed) = match (desc.kind, desc.a, desc.b) {
        (MmaKind::Plain, Type::F16, Type::F16) => (16, false, true),
        (MmaKind::Plain, Type::BF16, Type::BF16) => (16, false, false),
        (MmaKind::Plain, Type::TF32, Type::TF32) => (32, false, false),
        (MmaKind::Plain, a, b) if int8(a) && int8(b) => (8, true, false),
        (MmaKind::Plain, a, b) if int4(a) && int4(b) => (4, true, false),
        (MmaKind::Plain, a, b) if float8(a) && float8(b) => (8, false, true),
        (MmaKind::F8f6f4, a, b) if float8_6_4(a) && float8_6_4(b) => (8, false, true),
        (MmaKind::Mxf8f6f4, a, b) if float8_6_4(a) && float8_6_4(b) => (8, false, false),
        (MmaKind::Mxf4 | MmaKind::Mxf4nvf4, Type::E2M1, Type::E2M1) => (4, false, false),
        _ => return refuse("element types"),
    };
    if desc.kind != MmaKind::Plain && shape.k * width != 256 {
        return refuse("shape of this kind");
    }
    let scale = desc.block_scale.map(|scale| (scale.scale_vec, scale.ty));
    let scale_fits = match desc.kind {
        MmaKind::Plain | MmaKind::F8f6f4 => scale.is_none(),
        MmaKind::Mxf8f6f4 => scale == Some((1, Type::UE8M0)),
        MmaKind::Mxf4 => scale == Some((2, Type::UE8M0)),
        MmaKind::Mxf4nvf4 => {
            matches!(scale, Some((2 | 4, Type::UE8M0) | (4, Type::E4M3)))
        }
    };
    if !scale_fits {
        return refuse("block scale");
    }
    if desc.satfinite && !integers {
        return refuse(".satfinite");
    }
    let accumulator = |ty| match (ty, shape.m) {
        (Type::S32, 16) if integers => Some(WORDS_16),
        (Type::S32, 8) if integers => Some(WORDS_8),
        (Type::F32, 16) if !integers => Some(WORDS_16),
        (Type::F16, 16) if halves_allowed => Some(HALVES_16),
        _ => None,
    };
    let (Some(c), Some(d)) = (accumulator(desc.c), accumulator(desc.d)) else {
        return refuse("accumulator type");
    };
    let found = MULTIPLICANDS.iter().find(|(m, k, a, _)| (*m, *k, a.width) == (shape.m, shape.k, width));
    match found {
        Some(&(_, _, a, b)) if shape.n == 8 => Ok(Fragments { a, b, c, d }),
        _ => refuse("shape"),
    }
}

fn describe(desc: &MmaDesc) -> String {
    let s = desc.shape;
    let scale = desc.block_scale.map_or(String::new(), |x| format!(" scale_vec::{}X {:?}", x.scale_vec, x.ty));
    format!(
        "m{}n{}k{} {:?} {:?} x {:?} + {:?} -> {:?}{scale}",
        s.m, s.n, s.k, desc.kind, desc.a, desc.b, desc.c, desc.d
    )
}
