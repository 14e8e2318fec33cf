//! The judge: every operation as plain loops with f64 sums.
//!
//! The free functions return [`Cells`]: for every element of an output either what it must be, in f64, with the size
//! of the terms that it is made of, or `None` where the operation does not write. [`ReferenceOps`] offers the same through
//! [`Ops`], rounded to the type of the output. Nothing here is quick, and nothing is shared with what it judges.

mod attention;
mod index;
pub mod products;
pub mod rows;
mod store;
pub mod streams;
mod topk;
mod write;

pub use attention::{attend, kv_row, max_logits, sparse_mla, split_combine};
pub use index::{index_k_row, index_logits, index_logits_prefill, index_score};
pub use topk::{Selection, select, topk_select};
pub use write::{index_k_write, kv_write};

use std::ops::Range;

use ndarray::{Array1, ArrayD, ArrayView1};

use crate::formats::{bf16s, f32s};
use crate::ops::{Dtype, Ops, OpsError};

/// What one element of an output must be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Exact {
    /// The value, before rounding to the type of the output.
    pub value: f64,
    /// Size of the terms that make the value: rounding errors of a correct implementation are in proportion to it.
    pub magnitude: f64,
}

/// The elements of an output; `None` where the operation must not write.
pub type Cells = ArrayD<Option<Exact>>;

/// Memory of the reference: plain bytes.
pub type Bytes = Vec<u8>;

fn dot(a: ArrayView1<f64>, b: ArrayView1<f64>) -> f64 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

fn dot_abs(a: ArrayView1<f64>, b: ArrayView1<f64>) -> f64 {
    a.iter().zip(b).map(|(x, y)| (x * y).abs()).sum()
}

fn widen(values: Vec<f32>) -> Array1<f64> {
    values.into_iter().map(f64::from).collect()
}

fn bytes_at(memory: &[u8], start: u64, len: usize) -> &[u8] {
    &memory[start as usize..start as usize + len]
}

/// Context length of a row: negative counts as 0, more than there can be as all.
fn clamp_len(len: i32, most: u64) -> usize {
    (i64::from(len).max(0) as u64).min(most) as usize
}

/// `count` elements of a tensor from element `from` on, as they stand in memory.
fn elements(dtype: Dtype, memory: &[u8], from: u64, count: usize) -> &[u8] {
    bytes_at(memory, dtype.bytes() * from, dtype.bytes() as usize * count)
}

/// Elements of a tensor in f32.
fn values(dtype: Dtype, bytes: &[u8]) -> Vec<f32> {
    match dtype {
        Dtype::F32 => f32s(bytes),
        Dtype::Bf16 => bf16s(bytes),
    }
}

fn put(memory: &mut [u8], at: u64, bytes: &[u8]) {
    memory[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
}

/// The reference behind the seam that it judges.
#[derive(Debug, Clone, Copy, Default)]
pub struct ReferenceOps;

/// Up to this size, fresh memory is filled with 0xff (NaN); above, the system's zero pages are left alone.
const POISON_UP_TO: u64 = 256 << 20;

fn len(buffer: &Bytes) -> u64 {
    buffer.len() as u64
}

fn span(bytes: usize, offset: u64, memory: u64) -> Result<Range<usize>, OpsError> {
    match offset.checked_add(bytes as u64) {
        Some(end) if end <= memory => Ok(offset as usize..end as usize),
        _ => Err(OpsError::Device {
            device: "reference".into(),
            message: format!("a copy of {bytes} bytes at offset {offset} leaves a buffer of {memory} bytes"),
        }),
    }
}

/// Checks the operands and stores what the operation makes of them.
macro_rules! checked_and_stored {
    ($($op:ident($operands:ident),)*) => {$(
        fn $op(&self, args: crate::ops::$operands<'_, Bytes>) -> Result<(), OpsError> {
            args.check(len)?;
            store::$op(args);
            Ok(())
        }
    )*};
}

impl Ops for ReferenceOps {
    type Buffer = Bytes;
    type Graph = std::convert::Infallible;

    fn name(&self) -> String {
        "reference".into()
    }

    fn alloc(&self, bytes: u64, label: &str) -> Result<Bytes, OpsError> {
        let size = usize::try_from(bytes).map_err(|_| OpsError::Device {
            device: "reference".into(),
            message: format!("{label}: {bytes} bytes do not fit the address space"),
        })?;
        Ok(vec![if bytes <= POISON_UP_TO { 0xff } else { 0 }; size])
    }

    fn upload(&self, dst: &mut Bytes, offset: u64, bytes: &[u8]) -> Result<(), OpsError> {
        let range = span(bytes.len(), offset, len(dst))?;
        dst[range].copy_from_slice(bytes);
        Ok(())
    }

    fn download(&self, src: &Bytes, offset: u64, bytes: &mut [u8]) -> Result<(), OpsError> {
        let range = span(bytes.len(), offset, len(src))?;
        bytes.copy_from_slice(&src[range]);
        Ok(())
    }

    fn len_bytes(&self, buffer: &Bytes) -> u64 {
        len(buffer)
    }

    crate::for_each_operation!(checked_and_stored);
}
