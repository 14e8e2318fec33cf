//! Scale operands of block-scaled `mma` (PTX ISA 9.0, section 9.7.14.3).
//!
//! Every lane holds a 32-bit register with four scale bytes; only some lanes are read:
//!
//! ```text
//! A: row r of 16   <- lane 4 * (r % 8) + 2 * thread_id + r / 8     thread_id 0 or 1: a pair of each group of four
//! B: column n of 8 <- lane 4 * n + thread_id                        thread_id 0..3
//! scale_vec::1X: byte byte_id            covers all of k
//! scale_vec::2X: bytes byte_id, +1       byte_id 0 or 2, half of k each
//! scale_vec::4X: bytes 0..3              byte_id 0, a quarter of k each
//! ```
//!
//! Registers of the other lanes, and the bytes that are not selected, do not matter (and may be uninitialised).

use super::Lanes;
use crate::ir::Type;
use crate::num::formats::{E4M3, ue8m0_to_f64};

/// One scale operand of a warp with its selectors, which are the same in every lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScaleInput {
    /// The 32-bit register.
    pub data: Lanes,
    /// First selected byte.
    pub byte_id: u32,
    /// Selected pair (A) or lane (B) of every group of four.
    pub thread_id: u32,
}

/// Are the selectors among the values that the ISA defines? Others are undefined behaviour.
pub const fn selectors_valid(scale_vec: u32, is_a: bool, byte_id: u32, thread_id: u32) -> bool {
    let byte = match scale_vec {
        1 => byte_id < 4,
        2 => byte_id == 0 || byte_id == 2,
        _ => byte_id == 0,
    };
    byte && thread_id < if is_a { 2 } else { 4 }
}

/// The lane that supplies the scales of `row` of A.
pub const fn lane_of_row(row: usize, thread_id: u32) -> usize {
    4 * (row % 8) + 2 * (thread_id as usize & 1) + row / 8
}

/// The lane that supplies the scales of `column` of B.
pub const fn lane_of_column(column: usize, thread_id: u32) -> usize {
    4 * column + (thread_id as usize & 3)
}

/// Mask of the lanes whose register is read.
pub const fn lanes_read(is_a: bool, thread_id: u32) -> u32 {
    if is_a { 0x3333_3333 << (2 * (thread_id & 1)) } else { 0x1111_1111 << (thread_id & 3) }
}

/// Mask of the bytes of those registers that are read, bit i for byte i.
pub const fn bytes_read(scale_vec: u32, byte_id: u32) -> u32 {
    match scale_vec {
        1 => 1 << (byte_id & 3),
        2 => 3 << (byte_id & 2),
        _ => 15,
    }
}

/// The scale of chunk `chunk` out of a lane's register.
#[inline(always)]
pub(super) fn factor(input: &ScaleInput, lane: usize, chunk: usize, ty: Type) -> f64 {
    let byte = (input.data[lane] >> (8 * ((input.byte_id as usize + chunk) & 3))) as u8;
    match ty {
        Type::UE8M0 => ue8m0_to_f64(byte),
        // ue4m3 is e4m3 without its sign.
        _ => E4M3[byte as usize & 0x7f] as f64,
    }
}
