//! Copies from a golden folder what this repository carries, in files below 2 MB.
//!
//! ```text
//! cargo run -p reference --bin extract-golden -- DIR [OUT]
//! ```
//!
//! `DIR` is a complete golden folder; `OUT` is `reference/golden` unless given. Names, shapes, types and bytes of the
//! tensors stay; large files are split into parts `NAME.1.safetensors` and so on, and `index.json` describes the parts.

use std::collections::{BTreeMap, HashMap};
use std::error::Error;
use std::path::{Path, PathBuf};

use reference::golden::{Index, IndexFile, Tensor, parse};
use safetensors::Dtype;
use safetensors::tensor::{TensorView, serialize};
use sha2::{Digest, Sha256};

/// Target file, source file, and the tensors by prefix.
const PARTS: [(&str, &str, &[&str]); 18] = [
    ("kernels.1", "kernels", &["seq_len", "n_rows", "page_table", "kv."]),
    ("kernels.2", "kernels", &["index."]),
    ("kernels.3", "kernels", &["attn."]),
    ("kernels.4", "kernels", &["linear."]),
    ("goldens.1", "goldens", &["probe_positions", "layers.*.q", "layers.*.topk"]),
    ("goldens.2", "goldens", &["layers.*.index_w", "layers.*.index_k"]),
    ("goldens.3", "goldens", &["input_ids", "gen.", "logits", "layers.*.attn_in", "layers.*.attn_out"]),
    ("goldens.4", "goldens", &["layers.0.kv", "layers.1.kv", "layers.*.hc_", "layers.*.expert_"]),
    (
        "goldens.5",
        "goldens",
        &["layers.2.kv", "layers.3.kv", "layers.*.dec.", "layers.*.index_logits", "layers.*.topk_margin"],
    ),
    (
        "goldens.6",
        "goldens",
        &["layers.*.attn_core", "layers.*.ffn_in", "layers.*.moe_out", "layers.*.streams_", "layers.*.state."],
    ),
    ("goldens.7", "goldens", &["layers.*.index_q", "layers.*.comp", "layers.*.end."]),
    ("goldens-kvfp8.1", "goldens-kvfp8", &["layers.*.attn_core"]),
    (
        "goldens-kvfp8.2",
        "goldens-kvfp8",
        &["layers.*.kv_codes", "layers.*.kv_scale", "layers.*.kv_rope", "layers.*.comp_"],
    ),
    ("goldens-kvfp8.3", "goldens-kvfp8", &["layers.*.attn_out", "layers.*.free.", "gen.", "logits"]),
    ("goldens-index-bf16", "goldens-index-bf16", INDEX),
    ("goldens-index-fp8", "goldens-index-fp8", INDEX),
    ("goldens-index-fp8pow2", "goldens-index-fp8pow2", INDEX),
    ("goldens-index-mxfp4", "goldens-index-mxfp4", INDEX),
];

const INDEX: &[&str] = &[
    "layers.*.index_",
    "layers.*.topk",
    "layers.*.topk_margin",
    "layers.*.attn_out",
    "layers.*.free.",
    "gen.",
    "logits",
];

/// Largest file, bytes.
const LIMIT: usize = 2_000_000;

/// A pattern ending in `.` or `_` is a prefix, any other the whole name; `*` stands for the layer number.
fn matches(name: &str, pattern: &str) -> bool {
    let layer = name.strip_prefix("layers.").and_then(|rest| rest.split('.').next()).unwrap_or("");
    let pattern = pattern.replace('*', layer);
    if pattern.ends_with(['.', '_']) { name.starts_with(&pattern) } else { name == pattern }
}

