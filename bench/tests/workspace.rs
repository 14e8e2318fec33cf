//! The shape of the workspace: which crate may depend on which, and what stands at the top level.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("bench has a parent").to_owned()
}

/// Every manifest of the workspace, with the crates of the workspace that it names in any dependency section.
fn arrows() -> BTreeMap<String, BTreeSet<String>> {
    let members = [
        "kernels",
        "reference",
        "kernel-bindings",
        "kernel-bindings/ptx-emulator",
        "engine",
        "engine/transfer",
        "engine/server",
        "bench",
    ]
    .map(str::to_owned);
    let names: BTreeSet<String> =
        members.iter().map(|path| path.rsplit('/').next().expect("a path has a last part").to_owned()).collect();
    let mut arrows = BTreeMap::new();
    for path in &members {
        let manifest = root().join(path).join("Cargo.toml");
        let text = std::fs::read_to_string(&manifest).unwrap_or_else(|e| panic!("{}: {e}", manifest.display()));
        let mut section = String::new();
        let mut of = BTreeSet::new();
        let mut package = String::new();
        for line in text.lines().map(str::trim) {
            if line.starts_with('[') {
                section = line.trim_matches(['[', ']']).to_owned();
            } else if section == "package" && line.starts_with("name") {
                package = line.split('"').nth(1).expect("name = \"...\"").to_owned();
            } else if section.ends_with("dependencies") {
                let name = line.split([' ', '=', '.']).next().unwrap_or_default();
                if names.contains(name) {
                    of.insert(name.to_owned());
                }
            }
        }
        arrows.insert(package, of);
    }
    arrows
}

#[test]
fn crates_depend_in_one_direction_only() {
    let allowed: BTreeMap<&str, &[&str]> = BTreeMap::from([
        ("kernels", &[][..]),
        ("reference", &[]),
        ("ptx-emulator", &[]),
        ("kernel-bindings", &["kernels", "reference", "ptx-emulator"]),
        ("transfer", &[]),
        ("engine", &["kernel-bindings", "reference", "transfer"]),
        ("server", &["engine", "transfer", "kernel-bindings", "reference"]),
        ("bench", &["kernels", "reference", "ptx-emulator", "kernel-bindings", "engine", "transfer", "server"]),
    ]);
    let found = arrows();
    assert_eq!(found.len(), allowed.len(), "crates: {:?}", found.keys());
    for (package, dependencies) in found {
        let allowed = allowed.get(package.as_str()).unwrap_or_else(|| panic!("{package} is not in the plan"));
        for dependency in dependencies {
            assert!(allowed.contains(&dependency.as_str()), "{package} must not depend on {dependency}");
        }
    }
}

/// `unsafe` stands in `kernel-bindings` and `ptx-emulator` only; the others forbid it at the crate root.
#[test]
fn the_other_crates_forbid_unsafe_code() {
    let files = [
        "kernels/src/lib.rs",
        "reference/src/lib.rs",
        "engine/src/lib.rs",
        "engine/transfer/src/lib.rs",
        "engine/server/src/lib.rs",
        "bench/src/lib.rs",
    ];
    for file in files {
        let text = std::fs::read_to_string(root().join(file)).unwrap_or_else(|e| panic!("{file}: {e}"));
        assert!(text.contains("#![forbid(unsafe_code)]"), "{file} does not forbid unsafe code");
    }
}

#[test]
fn the_top_level_is_as_planned() {
    let folders = ["kernels", "kernel-bindings", "engine", "bench", "reference", "results"];
    for entry in std::fs::read_dir(root()).expect("the workspace root is readable") {
        let entry = entry.expect("directory entry");
        let name = entry.file_name().into_string().expect("names are UTF-8");
        if entry.file_type().expect("file type").is_dir() && !name.starts_with('.') && name != "target" {
            assert!(folders.contains(&name.as_str()), "unexpected top-level folder {name}");
        }
    }
}
