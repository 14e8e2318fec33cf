//! The text of `config.json`: DeepSeek's fields, and where transformers writes others, those.
//!
//! | DeepSeek | transformers |
//! |---|---|
//! | `compress_ratios`: trunk, then one 0 per MTP layer | `layer_types`, `compress_rates` (4 and 128) |
//! | `num_hash_layers` | `mlp_layer_types`: `hash_moe`, then `moe` |
//! | `qk_rope_head_dim` | `partial_rotary_factor` of `head_dim` |
//! | `rope_theta`, `compress_rope_theta`, `rope_scaling` | `rope_parameters.main`, `rope_parameters.compress` |
//! | `expert_dtype` | `quantization_config.expert_dtype` |
//!
//! transformers keeps `num_nextn_predict_layers` but stores no MTP layer: with its names there is none.

use super::{ConfigError, ExpertDtype, FieldProblem, LayerKind, ModelConfig, Yarn};
use serde_json::{Map, Value};

/// Fields that would mean another network: whoever states them has to state this.
const FIXED: [(&str, &[&str]); 9] = [
    ("model_type", &["\"deepseek_v4\""]),
    ("num_key_value_heads", &["1"]),
    ("scoring_func", &["\"sqrtsoftplus\""]),
    ("topk_method", &["\"noaux_tc\""]),
    ("norm_topk_prob", &["true"]),
    ("tie_word_embeddings", &["false"]),
    ("hidden_act", &["\"silu\""]),
    ("attention_bias", &["false"]),
    ("mlp_bias", &["false"]),
];

/// The same for `quantization_config`.
const FIXED_QUANTISATION: [(&str, &[&str]); 5] = [
    ("quant_method", &["\"fp8\""]),
    ("fmt", &["\"e4m3\""]),
    // The base model has f32 scales; which ones a file has, its tensors say.
    ("scale_fmt", &["\"ue8m0\"", "\"float\"", "null"]),
    ("activation_scheme", &["\"dynamic\""]),
    ("weight_block_size", &["[128,128]"]),
];

const LAYER_TYPES: [(&str, LayerKind); 3] = [
    ("sliding_attention", LayerKind::Swa),
    ("compressed_sparse_attention", LayerKind::Csa),
    ("heavily_compressed_attention", LayerKind::Hca),
];

/// An object and what was wrong with its fields so far.
struct Fields<'a> {
    map: &'a Map<String, Value>,
    /// Name of the object with its dot, empty at the top.
    path: &'static str,
    problems: &'a mut Vec<FieldProblem>,
}

/// A value as a message shows it: short.
fn show(value: Option<&Value>) -> String {
    let text = value.map_or("nothing".to_owned(), Value::to_string);
    if text.len() <= 60 { text } else { text.chars().take(57).chain("...".chars()).collect() }
}

impl<'a> Fields<'a> {
    fn problem(&mut self, field: &str, expected: impl Into<String>, got: impl Into<String>) {
        let field = format!("{}{field}", self.path);
        self.problems.push(FieldProblem { field, expected: expected.into(), got: got.into() });
    }

    /// A present field; JSON's null counts as absent.
    fn get(&self, field: &str) -> Option<&'a Value> {
        self.map.get(field).filter(|value| !value.is_null())
    }

    /// What `take` makes of a field, or the default of its type and a problem.
    fn field<T: Default>(&mut self, field: &str, expected: &str, take: impl Fn(&Value) -> Option<T>) -> T {
        let taken = self.get(field).and_then(take);
        taken.unwrap_or_else(|| {
            let got = show(self.map.get(field));
            self.problem(field, expected, got);
            T::default()
        })
    }

    fn u32(&mut self, field: &str) -> u32 {
        self.field(field, "a whole number below 2^32", to_u32)
    }

    fn f64(&mut self, field: &str) -> f64 {
        self.field(field, "a number", Value::as_f64)
    }

    fn f32(&mut self, field: &str) -> f32 {
        self.f64(field) as f32
    }

    fn list<T>(&mut self, field: &str, expected: &str, take: impl Fn(&Value) -> Option<T>) -> Vec<T> {
        self.field(field, expected, |value| value.as_array()?.iter().map(&take).collect())
    }

    fn fixed(&mut self, fields: &[(&str, &[&str])]) {
        for (field, accepted) in fields {
            let Some(value) = self.map.get(*field) else { continue };
            if !accepted.contains(&value.to_string().as_str()) {
                self.problem(field, accepted.join(" or "), show(Some(value)));
            }
        }
    }

    fn object(&mut self, field: &str, path: &'static str) -> Option<Fields<'_>> {
        let map = match self.get(field)? {
            Value::Object(map) => map,
            other => {
                let got = show(Some(other));
                self.problem(field, "an object", got);
                return None;
            }
        };
        Some(Fields { map, path, problems: self.problems })
    }
}

