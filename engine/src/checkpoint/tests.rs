mod damage;
mod made;

use super::names::{Naming, place, tensors};
use super::*;
use crate::config::LayerKind;
use proptest::prelude::*;
use reference::formats;
use reference::golden::GoldenDir;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;

fn hex(bytes: impl AsRef<[u8]>) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Values in little-endian f32; integers as they are.
fn decoded(tensor: &TensorView<'_>) -> Vec<u8> {
    match tensor.storage {
        Storage::S64 => tensor.bytes.to_vec(),
        _ => tensor.f32s(0..tensor.rows()).unwrap().into_iter().flat_map(f32::to_le_bytes).collect(),
    }
}

/// A model of all layer kinds in a few kilobytes.
fn micro() -> ModelConfig {
    ModelConfig {
        vocab_size: 16,
        hidden_size: 32,
        layers: vec![LayerKind::Swa, LayerKind::Csa, LayerKind::Hca],
        num_hash_layers: 1,
        heads: 2,
        head_dim: 8,
        rope_dim: 4,
        q_lora_rank: 8,
        o_groups: 2,
        o_lora_rank: 4,
        window: 4,
        index_heads: 2,
        index_head_dim: 4,
        index_topk: 4,
        experts: 3,
        experts_per_tok: 2,
        moe_inter: 32,
        ..ModelConfig::tiny()
    }
}

/// The whole golden checkpoint, fp8 and fp4, decodes to the model that was stored in f32, bit for bit.
#[test]
fn golden_checkpoint_decodes_exactly() {
    let checkpoint = Checkpoint::open(GoldenDir::model()).unwrap();
    let want = json(&GoldenDir::model().join("decoded.sha256.json"));
    let mut seen = BTreeSet::new();
    for tensor in checkpoint.tensors() {
        assert_eq!(hex(decoded(&tensor)), want[tensor.name].as_str().unwrap(), "{}", tensor.name);
        seen.insert(tensor.storage);
    }
    assert_eq!(checkpoint.tensors().count(), want.as_object().unwrap().len());
    let stores = [Storage::F32, Storage::Bf16, Storage::Fp8Block128, Storage::Fp4Block32, Storage::S64];
    assert_eq!(seen, BTreeSet::from(stores));
    assert_eq!(checkpoint.naming(), Naming::Official);
    let ids = checkpoint.read_ids("layers.0.ffn.gate.tid2eid", checkpoint.config().experts).unwrap();
    assert_eq!(ids.len(), 256 * 3);
    let refused = checkpoint.read_ids("layers.0.ffn.gate.tid2eid", 5).unwrap_err().to_string();
    assert!(refused.contains("expected ids below 5, got 5 at element"), "{refused}");
}

/// Counts and sizes of the released checkpoints: 69,187 tensors on 148.66 GiB of disk (Flash), 805 GiB (Pro).
#[test]
fn released_sizes() {
    let of = |config: &ModelConfig| {
        let make = make::Make { config, seed: 0, store: make::Store::Fp8Fp4, shard_bytes: u64::MAX };
        let scaled = tensors(config).iter().filter(|t| matches!(t.class, Class::Linear | Class::Expert)).count();
        (tensors(config).len() + scaled, make.bytes() as f64 / f64::from(1 << 30))
    };
    let (count, gibibytes) = of(&ModelConfig::v4_flash());
    assert_eq!(count, 69_187);
    // A header entry is about 130 bytes: 0.01 GiB in all.
    assert!((0.0..0.02).contains(&(148.66 - gibibytes)), "{gibibytes}");
    let (_, gibibytes) = of(&ModelConfig::v4_pro());
    assert!((805.0 - gibibytes).abs() < 1.0, "{gibibytes}");
}

