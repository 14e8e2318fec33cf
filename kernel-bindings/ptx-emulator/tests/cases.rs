//! Case files: the folders of `cases/` give what they expect, the comparisons and refusals say what they should.

use ptx_emulator::FindingClass;
use ptx_emulator::case::{Case, Compare, Expected, Options, Outcome, run};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("cases").join(name)
}

fn load(name: &str) -> Case {
    Case::load(&folder(name).join("case.json")).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn names() -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder(""))
        .expect("the case folders")
        .map(|entry| entry.expect("an entry"))
        .filter(|entry| entry.path().join("case.json").exists())
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

fn describe(outcome: &Outcome) -> String {
    let mut lines: Vec<String> = outcome.findings().map(ToString::to_string).collect();
    lines.extend(outcome.mismatches().map(|(seed, buffer, bad)| format!("output {buffer}: {bad} (seed {seed})")));
    lines.join("\n  ")
}

#[test]
fn every_case_gives_what_it_expects() {
    let names = names();
    assert!(names.len() > 40, "{} cases", names.len());
    let mut planted = BTreeSet::new();
    let mut failed = Vec::new();
    for name in &names {
        let case = load(name);
        let outcome = run(&case, &Options::default()).expect("the machine takes the buffers");
        let mut good = outcome.as_expected;
        if let Expected::Some { class, also_accept } = &case.expected {
            // Stricter than `--expect`: no other class at all.
            good &= outcome.findings().all(|found| class.contains(&found.class) || also_accept.contains(&found.class));
            good &= !outcome.clean;
            planted.extend(class.iter().copied());
        } else {
            good &= outcome.clean && outcome.seeds.len() == 4;
        }
        if !good {
            failed.push(format!("{name}:\n  {}", describe(&outcome)));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    let missing: Vec<_> = FindingClass::ALL.iter().filter(|class| !planted.contains(class)).collect();
    assert!(missing.is_empty(), "no case plants {missing:?}");
}

#[test]
fn a_bug_is_named_with_its_place() {
    let case = load("out_of_bounds");
    let outcome = run(&case, &Options::default()).expect("runs");
    assert!(!outcome.clean && outcome.as_expected);
    let finding = outcome.findings().next().expect("a finding");
    assert_eq!(finding.class, FindingClass::OutOfBounds);
    assert_eq!(finding.place.entry, "scale_add");
    assert_eq!(finding.place.block, [3, 0, 0]);
    let line = case.ptx.lines().nth(finding.place.ptx_line as usize - 1).expect("the line");
    assert!(line.contains("ld.global") || line.contains("st.global"), "{line}");
    assert_eq!(finding.place.source.as_deref(), Some("kernel.cu:9"), "{finding}");
    assert_eq!(finding.address.as_deref(), Some("x+0xfa0"), "{finding}");
}

#[test]
fn a_wrong_output_is_located() {
    let mut case = load("row_sum");
    case.outputs[0].expected[8..12].copy_from_slice(&7.0f32.to_le_bytes());
    let outcome = run(&case, &Options::default()).expect("runs");
    assert!(!outcome.clean && !outcome.as_expected);
    assert_eq!(outcome.seeds.len(), 1, "the run ends at the first seed that fails");
    let (_, buffer, mismatch) = outcome.mismatches().next().expect("a mismatch");
    assert_eq!((buffer, mismatch.at.as_slice(), mismatch.count, mismatch.elements), ("y", &[2][..], 1, 5));
    assert!(mismatch.want.contains("7e0"), "{mismatch}");
}

#[test]
fn an_output_that_nothing_writes_does_not_match_nan() {
    // The pattern of unwritten memory is a NaN; an expected NaN must not be satisfied by it.
    let mut case = load("row_sum");
    case.launches[0].grid = [4, 1, 1];
    case.outputs[0].expected[16..20].copy_from_slice(&f32::NAN.to_le_bytes());
    let outcome = run(&case, &Options::default()).expect("runs");
    let (_, _, mismatch) = outcome.mismatches().next().expect("a mismatch");
    assert!(mismatch.got.contains("byte 16 of the buffer was never written"), "{mismatch}");
}

#[test]
fn tolerance_is_by_class_and_by_every_line_of_the_race() {
    let mut case = load("tolerated_store");
    assert!(run(&case, &Options::default()).expect("runs").seeds[0].tolerated > 0);
    let lines = std::mem::take(&mut case.tolerated[0].lines);
    assert!(!run(&case, &Options::default()).expect("runs").clean, "a race at lines that are not listed");
    case.tolerated[0].lines = lines;
    case.tolerated[0].class = FindingClass::GlobalRace;
    assert!(!run(&case, &Options::default()).expect("runs").clean, "another class");
}

#[test]
fn expectations() {
    use FindingClass::{Deadlock, GlobalRace, SharedRace};
    let some = Expected::Some { class: vec![SharedRace], also_accept: vec![Deadlock] };
    assert!(some.met(&[SharedRace], false) && some.met(&[Deadlock], true) && some.met(&[GlobalRace, SharedRace], true));
    assert!(!some.met(&[], true) && !some.met(&[GlobalRace], false));
    assert!(Expected::None.met(&[], true));
    assert!(!Expected::None.met(&[], false) && !Expected::None.met(&[SharedRace], true));
}

#[test]
fn comparisons() {
    let mut case = load("formats_within");
    // Row 0 is e4m3, row 1 e5m2: the same bytes mean other numbers.
    let Compare::Within { formats, .. } = &mut case.outputs[0].compare else { panic!("within") };
    assert_eq!(formats.len(), 2);
    formats.swap(0, 1);
    assert!(!run(&case, &Options::default()).expect("runs").clean);

    let mut case = load("masked_output");
    case.outputs[0].compare = Compare::Exact { mask: None };
    assert!(!run(&case, &Options::default()).expect("runs").clean, "the mask hides the upper halves");

    let mut case = load("compact");
    let last = case.outputs[0].expected.len() - 4;
    case.outputs[0].expected[..4].copy_from_slice(&123_456i32.to_le_bytes());
    assert!(!run(&case, &Options::default()).expect("runs").clean, "another element");
    let mut case = load("compact");
    case.outputs[0].expected.copy_within(0..4, last);
    assert!(!run(&case, &Options::default()).expect("runs").clean, "another count of an element");

    let mut case = load("softmax");
    case.outputs[0].compare = Compare::Close { abs: 0.0, rel: 0.0 };
    assert!(!run(&case, &Options::default()).expect("runs").clean, "close has bounds");
    let mut case = load("softmax");
    let expected = f32::from_le_bytes(case.outputs[0].expected[..4].try_into().expect("4 bytes"));
    case.outputs[0].expected[..4].copy_from_slice(&(expected * 1.01).to_le_bytes());
    assert!(!run(&case, &Options::default()).expect("runs").clean);
    case.outputs[0].expected[..4].copy_from_slice(&f32::INFINITY.to_le_bytes());
    assert!(!run(&case, &Options::default()).expect("runs").clean, "an infinity is no neighbour of a number");
}

/// Copies a case, changes its JSON, loads it and gives the error's text.
fn refused(name: &str, change: impl FnOnce(&mut serde_json::Value)) -> String {
    let copy = tempfile::tempdir().expect("a folder");
    for entry in std::fs::read_dir(folder(name)).expect("the case") {
        let entry = entry.expect("an entry");
        std::fs::copy(entry.path(), copy.path().join(entry.file_name())).expect("copied");
    }
    let path = copy.path().join("case.json");
    let mut json: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&path).expect("json")).expect("well-formed");
    change(&mut json);
    std::fs::write(&path, json.to_string()).expect("written");
    Case::load(&path).expect_err("the case is refused").to_string()
}

