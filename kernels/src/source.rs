//! The CUDA sources on disk: which PTX files they make, which headers each takes in, and the hash that ties a PTX file to
//! them. Shared by the toolchain command and by the test that the committed PTX is not stale.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use thiserror::Error;

use crate::{Operation, Variant};

/// Why the sources cannot be listed or hashed.
#[derive(Debug, Error)]
pub enum SourceError {
    /// A file cannot be read.
    #[error("{path}: {cause}")]
    Io {
        /// File or folder, relative to the crate.
        path: String,
        /// What the system says.
        cause: std::io::Error,
    },
    /// `#include "..."` names a file that is neither beside the includer nor in `include/`.
    #[error("{file}:{line}: included file {name:?} is neither beside it nor in include/")]
    MissingInclude {
        /// Includer, relative to the crate.
        file: String,
        /// Line, from 1.
        line: usize,
        /// The name.
        name: String,
    },
    /// A file in `cuda/` has no operation's name.
    #[error("cuda/{file}: expected <operation>.cu or <operation>_sm120a.cu with one of the operations {known}")]
    UnknownOperation {
        /// File name.
        file: String,
        /// Accepted operations.
        known: String,
    },
    /// A `// targets:` line names an unknown target.
    #[error("cuda/{file}: line `// targets:`: expected sm89 and/or sm120a, got {got:?}")]
    UnknownTarget {
        /// File name.
        file: String,
        /// The word.
        got: String,
    },
}

/// One PTX file to make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unit {
    /// Operation.
    pub operation: Operation,
    /// Variant.
    pub variant: Variant,
    /// Source, relative to the crate: `cuda/topk_select.cu`.
    pub source: String,
}

impl Unit {
    /// Name of the PTX file: `topk_select_sm89.ptx`.
    #[must_use]
    pub fn ptx_name(&self) -> String {
        format!("{}_{}.ptx", self.operation, self.variant)
    }
}

/// The PTX files that the sources under `crate_dir` make, sorted by name of the PTX file.
///
/// `cuda/<op>.cu` makes the portable variant. It makes the SM120 variant as well when its head says
/// `// targets: sm89 sm120a`. A file `cuda/<op>_sm120a.cu` is the source of that variant alone.
///
/// # Errors
/// A file that cannot be read, whose name is no operation, or whose targets are unknown.
pub fn units(crate_dir: &Path) -> Result<Vec<Unit>, SourceError> {
    let mut units = BTreeMap::new();
    let folder = crate_dir.join("cuda");
    let io = |cause| SourceError::Io { path: "cuda".to_owned(), cause };
    for item in std::fs::read_dir(&folder).map_err(io)? {
        let file = item.map_err(io)?.file_name().to_string_lossy().into_owned();
        let Some(stem) = file.strip_suffix(".cu") else { continue };
        let (name, only) = match stem.strip_suffix("_sm120a") {
            Some(name) => (name, Some(Variant::Sm120a)),
            None => (stem, None),
        };
        let Some(operation) = Operation::from_name(name) else {
            let known = Operation::ALL.map(Operation::name).join(", ");
            return Err(SourceError::UnknownOperation { file, known });
        };
        let source = format!("cuda/{file}");
        let variants = match only {
            Some(variant) => vec![variant],
            None => targets(&file, &read(crate_dir, &source)?)?,
        };
        for variant in variants {
            let own = only.is_some();
            let slot = units.entry((operation.name(), variant));
            let unit = Unit { operation, variant, source: source.clone() };
            match slot {
                std::collections::btree_map::Entry::Vacant(slot) => {
                    slot.insert(unit);
                }
                std::collections::btree_map::Entry::Occupied(mut slot) if own => {
                    slot.insert(unit);
                }
                std::collections::btree_map::Entry::Occupied(_) => {}
            }
        }
    }
    let mut units: Vec<Unit> = units.into_values().collect();
    units.sort_by_key(Unit::ptx_name);
    Ok(units)
}

fn targets(file: &str, text: &str) -> Result<Vec<Variant>, SourceError> {
    let Some(words) = text.lines().find_map(|line| line.strip_prefix("// targets:")) else {
        return Ok(vec![Variant::Sm89]);
    };
    words
        .split_whitespace()
        .map(|word| {
            Variant::ALL
                .into_iter()
                .find(|v| v.name() == word)
                .ok_or_else(|| SourceError::UnknownTarget { file: file.to_owned(), got: word.to_owned() })
        })
        .collect()
}

/// The files of this crate that `source` takes in by `#include "..."`, itself too; paths relative to the crate, sorted.
/// Lines that the preprocessor would skip count as well: a change there is a change.
///
/// # Errors
/// A file that cannot be read or found.
pub fn inputs(crate_dir: &Path, source: &str) -> Result<Vec<String>, SourceError> {
    let mut seen = BTreeSet::new();
    let mut open = vec![source.to_owned()];
    while let Some(file) = open.pop() {
        if !seen.insert(file.clone()) {
            continue;
        }
        let text = read(crate_dir, &file)?;
        for (number, line) in text.lines().enumerate() {
            let Some(rest) = line.trim_start().strip_prefix('#') else { continue };
            let Some(rest) = rest.trim_start().strip_prefix("include") else { continue };
            let Some(name) = rest.trim_start().strip_prefix('"').and_then(|r| r.split('"').next()) else { continue };
            let beside = Path::new(&file).parent().unwrap_or(Path::new("")).join(name);
            let shared = Path::new("include").join(name);
            let found = [beside, shared].into_iter().map(flatten).find(|path| crate_dir.join(path).is_file());
            match found {
                Some(path) => open.push(path.to_string_lossy().replace('\\', "/")),
                None => return Err(SourceError::MissingInclude { file, line: number + 1, name: name.to_owned() }),
            }
        }
    }
    Ok(seen.into_iter().collect())
}

/// Removes `.` and `..` by text.
fn flatten(path: PathBuf) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            std::path::Component::CurDir => {}
            std::path::Component::ParentDir => {
                out.pop();
            }
            other => out.push(other),
        }
    }
    out
}

/// SHA-256 in hexadecimal over the given files: of each its name, its length and its bytes.
///
/// # Errors
/// A file that cannot be read.
pub fn hash(crate_dir: &Path, files: &[String]) -> Result<String, SourceError> {
    let mut sum = Sha256::new();
    for file in files {
        let text = read(crate_dir, file)?;
        sum.update(format!("{file}\n{}\n", text.len()));
        sum.update(text);
    }
    Ok(hex(&sum.finalize()))
}

/// SHA-256 of a text in hexadecimal.
#[must_use]
pub fn text_hash(text: &str) -> String {
    hex(&Sha256::digest(text))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn read(crate_dir: &Path, file: &str) -> Result<String, SourceError> {
    std::fs::read_to_string(crate_dir.join(file)).map_err(|cause| SourceError::Io { path: file.to_owned(), cause })
}
