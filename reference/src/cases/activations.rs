//! What the cases of operations on activations share.

use crate::formats::{bf16_bytes, f32_bytes};
use crate::ops::Dtype;
use crate::problem::Memory;
use crate::rng::Rng;

/// The type of the kernels, then the one of the host.
pub(super) const DTYPES: [Dtype; 2] = [Dtype::Bf16, Dtype::F32];

/// Values in their stored form.
pub(super) fn stored(dtype: Dtype, values: &[f32]) -> Vec<u8> {
    match dtype {
        Dtype::F32 => f32_bytes(values),
        Dtype::Bf16 => bf16_bytes(values),
    }
}

/// `count` normal values of standard deviation `size`.
pub(super) fn normals(rng: &mut Rng, count: usize, size: f64) -> Vec<f32> {
    (0..count).map(|_| (size * rng.normal()) as f32).collect()
}

/// An f32 operand that is defined everywhere.
pub(super) fn numbers(label: &'static str, values: &[f32]) -> Memory {
    Memory::full(label, f32_bytes(values))
}
