//! Random checkpoints in the released format: same configuration, seed and store, same bytes.
//!
//! Files are written into a hidden folder beside the target, which takes the target's name when everything is on disk: a run
//! that is killed leaves no checkpoint that looks whole. What it leaves is removed by the next run for the same target; a
//! lock on the hidden folder, which ends with its process, tells that from a run that is still going on.

use super::names::{self, Class, TensorSpec};
use super::open::{scale_shape, stored_shape};
use super::random::{ROWS, Source};
use super::{CheckpointError, Storage, TensorView, refused};
use crate::config::{ExpertDtype, ModelConfig};
use rayon::prelude::*;
use serde_json::{Map, Value, json};
use std::ffi::OsString;
use std::fs::{File, TryLockError};
use std::io::{BufWriter, ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// How weights are stored. The three stores of a seed decode to the same values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Store {
    /// Everything in f32.
    Fp32,
    /// Matrices in bf16, small tensors in f32.
    Bf16,
    /// As released: linear layers in fp8 blocks, routed experts in fp4.
    Fp8Fp4,
}

/// What to make.
#[derive(Debug, Clone)]
pub struct Make<'a> {
    /// The model.
    pub config: &'a ModelConfig,
    /// Seed of all weights.
    pub seed: u64,
    /// Storage.
    pub store: Store,
    /// Bytes from which on a weight file is closed. One file is named `model.safetensors` and has no index.
    pub shard_bytes: u64,
}

/// What was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Made {
    /// Tensors, scales included.
    pub tensors: usize,
    /// Bytes of them.
    pub bytes: u64,
    /// Weight files.
    pub files: usize,
    /// Whether what an earlier run had left unfinished was removed first.
    pub cleared: bool,
}

/// A tensor of the model with what is written for it.
struct Item {
    spec: TensorSpec,
    storage: Storage,
    scale: Option<(String, [u64; 2])>,
    bytes: u64,
}

impl Store {
    fn storage(self, class: Class) -> Storage {
        match (class, self) {
            (Class::Ids, _) => Storage::S64,
            (Class::F32, _) | (_, Store::Fp32) => Storage::F32,
            (Class::Bf16, _) | (_, Store::Bf16) => Storage::Bf16,
            (Class::Linear, Store::Fp8Fp4) => Storage::Fp8Block128,
            (Class::Expert, Store::Fp8Fp4) => Storage::Fp4Block32,
        }
    }
}

/// Bytes of an element, and the type as safetensors spells it.
fn dtype(storage: Storage) -> (u64, &'static str) {
    match storage {
        Storage::F32 => (4, "F32"),
        Storage::Bf16 => (2, "BF16"),
        Storage::Fp8Block128 | Storage::Fp8Block128F32 => (1, "F8_E4M3"),
        Storage::Fp4Block32 => (1, "I8"),
        Storage::S64 => (8, "I64"),
        Storage::S32 => (4, "I32"),
    }
}

impl Item {
    fn new(spec: TensorSpec, store: Store) -> Self {
        let storage = store.storage(spec.class);
        let elements: u64 = stored_shape(storage, &spec.shape).iter().product();
        let stem = spec.name.strip_suffix(".weight").unwrap_or(&spec.name);
        let scale = scale_shape(storage, &spec.shape).map(|shape| (format!("{stem}.scale"), shape));
        let scales: u64 = scale.iter().map(|(_, [rows, columns])| rows * columns).sum();
        let bytes = elements * dtype(storage).0 + scales;
        Self { spec, storage, scale, bytes }
    }
}

