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
mod read;
mod run;

pub use compare::{Compare, Mismatch};
pub use dtype::{Dtype, ElementFormat};
pub use run::{Options, Outcome, OutputResult, SeedResult, run};

use crate::finding::{Finding, FindingClass};
use std::collections::BTreeMap;
use std::path::PathBuf;

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
