use super::*;
use LayerKind::{Csa, Hca, Swa};
use proptest::prelude::*;
use serde_json::{Value, json};

/// The fields of a transformers `config.json` for the sizes of `tiny` (its MTP count is kept, its MTP layer is not stored).
fn transformers_tiny() -> Value {
    let mut value: Value = serde_json::from_str(&ModelConfig::tiny().to_json()).unwrap();
    let map = value.as_object_mut().unwrap();
    let official = ["compress_ratios", "num_hash_layers", "qk_rope_head_dim", "rope_scaling", "rope_theta"];
    for field in official.into_iter().chain(["compress_rope_theta", "expert_dtype", "quantization_config"]) {
        map.remove(field).unwrap();
    }
    let (sliding, sparse) = ("sliding_attention", "compressed_sparse_attention");
    let heavy = "heavily_compressed_attention";
    map.insert("layer_types".into(), json!([sliding, sparse, heavy, sparse]));
    map.insert("compress_rates".into(), json!({sparse: 4, heavy: 128}));
    map.insert("mlp_layer_types".into(), json!(["hash_moe", "hash_moe", "moe", "moe"]));
    map.insert("partial_rotary_factor".into(), json!(0.125));
    let compress = json!({
        "rope_type": "yarn", "factor": 16.0, "beta_fast": 32, "beta_slow": 1, "attention_factor": 1.0,
        "original_max_position_embeddings": 65536, "rope_theta": 160000.0, "partial_rotary_factor": 0.125,
    });
    let main = json!({"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.125});
    map.insert("rope_parameters".into(), json!({"main": main, "compress": compress}));
    value
}

fn problems(value: &Value) -> Vec<FieldProblem> {
    match ModelConfig::from_json(&value.to_string()) {
        Err(ConfigError::Fields(problems)) => problems,
        other => panic!("expected problems, got {other:?}"),
    }
}

#[test]
fn schedules() {
    let flash = ModelConfig::v4_flash();
    assert_eq!(flash.layers.len(), 43);
    assert_eq!([Swa, Csa, Hca].map(|k| flash.count(k)), [2, 21, 20]);
    let pro = ModelConfig::v4_pro();
    assert_eq!(pro.layers.len(), 61);
    assert_eq!([Swa, Csa, Hca].map(|k| pro.count(k)), [0, 30, 31]);
    assert_eq!(ModelConfig::flash_layers(5).unwrap().layers, [Swa, Swa, Csa, Hca, Csa]);
    assert_eq!(ModelConfig::flash_layers(1).unwrap().num_hash_layers, 1);
    assert_eq!([0, 44].map(ModelConfig::flash_layers), [None, None]);
    assert_eq!(ModelConfig::preset("flash-5-layers"), ModelConfig::flash_layers(5));
    assert_eq!(["flash-0-layers", "flash--layers", "tiny "].map(ModelConfig::preset), [None, None, None]);
    assert_eq!(ModelConfig::v4_flash().o_group_inputs(), 4096);
    assert_eq!(ModelConfig::v4_flash().hc_mixes(), 24);
}

/// A token that completes a window of the compressor sees that window's row at once.
#[test]
fn causal_rule() {
    assert_eq!([2, 3, 4, 7].map(|p| Csa.compressed_rows(p)), [0, 1, 1, 2]);
    assert_eq!([126, 127, 255].map(|p| Hca.compressed_rows(p)), [0, 1, 2]);
    assert_eq!(Swa.compressed_rows(1 << 20), 0);
    assert_eq!(Csa.compressed_rows(u32::MAX), 1 << 30);
}

#[test]
fn presets_read_back() {
    let five = ModelConfig::flash_layers(5).unwrap();
    for config in [ModelConfig::v4_flash(), ModelConfig::v4_pro(), ModelConfig::mini(), ModelConfig::tiny(), five] {
        config.check().unwrap();
        assert_eq!(ModelConfig::from_json(&config.to_json()).unwrap(), config);
    }
}

#[test]
fn transformers_names() {
    let want = ModelConfig { mtp_layers: 0, expert_dtype: None, quantised: false, ..ModelConfig::tiny() };
    assert_eq!(ModelConfig::from_json(&transformers_tiny().to_string()).unwrap(), want);
    let mut value = transformers_tiny();
    value["layer_types"][1] = json!("full_attention");
    value["compress_rates"]["heavily_compressed_attention"] = json!(16);
    value["rope_parameters"]["compress"]["attention_factor"] = json!(1.277);
    value["mlp_layer_types"] = json!(["hash_moe", "moe", "hash_moe", "moe"]);
    let found: Vec<String> = problems(&value).into_iter().map(|problem| problem.field).collect();
    let heavy = "compress_rates.heavily_compressed_attention";
    assert_eq!(found, ["layer_types", heavy, "rope_parameters.compress.attention_factor", "mlp_layer_types"]);
}

/// The refreshed model: 43 layers, three entries for a draft of another kind, which is not read.
#[test]
fn dspark_draft_is_no_mtp_layer() {
    let mut value: Value = serde_json::from_str(&ModelConfig::v4_flash().to_json()).unwrap();
    value["compress_ratios"].as_array_mut().unwrap().extend([json!(0), json!(0)]);
    assert_eq!(problems(&value)[0].got, "46 entries");
    value["dspark_block_size"] = json!(5);
    let config = ModelConfig::from_json(&value.to_string()).unwrap();
    assert_eq!(config, ModelConfig { mtp_layers: 0, ..ModelConfig::v4_flash() });
}

/// Every number and list of a file, absent or of the wrong type, is named; so is every fixed field with another value.
#[test]
fn each_field_is_named() {
    let whole: Value = serde_json::from_str(&ModelConfig::tiny().to_json()).unwrap();
    let optional = ["architectures", "attention_dropout", "quantization_config", "expert_dtype"];
    for field in whole.as_object().unwrap().keys().filter(|field| !optional.contains(&field.as_str())) {
        let mut value = whole.clone();
        value[field] = json!("x");
        let problems = problems(&value);
        assert!(problems.iter().any(|p| p.field.starts_with(field.as_str())), "{field}: {problems:?}");
        assert!(problems[0].got.contains('x'), "{field}: {problems:?}");
    }
    for field in ["hidden_size", "compress_ratios", "rope_scaling", "eos_token_id", "hc_eps"] {
        let mut value = whole.clone();
        value.as_object_mut().unwrap().remove(field);
        let problems = problems(&value);
        assert_eq!((problems[0].field.as_str(), problems[0].got.as_str()), (field, "nothing"));
    }
}

/// Values of the right type that no operation can run, all reported together.
#[test]
fn ranges() {
    let change = |field: &str, to: Value| {
        let mut value: Value = serde_json::from_str(&ModelConfig::tiny().to_json()).unwrap();
        value[field] = to;
        problems(&value)[0].to_string()
    };
    assert_eq!(change("o_groups", json!(3)), "o_groups: expected a divisor of num_attention_heads 8, got 3");
    assert_eq!(change("hidden_size", json!(100)), "hidden_size: expected a multiple of 32 up to 1048576, got 100");
    assert_eq!(change("index_head_dim", json!(96)), "index_head_dim: expected a power of two up to 4096, got 96");
    assert!(change("num_experts_per_tok", json!(7)).contains("1 to 6"));
    assert!(change("qk_rope_head_dim", json!(130)).contains("up to head_dim and index_head_dim (128)"));
    assert!(change("compress_ratios", json!([0, 4, 8, 4, 0])).contains("0, 4 or 128 per layer, got [0,4,8,4,0]"));
    assert!(change("compress_ratios", json!([0, 4, 128])).contains("4 entries for the layers and 1 for the MTP"));
    assert!(change("eos_token_id", json!([1, 256])).contains("ids below vocab_size 256, got [1, 256]"));
    assert!(change("quantization_config", json!({"weight_block_size": [64, 64]})).contains("[128,128], got [64,64]"));
    assert!(change("num_nextn_predict_layers", json!(2)).contains("and 2 for the MTP layers, got 5 entries"));
    let broken = ModelConfig { vocab_size: 0, window: 0, rms_norm_eps: f32::NAN, hc_mult: 3, ..ModelConfig::tiny() };
    let Err(ConfigError::Fields(problems)) = broken.check() else { panic!("accepted") };
    let fields: Vec<&str> = problems.iter().map(|p| p.field.as_str()).collect();
    assert_eq!(fields, ["vocab_size", "sliding_window", "hc_mult", "rms_norm_eps", "bos_token_id", "eos_token_id"]);
}

#[test]
fn text_that_is_no_object() {
    for text in ["", "[]", "3", "{", "{\"vocab_size\": }", "null"] {
        assert!(matches!(ModelConfig::from_json(text), Err(ConfigError::Json(_))), "{text:?}");
    }
    assert!(ModelConfig::open("/nonexistent").unwrap_err().to_string().contains("/nonexistent/config.json"));
}

proptest! {
    /// Flipped, cut and repeated bytes: refused or read, never a panic.
    #[test]
    fn damaged_text_never_panics(at in 0usize..2000, byte: u8, cut in 0usize..2000, transformers: bool) {
        let text = if transformers { transformers_tiny().to_string() } else { ModelConfig::tiny().to_json() };
        let mut bytes = text.into_bytes();
        let (at, cut) = (at % bytes.len(), cut % bytes.len());
        bytes[at] = byte;
        let _ = ModelConfig::from_json(&String::from_utf8_lossy(&bytes));
        let _ = ModelConfig::from_json(&String::from_utf8_lossy(&bytes[..cut]));
    }

    /// Any scalar in any field: refused or read, and what is read passes its own check.
    #[test]
    fn any_value_in_any_field(which in 0usize..64, pick in 0usize..9) {
        let values = [json!(0), json!(-1), json!(1e308), json!(4294967296u64), json!(null), json!(""), json!([]),
            json!([{}]), json!({})];
        for mut value in [serde_json::from_str(&ModelConfig::tiny().to_json()).unwrap(), transformers_tiny()] {
            let map = value.as_object_mut().unwrap();
            let field = map.keys().nth(which % map.len()).unwrap().clone();
            map.insert(field, values[pick].clone());
            if let Ok(config) = ModelConfig::from_json(&value.to_string()) {
                prop_assert!(config.check().is_ok());
            }
        }
    }
}
