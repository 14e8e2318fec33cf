//! From a folder to checked places of tensors. Nothing but headers is read.

use super::folder::Folder;
use super::names::{self, TensorSpec};
use super::problems::Problems;
use super::{Bytes, Checkpoint, CheckpointError, Class, Entry, Naming, Storage};
use crate::config::{ConfigError, ExpertDtype, ModelConfig};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// What a folder holds, sound or not: for reports. [`Checkpoint::open`] accepts it only without problems.
#[derive(Debug)]
pub struct Survey {
    /// The tensors that are as they should be.
    pub checkpoint: Checkpoint,
    /// Everything that is not.
    pub problems: Problems,
    /// Tensors of a draft network that the configuration does not run.
    pub ignored: Vec<String>,
}

/// Looks at a folder. An error only where there is no configuration to hold the files against, or no weight file.
pub fn survey(dir: impl AsRef<Path>) -> Result<Survey, CheckpointError> {
    let dir = dir.as_ref().to_path_buf();
    let config = ModelConfig::open(&dir).map_err(|source| match source {
        // Its message names the file.
        ConfigError::Io { path, source } => CheckpointError::Io { path, source },
        source => CheckpointError::Config { dir: dir.clone(), source },
    })?;
    let mut problems = Problems::default();
    let folder = Folder::read(&dir, &mut problems)?;

    let naming = Naming::of(folder.stored.keys().map(String::as_str));
    let mtp_layers = if naming == Naming::Official { config.mtp_layers } else { 0 };
    let config = ModelConfig { mtp_layers, ..config };
    let mut check = Check { config: &config, naming, folder: &folder, problems, used: BTreeSet::new() };
    let mut entries = BTreeMap::new();
    for spec in names::tensors(&config) {
        if let Some(entry) = check.tensor(&spec) {
            entries.insert(spec.name, entry);
        }
    }
    check.expert_storage(&entries);
    let ignored = check.leftover();
    let problems = check.problems;
    let files = folder.files;
    Ok(Survey { checkpoint: Checkpoint { dir, config, naming, files, entries }, problems, ignored })
}

struct Check<'a> {
    config: &'a ModelConfig,
    naming: Naming,
    folder: &'a Folder,
    problems: Problems,
    /// Stored tensors that belong to the model.
    used: BTreeSet<String>,
}