impl Make<'_> {
    fn items(&self) -> Vec<Item> {
        names::tensors(self.config).into_iter().map(|spec| Item::new(spec, self.store)).collect()
    }

    /// Every tensor: name, shape, storage.
    pub fn stored(&self) -> Vec<(String, Vec<u32>, Storage)> {
        self.items().into_iter().map(|item| (item.spec.name, item.spec.shape, item.storage)).collect()
    }

    /// Bytes of all tensors with their scales.
    pub fn bytes(&self) -> u64 {
        self.items().iter().map(|item| item.bytes).sum()
    }

    /// Writes the checkpoint as the new or empty folder `dir`, reporting bytes as they are written.
    ///
    /// # Errors
    /// The folder holds something, another run is writing it, or a file cannot be written.
    pub fn run(&self, dir: impl AsRef<Path>, progress: impl Fn(u64)) -> Result<Made, CheckpointError> {
        let dir = dir.as_ref();
        self.config.check().map_err(|source| CheckpointError::Config { dir: dir.to_owned(), source })?;
        let draft = Draft::beside(dir)?;
        let shards = self.shards();
        let mut made = Made { tensors: 0, bytes: 0, files: shards.len(), cleared: draft.cleared };
        let mut weight_map = Map::new();
        for (at, shard) in shards.iter().enumerate() {
            let name = match shards.len() {
                1 => "model.safetensors".to_owned(),
                count => format!("model-{:05}-of-{count:05}.safetensors", at + 1),
            };
            for item in shard {
                let names = [Some(&item.spec.name), item.scale.as_ref().map(|(name, _)| name)];
                for tensor in names.into_iter().flatten() {
                    weight_map.insert(tensor.clone(), json!(name));
                    made.tensors += 1;
                }
                made.bytes += item.bytes;
            }
            let path = draft.path.join(&name);
            self.write_shard(&path, shard, &progress).map_err(|source| CheckpointError::Io { path, source })?;
        }
        if shards.len() > 1 {
            let index = json!({"metadata": {"total_size": made.bytes}, "weight_map": weight_map});
            draft.write("model.safetensors.index.json", &format!("{index:#}\n"))?;
        }
        let quantised = self.store == Store::Fp8Fp4;
        let expert_dtype = quantised.then_some(ExpertDtype::Fp4);
        draft.write("config.json", &ModelConfig { quantised, expert_dtype, ..self.config.clone() }.to_json())?;
        draft.finish(dir)?;
        Ok(made)
    }

    /// Tensors by file, in each the wide types first so that all are aligned.
    fn shards(&self) -> Vec<Vec<Item>> {
        let mut shards = vec![Vec::new()];
        let mut bytes = 0;
        for item in self.items() {
            if bytes >= self.shard_bytes.max(1) {
                shards.push(Vec::new());
                bytes = 0;
            }
            bytes += item.bytes;
            shards.last_mut().expect("starts with one").push(item);
        }
        for shard in &mut shards {
            shard.sort_by_key(|item| std::cmp::Reverse(dtype(item.storage).0));
        }
        shards
    }

    fn write_shard(&self, path: &Path, items: &[Item], progress: &impl Fn(u64)) -> std::io::Result<()> {
        let mut header = Map::new();
        let mut at = 0;
        let mut entry = |name: &str, dtype: &str, shape: &[u64], bytes: u64| {
            let value = json!({"dtype": dtype, "shape": shape, "data_offsets": [at, at + bytes]});
            header.insert(name.to_owned(), value);
            at += bytes;
        };
        for item in items {
            let scales = item.scale.as_ref().map_or(0, |(_, [rows, columns])| rows * columns);
            let shape = stored_shape(item.storage, &item.spec.shape);
            entry(&item.spec.name, dtype(item.storage).1, &shape, item.bytes - scales);
            if let Some((name, shape)) = &item.scale {
                entry(name, "F8_E8M0", shape, scales);
            }
        }
        let mut header = Value::Object(header).to_string();
        header.extend(std::iter::repeat_n(' ', header.len().next_multiple_of(8) - header.len()));
        let mut out = BufWriter::with_capacity(1 << 20, File::create_new(path)?);
        out.write_all(&(header.len() as u64).to_le_bytes())?;
        out.write_all(header.as_bytes())?;
        for item in items {
            self.write_tensor(&mut out, item, progress)?;
        }
        out.into_inner()?.sync_all()
    }

    fn write_tensor(&self, out: &mut impl Write, item: &Item, progress: &impl Fn(u64)) -> std::io::Result<()> {
        let source = Source::new(self.seed, &item.spec, self.config.experts);
        let rows = item.spec.shape[0] as usize;
        let starts: Vec<usize> = (0..rows).step_by(ROWS).collect();
        let mut scales = Vec::new();
        // Enough rows for every thread, few enough to bound memory: 64 x 128 rows.
        for starts in starts.chunks(64) {
            let make = |&start: &usize| {
                let range = start..rows.min(start + ROWS);
                let count = range.len();
                let rows = source.rows(range);
                match item.storage {
                    Storage::F32 | Storage::Bf16 => (widen(&item.spec, item.storage, count, &rows), Vec::new()),
                    _ => (rows.bytes, rows.scales),
                }
            };
            let parts: Vec<(Vec<u8>, Vec<u8>)> = starts.par_iter().map(make).collect();
            for (bytes, part) in parts {
                out.write_all(&bytes)?;
                progress((bytes.len() + part.len()) as u64);
                scales.extend(part);
            }
        }
        out.write_all(&scales)
    }
}

