//! Header of a safetensors file: eight bytes of length, then JSON `{name: {dtype, shape, data_offsets}}`, then the data.

use super::problems::Problems;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::ops::Range;

/// A tensor as a header describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stored {
    /// Type as safetensors spells it.
    pub(super) dtype: String,
    /// Shape.
    pub(super) shape: Vec<u64>,
    /// Place in the file, from its first byte.
    pub(super) bytes: Range<usize>,
}

/// Largest header that the format allows.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// Bytes of an element; `None` for a type that is unknown or smaller than a byte.
pub(super) fn dtype_bytes(dtype: &str) -> Option<u64> {
    match dtype {
        "F64" | "I64" | "U64" => Some(8),
        "F32" | "I32" | "U32" => Some(4),
        "F16" | "BF16" | "I16" | "U16" => Some(2),
        "F8_E4M3" | "F8_E5M2" | "F8_E8M0" | "I8" | "U8" | "BOOL" => Some(1),
        _ => None,
    }
}

/// What could be read of a header.
#[derive(Debug, Default)]
pub(super) struct Header {
    /// Tensors whose places make sense.
    pub(super) tensors: BTreeMap<String, Stored>,
    /// The names of those that do not; they are among the problems.
    pub(super) refused: Vec<String>,
}

/// Reads a header; `None` if there is none. Whatever is wrong is added to the problems.
pub(super) fn read(file: &str, bytes: &[u8], problems: &mut Problems) -> Option<Header> {
    let (map, data_start) = json(file, bytes, problems)?;
    let data_len = bytes.len() - data_start;
    let mut header = Header::default();
    for (name, value) in &map {
        if name == "__metadata__" {
            continue;
        }
        match entry(value, data_len) {
            Ok(mut stored) => {
                stored.bytes = data_start + stored.bytes.start..data_start + stored.bytes.end;
                header.tensors.insert(name.clone(), stored);
            }
            Err((expected, got)) => {
                problems.add(&format!("{file}: {name}"), expected, got);
                header.refused.push(name.clone());
            }
        }
    }
    // With an entry missing from the list its bytes would look like a gap: one message for one cause.
    if header.refused.is_empty() {
        coverage(file, &header.tensors, data_start..bytes.len(), problems);
    }
    Some(header)
}

/// The header's JSON and where the data starts.
fn json(file: &str, bytes: &[u8], problems: &mut Problems) -> Option<(Map<String, Value>, usize)> {
    let Some(len) = bytes.first_chunk::<8>().map(|len| u64::from_le_bytes(*len)) else {
        problems.add(file, "a header length of 8 bytes", format!("a file of {} bytes", bytes.len()));
        return None;
    };
    let room = (bytes.len() - 8) as u64;
    if len > room.min(MAX_HEADER_BYTES) {
        let expected = format!("a header of at most {} bytes", room.min(MAX_HEADER_BYTES));
        problems.add(file, expected, format!("a header length of {len}"));
        return None;
    }
    let end = 8 + len as usize;
    match serde_json::from_slice::<Map<String, Value>>(&bytes[8..end]) {
        Ok(map) => Some((map, end)),
        Err(error) => {
            problems.add(file, "a header in JSON", error.to_string());
            None
        }
    }
}

/// What was expected, and what was found.
type Mismatch = (String, String);

/// One tensor, its place counted from the first byte of the data.
fn entry(value: &Value, data_len: usize) -> Result<Stored, Mismatch> {
    let field =
        |name: &str, expected: &str| value.get(name).ok_or((format!("{name}: {expected}"), "nothing".to_owned()));
    let numbers = |name: &str| -> Result<Vec<u64>, Mismatch> {
        let list = field(name, "a list of numbers")?;
        let numbers = list.as_array().and_then(|list| list.iter().map(Value::as_u64).collect());
        numbers.ok_or_else(|| (format!("{name}: a list of numbers"), list.to_string()))
    };
    let dtype = field("dtype", "a type")?;
    let size = dtype.as_str().and_then(dtype_bytes);
    let (Some(dtype), Some(size)) = (dtype.as_str(), size) else {
        return Err(("dtype: a known type of whole bytes".to_owned(), dtype.to_string()));
    };
    let shape = numbers("shape")?;
    let offsets = numbers("data_offsets")?;
    let &[start, end] = &offsets[..] else {
        return Err(("data_offsets: two numbers".to_owned(), format!("{offsets:?}")));
    };
    if start > end || end > data_len as u64 {
        return Err((format!("data_offsets within {data_len} bytes of data"), format!("{offsets:?}")));
    }
    let want = shape.iter().try_fold(size, |bytes, &axis| bytes.checked_mul(axis));
    if want != Some(end - start) {
        let want = want.map_or("more than 2^64".to_owned(), |want| want.to_string());
        return Err((format!("{want} bytes for {dtype} {shape:?}"), format!("{} bytes", end - start)));
    }
    Ok(Stored { dtype: dtype.to_owned(), shape, bytes: start as usize..end as usize })
}

/// The tensors must fill the data, each byte once.
fn coverage(file: &str, tensors: &BTreeMap<String, Stored>, data: Range<usize>, problems: &mut Problems) {
    let mut order: Vec<(&String, &Stored)> = tensors.iter().collect();
    order.sort_by_key(|(_, stored)| (stored.bytes.start, stored.bytes.end));
    let (mut at, mut before) = (data.start, "the header");
    for (name, stored) in order {
        if stored.bytes.start != at {
            let problem = if stored.bytes.start < at { "overlaps" } else { "leaves a gap behind" };
            let expected = format!("data from byte {at}, where {before} ends");
            let got = format!("data from byte {}, which {problem} {before}", stored.bytes.start);
            problems.add(&format!("{file}: {name}"), expected, got);
        }
        (at, before) = (at.max(stored.bytes.end), name);
    }
    if at != data.end {
        problems.add(file, format!("{at} bytes, as the header says"), format!("{} bytes", data.end));
    }
}
