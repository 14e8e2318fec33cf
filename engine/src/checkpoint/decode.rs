//! Stored bytes to values: by row ranges, in parallel where a tensor is large.

use super::{CheckpointError, Storage, TensorView, refused};
use half::bf16;
use rayon::prelude::*;
use std::ops::Range;

/// Rows and columns that share an fp8 scale.
pub const FP8_BLOCK: usize = 128;
/// Columns that share an fp4 scale.
pub const FP4_BLOCK: usize = 32;

/// Values of the e4m3 codes: an f32 exponent is 120 higher; a subnormal counts 2^-9; 0x7f and 0xff are NaN.
pub(super) static E4M3: [f32; 256] = {
    let mut table = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        let (magnitude, sign) = ((code & 0x7f) as u32, ((code & 0x80) as u32) << 24);
        let value = match magnitude {
            0x7f => f32::NAN.to_bits(),
            0..8 => (magnitude as f32 * (1.0 / 512.0)).to_bits(),
            _ => (magnitude + (120 << 3)) << 20,
        };
        table[code] = f32::from_bits(value | sign);
        code += 1;
    }
    table
};

/// Values of the e2m1 codes.
pub(super) const E2M1: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// Values of a byte of two e2m1 codes, low nibble first.
static E2M1_PAIRS: [[f32; 2]; 256] = {
    let mut table = [[0.0; 2]; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = [E2M1[byte & 15], E2M1[byte >> 4]];
        byte += 1;
    }
    table
};

/// ue8m0: `2^(byte - 127)`, NaN for 255.
pub(super) fn ue8m0(byte: u8) -> f32 {
    match byte {
        0 => f32::from_bits(1 << 22),
        255 => f32::NAN,
        exponent => f32::from_bits(u32::from(exponent) << 23),
    }
}

fn f32_at(bytes: &[u8], index: usize) -> f32 {
    f32::from_le_bytes(*bytes[4 * index..].first_chunk().expect("the caller counts elements"))
}

/// Elements from which on a tensor is decoded by several threads.
const PARALLEL: usize = 1 << 20;

impl<'a> TensorView<'a> {
    /// Elements along the first axis.
    pub fn rows(&self) -> usize {
        self.shape[0] as usize
    }

    /// Elements of a row: 1 for a vector.
    pub fn row_len(&self) -> usize {
        self.shape[1..].iter().map(|&axis| axis as usize).product()
    }

    /// Bytes with the scales.
    pub fn total_bytes(&self) -> u64 {
        (self.bytes.len() + self.scale.len()) as u64
    }

    /// Scales per scale row, and the rows that share one; `None` where the storage has no scales.
    pub fn scale_block(&self) -> Option<(usize, usize)> {
        match self.storage {
            Storage::Fp8Block128 | Storage::Fp8Block128F32 => Some((self.row_len().div_ceil(FP8_BLOCK), FP8_BLOCK)),
            Storage::Fp4Block32 => Some((self.row_len() / FP4_BLOCK, 1)),
            _ => None,
        }
    }

