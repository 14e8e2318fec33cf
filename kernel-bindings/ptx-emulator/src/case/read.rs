//! Reads a case file into a checked [`Case`].

use super::compare;
use super::{Arg, Buffer, Case, CaseError, Dtype, Expected, Init, Launch, Output, Pointer, Tolerated};
use crate::finding::FindingClass;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

#[derive(Deserialize)]
struct RawCase {
    format: u64,
    name: Option<String>,
    title: Option<String>,
    ptx: String,
    target: Option<String>,
    ptx_version: Option<String>,
    buffers: BTreeMap<String, serde_json::Value>,
    launches: Vec<serde_json::Value>,
    #[serde(default)]
    outputs: Vec<serde_json::Value>,
    #[serde(default)]
    tolerated: Vec<RawTolerated>,
    findings: Option<RawFindings>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawBuffer {
    dtype: Dtype,
    shape: Vec<u64>,
    bytes: u64,
    init: RawInit,
    file: Option<String>,
    value: Option<u8>,
}

#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "lowercase")]
enum RawInit {
    File,
    Zero,
    Fill,
    Uninit,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawLaunch {
    entry: String,
    grid: [u32; 3],
    block: [u32; 3],
    #[serde(default)]
    dynamic_shared: u32,
    cluster: Option<[u32; 3]>,
    #[serde(default)]
    needs_all_resident: bool,
    #[serde(default)]
    args: Vec<RawArg>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawArg {
    buffer: Option<String>,
    offset: Option<i64>,
    scalar: Option<String>,
    value: Option<serde_json::Value>,
    bytes: Option<String>,
    pointers: Option<Vec<RawPointer>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawPointer {
    at: usize,
    buffer: String,
    #[serde(default)]
    offset: i64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawOutput {
    buffer: String,
    file: String,
    compare: compare::RawCompare,
}

#[derive(Deserialize)]
struct RawTolerated {
    class: String,
    lines: Vec<u32>,
    #[serde(default)]
    why: String,
}

#[derive(Deserialize)]
struct RawFindings {
    expect: RawExpect,
    #[serde(default)]
    class: Vec<String>,
    #[serde(default)]
    also_accept: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum RawExpect {
    None,
    Some,
}

/// Builds errors that name the case file.
pub(super) struct Reader<'a> {
    path: &'a Path,
    folder: &'a Path,
}

impl Reader<'_> {
    pub(super) fn wrong<T>(&self, what: impl Into<String>, problem: impl Into<String>) -> Result<T, CaseError> {
        Err(CaseError::Content { path: self.path.to_owned(), what: what.into(), problem: problem.into() })
    }

    pub(super) fn read(&self, what: String, name: &str) -> Result<Vec<u8>, CaseError> {
        let path = self.folder.join(name);
        // A pipe or a device would block or never end.
        let regular = std::fs::metadata(&path)
            .and_then(|found| if found.is_file() { Ok(()) } else { Err(std::io::Error::other("not a regular file")) });
        regular.and_then(|()| std::fs::read(&path)).map_err(|source| CaseError::Read { what, path, source })
    }

    /// Reads one part of the JSON, so that an error names it.
    fn typed<T: serde::de::DeserializeOwned>(&self, what: &str, value: serde_json::Value) -> Result<T, CaseError> {
        serde_json::from_value(value).or_else(|error| self.wrong(what, error.to_string()))
    }

    fn class(&self, what: &str, name: &str) -> Result<FindingClass, CaseError> {
        match FindingClass::from_name(name) {
            Some(class) => Ok(class),
            None => {
                let known: Vec<_> = FindingClass::ALL.iter().map(|class| class.name()).collect();
                self.wrong(what, format!("`{name}` is no finding class, expected one of {}", known.join(", ")))
            }
        }
    }
}

impl Case {
    /// Loads a case and every file that it names.
    ///
    /// # Errors
    /// [`CaseError`] names the file or key, what was expected and what was there.
    pub fn load(path: &Path) -> Result<Case, CaseError> {
        let text = std::fs::read_to_string(path).map_err(|source| CaseError::Read {
            what: "case file".into(),
            path: path.to_owned(),
            source,
        })?;
        let raw: RawCase =
            serde_json::from_str(&text).map_err(|source| CaseError::Json { path: path.to_owned(), source })?;
        let folder = path.parent().unwrap_or(Path::new(""));
        let reader = Reader { path, folder };
        if raw.format != 1 {
            return reader.wrong("format", format!("expected 1, got {}", raw.format));
        }
        let ptx = String::from_utf8(reader.read("the PTX".into(), &raw.ptx)?);
        let Ok(ptx) = ptx else {
            return reader.wrong(format!("`{}`", raw.ptx), "the PTX is not UTF-8 text");
        };
        for (key, wanted, directive) in
            [("target", &raw.target, ".target"), ("ptx_version", &raw.ptx_version, ".version")]
        {
            let Some(wanted) = wanted else { continue };
            if let Some(got) = directive_of(&ptx, directive)
                && got != wanted
            {
                return reader.wrong(key, format!("the case says {wanted}, `{}` says {got}", raw.ptx));
            }
        }
        let mut buffers = BTreeMap::new();
        for (name, raw) in raw.buffers {
            let raw = reader.typed(&format!("buffer `{name}`"), raw)?;
            buffers.insert(name.clone(), buffer(&reader, &name, raw)?);
        }
        let mut launches = Vec::new();
        for (index, raw) in raw.launches.into_iter().enumerate() {
            let raw = reader.typed(&format!("launch {}", index + 1), raw)?;
            launches.push(launch(&reader, index + 1, raw, &buffers)?);
        }
        let mut outputs = Vec::new();
        for (index, raw) in raw.outputs.into_iter().enumerate() {
            let raw = reader.typed(&format!("output {}", index + 1), raw)?;
            outputs.push(output(&reader, raw, &buffers)?);
        }
        let mut tolerated = Vec::new();
        for raw in raw.tolerated {
            let class = reader.class("tolerated", &raw.class)?;
            tolerated.push(Tolerated { class, lines: raw.lines, why: raw.why });
        }
        let expected = match raw.findings {
            None | Some(RawFindings { expect: RawExpect::None, .. }) => Expected::None,
            Some(RawFindings { expect: RawExpect::Some, class, also_accept }) => {
                if class.is_empty() {
                    return reader.wrong("findings", "`expect` is `some`, so `class` must name at least one class");
                }
                let classes = |names: Vec<String>| {
                    names.iter().map(|name| reader.class("findings", name)).collect::<Result<Vec<_>, _>>()
                };
                Expected::Some { class: classes(class)?, also_accept: classes(also_accept)? }
            }
        };
        let name = raw.name.unwrap_or_else(|| {
            folder.file_name().map_or_else(|| "case".to_owned(), |name| name.to_string_lossy().into_owned())
        });
        Ok(Case {
            path: path.to_owned(),
            name,
            title: raw.title.unwrap_or_default(),
            ptx_file: raw.ptx,
            ptx,
            buffers,
            launches,
            outputs,
            tolerated,
            expected,
        })
    }
}

/// First word after a directive at the start of a line.
fn directive_of<'a>(ptx: &'a str, directive: &str) -> Option<&'a str> {
    let line = ptx.lines().find_map(|line| line.trim_start().strip_prefix(directive))?;
    line.split([',', ' ', '\t', '/']).find(|word| !word.is_empty())
}

fn buffer(reader: &Reader, name: &str, raw: RawBuffer) -> Result<Buffer, CaseError> {
    let what = format!("buffer `{name}`");
    let elements = raw.shape.iter().try_fold(1u64, |product, axis| product.checked_mul(*axis));
    let size = elements.and_then(|n| n.checked_mul(raw.dtype.bytes() as u64));
    if size != Some(raw.bytes) {
        let shape = format!("{} {:?}", raw.dtype.name(), raw.shape);
        let size = size.map_or("too many".to_owned(), |size| size.to_string());
        return reader.wrong(what, format!("`bytes` is {}, {shape} has {size} bytes", raw.bytes));
    }
    let unused = |key: &str, there: bool| {
        if there {
            reader.wrong(format!("buffer `{name}`"), format!("`{key}` does not go with this `init`"))
        } else {
            Ok(())
        }
    };
    unused("file", raw.file.is_some() && !matches!(raw.init, RawInit::File))?;
    unused("value", raw.value.is_some() && !matches!(raw.init, RawInit::Fill))?;
    let init = match raw.init {
        RawInit::Zero => Init::Fill(0),
        RawInit::Uninit => Init::Uninit,
        RawInit::Fill => match raw.value {
            Some(value) => Init::Fill(value),
            None => return reader.wrong(what, "`init` is `fill`, so `value` (0 to 255) must be there"),
        },
        RawInit::File => {
            let Some(file) = raw.file else {
                return reader.wrong(what, "`init` is `file`, so `file` must name it");
            };
            let bytes = reader.read(what.clone(), &file)?;
            if bytes.len() as u64 != raw.bytes {
                return reader.wrong(what, format!("`bytes` is {}, `{file}` has {} bytes", raw.bytes, bytes.len()));
            }
            Init::Bytes(bytes)
        }
    };
    Ok(Buffer { dtype: raw.dtype, shape: raw.shape, bytes: raw.bytes, init })
}

fn launch(
    reader: &Reader,
    number: usize,
    raw: RawLaunch,
    buffers: &BTreeMap<String, Buffer>,
) -> Result<Launch, CaseError> {
    let mut args = Vec::new();
    for (index, raw) in raw.args.into_iter().enumerate() {
        let what = format!("launch {number}, argument {}", index + 1);
        let arg = argument(reader, &what, raw)?;
        for pointer in &arg.pointers {
            if !buffers.contains_key(&pointer.buffer) {
                return reader.wrong(what, format!("there is no buffer `{}`", pointer.buffer));
            }
        }
        args.push(arg);
    }
    Ok(Launch {
        entry: raw.entry,
        grid: raw.grid,
        block: raw.block,
        dynamic_shared: raw.dynamic_shared,
        cluster: raw.cluster,
        needs_all_resident: raw.needs_all_resident,
        args,
    })
}

fn argument(reader: &Reader, what: &str, raw: RawArg) -> Result<Arg, CaseError> {
    match raw {
        RawArg { buffer: Some(buffer), offset, scalar: None, value: None, bytes: None, pointers: None } => {
            let pointer = Pointer { at: 0, buffer, offset: offset.unwrap_or(0) };
            Ok(Arg { bytes: vec![0; 8], pointers: vec![pointer] })
        }
        RawArg { buffer: None, offset: None, scalar: Some(scalar), value: Some(value), bytes: None, pointers: None } => {
            let Some(dtype) = Dtype::from_name(&scalar) else {
                return reader.wrong(what, format!("`{scalar}` is no scalar type"));
            };
            match dtype.encode(&value) {
                Ok(bytes) => Ok(Arg { bytes, pointers: Vec::new() }),
                Err(problem) => reader.wrong(what, problem),
            }
        }
        RawArg { buffer: None, offset: None, scalar: None, value: None, bytes: Some(hex), pointers } => {
            let bytes = match from_hex(&hex) {
                Ok(bytes) => bytes,
                Err(problem) => return reader.wrong(what, problem),
            };
            let mut list = Vec::new();
            for raw in pointers.unwrap_or_default() {
                if raw.at.checked_add(8).is_none_or(|end| end > bytes.len()) {
                    let problem = format!("a pointer at byte {} leaves the {} bytes", raw.at, bytes.len());
                    return reader.wrong(what, problem);
                }
                list.push(Pointer { at: raw.at, buffer: raw.buffer, offset: raw.offset });
            }
            Ok(Arg { bytes, pointers: list })
        }
        _ => reader.wrong(
            what,
            "expected {\"buffer\", \"offset\"?}, {\"scalar\", \"value\"} or {\"bytes\", \"pointers\"?}, got another mix",
        ),
    }
}

fn from_hex(hex: &str) -> Result<Vec<u8>, String> {
    let digits: Vec<u8> = hex.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    if !digits.len().is_multiple_of(2) {
        return Err(format!("`bytes` has {} hex digits, expected an even number", digits.len()));
    }
    digits
        .chunks_exact(2)
        .map(|pair| {
            let digit = |byte: u8| (byte as char).to_digit(16);
            match (digit(pair[0]), digit(pair[1])) {
                (Some(high), Some(low)) => Ok((high * 16 + low) as u8),
                _ => Err(format!("`bytes` contains `{}`, expected hex digits", String::from_utf8_lossy(pair))),
            }
        })
        .collect()
}

fn output(reader: &Reader, raw: RawOutput, buffers: &BTreeMap<String, Buffer>) -> Result<Output, CaseError> {
    let what = format!("output `{}`", raw.buffer);
    let Some(buffer) = buffers.get(&raw.buffer) else {
        return reader.wrong(what, "there is no such buffer");
    };
    let expected = reader.read(what.clone(), &raw.file)?;
    if expected.len() as u64 != buffer.bytes {
        let problem = format!("the buffer has {} bytes, `{}` has {}", buffer.bytes, raw.file, expected.len());
        return reader.wrong(what, problem);
    }
    let compare = compare::load(reader, &what, raw.compare, buffer)?;
    Ok(Output { buffer: raw.buffer, expected, compare })
}