fn to_u32(value: &Value) -> Option<u32> {
    u32::try_from(value.as_u64()?).ok()
}

pub(super) fn read(text: &str) -> Result<ModelConfig, ConfigError> {
    let value: Value = serde_json::from_str(text).map_err(|error| ConfigError::Json(error.to_string()))?;
    let map = value.as_object().ok_or_else(|| ConfigError::Json(show(Some(&value))))?;
    let mut problems = Vec::new();
    let mut top = Fields { map, path: "", problems: &mut problems };
    top.fixed(&FIXED);
    let (layers, mtp_layers) = schedule(&mut top);
    let head_dim = top.u32("head_dim");
    let (rope_theta, compress_rope_theta, yarn) = rope(&mut top);
    let (quantised, expert_dtype) = quantisation(&mut top);
    let config = ModelConfig {
        vocab_size: top.u32("vocab_size"),
        hidden_size: top.u32("hidden_size"),
        num_hash_layers: hash_layers(&mut top),
        layers,
        heads: top.u32("num_attention_heads"),
        head_dim,
        rope_dim: rope_dim(&mut top, head_dim),
        q_lora_rank: top.u32("q_lora_rank"),
        o_groups: top.u32("o_groups"),
        o_lora_rank: top.u32("o_lora_rank"),
        window: top.u32("sliding_window"),
        index_heads: top.u32("index_n_heads"),
        index_head_dim: top.u32("index_head_dim"),
        index_topk: top.u32("index_topk"),
        experts: top.u32("n_routed_experts"),
        experts_per_tok: top.u32("num_experts_per_tok"),
        moe_inter: top.u32("moe_intermediate_size"),
        shared_experts: top.u32("n_shared_experts"),
        routed_scaling: top.f32("routed_scaling_factor"),
        swiglu_limit: top.f32("swiglu_limit"),
        hc_mult: top.u32("hc_mult"),
        hc_sinkhorn_iters: top.u32("hc_sinkhorn_iters"),
        hc_eps: top.f32("hc_eps"),
        rms_norm_eps: top.f32("rms_norm_eps"),
        rope_theta,
        compress_rope_theta,
        yarn,
        max_position: top.u32("max_position_embeddings"),
        bos_id: top.u32("bos_token_id"),
        eos_ids: match top.get("eos_token_id") {
            Some(Value::Array(_)) => top.list("eos_token_id", "token ids", to_u32),
            _ => vec![top.u32("eos_token_id")],
        },
        mtp_layers,
        expert_dtype,
        quantised,
    };
    if problems.is_empty() { Ok(config) } else { Err(ConfigError::Fields(problems)) }
}

/// Kinds of the trunk's layers, and MTP layers.
fn schedule(top: &mut Fields<'_>) -> (Vec<LayerKind>, u32) {
    let num_layers = top.u32("num_hidden_layers") as usize;
    let mtp = top.u32("num_nextn_predict_layers");
    if top.get("compress_ratios").is_none() && top.get("layer_types").is_some() {
        let kind = |value: &Value| LAYER_TYPES.iter().find(|(name, _)| value == name).map(|&(_, kind)| kind);
        let names = "sliding_attention, compressed_sparse_attention or heavily_compressed_attention per layer";
        let kinds = top.list("layer_types", names, kind);
        if !kinds.is_empty() && kinds.len() != num_layers {
            let got = format!("{} entries", kinds.len());
            top.problem("layer_types", format!("num_hidden_layers = {num_layers} entries"), got);
        }
        if let Some(mut rates) = top.object("compress_rates", "compress_rates.") {
            rates.fixed(&[("compressed_sparse_attention", &["4"]), ("heavily_compressed_attention", &["128"])]);
        }
        return (kinds, 0);
    }
    let kind = |value: &Value| LayerKind::from_ratio(to_u32(value)?);
    let mut kinds = top.list("compress_ratios", "0, 4 or 128 per layer", kind);
    let is_dspark = top.get("dspark_block_size").is_some();
    let mtp = if is_dspark { 0 } else { mtp };
    let drafts = kinds.split_off(num_layers.min(kinds.len()));
    let drafts_fit = is_dspark || drafts.len() == mtp as usize || drafts.is_empty();
    if kinds.len() != num_layers || !drafts_fit {
        let expected = format!("{num_layers} entries for the layers and {mtp} for the MTP layers");
        top.problem("compress_ratios", expected, format!("{} entries", kinds.len() + drafts.len()));
    }
    if let Some(kind) = drafts.iter().find(|&&kind| kind != LayerKind::Swa) {
        top.problem("compress_ratios", "0 for MTP layers", format!("{kind:?}"));
    }
    (kinds, mtp)
}

