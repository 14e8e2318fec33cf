//! Case files: a PTX text, buffers, launches, what must come out and which findings must arise.
//!
//! A case is a folder with one JSON file, the PTX and raw little-endian buffers beside it.
//!
//! | key | meaning |
//! |---|---|
//! | `format` | 1 |
//! | `name`, `title` and any other word | for people |
//! | `ptx`, `target`, `ptx_version` | file beside the JSON; `.target` and `.version` that its text names |
//! | `buffers` | name -> `dtype`, `shape`, `bytes`, `init`: `file` (+ `file`), `zero`, `fill` (+ `value`, every byte), `uninit` |
//! | `launches` | in order on one stream: `entry`, `grid`, `block`, `dynamic_shared`, `cluster`, `needs_all_resident`, `args` |
//! | an argument | `{"buffer", "offset"}`, `{"scalar", "value"}` or `{"bytes": hex, "pointers": [{"at", "buffer", "offset"}]}` |
//! | `outputs` | `buffer`, `file` with the expected bytes, `compare`: see [`Compare`] |
//! | `tolerated` | `{"class", "lines", "why"}`: findings at these PTX lines that do not count |
//! | `findings` | `{"expect": "none"}` or `{"expect": "some", "class": [..], "also_accept": [..]}` |
//!
//! Unknown keys inside `buffers`, `launches` and `outputs` are errors. Every buffer is one allocation, aligned to 256
//! bytes and exactly `bytes` long.

mod compare;
mod dtype;
mod run;

pub use compare::{Compare, Mismatch};
pub use dtype::{Dtype, ElementFormat};
pub use run::{Options, Outcome, OutputResult, SeedResult, run};

use crate::finding::{Finding, FindingClass};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Why a case could not be run at all: the file is wrong, not the kernel.
#[derive(Debug, thiserror::Error)]
pub enum CaseError {
    /// A file cannot be read.
    #[error("cannot read {what} `{path}`: {source}", path = path.display())]
    Read {
        /// What the file is to the case.
        what: String,
        /// Where.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The JSON does not follow the format.
    #[error("{path}: {source}", path = path.display())]
    Json {
        /// Case file.
        path: PathBuf,
        /// What and where (line and column).
        source: serde_json::Error,
    },
    /// The JSON is well-formed but says something impossible.
    #[error("{path}: {what}: {problem}", path = path.display())]
    Content {
        /// Case file.
        path: PathBuf,
        /// Which part, e.g. "buffer `keys`" or "launch 2, argument 3".
        what: String,
        /// Expected and got.
        problem: String,
    },
    /// The machine refused a host-side operation.
    #[error("{what}: {problem}")]
    Machine {
        /// Which operation.
        what: String,
        /// The machine's words.
        problem: String,
    },
}

/// A loaded case; all files are in memory and all sizes agree.
#[derive(Debug)]
pub struct Case {
    /// The JSON file.
    pub path: PathBuf,
    /// `name`, or the folder's name.
    pub name: String,
    /// `title`.
    pub title: String,
    /// Name of the PTX file.
    pub ptx_file: String,
    /// Its text.
    pub ptx: String,
    /// Allocations, by name.
    pub buffers: BTreeMap<String, Buffer>,
    /// Launches in order.
    pub launches: Vec<Launch>,
    /// Comparisons after the last launch.
    pub outputs: Vec<Output>,
    /// Findings that do not count.
    pub tolerated: Vec<Tolerated>,
    /// What must be found.
    pub expected: Expected,
}

/// One allocation.
#[derive(Debug)]
pub struct Buffer {
    /// Element type.
    pub dtype: Dtype,
    /// Axes, outermost first.
    pub shape: Vec<u64>,
    /// Size in bytes.
    pub bytes: u64,
    /// Contents before the first launch.
    pub init: Init,
}

/// Contents of a buffer before the first launch.
#[derive(Debug)]
pub enum Init {
    /// These bytes.
    Bytes(Vec<u8>),
    /// Every byte has this value.
    Fill(u8),
    /// Nothing was written: reading it before a write is a finding.
    Uninit,
}

/// One kernel launch.
#[derive(Debug)]
pub struct Launch {
    /// Entry symbol.
    pub entry: String,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads per block.
    pub block: [u32; 3],
    /// Dynamic shared memory per block, bytes.
    pub dynamic_shared: u32,
    /// Blocks per cluster.
    pub cluster: Option<[u32; 3]>,
    /// Blocks wait for one another: all of them must make progress.
    pub needs_all_resident: bool,
    /// Arguments in the order of the entry's parameters.
    pub args: Vec<Arg>,
}

/// One kernel argument: bytes, with device addresses to be patched in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arg {
    /// Bytes of the parameter, zero where an address goes.
    pub bytes: Vec<u8>,
    /// Device addresses to write at a byte offset.
    pub pointers: Vec<Pointer>,
}

/// A device address inside an argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pointer {
    /// Where in the argument the 8 bytes of the address go.
    pub at: usize,
    /// Buffer that it points into.
    pub buffer: String,
    /// Byte offset from the buffer's start.
    pub offset: i64,
}

/// One comparison.
#[derive(Debug)]
pub struct Output {
    /// Buffer to read.
    pub buffer: String,
    /// Bytes that must be there.
    pub expected: Vec<u8>,
    /// How to compare.
    pub compare: Compare,
}

/// Findings that do not count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tolerated {
    /// Class.
    pub class: FindingClass,
    /// PTX lines, from 1.
    pub lines: Vec<u32>,
    /// Reason.
    pub why: String,
}

impl Tolerated {
    /// Does this entry excuse a finding? A race is excused when both of its accesses are at the listed lines.
    pub fn covers(&self, finding: &Finding) -> bool {
        let listed = |line: u32| self.lines.contains(&line);
        self.class == finding.class
            && listed(finding.place.ptx_line)
            && finding.other.as_ref().is_none_or(|other| listed(other.ptx_line))
    }
}

/// What must be found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expected {
    /// No finding; outputs match.
    None,
    /// At least one finding of `class` or `also_accept`. Outputs and further findings, which are often consequences of
    /// the first (a value that was never written where a copy had not landed), do not count.
    Some {
        /// The planted bug.
        class: Vec<FindingClass>,
        /// What it may show as instead.
        also_accept: Vec<FindingClass>,
    },
}

impl Expected {
    /// Is a run with these findings and this agreement of outputs what the case expects?
    pub fn met(&self, findings: &[FindingClass], outputs_match: bool) -> bool {
        match self {
            Expected::None => findings.is_empty() && outputs_match,
            Expected::Some { class, also_accept } => {
                findings.iter().any(|found| class.contains(found) || also_accept.contains(found))
            }
        }
    }
}

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
struct Reader<'a> {
    path: &'a Path,
    folder: &'a Path,
}

impl Reader<'_> {
    fn wrong<T>(&self, what: impl Into<String>, problem: impl Into<String>) -> Result<T, CaseError> {
        Err(CaseError::Content { path: self.path.to_owned(), what: what.into(), problem: problem.into() })
    }

    fn read(&self, what: String, name: &str) -> Result<Vec<u8>, CaseError> {
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
