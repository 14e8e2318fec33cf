//! Configurations of released models, and small ones with the same structure.

use super::{ExpertDtype, LayerKind, ModelConfig, Yarn};
use LayerKind::{Csa, Hca, Swa};

impl ModelConfig {
    /// Names that [`ModelConfig::preset`] knows, for messages.
    pub const PRESETS: &str = "tiny, mini, peers, v4-flash, v4-pro or flash-N-layers with N from 1 to 43";

    /// A preset by name.
    pub fn preset(name: &str) -> Option<Self> {
        match name {
            "tiny" => Some(Self::tiny()),
            "mini" => Some(Self::mini()),
            "peers" => Some(Self::peers()),
            "v4-flash" => Some(Self::v4_flash()),
            "v4-pro" => Some(Self::v4_pro()),
            _ => Self::flash_layers(name.strip_prefix("flash-")?.strip_suffix("-layers")?.parse().ok()?),
        }
    }

    /// DeepSeek-V4-Flash: 43 layers, `compress_ratios` = `[0, 0] + 20 x [4, 128] + [4]`, then the MTP layer.
    pub fn v4_flash() -> Self {
        ModelConfig {
            vocab_size: 129_280,
            hidden_size: 4096,
            layers: alternating([Swa, Swa], 20),
            num_hash_layers: 3,
            heads: 64,
            head_dim: 512,
            rope_dim: 64,
            q_lora_rank: 1024,
            o_groups: 8,
            o_lora_rank: 1024,
            window: 128,
            index_heads: 64,
            index_head_dim: 128,
            index_topk: 512,
            experts: 256,
            experts_per_tok: 6,
            moe_inter: 2048,
            shared_experts: 1,
            routed_scaling: 1.5,
            swiglu_limit: 10.0,
            hc_mult: 4,
            hc_sinkhorn_iters: 20,
            hc_eps: 1e-6,
            rms_norm_eps: 1e-6,
            rope_theta: 10_000.0,
            compress_rope_theta: 160_000.0,
            yarn: Yarn { factor: 16.0, original_positions: 65_536, beta_fast: 32.0, beta_slow: 1.0 },
            max_position: 1 << 20,
            bos_id: 0,
            eos_ids: vec![1],
            mtp_layers: 1,
            expert_dtype: Some(ExpertDtype::Fp4),
            quantised: true,
        }
    }

    /// DeepSeek-V4-Pro: 61 layers, `compress_ratios` = `[128, 128] + 29 x [4, 128] + [4]`, then the MTP layer.
    pub fn v4_pro() -> Self {
        ModelConfig {
            hidden_size: 7168,
            layers: alternating([Hca, Hca], 29),
            heads: 128,
            q_lora_rank: 1536,
            o_groups: 16,
            index_topk: 1024,
            experts: 384,
            moe_inter: 3072,
            routed_scaling: 2.5,
            ..Self::v4_flash()
        }
    }

    /// Flash with its first `n` layers and its MTP layer; `None` unless `n` is 1 to 43.
    pub fn flash_layers(n: u32) -> Option<Self> {
        let mut config = Self::v4_flash();
        if !(1..=config.num_layers()).contains(&n) {
            return None;
        }
        config.layers.truncate(n as usize);
        config.num_hash_layers = config.num_hash_layers.min(n);
        Some(config)
    }

    /// Attention as in Flash (64 heads x 512, 64 index heads x 128, 512 picks, window 128) in four narrow layers and an MTP
    /// layer: what the kernels run without a change, in 44 MiB.
    pub fn mini() -> Self {
        ModelConfig {
            vocab_size: 4096,
            hidden_size: 256,
            layers: vec![Swa, Csa, Hca, Csa],
            num_hash_layers: 1,
            q_lora_rank: 128,
            o_lora_rank: 64,
            experts: 8,
            experts_per_tok: 2,
            moe_inter: 128,
            // Random weights never reach 10; at 2 the clamps act.
            swiglu_limit: 2.0,
            max_position: 65_536,
            ..Self::v4_flash()
        }
    }

    /// The structure of [`ModelConfig::mini`] with 8 heads, window 16 and 8 picks, so that a few hundred tokens fill a
    /// window and make the indexer choose. The sizes are those of the golden checkpoint, plus an MTP layer.
    pub fn tiny() -> Self {
        ModelConfig {
            vocab_size: 256,
            hidden_size: 128,
            num_hash_layers: 2,
            heads: 8,
            q_lora_rank: 32,
            o_groups: 2,
            o_lora_rank: 16,
            window: 16,
            index_topk: 8,
            experts: 6,
            experts_per_tok: 3,
            moe_inter: 64,
            max_position: 4096,
            ..Self::mini()
        }
    }

    /// 4.3 M parameters in narrow heads, without a draft layer: small enough to measure other engines on the same CPU, and
    /// within what their loaders take (an index head of 64 channels, a power of two for the Hadamard transform).
    pub fn peers() -> Self {
        ModelConfig {
            vocab_size: 512,
            hidden_size: 128,
            layers: vec![Swa, Swa, Csa, Hca, Csa, Hca],
            num_hash_layers: 3,
            heads: 16,
            head_dim: 80,
            rope_dim: 16,
            q_lora_rank: 64,
            o_groups: 2,
            o_lora_rank: 64,
            window: 16,
            index_heads: 16,
            index_head_dim: 64,
            index_topk: 8,
            experts: 16,
            experts_per_tok: 3,
            moe_inter: 64,
            max_position: 4096,
            mtp_layers: 0,
            quantised: false,
            expert_dtype: None,
            ..Self::mini()
        }
    }
}

/// Two layers, then `pairs` of CSA and HCA, then a CSA layer.
fn alternating(first: [LayerKind; 2], pairs: usize) -> Vec<LayerKind> {
    first.into_iter().chain((0..pairs).flat_map(|_| [Csa, Hca])).chain([Csa]).collect()
}