fn hash_layers(top: &mut Fields<'_>) -> u32 {
    if top.get("num_hash_layers").is_some() || top.get("mlp_layer_types").is_none() {
        return top.u32("num_hash_layers");
    }
    let is_hash = |value: &Value| match value.as_str()? {
        "hash_moe" => Some(true),
        "moe" => Some(false),
        _ => None,
    };
    let types = top.list("mlp_layer_types", "hash_moe or moe per layer", is_hash);
    let leading = types.iter().take_while(|&&hash| hash).count();
    if types[leading..].contains(&true) {
        top.problem("mlp_layer_types", "hash_moe in leading layers only", "hash_moe behind moe");
    }
    leading as u32
}

fn rope_dim(top: &mut Fields<'_>, head_dim: u32) -> u32 {
    if top.get("qk_rope_head_dim").is_some() || top.get("partial_rotary_factor").is_none() {
        return top.u32("qk_rope_head_dim");
    }
    // transformers truncates the product as well; released factors are dyadic, so that nothing is lost.
    (f64::from(head_dim) * top.f64("partial_rotary_factor")) as u32
}

/// Base of SWA layers, base and stretching of the others.
fn rope(top: &mut Fields<'_>) -> (f64, f64, Yarn) {
    let nested = |value: &Value| value.get("main").is_some() && value.get("compress").is_some();
    if top.get("rope_parameters").is_some_and(nested) {
        let mut rope = top.object("rope_parameters", "rope_parameters.").expect("an object: it has fields");
        let main = rope.object("main", "rope_parameters.main.");
        let theta = main.map_or(0.0, |mut main| {
            main.fixed(&[("rope_type", &["\"default\""])]);
            main.f64("rope_theta")
        });
        let compress = rope.object("compress", "rope_parameters.compress.");
        let (compress_theta, yarn) = compress.map_or((0.0, yarn_of(None)), |mut compress| {
            let theta = compress.f64("rope_theta");
            (theta, yarn_of(Some(compress)))
        });
        return (theta, compress_theta, yarn);
    }
    let thetas = (top.f64("rope_theta"), top.f64("compress_rope_theta"));
    let name = if top.get("rope_scaling").is_none() { "rope_parameters" } else { "rope_scaling" };
    let missing = top.get(name).is_none();
    if missing {
        top.problem("rope_scaling", "an object with the yarn parameters", "nothing");
    }
    (thetas.0, thetas.1, yarn_of(top.object(name, "rope_scaling.")))
}

fn yarn_of(fields: Option<Fields<'_>>) -> Yarn {
    let Some(mut fields) = fields else {
        return Yarn { factor: 0.0, original_positions: 0, beta_fast: 0.0, beta_slow: 0.0 };
    };
    // Cosines and sines unscaled: a file that asks for another factor describes another model.
    fields.fixed(&[("attention_factor", &["1.0", "1", "null"])]);
    let kind = if fields.get("type").is_some() { "type" } else { "rope_type" };
    fields.field(kind, "\"yarn\"", |value| (value == "yarn").then_some(()));
    Yarn {
        factor: fields.f64("factor"),
        original_positions: fields.u32("original_max_position_embeddings"),
        beta_fast: fields.f64("beta_fast"),
        beta_slow: fields.f64("beta_slow"),
    }
}

fn quantisation(top: &mut Fields<'_>) -> (bool, Option<ExpertDtype>) {
    let expert_dtype = |fields: &mut Fields<'_>| {
        fields.get("expert_dtype")?;
        fields.field("expert_dtype", "\"fp4\" or \"fp8\"", |value| match value.as_str()? {
            "fp4" => Some(Some(ExpertDtype::Fp4)),
            "fp8" => Some(Some(ExpertDtype::Fp8)),
            _ => None,
        })
    };
    let stated = expert_dtype(top);
    let Some(mut fields) = top.object("quantization_config", "quantization_config.") else { return (false, stated) };
    fields.fixed(&FIXED_QUANTISATION);
    (true, expert_dtype(&mut fields).or(stated))
}
