//! What every implementation refuses, and in which words.
//!
//! Each operand record has a `check`: a pure function of its numbers and of the sizes of its buffers, without a device.
//! The order is fixed: sizes, format, strides, then buffer lengths (a buffer may be longer than needed). Data that
//! lives on a device (context lengths, slots, page ids) is not looked at; what odd values there mean is part of each
//! operation's contract. An empty batch is valid.

mod attention;
mod index;
mod pages;
mod products;
mod rows;
mod streams;
mod topk;
mod write;

pub use products::K_MULTIPLE;

use crate::layout::MAX_F32_CHANNELS;
use crate::ops::{Dtype, OpsError};

/// Elements of a bf16 tensor between two rows that kernels read in 16-byte pieces.
const BF16_VECTOR: u64 = 8;

fn refuse(
    op: &'static str,
    tensor: &'static str,
    expected: impl Into<String>,
    got: impl ToString,
) -> Result<(), OpsError> {
    Err(OpsError::Operand { op, tensor, expected: expected.into(), got: got.to_string() })
}

/// Narrows a count, stride or length to the 32-bit signed integer of a parameter structure.
///
/// The one place where 64-bit sizes become 32-bit ones. Refuses anything above 2^31 - 1.
pub fn narrow(op: &'static str, tensor: &'static str, value: u64) -> Result<i32, OpsError> {
    i32::try_from(value).map_err(|_| OpsError::Operand {
        op,
        tensor,
        expected: format!("at most {}", i32::MAX),
        got: value.to_string(),
    })
}

/// Narrows a stride to the 64-bit signed integer of a parameter structure.
pub fn narrow_stride(op: &'static str, tensor: &'static str, value: u64) -> Result<i64, OpsError> {
    i64::try_from(value).map_err(|_| OpsError::Operand {
        op,
        tensor,
        expected: format!("at most {}", i64::MAX),
        got: value.to_string(),
    })
}

/// At least `least`, at most 2^31 - 1.
fn size(op: &'static str, tensor: &'static str, value: u32, least: u32) -> Result<(), OpsError> {
    narrow(op, tensor, u64::from(value))?;
    if value < least {
        return refuse(op, tensor, format!("at least {least}"), value);
    }
    Ok(())
}

fn within(op: &'static str, tensor: &'static str, value: u32, least: u32, most: u32) -> Result<(), OpsError> {
    if !(least..=most).contains(&value) {
        return refuse(op, tensor, format!("{least} to {most}"), value);
    }
    Ok(())
}

/// The width of f32 rows; other formats have a fixed one.
fn channels(op: &'static str, d: u32) -> Result<(), OpsError> {
    within(op, "format.d", d, 1, MAX_F32_CHANNELS)
}

/// A product of sizes that a kernel counts in 32 bits.
fn product(op: &'static str, tensor: &'static str, factors: &[u32]) -> Result<(), OpsError> {
    let value = factors.iter().fold(1u64, |all, &f| all.saturating_mul(u64::from(f)));
    narrow(op, tensor, value).map(|_| ())
}

fn stride_least(op: &'static str, tensor: &'static str, value: u64, least: u64) -> Result<(), OpsError> {
    narrow_stride(op, tensor, value)?;
    if value < least {
        return refuse(op, tensor, format!("at least {least} elements"), value);
    }
    Ok(())
}

fn stride_multiple(op: &'static str, tensor: &'static str, value: u64, of: u64) -> Result<(), OpsError> {
    if !value.is_multiple_of(of) {
        return refuse(op, tensor, format!("a multiple of {of} elements"), value);
    }
    Ok(())
}

/// A stride that kernels step by in 16-byte pieces. f32 tensors are for the host, which does not care.
fn stride_vector(op: &'static str, tensor: &'static str, value: u64, dtype: Dtype) -> Result<(), OpsError> {
    match dtype {
        Dtype::Bf16 => stride_multiple(op, tensor, value, BF16_VECTOR),
        Dtype::F32 => Ok(()),
    }
}

/// Elements up to the last one addressed: `extents` with their strides, outermost first, then `inner` contiguous ones.
/// 0 if any extent is 0.
fn addressed(extents: &[(u64, u64)], inner: u64) -> u128 {
    if extents.iter().any(|&(extent, _)| extent == 0) {
        return 0;
    }
    extents.iter().map(|&(extent, stride)| u128::from(extent - 1) * u128::from(stride)).sum::<u128>()
        + u128::from(inner)
}

fn buffer(
    op: &'static str,
    tensor: &'static str,
    elements: u128,
    element_bytes: u64,
    len_bytes: u64,
) -> Result<(), OpsError> {
    let needed = elements * u128::from(element_bytes);
    if needed > u128::from(len_bytes) {
        return refuse(op, tensor, format!("at least {needed} bytes"), format!("{len_bytes} bytes"));
    }
    Ok(())
}
