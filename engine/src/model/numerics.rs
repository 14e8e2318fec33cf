//! The number formats of a run.

use reference::ops::{Dtype, IndexKFormat, KvFormat, ScaleRule};

/// Formats of activations, weights and caches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Numerics {
    /// Activations between operations.
    pub activations: Dtype,
    /// Weight matrices in the device's memory.
    pub weights: WeightStorage,
    /// KV rows.
    pub kv: KvFormat,
    /// Index keys and queries.
    pub index_k: IndexKFormat,
    /// Scales of fp8 index rows.
    pub scale_rule: ScaleRule,
}

/// How weight matrices are held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightStorage {
    /// Decoded to f32.
    F32,
    /// Codes and scales as in the checkpoint where the kernels read them, bf16 otherwise.
    Stored,
}

impl Numerics {
    /// No rounding anywhere: what the plain goldens are computed in.
    pub const fn plain(d: u32, d_index: u32) -> Self {
        Self {
            activations: Dtype::F32,
            weights: WeightStorage::F32,
            kv: KvFormat::F32 { d },
            index_k: IndexKFormat::F32 { d: d_index },
            scale_rule: ScaleRule::Exact,
        }
    }

    /// What a card runs: bf16 activations, `v4_fp8` rows, fp8 index keys.
    pub const fn device() -> Self {
        Self {
            activations: Dtype::Bf16,
            weights: WeightStorage::Stored,
            kv: KvFormat::V4Fp8,
            index_k: IndexKFormat::Fp8,
            scale_rule: ScaleRule::Exact,
        }
    }

    /// Whether index queries and keys are transformed: for every stored format but f32 and fp8 with power-of-two scales.
    pub const fn hadamard(&self) -> bool {
        match self.index_k {
            IndexKFormat::F32 { .. } => false,
            IndexKFormat::Fp8 => matches!(self.scale_rule, ScaleRule::Exact),
            IndexKFormat::Bf16 | IndexKFormat::Fp4 => true,
        }
    }
}

impl Numerics {
    /// Bytes of one head of an index query.
    pub const fn index_q_bytes(&self) -> u64 {
        match self.index_k {
            IndexKFormat::F32 { d } => 4 * d as u64,
            IndexKFormat::Bf16 => 256,
            IndexKFormat::Fp8 => 128,
            IndexKFormat::Fp4 => 68,
        }
    }
}
