//! Reader of golden files: values that an outside implementation computed.
//!
//! A golden folder holds `index.json`, which names the tensors of every file with shape, type and the file's SHA-256, and
//! the files themselves in the safetensors format. A file `NAME.safetensors` may be split into parts
//! `NAME.1.safetensors`, `NAME.2.safetensors` and so on. Beside them stands the checkpoint of the model, of which the
//! attention sinks and the configuration are read (`ckpt-fp32/`). Whatever does not fit is refused with the file, the
//! tensor, what was expected and what was found.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use thiserror::Error;

use crate::formats::{bf16s, f32s, s32s};

/// Why a golden folder was refused.
#[derive(Debug, Error)]
pub enum GoldenError {
    /// A file cannot be read.
    #[error("golden file {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's words.
        source: std::io::Error,
    },
    /// A file is not of the format that its name says.
    #[error("golden file {file}: expected {expected}, got {got}")]
    File {
        /// The file.
        file: String,
        /// What is accepted.
        expected: String,
        /// What was found.
        got: String,
    },
    /// A tensor is absent, or of another shape or type.
    #[error("golden file {file}: {tensor}: expected {expected}, got {got}")]
    Tensor {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// What is accepted.
        expected: String,
        /// What was found.
        got: String,
    },
}

/// `index.json`, as far as it is read.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Index {
    /// Program and versions that made the values.
    #[serde(default)]
    pub made_with: String,
    /// Picks per position of the model.
    pub index_topk: u32,
    /// One letter per layer: S window only, C ratio 4 with picks, H ratio 128.
    pub layer_kinds: String,
    /// Files by name.
    pub files: BTreeMap<String, IndexFile>,
}

/// One file of the index.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct IndexFile {
    /// SHA-256 of the file, hexadecimal.
    pub sha256: String,
    /// Tensors by name.
    pub tensors: BTreeMap<String, IndexTensor>,
}

/// One tensor of the index.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct IndexTensor {
    /// Shape.
    pub shape: Vec<usize>,
    /// Type as safetensors spells it.
    pub dtype: String,
    /// Meaning.
    #[serde(default)]
    pub what: String,
    /// `probe` if only the probe positions are there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<String>,
}

/// `config.json` of the checkpoint, as far as it is read.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Config {
    /// Window in tokens.
    pub sliding_window: usize,
    /// Heads.
    pub num_attention_heads: usize,
    /// Tokens per compressed row, by layer; 0 for none.
    pub compress_ratios: Vec<usize>,
}

/// An open golden folder.
#[derive(Debug, Clone)]
pub struct GoldenDir {
    path: PathBuf,
    /// The index.
    pub index: Index,
    /// Of the checkpoint.
    pub config: Config,
}

/// A tensor in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// Type as safetensors spells it.
    pub dtype: String,
    /// Shape.
    pub shape: Vec<usize>,
    /// Elements, little-endian.
    pub bytes: Vec<u8>,
}

/// The tensors of a file, or of all parts of it.
#[derive(Debug, Clone)]
pub struct GoldenFile {
    name: String,
    tensors: BTreeMap<String, Tensor>,
}

fn read(path: &Path) -> Result<Vec<u8>, GoldenError> {
    std::fs::read(path).map_err(|source| GoldenError::Io { path: path.to_path_buf(), source })
}

fn json<T: for<'a> Deserialize<'a>>(path: &Path) -> Result<T, GoldenError> {
    serde_json::from_slice(&read(path)?).map_err(|error| GoldenError::File {
        file: path.display().to_string(),
        expected: "JSON with the fields of a golden folder".into(),
        got: error.to_string(),
    })
}

/// Tensors of a safetensors file.
pub fn parse(file: &str, bytes: &[u8]) -> Result<BTreeMap<String, Tensor>, GoldenError> {
    let parsed = SafeTensors::deserialize(bytes).map_err(|error| explain(file, bytes, &error.to_string()))?;
    let tensors = parsed.iter().map(|(name, view)| {
        let tensor =
            Tensor { dtype: view.dtype().to_string(), shape: view.shape().to_vec(), bytes: view.data().to_vec() };
        (name.to_string(), tensor)
    });
    Ok(tensors.collect())
}

