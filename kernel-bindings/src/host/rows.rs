//! What the operations on rows share: elements of either type, and rows that are threads' work only when they are many.

use rayon::prelude::*;

/// An element type of activations, little-endian in memory.
pub(super) trait Element {
    /// Size in memory.
    const BYTES: usize;
    /// Reads the element that `bytes` begin with.
    fn get(bytes: &[u8]) -> f32;
    /// Writes `value`, rounded, where `bytes` begin.
    fn put(value: f32, bytes: &mut [u8]);
}

/// f32.
pub(super) struct F32;
/// bf16.
pub(super) struct Bf16;

impl Element for F32 {
    const BYTES: usize = 4;

    fn get(bytes: &[u8]) -> f32 {
        f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }

    fn put(value: f32, bytes: &mut [u8]) {
        bytes[..4].copy_from_slice(&value.to_le_bytes());
    }
}

/// Bits of the nearest bf16, ties to even, in the upper half. Without a branch, so that loops become vector arithmetic.
fn nearest_bf16(value: f32) -> u32 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) & 0xffff_0000;
    if value.is_nan() { (bits & 0xffff_0000) | 0x0040_0000 } else { rounded }
}

impl Element for Bf16 {
    const BYTES: usize = 2;

    fn get(bytes: &[u8]) -> f32 {
        f32::from_bits(u32::from(u16::from_le_bytes([bytes[0], bytes[1]])) << 16)
    }

    fn put(value: f32, bytes: &mut [u8]) {
        bytes[..2].copy_from_slice(&((nearest_bf16(value) >> 16) as u16).to_le_bytes());
    }
}

/// Elements of work below which threads cost more than they give: about 10 us of either.
const ALONE_BELOW: usize = 1 << 14;

/// Whether work on so many elements is not worth a thread.
pub(super) fn alone(elements: usize) -> bool {
    elements < ALONE_BELOW
}

/// Runs `row(number, bytes)` for each of `count` rows of `out`, `stride` bytes apart; `work` elements each. The last row
/// may be shorter than the stride.
pub(super) fn for_rows(
    out: &mut [u8],
    stride: usize,
    count: usize,
    work: usize,
    row: impl Fn(usize, &mut [u8]) + Send + Sync,
) {
    if alone(count * work) {
        out.chunks_mut(stride).take(count).enumerate().for_each(|(number, out)| row(number, out));
    } else {
        let least = (ALONE_BELOW / work.max(1)).max(1);
        let rows = out.par_chunks_mut(stride).take(count).with_min_len(least);
        rows.enumerate().for_each(|(number, out)| row(number, out));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bf16_is_that_of_the_crate_half() {
        for upper in 0..=u16::MAX {
            for lower in [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
                let x = f32::from_bits(u32::from(upper) << 16 | lower);
                let mut bytes = [0; 2];
                Bf16::put(x, &mut bytes);
                assert_eq!(bytes, half::bf16::from_f32(x).to_le_bytes(), "{x:e}");
            }
        }
    }
}
