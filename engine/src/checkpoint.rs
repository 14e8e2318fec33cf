//! Checkpoints: a folder with `config.json` and safetensors files, mapped, checked as a whole, decoded by row ranges.
//!
//! Tensors have the names of the released checkpoints whatever the files call them ([`names`]). [`Checkpoint::open`]
//! returns a checkpoint in which every tensor of the configuration is there with its shape, a storage that can be decoded
//! and its scales, or every problem at once.

pub mod decode;
mod fingerprint;
mod folder;
mod header;
pub mod make;
pub mod names;
mod open;
mod problems;
mod random;
mod values;

pub use names::{Class, Naming};
pub use open::{Survey, survey};
pub use problems::{Problem, Problems};

use crate::config::{ConfigError, ModelConfig};
use half::bf16;
use kernel_bindings::mapped_file::MappedFile;
use rayon::prelude::*;
use reference::ops::WeightFormat;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Why a checkpoint, or a tensor of it, was refused.
#[derive(Debug, Error)]
pub enum CheckpointError {
    /// The configuration.
    #[error("{}: {source}", dir.display())]
    Config {
        /// The folder.
        dir: PathBuf,
        /// What is wrong with it.
        source: ConfigError,
    },
    /// A file or folder cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's words.
        source: std::io::Error,
    },
    /// The files are not what the configuration asks for.
    #[error("checkpoint {}: {problems}", dir.display())]
    Problems {
        /// The folder.
        dir: PathBuf,
        /// All that is wrong.
        problems: Problems,
    },
    /// A request does not fit the checkpoint, or a value is out of range.
    #[error("{what}: expected {expected}, got {got}")]
    Refused {
        /// Tensor, folder or option.
        what: String,
        /// What is accepted.
        expected: String,
        /// What was found.
        got: String,
    },
}

pub(crate) fn refused(what: &str, expected: impl Into<String>, got: impl Into<String>) -> CheckpointError {
    CheckpointError::Refused { what: what.to_owned(), expected: expected.into(), got: got.into() }
}

/// How a tensor is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Storage {
    /// f32.
    F32,
    /// bf16.
    Bf16,
    /// e4m3, one ue8m0 scale per 128 x 128 block.
    Fp8Block128,
    /// e4m3, one f32 scale per 128 x 128 block.
    Fp8Block128F32,
    /// e2m1, two codes per byte (low nibble = even column), one ue8m0 scale per 32 columns.
    Fp4Block32,
    /// s64.
    S64,
    /// s32.
    S32,
}

impl Storage {
    /// The word in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Storage::F32 => "f32",
            Storage::Bf16 => "bf16",
            Storage::Fp8Block128 => "e4m3 x ue8m0/128x128",
            Storage::Fp8Block128F32 => "e4m3 x f32/128x128",
            Storage::Fp4Block32 => "e2m1 x ue8m0/32",
            Storage::S64 => "s64",
            Storage::S32 => "s32",
        }
    }

    /// The format in which operations take these bytes as they are; `None` where they have to be decoded.
    pub const fn weight_format(self) -> Option<WeightFormat> {
        match self {
            Storage::F32 => Some(WeightFormat::F32),
            Storage::Bf16 => Some(WeightFormat::Bf16),
            Storage::Fp8Block128 => Some(WeightFormat::Fp8Block128),
            Storage::Fp4Block32 => Some(WeightFormat::Fp4Block32),
            Storage::Fp8Block128F32 | Storage::S64 | Storage::S32 => None,
        }
    }
}

/// A tensor inside the mapped files. [`decode`] holds what turns it into values.
#[derive(Debug, Clone, Copy)]
pub struct TensorView<'a> {
    /// Canonical name.
    pub name: &'a str,
    /// Storage.
    pub storage: Storage,
    /// Elements per axis, row-major; of fp4 the logical elements, not the bytes.
    pub shape: &'a [u32],
    /// Values or codes, not aligned.
    pub bytes: &'a [u8],
    /// Scales, row-major: `[ceil(rows / 128), ceil(k / 128)]` for fp8, `[rows, k / 32]` for fp4, empty otherwise.
    pub scale: &'a [u8],
}

