//! The kernels as text: committed PTX of every operation and variant, what the assembler says about it, and the
//! parameter structs that a launch passes.
//!
//! Nothing here needs CUDA. The PTX is made from `cuda/*.cu` by the pinned compiler (`cargo run -p kernels --bin
//! compile-ptx`) and committed together with [`manifest()`], which records how; a test fails when a source changed and its
//! PTX did not.
//!
//! ```
//! use kernels::{Operation, Variant};
//!
//! let text = kernels::ptx(Operation::KvWrite, Variant::Sm89).expect("every operation has a portable variant");
//! assert!(text.contains(".target sm_89"));
//! let entry = kernels::manifest().entry("kv_write_v4_fp8_sm89").expect("listed");
//! assert_eq!(entry.threads, 128);
//! ```
#![forbid(unsafe_code)]

pub mod manifest;
#[allow(missing_docs, non_camel_case_types, clippy::unreadable_literal)]
pub mod params;
pub mod source;
#[path = "../ptx/table.rs"]
mod table;

use std::fmt;
use std::sync::LazyLock;

pub use manifest::{Entry, File, Manifest, Resources};

/// An operation. Its name is the name of the source, of the PTX and the start of every entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// Index logits of paged keys.
    IndexLogitsDecode,
    /// Index logits of ragged queries.
    IndexLogitsPrefill,
    /// Exact top-k of every row.
    TopkSelect,
    /// Sparse attention over window and compressed rows.
    SparseMlaDecode,
    /// Sparse attention of many query tokens.
    SparseMlaPrefill,
    /// Merges the partial results of splits.
    SplitCombine,
    /// Writes KV rows.
    KvWrite,
    /// Writes index-K rows.
    IndexKWrite,
    /// Matrix product with a weight.
    Linear,
    /// Routed experts.
    MoeExperts,
    /// Norm and rotation of rows.
    NormRope,
    /// Hadamard transform of rows.
    Hadamard,
    /// Index queries in the form of the index keys.
    IndexQQuantise,
    /// One step of a compressor.
    Compress,
    /// Embedding rows, once per stream.
    Embed,
    /// Rows of a buffer by number.
    GatherRows,
    /// Hyper-connections before a sub-layer or the head, with its norm.
    HcMix,
    /// Hyper-connections after a sub-layer.
    HcPost,
    /// Gated activation.
    Swiglu,
    /// Experts and their weights.
    Router,
    /// One token per row of logits.
    Sample,
}

impl Operation {
    /// Every operation, in the order of a layer.
    pub const ALL: [Operation; 21] = [
        Operation::IndexLogitsDecode,
        Operation::IndexLogitsPrefill,
        Operation::TopkSelect,
        Operation::SparseMlaDecode,
        Operation::SparseMlaPrefill,
        Operation::SplitCombine,
        Operation::KvWrite,
        Operation::IndexKWrite,
        Operation::Linear,
        Operation::MoeExperts,
        Operation::NormRope,
        Operation::Hadamard,
        Operation::IndexQQuantise,
        Operation::Compress,
        Operation::Embed,
        Operation::GatherRows,
        Operation::HcMix,
        Operation::HcPost,
        Operation::Swiglu,
        Operation::Router,
        Operation::Sample,
    ];

    /// The name, as in `cuda/<name>.cu`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Operation::IndexLogitsDecode => "index_logits_decode",
            Operation::IndexLogitsPrefill => "index_logits_prefill",
            Operation::TopkSelect => "topk_select",
            Operation::SparseMlaDecode => "sparse_mla_decode",
            Operation::SparseMlaPrefill => "sparse_mla_prefill",
            Operation::SplitCombine => "split_combine",
            Operation::KvWrite => "kv_write",
            Operation::IndexKWrite => "index_k_write",
            Operation::Linear => "linear",
            Operation::MoeExperts => "moe_experts",
            Operation::NormRope => "norm_rope",
            Operation::Hadamard => "hadamard",
            Operation::IndexQQuantise => "index_q_quantise",
            Operation::Compress => "compress",
            Operation::Embed => "embed",
            Operation::GatherRows => "gather_rows",
            Operation::HcMix => "hc_mix",
            Operation::HcPost => "hc_post",
            Operation::Swiglu => "swiglu",
            Operation::Router => "router",
            Operation::Sample => "sample",
        }
    }

    /// The operation of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Operation> {
        Operation::ALL.into_iter().find(|op| op.name() == name)
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The machine that a PTX text is written for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Variant {
    /// Portable: PTX target sm_89, accepted for Ada, Hopper and Blackwell.
    Sm89,
    /// SM120 cards only: PTX target sm_120a.
    Sm120a,
}

impl Variant {
    /// Both, portable first.
    pub const ALL: [Variant; 2] = [Variant::Sm89, Variant::Sm120a];

    /// How file names and entry names end: `sm89`, `sm120a`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Variant::Sm89 => "sm89",
            Variant::Sm120a => "sm120a",
        }
    }

    /// The `.target` line of the PTX: `sm_89`, `sm_120a`.
    #[must_use]
    pub const fn ptx_target(self) -> &'static str {
        match self {
            Variant::Sm89 => "sm_89",
            Variant::Sm120a => "sm_120a",
        }
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The PTX of an operation for a variant; `None` when that variant is not shipped (the portable one then serves).
#[must_use]
pub fn ptx(operation: Operation, variant: Variant) -> Option<&'static str> {
    table::PTX.iter().find(|(op, v, _)| *op == operation && *v == variant).map(|(_, _, text)| *text)
}

/// How the committed PTX was made and what it needs.
///
/// # Panics
/// When the committed manifest does not parse, which a test excludes.
#[must_use]
pub fn manifest() -> &'static Manifest {
    static MANIFEST: LazyLock<Manifest> = LazyLock::new(|| {
        serde_json::from_str(include_str!("../ptx/manifest.json")).expect("the committed manifest parses")
    });
    &MANIFEST
}
