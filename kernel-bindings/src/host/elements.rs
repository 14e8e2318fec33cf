//! Activations of either type as f32.

use super::numbers::{narrow_bf16, widen_bf16};
use reference::ops::Dtype;

/// Bytes of an element as an index.
pub(super) fn size(dtype: Dtype) -> usize {
    dtype.bytes() as usize
}

/// Widens stored elements.
pub(super) fn load(dtype: Dtype, bytes: &[u8], out: &mut [f32]) {
    match dtype {
        Dtype::F32 => load_f32(bytes, out),
        Dtype::Bf16 => widen_bf16(bytes, out),
    }
}

/// Reads f32 elements, which need not be aligned.
pub(super) fn load_f32(bytes: &[u8], out: &mut [f32]) {
    for (word, x) in bytes.chunks_exact(4).zip(out) {
        *x = f32::from_le_bytes([word[0], word[1], word[2], word[3]]);
    }
}

/// Stores elements, rounded to their type.
pub(super) fn store(dtype: Dtype, values: &[f32], bytes: &mut [u8]) {
    match dtype {
        Dtype::F32 => store_f32(values, bytes),
        Dtype::Bf16 => narrow_bf16(values, bytes),
    }
}

/// Writes f32 elements.
pub(super) fn store_f32(values: &[f32], bytes: &mut [u8]) {
    for (x, word) in values.iter().zip(bytes.chunks_exact_mut(4)) {
        word.copy_from_slice(&x.to_le_bytes());
    }
}