/// The golden model as transformers names it, in memory and on disk: every stored tensor is made of the canonical tensors that
/// are mapped to it, in that order, and none is left over.
#[test]
fn names_of_transformers() {
    let record = json(&GoldenDir::model().join("transformers.json"));
    let config = ModelConfig::from_json(&record["config"].to_string()).unwrap();
    let golden = Checkpoint::open(GoldenDir::model()).unwrap();
    assert_eq!(config, ModelConfig { expert_dtype: None, quantised: false, ..golden.config().clone() });
    for (naming, key) in [(Naming::Transformers, "state_dict"), (Naming::Hybrid, "save_pretrained")] {
        let stored = record[key].as_object().unwrap();
        assert_eq!(Naming::of(stored.keys().map(String::as_str)), naming);
        let mut parts: BTreeMap<String, BTreeMap<u64, Vec<u8>>> = BTreeMap::new();
        for spec in tensors(&config) {
            let place = place(&spec, naming, &config);
            let want = stored.get(&place.name).unwrap_or_else(|| panic!("{} is not in {key}", place.name));
            assert_eq!(want["shape"], serde_json::json!(place.shape), "{}", place.name);
            let tensor = golden.tensor(&spec.name).unwrap();
            parts.entry(place.name).or_default().insert(place.first_row, decoded(&tensor));
        }
        assert_eq!(parts.len(), stored.len(), "every tensor of {key} is used");
        for (name, parts) in parts {
            let whole: Vec<u8> = parts.into_values().flatten().collect();
            assert_eq!(hex(whole), stored[&name]["sha256"].as_str().unwrap(), "{name}");
        }
    }
}

/// A transformers checkpoint in which every element tells where it stands: the parts of stacked experts are the right ones.
#[test]
fn stacked_experts() {
    let config = ModelConfig { mtp_layers: 0, expert_dtype: None, quantised: false, ..micro() };
    let folder = tempfile::tempdir().unwrap();
    let mut stored: BTreeMap<String, (Vec<u32>, Class)> = BTreeMap::new();
    for spec in tensors(&config) {
        let place = place(&spec, Naming::Transformers, &config);
        stored.insert(place.name, (place.shape, spec.class));
    }
    let data: BTreeMap<&String, (safetensors::Dtype, Vec<usize>, Vec<u8>)> = stored
        .iter()
        .map(|(name, (shape, class))| {
            let shape: Vec<usize> = shape.iter().map(|&axis| axis as usize).collect();
            let numbers = 0..shape.iter().product::<usize>();
            let (dtype, bytes) = match class {
                Class::Ids => (safetensors::Dtype::I64, numbers.flat_map(|_| 1i64.to_le_bytes()).collect()),
                _ => (safetensors::Dtype::F32, numbers.flat_map(|n| (n as f32).to_le_bytes()).collect()),
            };
            (name, (dtype, shape, bytes))
        })
        .collect();
    let views = data.iter().map(|(name, (dtype, shape, bytes))| {
        (name, safetensors::tensor::TensorView::new(*dtype, shape.clone(), bytes).unwrap())
    });
    let bytes = safetensors::serialize(views, None::<std::collections::HashMap<String, String>>).unwrap();
    std::fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
    std::fs::write(folder.path().join("config.json"), config.to_json()).unwrap();

    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(checkpoint.naming(), Naming::Transformers);
    let (d, inter) = (config.hidden_size, config.moe_inter);
    for expert in 0..config.experts {
        // gate_up_proj [experts, 2 inter, d], gate first; down_proj [experts, d, inter].
        let first = [("w1", 2 * inter * d * expert), ("w3", (2 * expert + 1) * inter * d), ("w2", d * inter * expert)];
        for (matrix, first) in first {
            let name = format!("layers.1.ffn.experts.{expert}.{matrix}.weight");
            let values = checkpoint.read_f32(&name, 0..32).unwrap();
            let want: Vec<f32> = (first..first + inter * d).map(|n| n as f32).collect();
            assert_eq!(values, want, "{name}");
        }
    }
}

#[test]
fn codes_agree_with_the_reference() {
    for code in 0..=255u8 {
        let same = |here: f32, there: f32| here.to_bits() == there.to_bits() || (here.is_nan() && there.is_nan());
        assert!(same(decode::E4M3[code as usize], formats::e4m3_decode(code)), "e4m3 {code:#x}");
        assert!(same(decode::ue8m0(code), formats::ue8m0_decode(code)), "ue8m0 {code:#x}");
        assert!(same(decode::E2M1[code as usize & 15], formats::e2m1_decode(code)), "e2m1 {code:#x}");
    }
}