/// A place in the files.
#[derive(Debug, Clone)]
struct Bytes {
    file: usize,
    range: Range<usize>,
}

#[derive(Debug, Clone)]
struct Entry {
    shape: Vec<u32>,
    class: Class,
    storage: Storage,
    bytes: Bytes,
    scale: Option<Bytes>,
}

#[derive(Debug)]
struct Shard {
    name: String,
    map: MappedFile,
}

/// An open checkpoint. It can be read from any number of threads.
#[derive(Debug)]
pub struct Checkpoint {
    dir: PathBuf,
    config: ModelConfig,
    naming: Naming,
    files: Vec<Shard>,
    entries: BTreeMap<String, Entry>,
}

impl Checkpoint {
    /// Opens a folder and holds every tensor against its `config.json`. No tensor data is read.
    pub fn open(dir: impl AsRef<Path>) -> Result<Checkpoint, CheckpointError> {
        let survey = survey(dir)?;
        if survey.problems.count() > 0 {
            return Err(CheckpointError::Problems { dir: survey.checkpoint.dir, problems: survey.problems });
        }
        Ok(survey.checkpoint)
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The configuration, with the MTP layers that the files have: transformers stores none.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The names in the files.
    pub fn naming(&self) -> Naming {
        self.naming
    }

    /// The weight files with their sizes in bytes.
    pub fn files(&self) -> impl Iterator<Item = (&str, u64)> {
        self.files.iter().map(|file| (file.name.as_str(), file.map.len() as u64))
    }

    /// Every tensor, by name.
    pub fn tensors(&self) -> impl Iterator<Item = TensorView<'_>> {
        self.entries.iter().map(|(name, entry)| self.view(name, entry))
    }

    /// A tensor by its canonical name.
    pub fn tensor(&self, name: &str) -> Result<TensorView<'_>, CheckpointError> {
        let entry = self.entries.get_key_value(name);
        let (name, entry) = entry.ok_or_else(|| refused(name, "a tensor of the configuration", "no such tensor"))?;
        Ok(self.view(name, entry))
    }

    /// What a tensor is for.
    pub fn class(&self, name: &str) -> Option<Class> {
        self.entries.get(name).map(|entry| entry.class)
    }

    /// Rows of a tensor, decoded to f32. Rows count along the first axis; a vector has rows of one element.
    pub fn read_f32(&self, name: &str, rows: Range<usize>) -> Result<Vec<f32>, CheckpointError> {
        self.tensor(name)?.f32s(rows)
    }

    /// The same, rounded to bf16 (exact but for f32 storage and subnormal products of scales).
    pub fn read_bf16(&self, name: &str, rows: Range<usize>) -> Result<Vec<bf16>, CheckpointError> {
        self.tensor(name)?.bf16s(rows)
    }

    /// An integer tensor whose values lie in `0..below`.
    pub fn read_ids(&self, name: &str, below: u32) -> Result<Vec<i32>, CheckpointError> {
        self.tensor(name)?.ids(below)
    }

    /// Bytes of all tensors with their scales.
    pub fn bytes(&self) -> u64 {
        self.tensors().map(|tensor| tensor.total_bytes()).sum()
    }

    /// Hands every tensor to `each` on the threads of rayon, then its bytes to `progress` (out of [`Checkpoint::bytes`]
    /// in all). Stops at an error.
    pub fn visit<E: Send>(
        &self,
        progress: impl Fn(u64) + Sync,
        each: impl Fn(TensorView<'_>) -> Result<(), E> + Sync,
    ) -> Result<(), E> {
        let entries: Vec<_> = self.entries.iter().collect();
        entries.par_iter().try_for_each(|(name, entry)| {
            let view = self.view(name, entry);
            each(view)?;
            progress(view.total_bytes());
            Ok(())
        })
    }

    fn view<'a>(&'a self, name: &'a str, entry: &'a Entry) -> TensorView<'a> {
        let slice = |bytes: &Bytes| &self.files[bytes.file].map[bytes.range.clone()];
        TensorView {
            name,
            storage: entry.storage,
            shape: &entry.shape,
            bytes: slice(&entry.bytes),
            scale: entry.scale.as_ref().map_or(&[], slice),
        }
    }
}

#[cfg(test)]
mod tests;