#[test]
fn wrong_case_files_are_refused_by_key() {
    type Change = fn(&mut serde_json::Value);
    let table: &[(&str, Change, &[&str])] = &[
        ("row_sum", |j| j["format"] = 2.into(), &["format", "expected 1, got 2"]),
        ("row_sum", |j| j["ptx"] = "no.ptx".into(), &["cannot read the PTX", "no.ptx"]),
        ("row_sum", |j| j["target"] = "sm_120a".into(), &["target", "sm_120a", "sm_89"]),
        ("row_sum", |j| j["ptx_version"] = "8.0".into(), &["ptx_version", "8.0", "9.0"]),
        ("row_sum", |j| j["buffers"]["x"]["color"] = 1.into(), &["unknown field `color`"]),
        ("row_sum", |j| j["buffers"]["x"]["dtype"] = "f8".into(), &["unknown variant `f8`"]),
        (
            "row_sum",
            |j| j["buffers"]["x"]["bytes"] = 5124.into(),
            &["buffer `x`", "5124", "f32 [5, 256] has 5120 bytes"],
        ),
        ("row_sum", |j| j["buffers"]["x"]["file"] = "y.expected.bin".into(), &["`bytes` is 5120", "has 20 bytes"]),
        ("row_sum", |j| j["buffers"]["x"]["file"] = "none.bin".into(), &["cannot read buffer `x`", "none.bin"]),
        ("row_sum", |j| j["buffers"]["x"]["init"] = "zero".into(), &["`file` does not go with this `init`"]),
        ("row_sum", |j| j["buffers"]["y"]["init"] = "fill".into(), &["buffer `y`", "`value`"]),
        ("row_sum", |j| j["launches"][0]["threads"] = 1.into(), &["unknown field `threads`"]),
        (
            "row_sum",
            |j| j["launches"][0]["grid"] = vec![1, 2].into(),
            &["launch 1", "invalid length 2, expected an array of length 3"],
        ),
        ("row_sum", |j| j["launches"][0]["args"][0]["buffer"] = "z".into(), &["launch 1, argument 1", "no buffer `z`"]),
        (
            "row_sum",
            |j| j["launches"][0]["args"][2]["value"] = 3_000_000_000u64.into(),
            &["argument 3", "not a value of type s32"],
        ),
        ("row_sum", |j| j["launches"][0]["args"][2]["scalar"] = "int".into(), &["`int` is no scalar type"]),
        ("row_sum", |j| j["launches"][0]["args"][2]["buffer"] = "x".into(), &["argument 3", "another mix"]),
        ("parameters", |j| j["launches"][0]["args"][13]["bytes"] = "0".into(), &["argument 14", "even number"]),
        ("parameters", |j| j["launches"][0]["args"][13]["bytes"] = "zz".into(), &["argument 14", "hex digits"]),
        (
            "parameters",
            |j| j["launches"][0]["args"][13]["pointers"][0]["at"] = 30.into(),
            &["a pointer at byte 30 leaves the 32 bytes"],
        ),
        ("row_sum", |j| j["outputs"][0]["buffer"] = "z".into(), &["output `z`", "no such buffer"]),
        ("row_sum", |j| j["outputs"][0]["file"] = "x.bin".into(), &["output `y`", "20 bytes", "5120"]),
        ("row_sum", |j| j["outputs"][0]["note"] = "x".into(), &["unknown field `note`"]),
        ("row_sum", |j| j["outputs"][0]["compare"]["kind"] = "fuzzy".into(), &["unknown variant `fuzzy`"]),
        ("row_sum", |j| j["outputs"][0]["compare"]["abs"] = 1.into(), &["`abs` does not go with this kind"]),
        ("row_sum", |j| j["outputs"][0]["compare"]["mask_file"] = "x.bin".into(), &["the mask `x.bin` has 5120"]),
        (
            "formats_within",
            |j| j["outputs"][0]["compare"]["tolerance_file"] = "y.expected.bin".into(),
            &["192 elements need 768 bytes"],
        ),
        (
            "formats_within",
            |j| j["outputs"][0]["compare"]["element_formats"] = vec!["e4m3"].into(),
            &["names 1, the first axis has 2"],
        ),
        (
            "formats_within",
            |j| j["outputs"][0]["compare"]["element_formats"][1] = "f32".into(),
            &["`f32` does not fit"],
        ),
        (
            "row_sum",
            |j| j["tolerated"] = serde_json::json!([{"class": "race", "lines": [1]}]),
            &["`race` is no finding class", "shared_race"],
        ),
        ("row_sum", |j| j["findings"] = serde_json::json!({"expect": "some"}), &["`class` must name at least one"]),
        ("row_sum", |j| j["findings"]["expect"] = "maybe".into(), &["unknown variant `maybe`"]),
    ];
    for (name, change, words) in table {
        let text = refused(name, change);
        for word in *words {
            assert!(text.contains(word), "expected `{word}` in: {text}");
        }
    }
    let missing = Case::load(Path::new("/nonexistent/case.json")).expect_err("no file").to_string();
    assert!(missing.contains("cannot read case file"), "{missing}");
}

