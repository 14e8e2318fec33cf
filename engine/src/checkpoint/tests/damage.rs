//! Everything that can be wrong with files is named; nothing panics.

use super::*;
use crate::checkpoint::header;
use crate::checkpoint::make::{Make, Store};
use safetensors::Dtype;
use std::collections::HashMap;
use std::sync::LazyLock;

type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

/// A sound checkpoint of one file, made once.
static SOUND: LazyLock<(Vec<u8>, Tensors)> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    let (dir, config) = (folder.path().join("x"), micro());
    Make { config: &config, seed: 1, store: Store::Fp8Fp4, shard_bytes: u64::MAX }.run(&dir, |_| {}).unwrap();
    let bytes = std::fs::read(dir.join("model.safetensors")).unwrap();
    let parsed = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let tensors =
        parsed.iter().map(|(n, v)| (n.to_owned(), (v.dtype(), v.shape().to_vec(), v.data().to_vec()))).collect();
    (bytes, tensors)
});

fn serialize(tensors: &Tensors) -> Vec<u8> {
    let views = tensors.iter().map(|(name, (dtype, shape, bytes))| {
        (name, safetensors::tensor::TensorView::new(*dtype, shape.clone(), bytes).unwrap())
    });
    safetensors::serialize(views, None::<HashMap<String, String>>).unwrap()
}

/// What is said about files with these contents beside the configuration of [`micro`].
fn said(files: &[(&str, &[u8])]) -> String {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), micro().to_json()).unwrap();
    for (name, bytes) in files {
        std::fs::write(folder.path().join(name), bytes).unwrap();
    }
    match Checkpoint::open(folder.path()) {
        Err(error) => error.to_string(),
        Ok(checkpoint) => {
            for tensor in checkpoint.tensors().filter(|tensor| tensor.storage != Storage::S64) {
                tensor.f32s(0..tensor.rows()).unwrap();
            }
            "sound".to_owned()
        }
    }
}

/// The same for changed tensors of the sound checkpoint.
fn changed(change: impl FnOnce(&mut Tensors)) -> String {
    let mut tensors = SOUND.1.clone();
    change(&mut tensors);
    said(&[("model.safetensors", &serialize(&tensors))])
}

/// The same for a changed header; the data stays.
fn reheaded(change: impl FnOnce(&mut Value)) -> String {
    let bytes = &SOUND.0;
    let end = 8 + u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
    let mut header: Value = serde_json::from_slice(&bytes[8..end]).unwrap();
    change(&mut header);
    let header = header.to_string();
    let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &bytes[end..]].concat();
    said(&[("model.safetensors", &file)])
}

#[track_caller]
fn says(text: &str, wants: &[&str]) {
    for want in wants {
        assert!(text.contains(want), "expected {want:?} in:\n{text}");
    }
}

#[test]
fn sound() {
    assert_eq!(said(&[("model.safetensors", &SOUND.0)]), "sound");
    assert_eq!(changed(|_| {}), "sound");
    assert_eq!(reheaded(|_| {}), "sound");
}

#[test]
fn wrong_tensors_are_named() {
    let wq_a = "layers.1.attn.wq_a.weight";
    let text = changed(|tensors| _ = tensors.remove(wq_a));
    // Its scales are then nobody's.
    says(
        &text,
        &["2 problems", "layers.1.attn.wq_a.weight: expected [8, 32] F8_E4M3, BF16 or F32, got no such tensor"],
    );
    says(
        &text,
        &["layers.1.attn.wq_a.scale: expected no such tensor in this configuration, got one in model.safetensors"],
    );
    let text = changed(|tensors| _ = tensors.insert("layers.9.extra".into(), (Dtype::U8, vec![1], vec![0])));
    says(&text, &["1 problem\n", "layers.9.extra: expected no such tensor"]);
    let text = changed(|tensors| tensors.get_mut("norm.weight").unwrap().1 = vec![2, 16]);
    says(&text, &["norm.weight: expected [32] BF16 or F32, got [2, 16] BF16"]);
    let text = changed(|tensors| tensors.get_mut("norm.weight").unwrap().0 = Dtype::F16);
    says(&text, &["norm.weight: expected [32] BF16 or F32, got [32] F16"]);
    let text = changed(|tensors| tensors.get_mut("layers.0.ffn.gate.tid2eid").unwrap().0 = Dtype::F64);
    says(&text, &["layers.0.ffn.gate.tid2eid: expected [16, 2] I64 or I32, got [16, 2] F64"]);
    // fp4 codes only in experts, fp8 only in linear layers.
    let text = changed(|tensors| tensors.get_mut(wq_a).unwrap().0 = Dtype::I8);
    says(&text, &["expected [8, 32] F8_E4M3, BF16 or F32, got [8, 32] I8"]);
    let expert = "layers.2.ffn.experts.1.w3";
    let text = changed(|tensors| tensors.get_mut(&format!("{expert}.weight")).unwrap().1 = vec![16, 32]);
    says(
        &text,
        &["layers.2.ffn.experts.1.w3.weight: expected [32, 32] I8 (two e2m1 codes per byte)", "got [16, 32] I8"],
    );
}