    /// The stored bytes of rows.
    pub fn row_bytes(&self, rows: Range<usize>) -> Result<&'a [u8], CheckpointError> {
        self.check_rows(&rows)?;
        let row = self.bytes.len() / self.rows();
        Ok(&self.bytes[rows.start * row..rows.end * row])
    }

    /// The stored scales of rows, empty where there are none. fp8 rows start at a multiple of 128, so that the scales of the
    /// part are those of a matrix of its own.
    pub fn row_scales(&self, rows: Range<usize>) -> Result<&'a [u8], CheckpointError> {
        self.check_rows(&rows)?;
        let Some((_, shared)) = self.scale_block() else { return Ok(&[]) };
        if !rows.start.is_multiple_of(shared) {
            let expected = format!("rows from a multiple of {shared}, which share scales");
            return Err(refused(self.name, expected, format!("{rows:?}")));
        }
        let row = self.scale.len() / self.rows().div_ceil(shared);
        Ok(&self.scale[rows.start / shared * row..rows.end.div_ceil(shared) * row])
    }

    /// Rows as f32.
    pub fn f32s(&self, rows: Range<usize>) -> Result<Vec<f32>, CheckpointError> {
        self.values(rows, |value| value)
    }

    /// Rows as bf16, to nearest even where a value needs it.
    pub fn bf16s(&self, rows: Range<usize>) -> Result<Vec<bf16>, CheckpointError> {
        self.values(rows, bf16::from_f32)
    }

    /// Integers, each in `0..below`.
    pub fn ids(&self, below: u32) -> Result<Vec<i32>, CheckpointError> {
        let values: Vec<i64> = match self.storage {
            Storage::S64 => self.bytes.chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().expect("8"))).collect(),
            Storage::S32 => {
                self.bytes.chunks_exact(4).map(|b| i32::from_le_bytes(b.try_into().expect("4")).into()).collect()
            }
            other => return Err(refused(self.name, "integers", other.name())),
        };
        let checked = values.iter().enumerate().map(|(at, &value)| {
            let fits = (0..i64::from(below)).contains(&value);
            let id = i32::try_from(value).ok().filter(|_| fits);
            id.ok_or_else(|| refused(self.name, format!("ids below {below}"), format!("{value} at element {at}")))
        });
        checked.collect()
    }

    fn check_rows(&self, rows: &Range<usize>) -> Result<(), CheckpointError> {
        if rows.start > rows.end || rows.end > self.rows() {
            return Err(refused(self.name, format!("rows within 0..{}", self.rows()), format!("{rows:?}")));
        }
        Ok(())
    }

    fn values<T: Copy + Default + Send>(
        &self,
        rows: Range<usize>,
        convert: impl Fn(f32) -> T + Sync,
    ) -> Result<Vec<T>, CheckpointError> {
        self.check_rows(&rows)?;
        if matches!(self.storage, Storage::S64 | Storage::S32) {
            return Err(refused(self.name, "numbers with a fraction", self.storage.name()));
        }
        let len = self.row_len();
        let mut out = vec![T::default(); rows.len() * len];
        if out.len() < PARALLEL {
            let targets = out.chunks_exact_mut(len);
            rows.zip(targets).for_each(|(row, target)| self.decode_row(row, target, &convert));
        } else {
            let targets = out.par_chunks_exact_mut(len).enumerate();
            targets.for_each(|(at, target)| self.decode_row(rows.start + at, target, &convert));
        }
        Ok(out)
    }

    fn decode_row<T>(&self, row: usize, out: &mut [T], convert: impl Fn(f32) -> T) {
        let row_bytes = self.bytes.len() / self.rows();
        let bytes = &self.bytes[row * row_bytes..][..row_bytes];
        let scale_at = |column: usize| {
            let (per_row, shared) = self.scale_block().expect("a block format");
            (row / shared) * per_row + column
        };
        match self.storage {
            Storage::F32 => {
                for (target, value) in out.iter_mut().zip(bytes.as_chunks().0) {
                    *target = convert(f32::from_le_bytes(*value));
                }
            }
            Storage::Bf16 => {
                for (target, value) in out.iter_mut().zip(bytes.as_chunks().0) {
                    *target = convert(bf16::from_le_bytes(*value).to_f32());
                }
            }
            Storage::Fp8Block128 | Storage::Fp8Block128F32 => {
                let blocks = out.chunks_mut(FP8_BLOCK).zip(bytes.chunks(FP8_BLOCK));
                for (block, (targets, codes)) in blocks.enumerate() {
                    let scale = if self.storage == Storage::Fp8Block128 {
                        ue8m0(self.scale[scale_at(block)])
                    } else {
                        f32_at(self.scale, scale_at(block))
                    };
                    for (target, &code) in targets.iter_mut().zip(codes) {
                        *target = convert(E4M3[code as usize] * scale);
                    }
                }
            }
            Storage::Fp4Block32 => {
                let blocks = out.chunks_exact_mut(FP4_BLOCK).zip(bytes.chunks_exact(FP4_BLOCK / 2));
                for (block, (targets, codes)) in blocks.enumerate() {
                    let scale = ue8m0(self.scale[scale_at(block)]);
                    for (pair, &code) in targets.as_chunks_mut::<2>().0.iter_mut().zip(codes) {
                        *pair = E2M1_PAIRS[code as usize].map(|value| convert(value * scale));
                    }
                }
            }
            Storage::S64 | Storage::S32 => unreachable!("refused above"),
        }
    }
}
