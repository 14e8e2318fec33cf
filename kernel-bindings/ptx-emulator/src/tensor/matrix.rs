//! `ldmatrix`, `stmatrix`, `movmatrix`: which bits of which row end up in which lane (PTX ISA 9.0, sections 9.7.14.5.15
//! to 9.7.14.5.17).
//!
//! Lane `l` supplies the address of row `l`, 16 bytes, of the matrices in order. With `group = lane / 4` and
//! `member = lane % 4`:
//!
//! ```text
//! m8n8.b16         register r, half h   <- row 8r + group,                  bits 16 * (2 * member + h)
//! m8n8.b16.trans   register r, half h   <- row 8r + 2 * member + h,         bits 16 * group
//! m8n16 (4/6 bit)  register r, byte i   <- row 8r + group,                  bits width * (4 * member + i)
//! m16n16.trans     register r, byte i   <- row 16(r/2) + 4 * member + i,    bits width * (group + 8 * (r % 2))
//! m16n8.b8.trans   register r, byte i   -> row 8r + 2 * member + i % 2,     bits 8 * (group + 8 * (i / 2))
//! ```
//!
//! An element of 4 or 6 bits arrives in the low bits of a byte whose other bits are zero.

use super::Lanes;
use crate::ir::{MatrixElement, MatrixShape};

/// Bytes of a row in shared memory: the width that its address must be aligned to.
pub const ROW_BYTES: usize = 16;

/// Rows of up to four matrices as their provider lanes' addresses deliver them.
pub type Rows = [[u8; ROW_BYTES]; 32];

/// One run of bits that moves between a row and a register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Lane whose address points at the row.
    pub provider: u8,
    /// First bit in the row.
    pub bit: u8,
    /// Number of bits.
    pub width: u8,
    /// First bit in the register.
    pub shift: u8,
}

/// Layout of one `ldmatrix` or `stmatrix`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MatrixMap {
    registers: usize,
    providers: u32,
    data_bytes: usize,
    per_register: usize,
    pieces: Vec<Piece>,
    /// Untransposed 32-bit pieces, the common case, need no bit handling.
    straight: bool,
}

impl MatrixMap {
    /// Layout of `ldmatrix`; `None` for a combination that does not exist.
    pub fn load(shape: MatrixShape, num: u32, trans: bool, element: MatrixElement) -> Option<Self> {
        use MatrixElement::{B8, B8x16B4x16P64, B8x16B6x16P32, B16};
        let num = num as usize;
        if !matches!(num, 1 | 2 | 4) {
            return None;
        }
        let width = match element {
            B16 => 16,
            B8 => 8,
            B8x16B6x16P32 => 6,
            B8x16B4x16P64 => 4,
        };
        match (shape, trans, element) {
            (MatrixShape::M8n8, false, B16) => Some(Self::build(num, 8 * num, 16, 1, |r, group, member, _| Piece {
                provider: (8 * r + group) as u8,
                bit: (32 * member) as u8,
                width: 32,
                shift: 0,
            })),
            (MatrixShape::M8n8, true, B16) => Some(Self::build(num, 8 * num, 16, 2, |r, group, member, i| Piece {
                provider: (8 * r + 2 * member + i) as u8,
                bit: (16 * group) as u8,
                width: 16,
                shift: (16 * i) as u8,
            })),
            (MatrixShape::M8n16, false, B8x16B6x16P32 | B8x16B4x16P64) => {
                Some(Self::build(num, 8 * num, 2 * width, 4, |r, group, member, i| Piece {
                    provider: (8 * r + group) as u8,
                    bit: (width * (4 * member + i)) as u8,
                    width: width as u8,
                    shift: (8 * i) as u8,
                }))
            }
            (MatrixShape::M16n16, true, B8 | B8x16B6x16P32 | B8x16B4x16P64) if num <= 2 => {
                Some(Self::build(2 * num, 16 * num, 2 * width, 4, |r, group, member, i| Piece {
                    provider: (16 * (r / 2) + 4 * member + i) as u8,
                    bit: (width * (group + 8 * (r % 2))) as u8,
                    width: width as u8,
                    shift: (8 * i) as u8,
                }))
            }
            _ => None,
        }
    }