#[test]
fn wrong_scales_are_named() {
    let scale = "layers.0.attn.wkv.scale";
    let text = changed(|tensors| _ = tensors.remove(scale));
    says(&text, &["1 problem\n", "layers.0.attn.wkv.scale: expected [1, 1] F8_E8M0 or F32, got no such tensor"]);
    let text = changed(|tensors| _ = tensors.insert(scale.into(), (Dtype::F8_E8M0, vec![1, 2], vec![127; 2])));
    says(&text, &["layers.0.attn.wkv.scale: expected [1, 1] F8_E8M0 or F32, got [1, 2] F8_E8M0"]);
    let expert = "layers.0.ffn.experts.0.w1.scale";
    let text = changed(|tensors| _ = tensors.insert(expert.into(), (Dtype::F32, vec![32, 1], vec![0; 128])));
    says(&text, &["layers.0.ffn.experts.0.w1.scale: expected [32, 1] F8_E8M0, got [32, 1] F32"]);
    // The base model's scales.
    let one = 1f32.to_le_bytes().to_vec();
    assert_eq!(changed(|tensors| _ = tensors.insert(scale.into(), (Dtype::F32, vec![1, 1], one))), "sound");
}

#[test]
fn experts_agree_with_each_other_and_the_configuration() {
    let bf16 = (Dtype::BF16, vec![32, 32], vec![0; 2048]);
    let to_bf16 = |tensors: &mut Tensors, name: &str| {
        tensors.insert(format!("{name}.weight"), bf16.clone());
        tensors.remove(&format!("{name}.scale"));
    };
    let text = changed(|tensors| to_bf16(tensors, "layers.1.ffn.experts.2.w1"));
    says(&text, &["1 problem\n", "layers.1.ffn.experts.2.w1.weight: expected e2m1 x ue8m0/32 as the other experts"]);
    let text = changed(|tensors| {
        for name in ["w1", "w2", "w3"].iter().flat_map(|w| (0..3).map(move |e| format!("layers.1.ffn.experts.{e}.{w}")))
        {
            to_bf16(tensors, &name);
        }
    });
    says(&text, &["1 problem\n", "layers.1.ffn.experts.0.w1.weight: expected Fp4 as config.json says, got bf16"]);
}

#[test]
fn all_problems_up_to_a_bound() {
    let text = changed(|tensors| {
        tensors.retain(|name, _| !name.contains("experts."));
        tensors.insert("surplus".into(), (Dtype::U8, vec![1], vec![0]));
    });
    // 4 layers (one of them MTP) with 9 routed and 3 shared matrices, and the surplus; 49 of 50 fit.
    says(&text, &["49 problems", "surplus: expected no such tensor"]);
    let text = changed(|tensors| tensors.clear());
    let count = tensors(&micro()).len();
    says(&text, &[&format!("{count} problems"), &format!("and {} more", count - Problems::KEPT)]);
}

#[test]
fn wrong_headers_are_named() {
    let at = |name: &str, field: &str, value: Value| reheaded(|header| header[name][field] = value);
    let text = at("norm.weight", "data_offsets", serde_json::json!([0, 1u64 << 40]));
    says(&text, &["model.safetensors: norm.weight: expected data_offsets within", "got [0, 1099511627776]"]);
    says(&text, &["1 problem\n"]);
    let text = at("norm.weight", "data_offsets", serde_json::json!([64, 0]));
    says(&text, &["norm.weight: expected data_offsets within", "got [64, 0]"]);
    let text = at("norm.weight", "data_offsets", serde_json::json!([0, 64]));
    says(&text, &["2 problems", "layers.0.ffn.gate.tid2eid: expected data from byte", "which overlaps norm.weight"]);
    says(&text, &["head.weight: expected data from byte", "which leaves a gap behind layers.2.ffn.gate.weight"]);
    let text = at("norm.weight", "shape", serde_json::json!([31]));
    says(&text, &["norm.weight: expected 62 bytes for BF16 [31], got 64 bytes"]);
    let text = at("norm.weight", "shape", serde_json::json!([u64::MAX, 2]));
    says(&text, &["norm.weight: expected more than 2^64 bytes"]);
    let text = at("norm.weight", "dtype", serde_json::json!("F3"));
    says(&text, &["norm.weight: expected dtype: a known type of whole bytes, got \"F3\""]);
    let text = at("norm.weight", "shape", serde_json::json!("x"));
    says(&text, &["norm.weight: expected shape: a list of numbers, got \"x\""]);
    let text = reheaded(|header| _ = header["norm.weight"].as_object_mut().unwrap().remove("data_offsets"));
    says(&text, &["norm.weight: expected data_offsets: a list of numbers, got nothing"]);
    let text = reheaded(|header| header["norm.weight"] = serde_json::json!(3));
    says(&text, &["norm.weight: expected dtype: a type, got nothing"]);
}