fn view<'a>(storage: Storage, shape: &'a [u32], bytes: &'a [u8], scale: &'a [u8]) -> TensorView<'a> {
    TensorView { name: "w", storage, shape, bytes, scale }
}

/// Blocks at edges: 130 x 160, whose last fp8 blocks are 2 rows and 32 columns.
#[test]
fn edge_blocks() {
    let shape = [130, 160];
    // e4m3 0x38 is 1; scales 2^0, 2^1, 2^2, 2^3.
    let codes = vec![0x38; 130 * 160];
    let values = view(Storage::Fp8Block128, &shape, &codes, &[127, 128, 129, 130]).f32s(0..130).unwrap();
    let at = |row: usize, column: usize| values[row * 160 + column];
    assert_eq!([at(0, 0), at(127, 127), at(127, 128), at(0, 159)], [1.0, 1.0, 2.0, 2.0]);
    assert_eq!([at(128, 0), at(129, 127), at(128, 128), at(129, 159)], [4.0, 4.0, 8.0, 8.0]);
    let scales: Vec<u8> = [0.3f32, 1.0, 2.0, 3.0].into_iter().flat_map(f32::to_le_bytes).collect();
    let values = view(Storage::Fp8Block128F32, &shape, &codes, &scales).f32s(127..129).unwrap();
    assert_eq!([values[0], values[159], values[160], values[319]], [0.3, 1.0, 2.0, 3.0]);
    // Low nibble first: 0x52 is 1 and 3.
    let scale: Vec<u8> = (0..130 * 5).map(|block| 127 + (block % 5) as u8).collect();
    let values = view(Storage::Fp4Block32, &shape, &vec![0x52; 130 * 80], &scale).f32s(129..130).unwrap();
    assert_eq!(
        [values[0], values[1], values[32], values[63], values[158], values[159]],
        [1.0, 3.0, 2.0, 6.0, 16.0, 48.0]
    );
}

#[test]
fn ranges_are_checked() {
    let codes = vec![0; 256 * 128];
    let fp8 = view(Storage::Fp8Block128, &[256, 128], &codes, &[127, 128]);
    assert_eq!(fp8.row_scales(128..256).unwrap(), [128]);
    assert_eq!(fp8.row_bytes(3..5).unwrap().len(), 256);
    let text = fp8.row_scales(64..128).unwrap_err().to_string();
    assert_eq!(text, "w: expected rows from a multiple of 128, which share scales, got 64..128");
    let text = fp8.f32s(0..257).unwrap_err().to_string();
    assert_eq!(text, "w: expected rows within 0..256, got 0..257");
    #[allow(clippy::reversed_empty_ranges)]
    let backwards = fp8.bf16s(2..1);
    assert!(backwards.is_err());
    assert!(fp8.ids(4).unwrap_err().to_string().contains("expected integers"));
    let ids = view(Storage::S32, &[2, 1], &[1, 0, 0, 0, 255, 255, 255, 255], &[]);
    assert_eq!(ids.ids(9).unwrap_err().to_string(), "w: expected ids below 9, got -1 at element 1");
    assert!(ids.f32s(0..1).is_err());
}

proptest! {
    /// Any part of the rows decodes to that part of the whole, in every storage and also where threads decode it.
    #[test]
    fn parts_of_rows(a in 0usize..256, b in 0usize..256, seed: u64) {
        let checkpoint = Checkpoint::open(GoldenDir::model()).unwrap();
        let (from, to) = (a.min(b), a.max(b));
        let names: Vec<&str> = checkpoint.tensors().map(|tensor| tensor.name).collect();
        let tensor = checkpoint.tensor(names[(seed % names.len() as u64) as usize]).unwrap();
        prop_assume!(tensor.storage != Storage::S64);
        let (rows, len) = (tensor.rows(), tensor.row_len());
        let (from, to) = (from * rows / 256, to * rows / 256);
        let whole = tensor.f32s(0..rows).unwrap();
        prop_assert_eq!(tensor.f32s(from..to).unwrap(), &whole[from * len..to * len]);
        let rounded: Vec<bf16> = whole[from * len..to * len].iter().map(|&x| bf16::from_f32(x)).collect();
        prop_assert_eq!(tensor.bf16s(from..to).unwrap(), rounded);
    }
}
