//! Seam 1: what the operations are, independent of where they run.
//!
//! An implementation owns a kind of memory ([`Ops::Buffer`]) and runs operations over it. Operands are buffers plus a
//! `Dims` record; every implementation first calls the operation's `check`, a pure function that needs no device, so
//! that a wrong shape, stride or format is refused with the same words everywhere. Strides are in elements unless the
//! name ends in `_bytes`. Invalid slots and page ids are -1 or anything else out of range.
//!
//! Activations have one [`Dtype`] per call. With [`Dtype::Bf16`] every output (and every intermediate value that a
//! contract says is "stored") is rounded once, to nearest even; with [`Dtype::F32`] nothing is rounded but to f32. Sums are
//! taken in f32 or better, in any order. Norm weights, biases, sinks and mixing parameters are f32 whatever the dtype.
//! `t` tokens of a batch stand one after the other.

mod attention;
mod index;
mod products;
mod rows;
mod storage;
mod streams;
mod write;

pub use attention::{SlotList, SparseMlaDecode, SparseMlaPrefill, SplitCombine};
pub use index::{IndexLogitsDecode, IndexLogitsPrefill, TopkSelect};
pub use products::{Linear, MoeExperts};
pub use rows::{Compress, Hadamard, IndexQQuantise, Norm, NormRope, Rope};
pub use storage::{Dtype, IndexKFormat, KvFormat, Paged, Pages, ScaleRule, Weight, WeightFormat};
pub use streams::{Embed, GatherRows, HcMix, HcMixing, HcPost, Router, Routing, Sample, Swiglu};
pub use write::{IndexKWrite, KvWrite};

use thiserror::Error;

/// Why an operation was refused or failed.
#[derive(Debug, Error)]
pub enum OpsError {
    /// An operand does not have the shape, stride, size or format that the operation needs.
    #[error("{op}: {tensor}: expected {expected}, got {got}")]
    Operand {
        /// Operation.
        op: &'static str,
        /// Operand or dimension.
        tensor: &'static str,
        /// What is accepted.
        expected: String,
        /// What was given.
        got: String,
    },
    /// The implementation does not offer this combination.
    #[error("{op}: not offered by {device}: {what}")]
    Unsupported {
        /// Operation.
        op: &'static str,
        /// Implementation.
        device: String,
        /// What is missing, and what is offered instead.
        what: String,
    },
    /// The device failed: out of memory, launch error, finding of the emulator, absent driver.
    #[error("{device}: {message}")]
    Device {
        /// Implementation.
        device: String,
        /// What happened.
        message: String,
    },
}

/// The operations of a model. [`for_each_operation!`](crate::for_each_operation) lists them for those who do the same with
/// each.
///
/// An implementation may be able to record operations and to run the record again as one piece of work, with the same
/// operands but whatever the buffers hold by then. Sizes are part of the record; lengths, slots, ids and everything else that
/// an operation reads from its buffers is not.
pub trait Ops {
    /// Memory of this implementation.
    type Buffer;
    /// Recorded operations; [`std::convert::Infallible`] where nothing is recorded.
    type Graph;

    /// Name for reports: `reference`, `host`, `emulated (sm_120a)`, `NVIDIA RTX PRO 6000 ...`.
    fn name(&self) -> String;
    /// Allocates `bytes` bytes, not initialised. `label` names the allocation in reports.
    fn alloc(&self, bytes: u64, label: &str) -> Result<Self::Buffer, OpsError>;
    /// Copies `bytes` to `dst` from `offset` on.
    fn upload(&self, dst: &mut Self::Buffer, offset: u64, bytes: &[u8]) -> Result<(), OpsError>;
    /// Copies from `src` at `offset` into `bytes`, after everything before it has run.
    fn download(&self, src: &Self::Buffer, offset: u64, bytes: &mut [u8]) -> Result<(), OpsError>;
    /// Size of a buffer in bytes.
    fn len_bytes(&self, buffer: &Self::Buffer) -> u64;

    /// Whether [`Ops::capture`] is offered.
    fn captures(&self) -> bool {
        false
    }
    /// Records the operations that `work` calls; they do not run. Operands must stay where they are for as long as the graph is
    /// replayed. Every operation has run before with the same sizes, so that whatever an implementation keeps beside the
    /// operands is there.
    ///
    /// # Errors
    /// What `work` returns, and a refusal of anything in it that cannot be recorded: [`Ops::alloc`], [`Ops::upload`],
    /// [`Ops::download`], a buffer that is dropped.
    fn capture(&self, work: impl FnOnce() -> Result<(), OpsError>) -> Result<Self::Graph, OpsError>
    where
        Self: Sized,
    {
        drop(work);
        Err(OpsError::Unsupported { op: "capture", device: self.name(), what: "operations run at once here".into() })
    }
    /// Runs what was recorded, in the order of the other work. After an error no graph may be replayed again.
    fn replay(&self, graph: &Self::Graph) -> Result<(), OpsError> {
        let _ = graph;
        Err(OpsError::Unsupported { op: "replay", device: self.name(), what: "nothing is recorded here".into() })
    }
    /// Pieces of work in a graph: what a device would otherwise be handed one by one.
    fn recorded(&self, graph: &Self::Graph) -> u64 {
        let _ = graph;
        0
    }