    /// Layout of `stmatrix`; `None` for a combination that does not exist.
    pub fn store(shape: MatrixShape, num: u32, trans: bool, element: MatrixElement) -> Option<Self> {
        match (shape, trans, element) {
            (MatrixShape::M8n8, _, MatrixElement::B16) => Self::load(shape, num, trans, element),
            (MatrixShape::M16n8, true, MatrixElement::B8) if matches!(num, 1 | 2 | 4) => {
                let num = num as usize;
                Some(Self::build(num, 8 * num, 16, 4, |r, group, member, i| Piece {
                    provider: (8 * r + 2 * member + i % 2) as u8,
                    bit: (8 * (group + 8 * (i / 2))) as u8,
                    width: 8,
                    shift: (8 * i) as u8,
                }))
            }
            _ => None,
        }
    }

    fn build(
        registers: usize,
        rows: usize,
        data_bytes: usize,
        per_register: usize,
        piece: impl Fn(usize, usize, usize, usize) -> Piece,
    ) -> Self {
        let mut pieces = Vec::with_capacity(registers * 32 * per_register);
        for register in 0..registers {
            for lane in 0..32 {
                for i in 0..per_register {
                    pieces.push(piece(register, lane / 4, lane % 4, i));
                }
            }
        }
        MatrixMap {
            registers,
            providers: if rows == 32 { u32::MAX } else { (1 << rows) - 1 },
            data_bytes,
            per_register,
            straight: per_register == 1,
            pieces,
        }
    }

    /// Number of 32-bit registers.
    pub fn registers(&self) -> usize {
        self.registers
    }

    /// Mask of the lanes whose addresses are used.
    pub fn providers(&self) -> u32 {
        self.providers
    }

    /// Bytes at the start of a row that hold elements: 16, 12 (`b6x16_p32`) or 8 (`b4x16_p64`). The rest is padding.
    pub fn data_bytes(&self) -> usize {
        self.data_bytes
    }

    /// Where the bits of a register of a lane are.
    pub fn pieces(&self, register: usize, lane: usize) -> &[Piece] {
        let start = (register * 32 + lane) * self.per_register;
        &self.pieces[start..start + self.per_register]
    }

    /// `ldmatrix`: registers from rows. Registers past [`MatrixMap::registers`] are left alone.
    pub fn registers_from_rows(&self, rows: &Rows, registers: &mut [Lanes]) {
        for (register, lanes) in registers.iter_mut().enumerate().take(self.registers) {
            for (lane, bits) in lanes.iter_mut().enumerate() {
                if self.straight {
                    let row = &rows[(8 * register + lane / 4) & 31];
                    let start = 4 * (lane % 4);
                    *bits = u32::from_le_bytes([row[start], row[start + 1], row[start + 2], row[start + 3]]);
                    continue;
                }
                *bits = 0;
                for piece in self.pieces(register, lane) {
                    let row = u128::from_le_bytes(rows[piece.provider as usize]);
                    let value = (row >> piece.bit) as u32 & ((1 << piece.width) - 1);
                    *bits |= value << piece.shift;
                }
            }
        }
    }

    /// `stmatrix`: rows from registers. Rows of lanes outside [`MatrixMap::providers`] are left alone.
    pub fn rows_from_registers(&self, registers: &[Lanes], rows: &mut Rows) {
        for (register, lanes) in registers.iter().enumerate().take(self.registers) {
            for (lane, bits) in lanes.iter().enumerate() {
                for piece in self.pieces(register, lane) {
                    // Stored pieces are whole bytes.
                    let bytes = (bits >> piece.shift).to_le_bytes();
                    let start = piece.bit as usize / 8;
                    let count = piece.width as usize / 8;
                    rows[piece.provider as usize][start..start + count].copy_from_slice(&bytes[..count]);
                }
            }
        }
    }
}

/// `movmatrix.sync.aligned.m8n8.trans.b16`: element (row, column) of the source lies in half `column % 2` of lane
/// `4 * row + column / 2`, and comes out at (column, row).
pub fn movmatrix(a: &Lanes) -> Lanes {
    std::array::from_fn(|lane| {
        let element = |i: usize| {
            let (row, column) = (lane % 4 * 2 + i, lane / 4);
            a[4 * row + column / 2] >> (16 * (column % 2)) & 0xffff
        };
        element(0) | element(1) << 16
    })
}
