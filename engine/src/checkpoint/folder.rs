//! The weight files of a folder: one file, or an index and shards.

use super::header::{self, Stored};
use super::problems::Problems;
use super::{CheckpointError, Shard, refused};
use kernel_bindings::mapped_file::{MappedFile, read_file};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::Path;

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// Largest index that is read: that of the released model has 69,187 entries in 6 MB.
const MAX_INDEX_BYTES: u64 = 100_000_000;

/// `weight_map` of the index, if there is one: the file of every tensor.
fn read_index(dir: &Path, problems: &mut Problems) -> Result<Option<BTreeMap<String, String>>, CheckpointError> {
    let path = dir.join(INDEX);
    let text = match read_file(&path, MAX_INDEX_BYTES) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(CheckpointError::Io { path, source }),
    };
    let value: Value = match serde_json::from_slice(&text) {
        Ok(value) => value,
        Err(error) => {
            problems.add(INDEX, "JSON", error.to_string());
            return Ok(Some(BTreeMap::new()));
        }
    };
    let Some(map) = value.get("weight_map").and_then(Value::as_object) else {
        problems.add(INDEX, "an object weight_map", "none");
        return Ok(Some(BTreeMap::new()));
    };
    if map.is_empty() {
        problems.add(INDEX, "entries in weight_map", "none");
    }
    let mut index = BTreeMap::new();
    for (tensor, file) in map {
        // A file of this folder and no other.
        let plain = |name: &&str| name.ends_with(".safetensors") && !name.contains(['/', '\\', '\0']);
        match file.as_str().filter(plain) {
            Some(name) => _ = index.insert(tensor.clone(), name.to_owned()),
            None => problems.add(&format!("{INDEX}: {tensor}"), "a name of a safetensors file here", file.to_string()),
        }
    }
    Ok(Some(index))
}

/// The files and what their headers say.
#[derive(Default)]
pub(super) struct Folder {
    pub(super) files: Vec<Shard>,
    /// By name: the file and the entry.
    pub(super) stored: BTreeMap<String, (usize, Stored)>,
    /// Files without a readable header, or the index: tensors are then not reported one by one.
    unreadable: BTreeSet<String>,
    /// Tensors whose header entry was reported.
    refused: BTreeSet<String>,
    index: Option<BTreeMap<String, String>>,
}

impl Folder {
    /// Maps the files and reads their headers. An error only where there is no file to look at.
    pub(super) fn read(dir: &Path, problems: &mut Problems) -> Result<Folder, CheckpointError> {
        let mut folder = Folder { index: read_index(dir, problems)?, ..Folder::default() };
        if folder.index.as_ref().is_some_and(BTreeMap::is_empty) {
            folder.unreadable.insert(INDEX.to_owned());
        }
        let names: BTreeSet<String> = match &folder.index {
            Some(index) => index.values().cloned().collect(),
            None => BTreeSet::from([SINGLE.to_owned()]),
        };
        for name in names {
            folder.read_file(dir, &name, problems)?;
        }
        folder.hold_against_index(problems);
        Ok(folder)
    }

    fn read_file(&mut self, dir: &Path, name: &str, problems: &mut Problems) -> Result<(), CheckpointError> {
        let map = match MappedFile::open(dir.join(name)) {
            Ok(map) => map,
            Err(error) if error.kind() == ErrorKind::NotFound && self.index.is_none() => {
                let expected = format!("{SINGLE} or {INDEX}");
                return Err(refused(&dir.display().to_string(), expected, "neither"));
            }
            Err(error) => {
                problems.add(name, "a readable file", error.to_string());
                self.unreadable.insert(name.to_owned());
                return Ok(());
            }
        };
        let header = header::read(name, &map, problems).unwrap_or_else(|| {
            self.unreadable.insert(name.to_owned());
            header::Header::default()
        });
        let file = self.files.len();
        self.files.push(Shard { name: name.to_owned(), map });
        self.refused.extend(header.refused);
        for (tensor, stored) in header.tensors {
            if let Some((other, _)) = self.stored.get(&tensor) {
                problems.add(&tensor, "one file with it", format!("{} and {name}", self.files[*other].name));
                continue;
            }
            self.stored.insert(tensor, (file, stored));
        }
        Ok(())
    }

    fn hold_against_index(&self, problems: &mut Problems) {
        let Some(index) = &self.index else { return };
        for (tensor, file) in index {
            match self.stored.get(tensor) {
                Some((at, _)) if self.files[*at].name == *file => {}
                None if self.excuses(tensor) => {}
                other => {
                    let got = other.map_or("no such tensor", |(at, _)| &self.files[*at].name);
                    problems.add(tensor, format!("it in {file}, as {INDEX} says"), got);
                }
            }
        }
        for (tensor, (file, _)) in &self.stored {
            if !index.contains_key(tensor) {
                let got = format!("none, but it is in {}", self.files[*file].name);
                problems.add(tensor, format!("an entry in {INDEX}"), got);
            }
        }
    }

    /// Whether a tensor is missing for a reason that was reported already.
    pub(super) fn excuses(&self, name: &str) -> bool {
        let file = self.index.as_ref().and_then(|index| index.get(name)).map_or(SINGLE, String::as_str);
        [file, INDEX].iter().any(|&file| self.unreadable.contains(file)) || self.refused.contains(name)
    }
}
