//! A translation unit: targets, variables, entries.

use std::sync::Arc;

use super::op::Instruction;
use super::types::{Space, Type};

/// A parsed and checked PTX translation unit.
#[derive(Debug, Clone)]
pub struct Module {
    /// `.version`, as (major, minor).
    pub version: (u32, u32),
    /// `.target`, e.g. `sm_120a`.
    pub target: Target,
    /// Module-scope variables (`.global`, `.const`, `.shared`, `.extern .shared`).
    pub variables: Vec<Variable>,
    /// Entries (`.entry`); device functions are only supported where the parser can inline nothing, i.e. not at all.
    pub entries: Vec<Arc<Entry>>,
    /// `.file` table: index -> path, for `.loc`.
    pub files: Vec<(u32, String)>,
    /// The text that was parsed, for reports.
    pub text: Arc<str>,
    /// Byte offset in `text` of the start of every line.
    pub line_starts: Vec<u32>,
}

impl Module {
    /// The entry called `name`.
    pub fn entry(&self, name: &str) -> Option<&Arc<Entry>> {
        self.entries.iter().find(|e| e.name == name)
    }

    /// Source text of a line (from 1), without its line end and without surrounding blanks; empty if there is none.
    pub fn line_text(&self, line: u32) -> &str {
        let Some(index) = (line as usize).checked_sub(1).filter(|i| *i < self.line_starts.len()) else { return "" };
        let start = self.line_starts[index] as usize;
        let end = self.line_starts.get(index + 1).map_or(self.text.len(), |e| *e as usize);
        self.text[start..end].trim()
    }
}

/// `.target sm_NN[a|f]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Target {
    /// 89, 90, 100, 120, ...
    pub sm: u32,
    /// Suffix of the target.
    pub suffix: TargetSuffix,
}

/// The suffix that unlocks architecture- or family-specific instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TargetSuffix {
    /// `sm_NN`
    None,
    /// `sm_NNa`
    Arch,
    /// `sm_NNf`
    Family,
}

/// A variable in some state space.
#[derive(Debug, Clone)]
pub struct Variable {
    /// Name as written.
    pub name: String,
    /// `Shared`, `Global`, `Const` or `Local`.
    pub space: Space,
    /// Alignment in bytes.
    pub align: u32,
    /// Size in bytes; 0 for an unsized `.extern .shared` array (the dynamic shared memory).
    pub size: u64,
    /// Declared `.extern`.
    pub external: bool,
    /// Initialiser bytes, if any (`.global`/`.const`).
    pub init: Option<Vec<u8>>,
}

/// One kernel parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Param {
    /// Name as written.
    pub name: String,
    /// Alignment in bytes.
    pub align: u32,
    /// Size in bytes.
    pub size: u32,
    /// Byte offset in the parameter buffer (natural layout of the PTX ABI).
    pub offset: u32,
}

/// A declared register.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegisterDecl {
    /// Name with its `%`.
    pub name: String,
    /// Declared type.
    pub ty: Type,
}

/// A kernel.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Entry symbol.
    pub name: String,
    /// Parameters in order, with offsets in the launch buffer.
    pub params: Vec<Param>,
    /// Size of the parameter buffer in bytes.
    pub param_bytes: u32,
    /// `.maxntid`, `.reqntid`
    pub maxntid: Option<[u32; 3]>,
    /// `.reqntid`
    pub reqntid: Option<[u32; 3]>,
    /// `.minnctapersm`
    pub minnctapersm: Option<u32>,
    /// `.maxnreg`
    pub maxnreg: Option<u32>,
    /// `.reqnctapercluster`: the cluster shape that every launch must have.
    pub reqnctapercluster: Option<[u32; 3]>,
    /// `.maxclusterrank`
    pub maxclusterrank: Option<u32>,
    /// `.explicitcluster`: the launch must name a cluster shape.
    pub explicit_cluster: bool,
    /// `.blocksareclusters`: the grid of the launch counts clusters.
    pub blocks_are_clusters: bool,
    /// Registers.
    pub registers: Vec<RegisterDecl>,
    /// Function-scope variables (`.shared`, `.local`, demoted or not).
    pub variables: Vec<Variable>,
    /// Instructions; a label is an index into this list (possibly one past the end).
    pub code: Vec<Instruction>,
    /// Immediate post-dominator of every instruction as an instruction index; `code.len()` stands for the exit.
    pub ipdom: Vec<u32>,
    /// Label names by instruction index, for reports.
    pub labels: Vec<(u32, String)>,
    /// `.branchtargets` tables by index.
    pub branch_targets: Vec<Vec<u32>>,
}
