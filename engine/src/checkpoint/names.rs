//! The tensors of a model: canonical names are those of the released checkpoints; other namings are mapped to them.

use crate::config::{LayerKind, ModelConfig};

/// What a tensor is for, and with it how it may be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// Weights of a linear layer: fp8 blocks as released, else bf16 or f32.
    Linear,
    /// Weights of a routed expert: fp4 as released, fp8 blocks in the base model, else bf16 or f32.
    Expert,
    /// Values that are released in bf16; f32 is accepted.
    Bf16,
    /// Values that are released in f32; bf16 is accepted.
    F32,
    /// Expert ids: s64 as released, or s32.
    Ids,
}

/// A tensor that a configuration asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    /// Canonical name.
    pub name: String,
    /// Elements per axis, row-major; weights are `[out, in]`.
    pub shape: Vec<u32>,
    /// Class.
    pub class: Class,
}

/// Which names a checkpoint uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Naming {
    /// Of the released checkpoints: `layers.0.attn.wq_a.weight`.
    Official,
    /// Of transformers in memory, experts stacked: `model.layers.0.self_attn.q_a_proj.weight`.
    Transformers,
    /// What `save_pretrained` of transformers writes: official layers under `model.`, with the KV norm as `attn.norm`.
    Hybrid,
}

impl Naming {
    /// `official`, `transformers`, `hybrid`
    pub const fn name(self) -> &'static str {
        match self {
            Naming::Official => "official",
            Naming::Transformers => "transformers",
            Naming::Hybrid => "hybrid",
        }
    }

    /// The naming that names speak for.
    pub fn of<'a>(mut names: impl Iterator<Item = &'a str> + Clone) -> Naming {
        let mut others = names.clone();
        if others.any(|name| name.contains(".self_attn.") || name.contains(".mlp.")) {
            return Naming::Transformers;
        }
        if names.any(|name| name.starts_with("model.")) { Naming::Hybrid } else { Naming::Official }
    }
}

/// Where a checkpoint keeps a canonical tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The stored tensor.
    pub name: String,
    /// Its shape.
    pub shape: Vec<u32>,
    /// First row of the canonical tensor among the stored rows, all leading axes taken together.
    pub first_row: u64,
}

/// Every tensor of a model, in the order of the forward pass. Scales are not listed: a stored format brings its own.
pub fn tensors(config: &ModelConfig) -> Vec<TensorSpec> {
    let mut list = List { config, tensors: Vec::new() };
    list.add("", "embed.weight", &[config.vocab_size, config.hidden_size], Class::Bf16);
    for (layer, &kind) in config.layers.iter().enumerate() {
        list.block(&format!("layers.{layer}."), kind, (layer as u32) < config.num_hash_layers);
    }
    list.head("");
    list.add("", "head.weight", &[config.vocab_size, config.hidden_size], Class::Bf16);
    for layer in 0..config.mtp_layers {
        let prefix = format!("mtp.{layer}.");
        let d = config.hidden_size;
        for name in ["enorm.weight", "hnorm.weight"] {
            list.add(&prefix, name, &[d], Class::Bf16);
        }
        for name in ["e_proj.weight", "h_proj.weight"] {
            list.add(&prefix, name, &[d, d], Class::Linear);
        }
        list.block(&prefix, LayerKind::Swa, false);
        list.head(&prefix);
    }
    list.tensors
}

struct List<'a> {
    config: &'a ModelConfig,
    tensors: Vec<TensorSpec>,
}

