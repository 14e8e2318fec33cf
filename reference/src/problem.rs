//! An operation with its data: contents of every operand, dimensions, and what must come out.
//!
//! A problem is data. [`Problem::run`] carries it to any implementation of [`Ops`]; [`Problem::expected`] says what each
//! output must hold. Memory that a problem does not describe must not matter: it is filled with 0xff (NaN in every
//! format) or left as the implementation hands it out.

mod attention;
mod expected;
mod index;
mod memory;
mod products;
mod rows;
pub mod streams;
mod topk;
mod write;

pub use attention::{CombineProblem, ListProblem, SparseMlaPrefillProblem, SparseMlaProblem};
pub use expected::{Expected, ExpectedOutput, RowFormat};
pub use index::{IndexLogitsPrefillProblem, IndexLogitsProblem};
pub use memory::Memory;
pub use products::{LinearProblem, MoeProblem, ProductsProblem, WeightMemory};
pub use rows::{CompressProblem, HadamardProblem, IndexQProblem, NormRopeProblem, RopeProblem, RowsProblem};
pub use topk::TopkProblem;
pub use write::WriteProblem;

use crate::ops::{Ops, OpsError};
use crate::plain::Bytes;
use memory::{fetch, output};

/// What stands in memory that no operand describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fill {
    /// 0xff everywhere.
    Poison,
    /// Nothing is written: a device that tracks initialisation reports any use.
    Leave,
}

/// Byte that outputs hold before a call; as an f32 it is -2.9e-16, as an s32 -1,515,870,811.
pub const BEFORE: u8 = 0xa5;

/// One call with its data.
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub enum Problem {
    IndexLogitsDecode(IndexLogitsProblem),
    IndexLogitsPrefill(IndexLogitsPrefillProblem),
    TopkSelect(TopkProblem),
    SparseMlaDecode(Box<SparseMlaProblem>),
    SparseMlaPrefill(Box<SparseMlaPrefillProblem>),
    SplitCombine(CombineProblem),
    Write(WriteProblem),
    Products(Box<ProductsProblem>),
    Streams(streams::StreamsProblem),
    Rows(Box<RowsProblem>),
}

impl Problem {
    /// Operation.
    pub fn op(&self) -> &'static str {
        match self {
            Problem::IndexLogitsDecode(_) => "index_logits_decode",
            Problem::IndexLogitsPrefill(_) => "index_logits_prefill",
            Problem::TopkSelect(_) => "topk_select",
            Problem::SparseMlaDecode(_) => "sparse_mla_decode",
            Problem::SparseMlaPrefill(_) => "sparse_mla_prefill",
            Problem::SplitCombine(_) => "split_combine",
            Problem::Products(p) => p.op(),
            Problem::Write(w) => match w.format {
                RowFormat::Kv(_) => "kv_write",
                RowFormat::IndexK(_) => "index_k_write",
            },
            Problem::Streams(p) => p.op(),
            Problem::Rows(p) => p.op(),
        }
    }

    /// Runs the call on `ops`: uploads, runs, and downloads every output, in the order of [`Problem::expected`].
    pub fn run<O: Ops>(&self, ops: &O, fill: Fill) -> Result<Vec<Bytes>, OpsError> {
        match self {
            Problem::IndexLogitsDecode(p) => p.run(ops, fill),
            Problem::IndexLogitsPrefill(p) => p.run(ops, fill),
            Problem::TopkSelect(p) => p.run(ops, fill),
            Problem::SparseMlaDecode(p) => p.run(ops, fill),
            Problem::SparseMlaPrefill(p) => p.run(ops, fill),
            Problem::SplitCombine(p) => p.run(ops, fill),
            Problem::Write(p) => p.run(ops, fill),
            Problem::Products(p) => p.run(ops, fill),
            Problem::Streams(p) => p.run(ops, fill),
            Problem::Rows(p) => p.run(ops, fill),
        }
    }

    /// Names of the outputs, in the order of [`Problem::run`].
    pub fn output_names(&self) -> Vec<&'static str> {
        match self {
            Problem::IndexLogitsDecode(_) | Problem::IndexLogitsPrefill(_) => vec!["index_logits"],
            Problem::TopkSelect(p) => {
                let wanted = [
                    (p.want_positions, "topk_positions"),
                    (p.block_table.is_some(), "topk_slots"),
                    (p.want_lens, "topk_lens"),
                ];
                wanted.into_iter().filter_map(|(want, name)| want.then_some(name)).collect()
            }
            Problem::SparseMlaDecode(_) | Problem::SplitCombine(_) => vec!["out", "lse"],
            Problem::SparseMlaPrefill(p) if p.max_logits => vec!["out", "lse", "max_logits"],
            Problem::SparseMlaPrefill(_) => vec!["out", "lse"],
            Problem::Write(_) => vec!["cache"],
            Problem::Products(_) => vec!["out"],
            Problem::Streams(p) => p.output_names(),
            Problem::Rows(p) => p.output_names(),
        }
    }

    /// What every output must hold, from the plain operations.
    pub fn expected(&self) -> Vec<ExpectedOutput> {
        match self {
            Problem::IndexLogitsDecode(p) => p.expected(),
            Problem::IndexLogitsPrefill(p) => p.expected(),
            Problem::TopkSelect(p) => p.expected(),
            Problem::SparseMlaDecode(p) => p.expected(),
            Problem::SparseMlaPrefill(p) => p.expected(),
            Problem::SplitCombine(p) => p.expected(),
            Problem::Write(p) => p.expected(),
            Problem::Products(p) => p.expected(),
            Problem::Streams(p) => p.expected(),
            Problem::Rows(p) => p.expected(),
        }
    }
}