/// Rows in the released format of their class as f32 or bf16, through the decoder that a loader uses.
fn widen(spec: &TensorSpec, storage: Storage, count: usize, rows: &super::random::Rows) -> Vec<u8> {
    let released = Store::Fp8Fp4.storage(spec.class);
    if released == storage {
        return rows.bytes.clone();
    }
    let mut shape = spec.shape.clone();
    shape[0] = count as u32;
    let (bytes, scale) = (&rows.bytes, &rows.scales);
    let view = TensorView { name: &spec.name, storage: released, shape: &shape, bytes, scale };
    let own = "a view of its own rows";
    match storage {
        Storage::F32 => view.f32s(0..count).expect(own).into_iter().flat_map(f32::to_le_bytes).collect(),
        _ => view.bf16s(0..count).expect(own).into_iter().flat_map(|x| x.to_le_bytes()).collect(),
    }
}

/// A folder that is not yet the checkpoint, removed unless it becomes it.
struct Draft {
    path: PathBuf,
    parent: PathBuf,
    cleared: bool,
    /// The folder, locked while this run lives.
    _lock: File,
}

/// Refuses a target that holds something.
fn check_target(dir: &Path) -> Result<(), CheckpointError> {
    match std::fs::read_dir(dir).map(|mut entries| entries.next().is_none()) {
        Ok(true) => Ok(()),
        Ok(false) => Err(refused(&dir.display().to_string(), "a new or an empty folder", "a folder with files in it")),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(source) => Err(CheckpointError::Io { path: dir.to_owned(), source }),
    }
}

/// The hidden folder, empty and locked, and whether something was in it; `None` if another run has it.
fn take_folder(path: &Path) -> std::io::Result<Option<(File, bool)>> {
    loop {
        match std::fs::create_dir(path) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let lock = match File::open(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            opened => opened?,
        };
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        // A run that ended in between has given the folder another name.
        let id = |file: std::fs::Metadata| (file.dev(), file.ino());
        if std::fs::symlink_metadata(path).map(id).ok() != Some(id(lock.metadata()?)) {
            continue;
        }
        let mut cleared = false;
        for left in std::fs::read_dir(path)? {
            std::fs::remove_file(left?.path())?;
            cleared = true;
        }
        return Ok(Some((lock, cleared)));
    }
}

impl Draft {
    fn beside(dir: &Path) -> Result<Draft, CheckpointError> {
        let shown = dir.display().to_string();
        let Some(name) = dir.file_name() else {
            return Err(refused(&shown, "a folder with a name of its own", "none"));
        };
        check_target(dir)?;
        let parent = dir.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new(".")).to_owned();
        let mut hidden = OsString::from(".");
        hidden.push(name);
        hidden.push(".partial");
        let path = parent.join(hidden);
        std::fs::create_dir_all(&parent).map_err(|source| CheckpointError::Io { path: parent.clone(), source })?;
        let taken = take_folder(&path).map_err(|source| CheckpointError::Io { path: path.clone(), source })?;
        let Some((lock, cleared)) = taken else {
            return Err(refused(
                &shown,
                "nobody else writing it",
                format!("another run that writes {}", path.display()),
            ));
        };
        let draft = Draft { path, parent, cleared, _lock: lock };
        // Another run may have made it since the first look.
        check_target(dir)?;
        Ok(draft)
    }

    fn write(&self, name: &str, text: &str) -> Result<(), CheckpointError> {
        let path = self.path.join(name);
        let write = |path: &Path| {
            let mut file = File::create_new(path)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()
        };
        write(&path).map_err(|source| CheckpointError::Io { path, source })
    }

    /// Gives the folder its name. On Linux this replaces an empty folder and fails on any other.
    fn finish(self, dir: &Path) -> Result<(), CheckpointError> {
        let renamed = std::fs::rename(&self.path, dir);
        renamed.map_err(|source| CheckpointError::Io { path: dir.to_owned(), source })?;
        let synced = File::open(&self.parent).and_then(|parent| parent.sync_all());
        synced.map_err(|source| CheckpointError::Io { path: self.parent.clone(), source })
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // Gone already when it was renamed; nobody can be told of a failure here.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}