fn write(path: &Path, tensors: &BTreeMap<String, Tensor>) -> Result<String, Box<dyn Error>> {
    let mut views = BTreeMap::new();
    for (name, tensor) in tensors {
        let dtype: Dtype = serde_json::from_value(serde_json::Value::from(tensor.dtype.as_str()))?;
        views.insert(name, TensorView::new(dtype, tensor.shape.clone(), &tensor.bytes)?);
    }
    let bytes = serialize(views, None::<HashMap<String, String>>)?;
    if bytes.len() > LIMIT {
        return Err(format!("{}: expected at most {LIMIT} bytes, got {}", path.display(), bytes.len()).into());
    }
    std::fs::write(path, &bytes)?;
    println!("{:>9} {}", bytes.len(), path.display());
    Ok(Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The quantised checkpoint in shards below the limit, and what its tensors decode to, by hash.
fn extract_model(dir: &Path, out: &Path) -> Result<(), Box<dyn Error>> {
    std::fs::create_dir_all(out)?;
    let mut tensors = BTreeMap::new();
    for entry in std::fs::read_dir(dir.join("ckpt-fp8fp4"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "safetensors") {
            tensors.append(&mut parse(&path.display().to_string(), &std::fs::read(&path)?)?);
        }
    }
    let total: usize = tensors.values().map(|tensor| tensor.bytes.len()).sum();
    // Headers take part of a file: aim below the limit, by less than which no tensor is larger.
    let count = total.div_ceil(LIMIT * 3 / 4);
    let mut shards = vec![BTreeMap::new(); count];
    let mut at = 0;
    for (name, tensor) in tensors {
        let bytes = tensor.bytes.len();
        shards[at * count / total].insert(name, tensor);
        at += bytes;
    }
    let mut weight_map = BTreeMap::new();
    for (shard, tensors) in shards.iter().enumerate() {
        let file = format!("model-{:05}-of-{count:05}.safetensors", shard + 1);
        write(&out.join(&file), tensors)?;
        weight_map.extend(tensors.keys().map(|name| (name, file.clone())));
    }
    let index = serde_json::json!({"metadata": {"total_size": total}, "weight_map": weight_map});
    std::fs::write(out.join("model.safetensors.index.json"), serde_json::to_string_pretty(&index)? + "\n")?;
    std::fs::write(out.join("config.json"), std::fs::read(dir.join("ckpt-fp8fp4/config.json"))?)?;

    let file = "ckpt-fp32/model.safetensors";
    let decoded = parse(file, &std::fs::read(dir.join(file))?)?;
    let hash = |tensor: &Tensor| -> String {
        Sha256::digest(&tensor.bytes).iter().map(|byte| format!("{byte:02x}")).collect()
    };
    let hashes: BTreeMap<&String, String> = decoded.iter().map(|(name, tensor)| (name, hash(tensor))).collect();
    std::fs::write(out.join("decoded.sha256.json"), serde_json::to_string_pretty(&hashes)? + "\n")?;
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let usage = "usage: extract-golden DIR [OUT]";
    let dir = PathBuf::from(args.next().ok_or(usage)?);
    let out = args.next().map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("golden"), PathBuf::from);
    let index: Index = serde_json::from_slice(&std::fs::read(dir.join("index.json"))?)?;
    std::fs::create_dir_all(out.join("ckpt-fp32"))?;

    let mut files = BTreeMap::new();
    for (target, source, patterns) in PARTS {
        let file = format!("{source}.safetensors");
        let entry = index.files.get(&file).ok_or_else(|| format!("index.json: no entry for {file}"))?;
        let chosen = |name: &str| patterns.iter().any(|pattern| matches(name, pattern));
        let mut tensors = parse(&file, &std::fs::read(dir.join(&file))?)?;
        tensors.retain(|name, _| chosen(name));
        let target = format!("{target}.safetensors");
        let sha256 = write(&out.join(&target), &tensors)?;
        let described = entry.tensors.iter().filter(|(name, _)| chosen(name));
        let described = described.map(|(name, tensor)| (name.clone(), tensor.clone())).collect();
        files.insert(target, IndexFile { sha256, tensors: described });
    }
    let file = "ckpt-fp32/model.safetensors";
    let mut sinks = parse(file, &std::fs::read(dir.join(file))?)?;
    sinks.retain(|name, _| name.ends_with(".attn_sink"));
    write(&out.join(file), &sinks)?;
    std::fs::copy(dir.join("ckpt-fp32/config.json"), out.join("ckpt-fp32/config.json"))?;

    extract_model(&dir, &out.join("model"))?;
    let index = Index { files, ..index };
    std::fs::write(out.join("index.json"), serde_json::to_string_pretty(&index)? + "\n")?;
    Ok(())
}
