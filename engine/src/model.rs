//! The layer schedule and the sizes that attention depends on.

mod attention;
pub mod cache;
mod forward;
mod load;
mod mtp;
mod numerics;
pub mod probe;
pub mod weights;
mod workspace;

pub use forward::{Model, Parts};
pub use load::{LoadError, load};
pub use numerics::{Numerics, WeightStorage};
pub use workspace::{Limits, RankShape};

pub use crate::config::LayerKind;

/// What attention needs to know of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionConfig {
    /// Kind of every layer of the trunk.
    pub layers: Vec<LayerKind>,
    /// Query heads.
    pub heads: u32,
    /// Window in tokens, the query's own included.
    pub window: u32,
    /// Rows that the indexer picks.
    pub index_topk: u32,
    /// Channels of a KV row.
    pub d_kv: u32,
    /// Channels of an index key.
    pub d_index: u32,
}

impl AttentionConfig {
    /// DeepSeek-V4-Flash: 43 layers, `compress_ratios` = `[0, 0] + 20 x [4, 128] + [4]`.
    pub fn v4_flash() -> Self {
        let mut layers = vec![LayerKind::Swa; 2];
        for _ in 0..20 {
            layers.extend([LayerKind::Csa, LayerKind::Hca]);
        }
        layers.push(LayerKind::Csa);
        Self { layers, heads: 64, window: 128, index_topk: 512, d_kv: 512, d_index: 128 }
    }

    /// DeepSeek-V4-Pro: 61 layers, `compress_ratios` = `[128, 128] + 29 x [4, 128] + [4]`.
    pub fn v4_pro() -> Self {
        let mut layers = vec![LayerKind::Hca; 2];
        for _ in 0..29 {
            layers.extend([LayerKind::Csa, LayerKind::Hca]);
        }
        layers.push(LayerKind::Csa);
        Self { layers, heads: 128, window: 128, index_topk: 1024, d_kv: 512, d_index: 128 }
    }

    /// Layers of a kind.
    pub fn count(&self, kind: LayerKind) -> u32 {
        self.layers.iter().filter(|&&k| k == kind).count() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules() {
        let flash = AttentionConfig::v4_flash();
        assert_eq!(flash.layers.len(), 43);
        assert_eq!([LayerKind::Swa, LayerKind::Csa, LayerKind::Hca].map(|k| flash.count(k)), [2, 21, 20]);
        let pro = AttentionConfig::v4_pro();
        assert_eq!(pro.layers.len(), 61);
        assert_eq!([LayerKind::Swa, LayerKind::Csa, LayerKind::Hca].map(|k| pro.count(k)), [0, 30, 31]);
    }
}