impl List<'_> {
    fn add(&mut self, prefix: &str, name: &str, shape: &[u32], class: Class) {
        self.tensors.push(TensorSpec { name: format!("{prefix}{name}"), shape: shape.to_vec(), class });
    }

    /// Norm and stream mixer in front of the vocabulary.
    fn head(&mut self, prefix: &str) {
        let c = self.config;
        self.add(prefix, "norm.weight", &[c.hidden_size], Class::Bf16);
        self.add(prefix, "hc_head_fn", &[c.hc_mult, c.hc_mult * c.hidden_size], Class::F32);
        self.add(prefix, "hc_head_base", &[c.hc_mult], Class::F32);
        self.add(prefix, "hc_head_scale", &[1], Class::F32);
    }

    /// A layer.
    fn block(&mut self, prefix: &str, kind: LayerKind, is_hash: bool) {
        let c = self.config;
        for part in ["attn", "ffn"] {
            self.add(prefix, &format!("{part}_norm.weight"), &[c.hidden_size], Class::Bf16);
            let width = c.hc_mult * c.hidden_size;
            self.add(prefix, &format!("hc_{part}_fn"), &[c.hc_mixes(), width], Class::F32);
            self.add(prefix, &format!("hc_{part}_base"), &[c.hc_mixes()], Class::F32);
            self.add(prefix, &format!("hc_{part}_scale"), &[3], Class::F32);
        }
        self.attention(&format!("{prefix}attn."), kind);
        self.experts(&format!("{prefix}ffn."), is_hash);
    }

    fn attention(&mut self, prefix: &str, kind: LayerKind) {
        let c = self.config;
        let (d, latents) = (c.hidden_size, c.o_groups * c.o_lora_rank);
        self.add(prefix, "attn_sink", &[c.heads], Class::F32);
        self.add(prefix, "wq_a.weight", &[c.q_lora_rank, d], Class::Linear);
        self.add(prefix, "q_norm.weight", &[c.q_lora_rank], Class::Bf16);
        self.add(prefix, "wq_b.weight", &[c.heads * c.head_dim, c.q_lora_rank], Class::Linear);
        self.add(prefix, "wkv.weight", &[c.head_dim, d], Class::Linear);
        self.add(prefix, "kv_norm.weight", &[c.head_dim], Class::Bf16);
        self.add(prefix, "wo_a.weight", &[latents, c.o_group_inputs()], Class::Linear);
        self.add(prefix, "wo_b.weight", &[d, latents], Class::Linear);
        // Rows of ratio 4 overlap: every token gives one half to its own row, the other to the next.
        let Some(ratio) = kind.ratio() else { return };
        let halves = if kind == LayerKind::Csa { 2 } else { 1 };
        self.compressor(&format!("{prefix}compressor."), ratio, halves, c.head_dim);
        if kind == LayerKind::Csa {
            let index_q = [c.index_heads * c.index_head_dim, c.q_lora_rank];
            self.add(prefix, "indexer.wq_b.weight", &index_q, Class::Linear);
            self.add(prefix, "indexer.weights_proj.weight", &[c.index_heads, d], Class::Bf16);
            self.compressor(&format!("{prefix}indexer.compressor."), ratio, halves, c.index_head_dim);
        }
    }

    fn compressor(&mut self, prefix: &str, ratio: u32, halves: u32, dim: u32) {
        let d = self.config.hidden_size;
        self.add(prefix, "ape", &[ratio, halves * dim], Class::F32);
        self.add(prefix, "wkv.weight", &[halves * dim, d], Class::Bf16);
        self.add(prefix, "wgate.weight", &[halves * dim, d], Class::Bf16);
        self.add(prefix, "norm.weight", &[dim], Class::Bf16);
    }

    fn experts(&mut self, prefix: &str, is_hash: bool) {
        let c = self.config;
        let (d, inter) = (c.hidden_size, c.moe_inter);
        self.add(prefix, "gate.weight", &[c.experts, d], Class::Bf16);
        if is_hash {
            self.add(prefix, "gate.tid2eid", &[c.vocab_size, c.experts_per_tok], Class::Ids);
        } else {
            self.add(prefix, "gate.bias", &[c.experts], Class::F32);
        }
        let matrices = [("w1", [inter, d]), ("w2", [d, inter]), ("w3", [inter, d])];
        for expert in 0..c.experts {
            for (w, shape) in &matrices {
                self.add(prefix, &format!("experts.{expert}.{w}.weight"), shape, Class::Expert);
            }
        }
        for (w, shape) in &matrices {
            self.add(prefix, &format!("shared_experts.{w}.weight"), shape, Class::Linear);
        }
    }
}

/// Official name and transformers' name, outside of layers.
const TOP: [(&str, &str); 6] = [
    ("embed.weight", "model.embed_tokens.weight"),
    ("head.weight", "lm_head.weight"),
    ("norm.weight", "model.norm.weight"),
    ("hc_head_fn", "model.hc_head.hc_fn"),
    ("hc_head_base", "model.hc_head.hc_base"),
    ("hc_head_scale", "model.hc_head.hc_scale"),
];