#[test]
fn wrong_files_are_named() {
    let whole = &SOUND.0;
    says(&said(&[]), &["expected model.safetensors or model.safetensors.index.json, got neither"]);
    let text = said(&[("model.safetensors", b"")]);
    says(&text, &["1 problem\n", "model.safetensors: expected a header length of 8 bytes, got a file of 0 bytes"]);
    let text = said(&[("model.safetensors", &[255; 64])]);
    says(
        &text,
        &["model.safetensors: expected a header of at most 56 bytes, got a header length of 18446744073709551615"],
    );
    let text = said(&[("model.safetensors", &[&8u64.to_le_bytes()[..], b"not json"].concat())]);
    says(&text, &["1 problem\n", "model.safetensors: expected a header in JSON, got"]);
    let text = said(&[("model.safetensors", &[whole, &b"tail"[..]].concat())]);
    says(&text, &[&format!("model.safetensors: expected {} bytes, as the header says", whole.len())]);
    says(&text, &["1 problem\n", &format!("got {} bytes", whole.len() + 4)]);
    let text = said(&[("model.safetensors", &whole[..whole.len() - 1])]);
    says(&text, &["1 problem\n", "expected data_offsets within"]);
}

#[test]
fn wrong_indices_are_named() {
    let (a, b): (Tensors, Tensors) = SOUND.1.clone().into_iter().partition(|(name, _)| name.as_str() < "layers.1");
    let map = |a: &Tensors, b: &Tensors| {
        let entries = a.keys().map(|name| (name, "a.safetensors")).chain(b.keys().map(|name| (name, "b.safetensors")));
        let map: BTreeMap<&String, &str> = entries.collect();
        serde_json::json!({"weight_map": map})
    };
    let check = |index: &Value, a: &Tensors, b: &Tensors| {
        let (index, a, b) = (index.to_string(), serialize(a), serialize(b));
        let name = "model.safetensors.index.json";
        said(&[(name, index.as_bytes()), ("a.safetensors", &a), ("b.safetensors", &b)])
    };
    assert_eq!(check(&map(&a, &b), &a, &b), "sound");
    // Two files have it; the index does not know it; it is in the other file; no file has it.
    let mut both = b.clone();
    both.insert("embed.weight".into(), a["embed.weight"].clone());
    says(
        &check(&map(&a, &b), &a, &both),
        &["embed.weight: expected one file with it, got a.safetensors and b.safetensors"],
    );
    let mut index = map(&a, &b);
    index["weight_map"].as_object_mut().unwrap().remove("embed.weight");
    let text = check(&index, &a, &b);
    says(
        &text,
        &["embed.weight: expected an entry in model.safetensors.index.json, got none, but it is in a.safetensors"],
    );
    let mut index = map(&a, &b);
    index["weight_map"]["embed.weight"] = "b.safetensors".into();
    says(&check(&index, &a, &b), &["embed.weight: expected it in b.safetensors", "got a.safetensors"]);
    index["weight_map"]["ghost"] = "b.safetensors".into();
    says(&check(&index, &a, &b), &["ghost: expected it in b.safetensors", "got no such tensor", "2 problems"]);
    // A shard that is not there is one problem, not one per tensor.
    let mut index = map(&a, &b);
    index["weight_map"]["embed.weight"] = "c.safetensors".into();
    let mut less = a.clone();
    less.remove("embed.weight");
    says(&check(&index, &less, &b), &["1 problem\n", "c.safetensors: expected a readable file, got"]);
    // Only files of the folder itself.
    index["weight_map"]["embed.weight"] = "../c.safetensors".into();
    says(
        &check(&index, &a, &b),
        &["index.json: embed.weight: expected a name of a safetensors file here, got \"../c.saf"],
    );
    let name = "model.safetensors.index.json";
    says(&said(&[(name, b"[")]), &["1 problem\n", "model.safetensors.index.json: expected JSON, got"]);
    says(&said(&[(name, b"{\"weight_map\": {}}")]), &["1 problem\n", "expected entries in weight_map, got none"]);
    says(
        &said(&[(name, b"{}")]),
        &["1 problem\n", "model.safetensors.index.json: expected an object weight_map, got none"],
    );
}

