//! The committed PTX belongs to the committed sources, and the manifest says the truth about the text beside it.

use std::path::Path;

use kernels::manifest::FORMAT;
use kernels::{Operation, Variant, manifest, ptx, source};

fn crate_dir() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn every_source_has_its_ptx_and_no_ptx_is_stale() {
    let manifest = manifest();
    assert_eq!(manifest.format, FORMAT);
    let units = source::units(crate_dir()).unwrap();
    let made: Vec<_> = units.iter().map(source::Unit::ptx_name).collect();
    let listed: Vec<_> = manifest.files.iter().map(|file| file.ptx.clone()).collect();
    assert_eq!(made, listed, "files that cuda/*.cu make, files in ptx/manifest.json: run compile-ptx");
    for (unit, file) in units.iter().zip(&manifest.files) {
        let inputs = source::inputs(crate_dir(), &unit.source).unwrap();
        assert_eq!(file.source, unit.source, "{}", file.ptx);
        assert_eq!(file.inputs, inputs, "{}: included files changed: run compile-ptx", file.ptx);
        let hash = source::hash(crate_dir(), &inputs).unwrap();
        assert_eq!(file.source_sha256, hash, "{}: {} or a header changed: run compile-ptx", file.ptx, file.source);
        let text = ptx(unit.operation, unit.variant).expect("embedded");
        assert_eq!(file.ptx_sha256, source::text_hash(text), "{}: edited by hand: run compile-ptx", file.ptx);
    }
}

#[test]
fn manifest_agrees_with_the_text() {
    for file in &manifest().files {
        let operation = Operation::from_name(&file.operation).expect("known operation");
        let variant = Variant::ALL.into_iter().find(|v| v.name() == file.variant).expect("known variant");
        let text = ptx(operation, variant).expect("embedded");
        assert_eq!(file.ptx_target, variant.ptx_target());
        assert!(text.contains(&format!("\n.target {}\n", file.ptx_target)), "{}", file.ptx);
        assert!(text.contains(&format!("\n.version {}\n", file.ptx_version)), "{}", file.ptx);
        assert_eq!(text.matches(".visible .entry ").count(), file.entries.len(), "{}", file.ptx);
        assert!(!file.entries.is_empty(), "{}: no kernel", file.ptx);
        for entry in &file.entries {
            let head = format!(".visible .entry {}(", entry.name);
            let body = text.split(&head).nth(1).unwrap_or_else(|| panic!("{}: no {}", file.ptx, entry.name));
            let body = body.split(".visible .entry ").next().unwrap();
            assert!(body.contains(&format!("// dynamic_shared {}\n", entry.dynamic_shared_bytes)), "{}", entry.name);
            assert!(body.contains(&format!("_param_0[{}]", entry.parameter_bytes)), "{}", entry.name);
            assert!(entry.name.ends_with(variant.name()) && entry.name.starts_with(operation.name()), "{}", entry.name);
        }
    }
}

#[test]
fn no_kernel_spills_or_exceeds_a_block() {
    for entry in manifest().files.iter().flat_map(|file| &file.entries) {
        assert!(entry.resources.contains_key("sm_120a"), "{}: not assembled for sm_120a", entry.name);
        assert!(entry.shared_bytes() <= kernels::params::SM120_MAX_SHARED_BYTES, "{}", entry.name);
        for (target, r) in &entry.resources {
            assert_eq!(r.spill_store_bytes + r.spill_load_bytes + r.stack_bytes, 0, "{} on {target}", entry.name);
            assert!(r.registers * entry.threads <= 65_536, "{} on {target}: {} registers", entry.name, r.registers);
        }
    }
}

#[test]
fn inline_ptx_stands_in_wrappers_only() {
    for unit in source::units(crate_dir()).unwrap() {
        for file in source::inputs(crate_dir(), &unit.source).unwrap() {
            let text = std::fs::read_to_string(crate_dir().join(&file)).unwrap();
            let allowed = file.starts_with("include/ptx/") || file == "include/entry.cuh";
            assert!(allowed || !text.contains("asm"), "{file}: inline PTX outside include/ptx/");
        }
    }
}

#[test]
fn entries_take_the_struct_of_their_operation() {
    use kernels::params::*;
    for file in &manifest().files {
        let expected = match Operation::from_name(&file.operation).expect("known operation") {
            Operation::IndexLogitsDecode => size_of::<Sm120IndexLogitsDecodeParams>(),
            Operation::IndexLogitsPrefill => size_of::<Sm120IndexLogitsPrefillParams>(),
            Operation::TopkSelect => size_of::<Sm120TopkSelectParams>(),
            Operation::SparseMlaDecode => size_of::<Sm120SparseMlaDecodeParams>(),
            Operation::SparseMlaPrefill => size_of::<Sm120SparseMlaPrefillParams>(),
            Operation::SplitCombine => size_of::<Sm120SplitCombineParams>(),
            Operation::KvWrite | Operation::IndexKWrite => size_of::<Sm120CacheWriteParams>(),
            Operation::Linear => size_of::<Sm120LinearParams>(),
            Operation::MoeExperts => size_of::<Sm120MoeExpertsParams>(),
            Operation::NormRope => size_of::<Sm120NormRopeParams>(),
            Operation::Hadamard => size_of::<Sm120HadamardParams>(),
            Operation::IndexQQuantise => size_of::<Sm120IndexQQuantiseParams>(),
            Operation::Compress => size_of::<Sm120CompressParams>(),
            Operation::Embed => size_of::<Sm120EmbedParams>(),
            Operation::GatherRows => size_of::<Sm120GatherRowsParams>(),
            Operation::HcMix => size_of::<Sm120HcMixParams>(),
            Operation::HcPost => size_of::<Sm120HcPostParams>(),
            Operation::Swiglu => size_of::<Sm120SwigluParams>(),
            Operation::Router => size_of::<Sm120RouterParams>(),
            Operation::Sample => size_of::<Sm120SampleParams>(),
        };
        for entry in &file.entries {
            assert_eq!(entry.parameter_bytes as usize, expected, "{}", entry.name);
        }
    }
}