/// The same within a layer.
const LAYER: [(&str, &str); 34] = [
    ("attn_norm.weight", "input_layernorm.weight"),
    ("ffn_norm.weight", "post_attention_layernorm.weight"),
    ("hc_attn_fn", "attn_hc.fn"),
    ("hc_attn_base", "attn_hc.base"),
    ("hc_attn_scale", "attn_hc.scale"),
    ("hc_ffn_fn", "ffn_hc.fn"),
    ("hc_ffn_base", "ffn_hc.base"),
    ("hc_ffn_scale", "ffn_hc.scale"),
    ("attn.attn_sink", "self_attn.sinks"),
    ("attn.wq_a.weight", "self_attn.q_a_proj.weight"),
    ("attn.q_norm.weight", "self_attn.q_a_norm.weight"),
    ("attn.wq_b.weight", "self_attn.q_b_proj.weight"),
    ("attn.wkv.weight", "self_attn.kv_proj.weight"),
    ("attn.kv_norm.weight", "self_attn.kv_norm.weight"),
    ("attn.wo_a.weight", "self_attn.o_a_proj.weight"),
    ("attn.wo_b.weight", "self_attn.o_b_proj.weight"),
    ("attn.compressor.ape", "self_attn.compressor.position_bias"),
    ("attn.compressor.wkv.weight", "self_attn.compressor.kv_proj.weight"),
    ("attn.compressor.wgate.weight", "self_attn.compressor.gate_proj.weight"),
    ("attn.compressor.norm.weight", "self_attn.compressor.kv_norm.weight"),
    ("attn.indexer.wq_b.weight", "self_attn.compressor.indexer.q_b_proj.weight"),
    ("attn.indexer.weights_proj.weight", "self_attn.compressor.indexer.scorer.weights_proj.weight"),
    ("attn.indexer.compressor.ape", "self_attn.compressor.indexer.position_bias"),
    ("attn.indexer.compressor.wkv.weight", "self_attn.compressor.indexer.kv_proj.weight"),
    ("attn.indexer.compressor.wgate.weight", "self_attn.compressor.indexer.gate_proj.weight"),
    ("attn.indexer.compressor.norm.weight", "self_attn.compressor.indexer.kv_norm.weight"),
    ("ffn.gate.weight", "mlp.gate.weight"),
    ("ffn.gate.tid2eid", "mlp.gate.tid2eid"),
    ("ffn.gate.bias", "mlp.gate.e_score_correction_bias"),
    ("ffn.shared_experts.w1.weight", "mlp.shared_experts.gate_proj.weight"),
    ("ffn.shared_experts.w2.weight", "mlp.shared_experts.down_proj.weight"),
    ("ffn.shared_experts.w3.weight", "mlp.shared_experts.up_proj.weight"),
    ("ffn.experts.w13", "mlp.experts.gate_up_proj"),
    ("ffn.experts.w2", "mlp.experts.down_proj"),
];

fn renamed<'a>(table: &[(&str, &'a str)], official: &str) -> &'a str {
    let row = table.iter().find(|(name, _)| *name == official);
    row.map(|(_, name)| *name).unwrap_or_else(|| unreachable!("no row for {official}"))
}

/// Where a checkpoint with this naming keeps a tensor of [`tensors`]. MTP tensors have the official place in any naming.
pub fn place(spec: &TensorSpec, naming: Naming, config: &ModelConfig) -> Place {
    let whole = |name: String| Place { name, shape: spec.shape.clone(), first_row: 0 };
    let layer = spec.name.strip_prefix("layers.").and_then(|rest| rest.split_once('.'));
    match (naming, layer) {
        _ if spec.name.starts_with("mtp.") => whole(spec.name.clone()),
        (Naming::Official, _) => whole(spec.name.clone()),
        (Naming::Hybrid, None) if spec.name == "head.weight" => whole(spec.name.clone()),
        (_, None) => whole(renamed(&TOP, &spec.name).to_owned()),
        (Naming::Hybrid, Some((layer, "attn.kv_norm.weight"))) => {
            whole(format!("model.layers.{layer}.attn.norm.weight"))
        }
        (Naming::Hybrid, Some(_)) => whole(format!("model.{}", spec.name)),
        (Naming::Transformers, Some((layer, rest))) => {
            let Some((expert, matrix)) = rest.strip_prefix("ffn.experts.").and_then(|rest| rest.split_once('.')) else {
                return whole(format!("model.layers.{layer}.{}", renamed(&LAYER, rest)));
            };
            // All experts in one tensor [experts, rows, k]; w1 and w3 in one, the gate (w1) first.
            let (stack, parts, part) = match matrix {
                "w2.weight" => ("ffn.experts.w2", 1, 0),
                "w1.weight" => ("ffn.experts.w13", 2, 0),
                _ => ("ffn.experts.w13", 2, 1),
            };
            let expert: u64 = expert.parse().unwrap_or_else(|_| unreachable!("{}", spec.name));
            let rows = u64::from(spec.shape[0]);
            Place {
                name: format!("model.layers.{layer}.{}", renamed(&LAYER, stack)),
                shape: vec![config.experts, parts * spec.shape[0], spec.shape[1]],
                first_row: (expert * u64::from(parts) + part) * rows,
            }
        }
    }
}