/// Says which tensor a file is too short for, if that is what is wrong with it.
fn explain(file: &str, bytes: &[u8], error: &str) -> GoldenError {
    #[derive(Deserialize)]
    struct Place {
        data_offsets: [usize; 2],
    }
    let file = file.to_string();
    let header = bytes.first_chunk::<8>().map(|len| u64::from_le_bytes(*len) as usize);
    let data = header.and_then(|len| bytes.get(8..)?.split_at_checked(len));
    if let Some((header, data)) = data {
        let places: BTreeMap<String, serde_json::Value> = serde_json::from_slice(header).unwrap_or_default();
        for (tensor, place) in places {
            let Ok(place) = serde_json::from_value::<Place>(place) else { continue };
            if place.data_offsets[1] > data.len() {
                return GoldenError::Tensor {
                    file,
                    tensor,
                    expected: format!("data up to byte {}", place.data_offsets[1]),
                    got: format!("{} bytes of data", data.len()),
                };
            }
        }
    }
    GoldenError::File { file, expected: "a safetensors file".into(), got: format!("{} bytes: {error}", bytes.len()) }
}

impl GoldenDir {
    /// Reads the index and the configuration of a folder.
    pub fn open(path: impl AsRef<Path>) -> Result<GoldenDir, GoldenError> {
        let path = path.as_ref().to_path_buf();
        let index = json(&path.join("index.json"))?;
        let config = json(&path.join("ckpt-fp32").join("config.json"))?;
        Ok(GoldenDir { path, index, config })
    }

    /// The golden values that this repository carries.
    pub fn shipped() -> Result<GoldenDir, GoldenError> {
        GoldenDir::open(Path::new(env!("CARGO_MANIFEST_DIR")).join("golden"))
    }

    /// The folder of the golden model's checkpoint as released checkpoints are stored (fp8 and fp4), in shards.
    ///
    /// `decoded.sha256.json` beside it: by tensor, the SHA-256 of its values as little-endian f32 (expert ids: as they
    /// are), taken from the same model stored in f32.
    pub fn model() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join("model")
    }

    /// Reads `NAME.safetensors`, or all its parts, and holds it against the index.
    pub fn file(&self, name: &str) -> Result<GoldenFile, GoldenError> {
        let mut tensors = BTreeMap::new();
        let mut found = false;
        for (file, entry) in &self.index.files {
            let stem = file.strip_suffix(".safetensors").unwrap_or(file);
            let part = stem.strip_prefix(name).and_then(|rest| rest.strip_prefix('.'));
            if stem != name && !part.is_some_and(|part| part.bytes().all(|b| b.is_ascii_digit())) {
                continue;
            }
            found = true;
            let bytes = read(&self.path.join(file))?;
            let parsed = parse(file, &bytes)?;
            for (tensor, want) in &entry.tensors {
                let Some(got) = parsed.get(tensor) else {
                    return Err(refuse(
                        file,
                        tensor,
                        format!("{} {:?}", want.dtype, want.shape),
                        "no such tensor".into(),
                    ));
                };
                fits(file, tensor, got, &want.dtype, &want.shape)?;
            }
            let hash: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
            if hash != entry.sha256 {
                let (expected, got) = (format!("SHA-256 {}", entry.sha256), hash);
                return Err(GoldenError::File { file: file.clone(), expected, got });
            }
            tensors.extend(parsed);
        }
        if !found {
            let (file, expected) = (format!("{name}.safetensors"), "an entry in index.json".into());
            return Err(GoldenError::File { file, expected, got: "none".into() });
        }
        Ok(GoldenFile { name: format!("{name}.safetensors"), tensors })
    }

    /// The attention sinks of a layer, one per head.
    pub fn attn_sink(&self, layer: usize) -> Result<Vec<f32>, GoldenError> {
        let file = "ckpt-fp32/model.safetensors";
        let tensors = parse(file, &read(&self.path.join(file))?)?;
        GoldenFile { name: file.into(), tensors }
            .f32s(&format!("layers.{layer}.attn.attn_sink"), &[self.config.num_attention_heads])
    }
}

