//! What the toolchain records about every PTX file: `ptx/manifest.json`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Version of the manifest's form.
pub const FORMAT: u32 = 1;

/// `ptx/manifest.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// [`FORMAT`].
    pub format: u32,
    /// Compiler and version, `nvcc 13.0.88`.
    pub compiler: String,
    /// Disassembler that counted the matrix instructions.
    pub disassembler: String,
    /// One per PTX file, sorted by name.
    pub files: Vec<File>,
}

/// One PTX file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// File name inside `ptx/`.
    pub ptx: String,
    /// Operation, as in [`crate::Operation::name`].
    pub operation: String,
    /// Variant, as in [`crate::Variant::name`].
    pub variant: String,
    /// The `.cu` file, relative to the crate.
    pub source: String,
    /// Everything of this crate that the source includes, relative to the crate, sorted; the source itself too.
    pub inputs: Vec<String>,
    /// Hash over names and contents of `inputs`, see [`crate::source::hash`].
    pub source_sha256: String,
    /// Hash of the PTX file.
    pub ptx_sha256: String,
    /// Arguments of the compiler other than file names.
    pub flags: Vec<String>,
    /// The `.version` line.
    pub ptx_version: String,
    /// The `.target` line.
    pub ptx_target: String,
    /// Kernels of the file, in the order of the text.
    pub entries: Vec<Entry>,
}

/// One kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Symbol.
    pub name: String,
    /// Threads of a block: the launch must use this number.
    pub threads: u32,
    /// Blocks per SM that the register allocation was bound to, when the source states it.
    pub min_blocks_per_sm: Option<u32>,
    /// Size of the parameter struct in bytes.
    pub parameter_bytes: u32,
    /// Dynamic shared memory that the launch must pass, in bytes: computed by the compiler from the kernel's plan.
    pub dynamic_shared_bytes: u32,
    /// By assembled target (`sm_89`, `sm_90`, `sm_120a`): what the assembler reports.
    pub resources: BTreeMap<String, Resources>,
}

/// What the assembler says about one kernel on one target. Spills and local memory are always 0 here: anything else
/// fails the toolchain command.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resources {
    /// Registers per thread.
    pub registers: u32,
    /// Bytes stored by spills.
    pub spill_store_bytes: u32,
    /// Bytes loaded by spills.
    pub spill_load_bytes: u32,
    /// Stack frame (local memory) in bytes.
    pub stack_bytes: u32,
    /// Static shared memory in bytes.
    pub static_shared_bytes: u32,
    /// Hardware barriers.
    pub barriers: u32,
    /// Matrix instructions in the machine code, by opcode with its shape and types. Static count, not executions.
    pub matrix_instructions: BTreeMap<String, u32>,
}

impl Manifest {
    /// The kernel with that symbol.
    #[must_use]
    pub fn entry(&self, name: &str) -> Option<&Entry> {
        self.files.iter().flat_map(|file| &file.entries).find(|entry| entry.name == name)
    }

    /// The record of a PTX file by operation and variant.
    #[must_use]
    pub fn file(&self, operation: crate::Operation, variant: crate::Variant) -> Option<&File> {
        self.files.iter().find(|file| file.operation == operation.name() && file.variant == variant.name())
    }
}

impl Entry {
    /// Static plus dynamic shared memory of one block in bytes, the largest over the assembled targets.
    #[must_use]
    pub fn shared_bytes(&self) -> u32 {
        self.dynamic_shared_bytes + self.resources.values().map(|r| r.static_shared_bytes).max().unwrap_or(0)
    }
}
