//! The text of `config.json` with DeepSeek's field names.

use super::{ExpertDtype, ModelConfig};
use serde_json::json;

pub(super) fn write(config: &ModelConfig) -> String {
    let ratios = config.layers.iter().map(|kind| kind.ratio().unwrap_or(0));
    let ratios: Vec<u32> = ratios.chain((0..config.mtp_layers).map(|_| 0)).collect();
    let eos = if let [id] = config.eos_ids[..] { json!(id) } else { json!(config.eos_ids) };
    // The shortest decimal that reads back: 1e-6, not the f64 next to the f32 next to it.
    let short = |value: f32| value.to_string().parse::<f64>().expect("a float prints as a float");
    let sizes = json!({
        "architectures": ["DeepseekV4ForCausalLM"],
        "model_type": "deepseek_v4",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.layers.len(),
        "compress_ratios": ratios,
        "num_hash_layers": config.num_hash_layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": 1,
        "head_dim": config.head_dim,
        "qk_rope_head_dim": config.rope_dim,
        "q_lora_rank": config.q_lora_rank,
        "o_groups": config.o_groups,
        "o_lora_rank": config.o_lora_rank,
        "sliding_window": config.window,
        "index_n_heads": config.index_heads,
        "index_head_dim": config.index_head_dim,
        "index_topk": config.index_topk,
    });
    let mut value = json!({
        "n_routed_experts": config.experts,
        "n_shared_experts": config.shared_experts,
        "num_experts_per_tok": config.experts_per_tok,
        "moe_intermediate_size": config.moe_inter,
        "scoring_func": "sqrtsoftplus",
        "topk_method": "noaux_tc",
        "norm_topk_prob": true,
        "routed_scaling_factor": short(config.routed_scaling),
        "swiglu_limit": short(config.swiglu_limit),
        "hidden_act": "silu",
        "hc_mult": config.hc_mult,
        "hc_sinkhorn_iters": config.hc_sinkhorn_iters,
        "hc_eps": short(config.hc_eps),
        "rms_norm_eps": short(config.rms_norm_eps),
        "rope_theta": config.rope_theta,
        "compress_rope_theta": config.compress_rope_theta,
        "rope_scaling": {
            "type": "yarn",
            "factor": config.yarn.factor,
            "original_max_position_embeddings": config.yarn.original_positions,
            "beta_fast": config.yarn.beta_fast,
            "beta_slow": config.yarn.beta_slow,
        },
        "max_position_embeddings": config.max_position,
        "bos_token_id": config.bos_id,
        "eos_token_id": eos,
        "num_nextn_predict_layers": config.mtp_layers,
        "tie_word_embeddings": false,
        "attention_bias": false,
        "attention_dropout": 0.0,
    });
    value.as_object_mut().expect("made above").extend(sizes.as_object().cloned().expect("made above"));
    if let Some(dtype) = config.expert_dtype {
        value["expert_dtype"] = json!(match dtype {
            ExpertDtype::Fp4 => "fp4",
            ExpertDtype::Fp8 => "fp8",
        });
    }
    if config.quantised {
        value["quantization_config"] = json!({
            "quant_method": "fp8",
            "fmt": "e4m3",
            "scale_fmt": "ue8m0",
            "activation_scheme": "dynamic",
            "weight_block_size": [128, 128],
        });
    }
    format!("{value:#}\n")
}