impl Check<'_> {
    fn tensor(&mut self, spec: &TensorSpec) -> Option<Entry> {
        let place = names::place(spec, self.naming, self.config);
        // Several experts share a stacked tensor: what is wrong with it is said once.
        let is_first = self.used.insert(place.name.clone());
        let mut refuse = |expected: String, got: String| {
            if is_first {
                self.problems.add(&place.name, expected, got);
            }
            None
        };
        let stacked = place.shape != spec.shape;
        let class = if stacked { Class::Bf16 } else { spec.class };
        let Some((file, stored)) = self.folder.stored.get(&place.name) else {
            if self.folder.excuses(&place.name) {
                return None;
            }
            return refuse(format!("{:?} {}", place.shape, accepted(class)), "no such tensor".to_owned());
        };
        let storage = storage(class, &stored.dtype);
        let Some(mut storage) = storage.filter(|&storage| stored.shape == stored_shape(storage, &place.shape)) else {
            let expected = format!("{:?} {}", place.shape, accepted(class));
            return refuse(expected, format!("{:?} {}", stored.shape, stored.dtype));
        };
        let scale = match scale_shape(storage, &spec.shape) {
            None => None,
            Some(shape) => {
                let scale = self.scale(&place.name, storage, shape)?;
                if scale.1 == "F32" {
                    storage = Storage::Fp8Block128F32;
                }
                Some(scale.0)
            }
        };
        // Rows of all leading axes; a stored tensor covers them evenly.
        let rows: u64 = place.shape[..place.shape.len() - 1].iter().map(|&axis| u64::from(axis)).product();
        let range = if stacked {
            let row = stored.bytes.len() / rows as usize;
            let start = stored.bytes.start + place.first_row as usize * row;
            start..start + spec.shape[0] as usize * row
        } else {
            stored.bytes.clone()
        };
        let bytes = Bytes { file: *file, range };
        Some(Entry { shape: spec.shape.clone(), class: spec.class, storage, bytes, scale })
    }

    /// The scales beside fp8 and fp4 codes, and their type.
    fn scale(&mut self, weight: &str, storage: Storage, shape: [u64; 2]) -> Option<(Bytes, String)> {
        let name = format!("{}.scale", weight.strip_suffix(".weight").unwrap_or(weight));
        self.used.insert(name.clone());
        let dtypes: &[&str] = if storage == Storage::Fp4Block32 { &["F8_E8M0"] } else { &["F8_E8M0", "F32"] };
        let expected = format!("{shape:?} {}", dtypes.join(" or "));
        match self.folder.stored.get(&name) {
            Some((file, stored)) if dtypes.contains(&stored.dtype.as_str()) && stored.shape == shape => {
                Some((Bytes { file: *file, range: stored.bytes.clone() }, stored.dtype.clone()))
            }
            Some((_, stored)) => {
                self.problems.add(&name, expected, format!("{:?} {}", stored.shape, stored.dtype));
                None
            }
            None => {
                if !self.folder.excuses(&name) {
                    self.problems.add(&name, expected, "no such tensor");
                }
                None
            }
        }
    }

    /// The experts of a layer stand in one buffer: one storage for all, and the one that the configuration states.
    fn expert_storage(&mut self, entries: &BTreeMap<String, Entry>) {
        let mut layers: BTreeMap<&str, Storage> = BTreeMap::new();
        for (name, entry) in entries.iter().filter(|(_, entry)| entry.class == Class::Expert) {
            let layer = name.split(".ffn.").next().unwrap_or(name);
            let Some(first) = layers.get(layer) else {
                layers.insert(layer, entry.storage);
                let stored = match entry.storage {
                    Storage::Fp4Block32 => Some(ExpertDtype::Fp4),
                    Storage::Fp8Block128 | Storage::Fp8Block128F32 => Some(ExpertDtype::Fp8),
                    _ => None,
                };
                if let Some(stated) = self.config.expert_dtype.filter(|_| stored != self.config.expert_dtype) {
                    self.problems.add(name, format!("{stated:?} as config.json says"), entry.storage.name());
                }
                continue;
            };
            if entry.storage != *first {
                let expected = format!("{} as the other experts of the layer", first.name());
                self.problems.add(name, expected, entry.storage.name());
            }
        }
    }

    /// Reports tensors that no configuration asks for, and returns those of an unused draft network.
    fn leftover(&mut self) -> Vec<String> {
        let mut ignored = Vec::new();
        for (name, (file, _)) in &self.folder.stored {
            if self.used.contains(name) {
                continue;
            }
            let is_draft = name.starts_with("mtp.") || name.starts_with("model.mtp.");
            if is_draft && self.config.mtp_layers == 0 {
                ignored.push(name.clone());
                continue;
            }
            let file = &self.folder.files[*file].name;
            self.problems.add(name, "no such tensor in this configuration", format!("one in {file}"));
        }
        ignored
    }
}

/// Types of a class, in words.
fn accepted(class: Class) -> &'static str {
    match class {
        Class::Linear => "F8_E4M3, BF16 or F32",
        Class::Expert => "I8 (two e2m1 codes per byte), F8_E4M3, BF16 or F32",
        Class::Bf16 => "BF16 or F32",
        Class::F32 => "F32 or BF16",
        Class::Ids => "I64 or I32",
    }
}

fn storage(class: Class, dtype: &str) -> Option<Storage> {
    match (class, dtype) {
        (Class::Ids, "I64") => Some(Storage::S64),
        (Class::Ids, "I32") => Some(Storage::S32),
        (Class::Ids, _) => None,
        (_, "F32") => Some(Storage::F32),
        (_, "BF16") => Some(Storage::Bf16),
        (Class::Linear | Class::Expert, "F8_E4M3") => Some(Storage::Fp8Block128),
        (Class::Expert, "I8" | "U8") => Some(Storage::Fp4Block32),
        _ => None,
    }
}

/// Shape in the file: two fp4 codes stand in a byte.
pub(super) fn stored_shape(storage: Storage, shape: &[u32]) -> Vec<u64> {
    let mut shape: Vec<u64> = shape.iter().map(|&axis| axis.into()).collect();
    if let (Storage::Fp4Block32, Some(last)) = (storage, shape.last_mut()) {
        *last /= 2;
    }
    shape
}

/// Shape of the scales of a matrix; `None` where the storage has none.
pub(super) fn scale_shape(storage: Storage, shape: &[u32]) -> Option<[u64; 2]> {
    let &[rows, k] = shape else { return None };
    match storage {
        Storage::Fp8Block128 | Storage::Fp8Block128F32 => Some([rows.div_ceil(128).into(), k.div_ceil(128).into()]),
        Storage::Fp4Block32 => Some([rows.into(), (k / 32).into()]),
        _ => None,
    }
}