#[test]
fn people_may_write_more_at_the_top() {
    let copy = tempfile::tempdir().expect("a folder");
    for file in ["kernel.ptx", "x.bin", "y.expected.bin"] {
        std::fs::copy(folder("row_sum").join(file), copy.path().join(file)).expect("copied");
    }
    let text = std::fs::read_to_string(folder("row_sum").join("case.json")).expect("json");
    let text = text.replacen('{', r#"{ "features": ["barrier"], "gate": 3, "part": "shared memory", "#, 1);
    std::fs::write(copy.path().join("case.json"), text).expect("written");
    let case = Case::load(&copy.path().join("case.json")).expect("loads");
    assert_eq!(case.name, "row_sum");
}

#[test]
fn wrong_launches_are_findings() {
    let finding = |change: fn(&mut Case)| {
        let mut case = load("row_sum");
        change(&mut case);
        let outcome = run(&case, &Options::default()).expect("runs");
        let finding = outcome.findings().next().expect("a finding").clone();
        (finding.class, finding.message)
    };
    let (class, text) = finding(|case| case.launches[0].entry = "row_max".to_owned());
    assert!(class == FindingClass::BadLaunch && text.contains("no entry `row_max`; it has row_sum"), "{text}");
    let (class, text) = finding(|case| drop(case.launches[0].args.pop()));
    assert!(class == FindingClass::BadLaunch && text.contains("takes 3 arguments, got 2"), "{text}");
    let (class, text) = finding(|case| case.launches[0].args.swap(1, 2));
    assert!(
        class == FindingClass::BadLaunch && text.contains("argument 2 (`row_sum_param_1`) takes 8 bytes, got 4"),
        "{text}"
    );
    let (class, text) = finding(|case| case.launches[0].dynamic_shared = 101_000);
    assert!(class == FindingClass::BadLaunch && text.contains("shared memory"), "{text}");
    let (class, text) = finding(|case| case.ptx = case.ptx.replace("bar.sync", "bar.sink"));
    assert!(class == FindingClass::Unsupported && text.contains("bar.sink"), "{text}");
}