fn refuse(file: &str, tensor: &str, expected: String, got: String) -> GoldenError {
    GoldenError::Tensor { file: file.into(), tensor: tensor.into(), expected, got }
}

fn fits(file: &str, name: &str, tensor: &Tensor, dtype: &str, shape: &[usize]) -> Result<(), GoldenError> {
    if tensor.dtype != dtype || tensor.shape != shape {
        let (expected, got) = (format!("{dtype} {shape:?}"), format!("{} {:?}", tensor.dtype, tensor.shape));
        return Err(refuse(file, name, expected, got));
    }
    Ok(())
}

impl GoldenFile {
    /// A tensor whose shape the caller reads from it.
    pub fn tensor(&self, name: &str, dtype: &str) -> Result<&Tensor, GoldenError> {
        let absent = || refuse(&self.name, name, format!("{dtype} elements"), "no such tensor".into());
        let tensor = self.tensors.get(name).ok_or_else(absent)?;
        if tensor.dtype != dtype {
            return Err(refuse(&self.name, name, format!("{dtype} elements"), format!("{} elements", tensor.dtype)));
        }
        Ok(tensor)
    }

    /// Little-endian bytes of a tensor of exactly this type and shape.
    pub fn bytes(&self, name: &str, dtype: &str, shape: &[usize]) -> Result<Vec<u8>, GoldenError> {
        let tensor = self.tensor(name, dtype)?;
        fits(&self.name, name, tensor, dtype, shape)?;
        Ok(tensor.bytes.clone())
    }

    /// An f32 tensor of exactly this shape.
    pub fn f32s(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, GoldenError> {
        Ok(f32s(&self.bytes(name, "F32", shape)?))
    }

    /// A bf16 tensor of exactly this shape, widened.
    pub fn bf16s(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, GoldenError> {
        Ok(bf16s(&self.bytes(name, "BF16", shape)?))
    }

    /// An s32 tensor of exactly this shape.
    pub fn s32s(&self, name: &str, shape: &[usize]) -> Result<Vec<i32>, GoldenError> {
        Ok(s32s(&self.bytes(name, "I32", shape)?))
    }

    /// An s32 tensor of exactly this shape whose values lie in `range`.
    pub fn s32s_in(&self, name: &str, shape: &[usize], range: std::ops::Range<i32>) -> Result<Vec<i32>, GoldenError> {
        let values = self.s32s(name, shape)?;
        let outside = values.iter().position(|value| !range.contains(value));
        outside.map_or(Ok(()), |at| self.out_of_range(name, &range, at, values[at]))?;
        Ok(values)
    }

    /// A one-dimensional s64 tensor of positions below `end`.
    pub fn positions(&self, name: &str, end: usize) -> Result<Vec<usize>, GoldenError> {
        let values = self.s64s(name)?;
        let outside = values.iter().position(|&value| usize::try_from(value).map_or(true, |v| v >= end));
        outside.map_or(Ok(()), |at| self.out_of_range(name, &(0..end), at, values[at]))?;
        Ok(values.into_iter().map(|value| value as usize).collect())
    }

    fn out_of_range(
        &self,
        name: &str,
        range: &std::ops::Range<impl std::fmt::Display>,
        at: usize,
        got: impl std::fmt::Display,
    ) -> Result<(), GoldenError> {
        let expected = format!("values from {} to below {}", range.start, range.end);
        Err(refuse(&self.name, name, expected, format!("{got} at element {at}")))
    }

    /// A one-dimensional s64 tensor.
    pub fn s64s(&self, name: &str) -> Result<Vec<i64>, GoldenError> {
        let tensor = self.tensor(name, "I64")?;
        Ok(tensor.bytes.chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().expect("eight bytes"))).collect())
    }
}
