//! Bytes per token of the pools, term by term, out of the layout code that allocates the pages.

use crate::model::{AttentionConfig, LayerKind};
use kernel_bindings::layout;
use reference::ops::{IndexKFormat, KvFormat};

/// How a pool charges state that does not grow with the context.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StatePolicy {
    /// Window tokens held per token of the full pool.
    pub window_ratio: f64,
    /// Window page in tokens; one state ring per page.
    pub window_page: u32,
    /// Rows of a CSA compressor ring (previous and current window).
    pub csa_ring_rows: u32,
    /// Rows of an HCA compressor ring.
    pub hca_ring_rows: u32,
}

impl StatePolicy {
    /// All state charged per token of the full pool: ratio 0.1, window pages of 128 tokens, rings of 8 and 128 rows.
    /// This is the policy behind the public figures 15,897 and 16,548 B/token.
    pub const RING_PER_WINDOW_PAGE: StatePolicy =
        StatePolicy { window_ratio: 0.1, window_page: 128, csa_ring_rows: 8, hca_ring_rows: 128 };
}

/// One line of the coefficient.
#[derive(Debug, Clone, PartialEq)]
pub struct Term {
    /// What it pays for.
    pub name: &'static str,
    /// Bytes per token of context, all layers.
    pub bytes_per_token: f64,
}

/// Terms of the pool coefficient in bytes per token. Rows are counted without page padding (584 B, not 585).
pub fn bytes_per_token(
    config: &AttentionConfig,
    kv: KvFormat,
    index_k: IndexKFormat,
    policy: &StatePolicy,
) -> Vec<Term> {
    let layers = f64::from(config.layers.len() as u32);
    let csa = f64::from(config.count(LayerKind::Csa));
    let hca = f64::from(config.count(LayerKind::Hca));
    let kv_row = layout::kv_row_bytes(kv) as f64;
    let index_row = layout::index_k_row_bytes(index_k) as f64;
    let rings = policy.window_ratio / f64::from(policy.window_page);
    let csa_rings = rings * f64::from(policy.csa_ring_rows) * csa;
    // A state row holds (u, g) in f32; a CSA row holds both halves of the overlapping windows.
    let state_row = |channels: u32, halves: u32| f64::from(channels * 2 * halves * size_of::<f32>() as u32);
    let term = |name, bytes_per_token| Term { name, bytes_per_token };
    vec![
        term("window KV", policy.window_ratio * kv_row * layers),
        term("CSA KV", kv_row / 4.0 * csa),
        term("HCA KV", kv_row / 128.0 * hca),
        term("CSA index K", index_row / 4.0 * csa),
        term("CSA main state", csa_rings * state_row(config.d_kv, 2)),
        term("HCA state", rings * f64::from(policy.hca_ring_rows) * hca * state_row(config.d_kv, 1)),
        term("CSA index state", csa_rings * state_row(config.d_index, 2)),
    ]
}

/// Bytes per token of context that grow without bound: compressed rows and index keys.
pub fn growth_per_token(config: &AttentionConfig, kv: KvFormat, index_k: IndexKFormat) -> f64 {
    let grows = ["CSA KV", "HCA KV", "CSA index K"];
    let terms = bytes_per_token(config, kv, index_k, &StatePolicy::RING_PER_WINDOW_PAGE);
    terms.iter().filter(|term| grows.contains(&term.name)).map(|term| term.bytes_per_token).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn coefficient(index_k: IndexKFormat) -> f64 {
        let policy = StatePolicy::RING_PER_WINDOW_PAGE;
        let terms = bytes_per_token(&AttentionConfig::v4_flash(), KvFormat::V4Fp8, index_k, &policy);
        terms.iter().map(|term| term.bytes_per_token).sum()
    }

    /// The published pool coefficients of V4-Flash.
    #[test]
    fn coefficient_of_flash() {
        assert!((coefficient(IndexKFormat::Fp8) - 15_897.45).abs() < 1e-6, "{}", coefficient(IndexKFormat::Fp8));
        assert!((coefficient(IndexKFormat::Bf16) - 16_548.45).abs() < 1e-6, "{}", coefficient(IndexKFormat::Bf16));
    }

    /// Growth figures: Flash 3,850.25 (fp8) and 4,501.25 (bf16), Pro 5,511.4375.
    #[test]
    fn growth() {
        let of = |config: &AttentionConfig, index_k| growth_per_token(config, KvFormat::V4Fp8, index_k);
        assert_eq!(of(&AttentionConfig::v4_flash(), IndexKFormat::Fp8), 3850.25);
        assert_eq!(of(&AttentionConfig::v4_flash(), IndexKFormat::Bf16), 4501.25);
        assert_eq!(of(&AttentionConfig::v4_pro(), IndexKFormat::Fp8), 5511.4375);
    }
}