    /// Index logits of paged keys.
    fn index_logits_decode(&self, args: IndexLogitsDecode<'_, Self::Buffer>) -> Result<(), OpsError>;
    /// Exact top-k of every row.
    fn topk_select(&self, args: TopkSelect<'_, Self::Buffer>) -> Result<(), OpsError>;
    /// Sparse attention over window and compressed rows.
    fn sparse_mla_decode(&self, args: SparseMlaDecode<'_, Self::Buffer>) -> Result<(), OpsError>;
    /// Merges the partial results of splits.
    fn split_combine(&self, args: SplitCombine<'_, Self::Buffer>) -> Result<(), OpsError>;
    /// Writes KV rows.
    fn kv_write(&self, args: KvWrite<'_, Self::Buffer>) -> Result<(), OpsError>;
    /// Writes index-K rows.
    fn index_k_write(&self, args: IndexKWrite<'_, Self::Buffer>) -> Result<(), OpsError>;
    /// Embedding rows, once per stream.
    fn embed(&self, args: Embed<'_, Self::Buffer>) -> Result<(), OpsError>;
    /// Rows of a buffer by number.
    fn gather_rows(&self, args: GatherRows<'_, Self::Buffer>) -> Result<(), OpsError>;
    /// Hyper-connections before a sub-layer or the head, with its norm.
    fn hc_mix(&self, args: HcMix<'_, Self::Buffer>) -> Result<(), OpsError>;
    /// Hyper-connections after a sub-layer.
    fn hc_post(&self, args: HcPost<'_, Self::Buffer>) -> Result<(), OpsError>;
    /// Matrix product with a weight.
    fn linear(&self, args: Linear<'_, Self::Buffer>) -> Result<(), OpsError>;
    /// Norm and rotation per head.
    fn norm_rope(&self, args: NormRope<'_, Self::Buffer>) -> Result<(), OpsError>;
    /// Hadamard transform of rows.
    fn hadamard(&self, args: Hadamard<'_, Self::Buffer>) -> Result<(), OpsError>;
    /// Index queries in the format of the index keys.
    fn index_q_quantise(&self, args: IndexQQuantise<'_, Self::Buffer>) -> Result<(), OpsError>;
    /// One step of a compressor.
    fn compress(&self, args: Compress<'_, Self::Buffer>) -> Result<(), OpsError>;
    /// Experts and their weights.
    fn router(&self, args: Router<'_, Self::Buffer>) -> Result<(), OpsError>;
    /// Gated activation.
    fn swiglu(&self, args: Swiglu<'_, Self::Buffer>) -> Result<(), OpsError>;
    /// Routed experts.
    fn moe_experts(&self, args: MoeExperts<'_, Self::Buffer>) -> Result<(), OpsError>;
    /// One token per row of logits.
    fn sample(&self, args: Sample<'_, Self::Buffer>) -> Result<(), OpsError>;
    /// Index logits of ragged queries.
    fn index_logits_prefill(&self, args: IndexLogitsPrefill<'_, Self::Buffer>) -> Result<(), OpsError>;
    /// Sparse attention of many query tokens.
    fn sparse_mla_prefill(&self, args: SparseMlaPrefill<'_, Self::Buffer>) -> Result<(), OpsError>;
}

/// Calls the macro `$then` once, with every operation and the name of its operands in [`ops`](crate::ops):
/// `hadamard(Hadamard), ...`.
///
/// With it an implementation of [`Ops`](crate::ops::Ops) says once what it does for every call. The compiler holds the list
/// and the trait together: an operation that stands in one of them only fails to build.
///
/// ```
/// macro_rules! names {
///     ($($op:ident($operands:ident),)*) => { [$(stringify!($op)),*] };
/// }
/// assert!(reference::for_each_operation!(names).contains(&"hadamard"));
/// ```
#[macro_export]
macro_rules! for_each_operation {
    ($then:ident) => {
        $then! {
            index_logits_decode(IndexLogitsDecode),
            topk_select(TopkSelect),
            sparse_mla_decode(SparseMlaDecode),
            split_combine(SplitCombine),
            kv_write(KvWrite),
            index_k_write(IndexKWrite),
            embed(Embed),
            gather_rows(GatherRows),
            hc_mix(HcMix),
            hc_post(HcPost),
            linear(Linear),
            norm_rope(NormRope),
            hadamard(Hadamard),
            index_q_quantise(IndexQQuantise),
            compress(Compress),
            router(Router),
            swiglu(Swiglu),
            moe_experts(MoeExperts),
            sample(Sample),
            index_logits_prefill(IndexLogitsPrefill),
            sparse_mla_prefill(SparseMlaPrefill),
        }
    };
}
