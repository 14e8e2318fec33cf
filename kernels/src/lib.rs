//! CUDA sources, committed PTX and manifest of the kernels.
#![forbid(unsafe_code)]

use std::fmt;

/// A kernel family; its name is the stem of its `.cu` and `.ptx` files and the prefix of its entries.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Operation {
    IndexLogitsDecode,
    TopkSelect,
    SparseMlaDecode,
    SplitCombine,
    KvWrite,
    IndexKWrite,
}

impl Operation {
    /// Every operation.
    pub const ALL: [Operation; 6] = [
        Operation::IndexLogitsDecode,
        Operation::TopkSelect,
        Operation::SparseMlaDecode,
        Operation::SplitCombine,
        Operation::KvWrite,
        Operation::IndexKWrite,
    ];

    /// The one word that names the operation everywhere.
    pub const fn name(self) -> &'static str {
        match self {
            Operation::IndexLogitsDecode => "index_logits_decode",
            Operation::TopkSelect => "topk_select",
            Operation::SparseMlaDecode => "sparse_mla_decode",
            Operation::SplitCombine => "split_combine",
            Operation::KvWrite => "kv_write",
            Operation::IndexKWrite => "index_k_write",
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// PTX target of a module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Variant {
    /// Portable PTX, target sm_89: Ada, Hopper, Blackwell.
    Sm89,
    /// SM120 only, target sm_120a: block-scaled mma, bulk copies.
    Sm120a,
}

impl Variant {
    /// Both, portable first.
    pub const ALL: [Variant; 2] = [Variant::Sm89, Variant::Sm120a];

    /// Suffix of files and entries: `sm89` or `sm120a`.
    pub const fn name(self) -> &'static str {
        match self {
            Variant::Sm89 => "sm89",
            Variant::Sm120a => "sm120a",
        }
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// PTX text of an operation for a target, if that variant exists.
pub fn ptx(operation: Operation, variant: Variant) -> Option<&'static str> {
    let _ = (operation, variant);
    None
}
