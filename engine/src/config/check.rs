//! What each field may be.

use super::{ConfigError, FieldProblem, ModelConfig};
use std::fmt;

impl ModelConfig {
    /// Refuses fields outside what the operations can run, all of them at once.
    ///
    /// Upper bounds are far above any released model; they keep every product of two sizes inside 32 bits.
    pub fn check(&self) -> Result<(), ConfigError> {
        let mut problems = Vec::new();
        let mut need = |ok: bool, field: &str, expected: &str, got: &dyn fmt::Debug| {
            if !ok {
                let (expected, got) = (expected.to_owned(), format!("{got:?}"));
                problems.push(FieldProblem { field: field.to_owned(), expected, got });
            }
        };
        let within = |value: u32, max: u32| (1..=max).contains(&value);
        let positive = |value: f64| value.is_finite() && value > 0.0;

        let vocab_ok = within(self.vocab_size, 1 << 24);
        need(vocab_ok, "vocab_size", "1 to 16777216", &self.vocab_size);
        let hidden_ok = within(self.hidden_size, 1 << 20) && self.hidden_size.is_multiple_of(32);
        need(hidden_ok, "hidden_size", "a multiple of 32 up to 1048576", &self.hidden_size);
        let layers = self.num_layers();
        need(within(layers, 1024), "num_hidden_layers", "1 to 1024", &layers);
        let hash = format!("at most num_hidden_layers {layers}");
        need(self.num_hash_layers <= layers, "num_hash_layers", &hash, &self.num_hash_layers);

        need(within(self.heads, 4096), "num_attention_heads", "1 to 4096", &self.heads);
        need(within(self.head_dim, 4096), "head_dim", "1 to 4096", &self.head_dim);
        let rope_max = self.head_dim.min(self.index_head_dim);
        let rope_ok = within(self.rope_dim, rope_max) && self.rope_dim.is_multiple_of(2);
        let rope = format!("an even number up to head_dim and index_head_dim ({rope_max})");
        need(rope_ok, "qk_rope_head_dim", &rope, &self.rope_dim);
        need(within(self.q_lora_rank, 1 << 16), "q_lora_rank", "1 to 65536", &self.q_lora_rank);
        let groups_ok = self.o_groups > 0 && self.heads.is_multiple_of(self.o_groups);
        need(groups_ok, "o_groups", &format!("a divisor of num_attention_heads {}", self.heads), &self.o_groups);
        need(within(self.o_lora_rank, 1 << 16), "o_lora_rank", "1 to 65536", &self.o_lora_rank);
        need(within(self.window, 1 << 20), "sliding_window", "1 to 1048576", &self.window);
        need(within(self.index_heads, 4096), "index_n_heads", "1 to 4096", &self.index_heads);
        let index_ok = within(self.index_head_dim, 4096) && self.index_head_dim.is_power_of_two();
        need(index_ok, "index_head_dim", "a power of two up to 4096", &self.index_head_dim);
        need(within(self.index_topk, 1 << 20), "index_topk", "1 to 1048576", &self.index_topk);

        need(within(self.experts, 512), "n_routed_experts", "1 to 512", &self.experts);
        let picks = format!("1 to {} (at most 16, at most n_routed_experts)", self.experts.min(16));
        need(within(self.experts_per_tok, self.experts.min(16)), "num_experts_per_tok", &picks, &self.experts_per_tok);
        let inter_ok = within(self.moe_inter, 1 << 20) && self.moe_inter.is_multiple_of(32);
        need(inter_ok, "moe_intermediate_size", "a multiple of 32 up to 1048576", &self.moe_inter);
        need(self.shared_experts == 1, "n_shared_experts", "1", &self.shared_experts);
        need(positive(self.routed_scaling.into()), "routed_scaling_factor", "a positive number", &self.routed_scaling);
        need(positive(self.swiglu_limit.into()), "swiglu_limit", "a positive number", &self.swiglu_limit);

        need(self.hc_mult == 4, "hc_mult", "4", &self.hc_mult);
        need(within(self.hc_sinkhorn_iters, 1000), "hc_sinkhorn_iters", "1 to 1000", &self.hc_sinkhorn_iters);
        need(positive(self.hc_eps.into()), "hc_eps", "a positive number", &self.hc_eps);
        need(positive(self.rms_norm_eps.into()), "rms_norm_eps", "a positive number", &self.rms_norm_eps);

        let base = |theta: f64| theta.is_finite() && theta > 1.0;
        need(base(self.rope_theta), "rope_theta", "a number above 1", &self.rope_theta);
        need(base(self.compress_rope_theta), "compress_rope_theta", "a number above 1", &self.compress_rope_theta);
        let yarn = &self.yarn;
        let factor_ok = yarn.factor.is_finite() && yarn.factor >= 1.0;
        need(factor_ok, "rope_scaling.factor", "a number from 1", &yarn.factor);
        let original = "rope_scaling.original_max_position_embeddings";
        need(yarn.original_positions > 0, original, "a positive number", &yarn.original_positions);
        need(positive(yarn.beta_slow), "rope_scaling.beta_slow", "a positive number", &yarn.beta_slow);
        let fast_ok = yarn.beta_fast.is_finite() && yarn.beta_fast >= yarn.beta_slow;
        need(fast_ok, "rope_scaling.beta_fast", &format!("at least beta_slow {}", yarn.beta_slow), &yarn.beta_fast);
        let position_ok = within(self.max_position, 1 << 30);
        need(position_ok, "max_position_embeddings", "1 to 1073741824", &self.max_position);

        let ids = format!("ids below vocab_size {}", self.vocab_size);
        need(self.bos_id < self.vocab_size, "bos_token_id", &ids, &self.bos_id);
        let eos_ok = !self.eos_ids.is_empty() && self.eos_ids.iter().all(|&id| id < self.vocab_size);
        need(eos_ok, "eos_token_id", &ids, &self.eos_ids);
        need(self.mtp_layers <= 1, "num_nextn_predict_layers", "0 or 1", &self.mtp_layers);
        if problems.is_empty() { Ok(()) } else { Err(ConfigError::Fields(problems)) }
    }
}