/// Names come from strangers: a terminal must not obey them.
#[test]
fn control_characters_are_shown() {
    let text = changed(|tensors| {
        tensors.insert("a\u{1b}[2J\nb".into(), (Dtype::U8, vec![1], vec![0]));
    });
    says(&text, &["\n  a\\u{1b}[2J\\nb: expected no such tensor"]);
}

/// A draft network that the configuration does not run is no mistake.
#[test]
fn unused_draft() {
    let folder = tempfile::tempdir().unwrap();
    let config = ModelConfig { mtp_layers: 0, ..micro() };
    std::fs::write(folder.path().join("config.json"), config.to_json()).unwrap();
    std::fs::write(folder.path().join("model.safetensors"), &SOUND.0).unwrap();
    let survey = survey(folder.path()).unwrap();
    assert_eq!(survey.problems.count(), 0, "{}", survey.problems);
    assert!(survey.ignored.contains(&"mtp.0.e_proj.weight".to_owned()));
    assert_eq!(survey.ignored.len(), SOUND.1.keys().filter(|name| name.starts_with("mtp.")).count());
}

/// Codes for NaN, an infinite scale product and an id without an expert: found by reading, not by opening.
#[test]
fn wrong_values_are_named() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), micro().to_json()).unwrap();
    let mut tensors = SOUND.1.clone();
    tensors.get_mut("layers.1.attn.wkv.weight").unwrap().2[32 + 5] = 0x7f;
    tensors.get_mut("layers.1.ffn.experts.1.w2.scale").unwrap().2[3] = 255;
    tensors.get_mut("layers.0.ffn.gate.tid2eid").unwrap().2[8 * 7] = 3;
    tensors.get_mut("norm.weight").unwrap().2[..2].copy_from_slice(&bf16::NEG_INFINITY.to_le_bytes());
    std::fs::write(folder.path().join("model.safetensors"), serialize(&tensors)).unwrap();
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let text = checkpoint.check_values(|_| {}).to_string();
    says(&text, &["4 problems", "layers.1.attn.wkv.weight: expected finite values, got NaN in row 1, column 5"]);
    says(&text, &["layers.1.ffn.experts.1.w2.weight: expected finite values, got NaN in row 3, column 0"]);
    says(&text, &["layers.0.ffn.gate.tid2eid: expected ids below 3, got 3 at element 7"]);
    says(&text, &["norm.weight: expected finite values, got -inf in row 0, column 0"]);
    std::fs::write(folder.path().join("model.safetensors"), &SOUND.0).unwrap();
    assert_eq!(Checkpoint::open(folder.path()).unwrap().check_values(|_| {}).count(), 0);
}

/// Cut at every byte up to the first data, and at every end of a tensor and the bytes around it.
#[test]
fn truncated_at_every_boundary() {
    let whole = &SOUND.0;
    let mut problems = Problems::default();
    let header = header::read("x", whole, &mut problems).unwrap();
    let data = header.tensors.values().map(|stored| stored.bytes.start).min().unwrap();
    let ends = header.tensors.values().flat_map(|stored| stored.bytes.end - 1..=stored.bytes.end + 1);
    for cut in (0..=data).chain(ends).filter(|&cut| cut < whole.len()) {
        let mut problems = Problems::default();
        header::read("x.safetensors", &whole[..cut], &mut problems);
        assert!(problems.count() > 0, "accepted when cut at {cut}");
        assert!(problems.kept()[0].place.starts_with("x.safetensors"), "cut at {cut}: {problems}");
    }
}

proptest! {
    // Each case writes and maps files.
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Any byte of the header changed to any other: problems, or a checkpoint that can be read to the end.
    #[test]
    fn flipped_header_bytes(at: prop::sample::Index, byte: u8, also: prop::sample::Index, other: u8) {
        let mut bytes = SOUND.0.clone();
        let header = 8 + u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
        bytes[at.index(header)] = byte;
        said(&[("model.safetensors", &bytes)]);
        bytes[also.index(header)] = other;
        said(&[("model.safetensors", &bytes)]);
    }

    /// Any cut of the file is refused.
    #[test]
    fn truncated_anywhere(cut: prop::sample::Index) {
        let bytes = &SOUND.0[..cut.index(SOUND.0.len())];
        let text = said(&[("model.safetensors", bytes)]);
        prop_assert!(text.contains("model.safetensors"), "{}", text);
    }

    /// Numbers of a header entry changed to any others.
    #[test]
    fn any_numbers(which: prop::sample::Index, field in 0usize..2, numbers in prop::collection::vec(any::<u64>(), 0..4),
        small in prop::collection::vec(0u64..5000, 2)) {
        let name = SOUND.1.keys().nth(which.index(SOUND.1.len())).unwrap();
        let field = ["shape", "data_offsets"][field];
        for numbers in [numbers, small] {
            reheaded(|header| header[name][field] = serde_json::json!(numbers));
        }
    }
}
