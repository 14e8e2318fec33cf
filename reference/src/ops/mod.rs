//! Seam 1: what the operations are, independent of where they run.
//!
//! An implementation owns a kind of memory ([`Ops::Buffer`]) and runs operations over it. Operands are buffers plus a
//! `Dims` record; every implementation first calls the operation's `check`, a pure function that needs no device, so
//! that a wrong shape, stride or format is refused with the same words everywhere. Strides are in elements unless the
//! name ends in `_bytes`. Invalid slots and page ids are -1 or anything else out of range.

mod model;

pub use model::{
    Compress, Dtype, Embed, GatherRows, Hadamard, HcMix, HcMixing, HcPost, IndexLogitsPrefill, IndexQQuantise, Linear,
    MoeExperts, Norm, NormRope, Rope, Router, Routing, Sample, Swiglu, Weight, WeightFormat,
};

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

/// Row format of a KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KvFormat {
    /// 584 B: 448 e4m3 + 64 bf16 per row, then 7 ue8m0 + pad per row at the end of the page.
    V4Fp8,
    /// 1,024 B: 512 bf16.
    Bf16,
    /// `4 * d` B: f32. The width of rows, queries and outputs is `d` instead of 512.
    F32 {
        /// Channels, 1 to 8,192.
        d: u32,
    },
}

/// Row format of an index-K cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum IndexKFormat {
    /// 132 B, block-planar: P x 128 e4m3, then P x f32.
    Fp8,
    /// 256 B: 128 bf16.
    Bf16,
    /// 68 B, block-planar: P x 64 B of e2m1 codes (low nibble = even channel), then P x 4 ue8m0, one per 32 channels.
    Fp4,
    /// `4 * d` B: f32. The width of rows and queries is `d` instead of 128.
    F32 {
        /// Channels, 1 to 8,192.
        d: u32,
    },
}

/// How `index_k_write` makes an fp8 scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ScaleRule {
    /// `max(amax, 1e-4) / 448`
    Exact,
    /// That, rounded up to a power of two.
    PowerOfTwo,
}

/// Geometry of a paged cache: page `p` starts at byte `p * page_stride_bytes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pages {
    /// Pages in the pool.
    pub num_pages: u32,
    /// Rows per page.
    pub page_size: u32,
    /// Bytes from one page to the next.
    pub page_stride_bytes: u64,
}

/// A paged cache operand.
#[derive(Debug)]
pub struct Paged<'a, B> {
    /// Memory of the pool.
    pub buffer: &'a B,
    /// Geometry.
    pub pages: Pages,
}

impl<B> Clone for Paged<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<B> Copy for Paged<'_, B> {}

/// Operands of [`Ops::index_logits_decode`].
///
/// `logit[r, j] = k_scale[j] * sum_h weight[r, h] * relu(q[r, h] . k[j])`, f32 from the dot on, NaN passes through. Row
/// `r` is query `r % s_q` of sequence `r / s_q`; its `n` is `context_lens[r]` clamped to `0..=max_pages * page_size`.
/// Entries `j < n` whose page id lies outside the pool are -inf and their memory is not read. Entries at and beyond `n`
/// are -inf (up to the row stride) when cleaning is asked for and not written otherwise.
///
/// `k_scale` is the row's f32 for fp8 and 1 otherwise. fp4: `q . k = sum_g qs_g ks_g sum_c q_c k_c` over the four groups of
/// 32 channels, `q_c` and `k_c` the values of the codes; a scale byte of 255 is NaN.
#[derive(Debug)]
pub struct IndexLogitsDecode<'a, B> {
    /// Format of `index_q` and `index_k`.
    pub format: IndexKFormat,
    /// `[b, s_q, index_heads, d]` e4m3, bf16 or f32, contiguous; fp4: `[b, s_q, index_heads]` of 64 code bytes and 4 ue8m0.
    pub index_q: &'a B,
    /// `[b, s_q, index_heads]` f32, contiguous.
    pub index_weights: &'a B,
    /// Index-K pages.
    pub index_k: Paged<'a, B>,
    /// `[b, max_pages]` s32.
    pub block_table: &'a B,
    /// `[b, s_q]` s32, in index rows.
    pub context_lens: &'a B,
    /// Out `[b * s_q, stride_logits]` f32.
    pub index_logits: &'a mut B,
    /// Sequences.
    pub b: u32,
    /// Queries per sequence, 1 to 4.
    pub s_q: u32,
    /// Heads of the indexer, 1 to 128; the kernels take 64.
    pub index_heads: u32,
    /// Columns of the block table in use.
    pub max_pages: u32,
    /// Row stride of the block table.
    pub stride_block_table: u64,
    /// Row stride of the logits, a multiple of 256 and at least `max_pages * page_size`.
    pub stride_logits: u64,
    /// Write -inf to `[n, stride_logits)` of every row; otherwise those entries are not written.
    pub clean_logits: bool,
}

/// Operands of [`Ops::topk_select`].
///
/// `n` of a row is `context_lens[r]` clamped to `0..=stride_logits`. If `n <= topk`, the row's result is `0..n` whatever
/// the values are (they are not read). Otherwise the `topk` best entries of `0..n`: larger value first, then lower
/// position; -0.0 equals +0.0, NaN counts as -inf, -inf is never selected. Positions come out ascending, -1 behind them.
/// The slot of position `j` is `block_table[j / page_size] * page_size + j % page_size`, or -1 (in its place) if the page
/// id is negative or `j / page_size >= max_pages`. Row `r` reads line `r / rows_per_sequence` of the table, or line
/// `sequence_of_row[r]` where that is given; outside `0..num_sequences`, all its slots are -1. At least one of the two lists
/// is asked for; a block table is given exactly when slots are.
#[derive(Debug)]
pub struct TopkSelect<'a, B> {
    /// `[rows, stride_logits]` f32.
    pub index_logits: &'a B,
    /// `[rows]` s32.
    pub context_lens: &'a B,
    /// `[rows / rows_per_sequence, max_pages]` s32, or `[num_sequences, max_pages]` with `sequence_of_row`; needed for
    /// `topk_slots`.
    pub block_table: Option<&'a B>,
    /// `[rows]` s32: line of the block table; absent: rows stand `rows_per_sequence` to a line. Only with a block table.
    pub sequence_of_row: Option<&'a B>,
    /// Out `[rows, topk]` s32, ascending, -1 at the tail.
    pub topk_positions: Option<&'a mut B>,
    /// Out `[rows, topk]` s32, the same entries as slots.
    pub topk_slots: Option<&'a mut B>,
    /// Out `[rows]` s32.
    pub topk_lens: Option<&'a mut B>,
    /// Rows.
    pub rows: u32,
    /// Rows that share one line of the block table; not looked at with `sequence_of_row`.
    pub rows_per_sequence: u32,
    /// Lines of the block table; looked at with `sequence_of_row` only.
    pub num_sequences: u32,
    /// 1 to 2048.
    pub topk: u32,
    /// Rows per page of the cache that the slots point into.
    pub page_size: u32,
    /// Columns of the block table in use.
    pub max_pages: u32,
    /// Row stride of the logits, a multiple of 256, below 2^31.
    pub stride_logits: u64,
    /// Row stride of the block table.
    pub stride_block_table: u64,
}

/// One slot list of [`SparseMlaDecode`] with the cache that it points into.
#[derive(Debug)]
pub struct SlotList<'a, B> {
    /// Cache.
    pub cache: Paged<'a, B>,
    /// `[t, width]` s32; anything outside the pool is skipped.
    pub slots: &'a B,
    /// `[t]` s32, clamped to `0..=width`: entries at and beyond it are not looked at.
    pub lens: Option<&'a B>,
    /// Columns.
    pub width: u32,
    /// Row stride of `slots`.
    pub stride_slots: u64,
}

/// Operands of [`Ops::sparse_mla_decode`].
///
/// With `l_i = sm_scale * q . k_i` over the valid entries of both lists (an entry that stands there twice counts twice) and
/// `m = max l_i`: `out = sum e^(l_i - m) k_i / (sum e^(l_i - m) + e^(sink - m))`, `lse = m + ln sum e^(l_i - m)`. No valid
/// entry: out 0, lse -inf. Sink +inf: out 0 and lse unchanged; sink -inf or no sink: no extra term.
///
/// `d` is 512, or the width of [`KvFormat::F32`].
#[derive(Debug)]
pub struct SparseMlaDecode<'a, B> {
    /// Type of `q` and `out`.
    pub dtype: Dtype,
    /// Row format of both caches.
    pub format: KvFormat,
    /// `[t, h, d]`.
    pub q: &'a B,
    /// Window rows.
    pub window: SlotList<'a, B>,
    /// Compressed rows; `None` in window-only layers.
    pub compressed: Option<SlotList<'a, B>>,
    /// `[h]` f32.
    pub attn_sink: Option<&'a B>,
    /// Out `[t, h, d]`.
    pub out: &'a mut B,
    /// Out `[t, h]` f32, natural logarithm, sink not included, -inf when no row is valid.
    pub lse: &'a mut B,
    /// Query tokens.
    pub t: u32,
    /// Heads, 1 to 256; the kernels take 8, 16, 32, 64 and 128.
    pub h: u32,
    /// Strides of `q` along t and h: at least `d` along h, tokens do not overlap, multiples of 8 with bf16.
    pub stride_q: [u64; 2],
    /// Strides of `out` along t and h, same rules.
    pub stride_out: [u64; 2],
    /// `d^-1/2`; finite.
    pub sm_scale: f32,
    /// Splits along the rows; `None` leaves it to the implementation. The result may differ by rounding only.
    pub num_splits: Option<u32>,
}

/// Operands of [`Ops::split_combine`].
///
/// `M = max_s lse2_s`, `out = sum_s 2^(lse2_s - M) o_s / (sum_s 2^(lse2_s - M) + 2^(sink * log2 e - M))`,
/// `lse = ln 2 * (M + log2 sum_s 2^(lse2_s - M))`. All splits empty: out 0, lse -inf; sinks as in [`SparseMlaDecode`].
#[derive(Debug)]
pub struct SplitCombine<'a, B> {
    /// `[num_splits, t, h, 512]` f32.
    pub o_partial: &'a B,
    /// `[num_splits, t, h]` f32, base 2, -inf for an empty split (whose `o_partial` is not read).
    pub lse2_partial: &'a B,
    /// `[h]` f32.
    pub attn_sink: Option<&'a B>,
    /// Out `[t, h, 512]` bf16.
    pub out: &'a mut B,
    /// Out `[t, h]` f32, natural.
    pub lse: &'a mut B,
    /// Query tokens.
    pub t: u32,
    /// Heads, 1 to 256; the kernels take 8, 16, 32, 64 and 128.
    pub h: u32,
    /// Splits, at least 1.
    pub num_splits: u32,
    /// Strides of `out` along t and h.
    pub stride_out: [u64; 2],
}

/// Operands of [`Ops::kv_write`].
///
/// `v4_fp8`: per 64 of the 448 nope channels `a = clamp(amax, 1e-4, f32::MAX)`, `s = 2^ceil(log2(a / 448))`, code =
/// `e4m3(clamp(x / s, -448, 448))` to nearest even, zeros keep their sign; `amax` ignores NaN, a NaN is stored as a NaN
/// (0x7f or 0xff, both are right). Rope channels in bf16, pad byte 0. Bytes outside the written rows stay as they are.
/// Two tokens for one slot in one call are a caller error.
///
/// Everything starts from the value as it is given: quantisers see f32 rows without a rounding to bf16. bf16 channels of f32
/// rows are rounded once, to nearest even (a NaN becomes quiet and keeps sign and upper payload); a type that is stored as
/// it is given is copied bit by bit.
#[derive(Debug)]
pub struct KvWrite<'a, B> {
    /// Type of `rows`.
    pub dtype: Dtype,
    /// Format to write.
    pub format: KvFormat,
    /// `[t, d]`, normed and rotated; `d` is 512, or the width of [`KvFormat::F32`].
    pub rows: &'a B,
    /// `[t]` s32; -1 and anything else out of range is skipped.
    pub slot_mapping: &'a B,
    /// Out: pages.
    pub cache: &'a mut B,
    /// Geometry of `cache`.
    pub pages: Pages,
    /// Tokens.
    pub t: u32,
    /// Row stride of `rows`, a multiple of 8 with bf16.
    pub stride_rows: u64,
}

/// Operands of [`Ops::index_k_write`].
///
/// bf16 and f32: as in [`KvWrite`]. fp8: one f32 scale per row, `s = clamp(amax, 1e-4, f32::MAX) / 448` (rounded up to a power of two under
/// [`ScaleRule::PowerOfTwo`]), code = `e4m3(clamp(x / s, -448, 448))`, both divisions correctly rounded f32; NaN and the
/// order of bytes as in [`KvWrite`]. fp4: per 32 channels `a = clamp(amax, 6 * 2^-126, f32::MAX)`, `s = 2^ceil(log2(a / 6))`
/// with a correctly rounded division, code = `e2m1(clamp(x / s, -6, 6))`, ties to the even code; zeros keep their sign, a NaN
/// is stored as 0. No Hadamard transform is applied here. Bytes outside the written rows stay as they are.
#[derive(Debug)]
pub struct IndexKWrite<'a, B> {
    /// Type of `rows`.
    pub dtype: Dtype,
    /// Format to write.
    pub format: IndexKFormat,
    /// Scale of the fp8 format.
    pub scale_rule: ScaleRule,
    /// `[t, d]`; `d` is 128, or the width of [`IndexKFormat::F32`].
    pub rows: &'a B,
    /// `[t]` s32.
    pub slot_mapping: &'a B,
    /// Out: pages.
    pub cache: &'a mut B,
    /// Geometry of `cache`.
    pub pages: Pages,
    /// Tokens.
    pub t: u32,
    /// Row stride of `rows`, a multiple of 8 with bf16.
    pub stride_rows: u64,
}

/// Operands of [`Ops::sparse_mla_prefill`]: [`SparseMlaDecode`] for many query tokens, without splits.
#[derive(Debug)]
pub struct SparseMlaPrefill<'a, B> {
    /// As in [`SparseMlaDecode`]; `num_splits` is not looked at.
    pub attention: SparseMlaDecode<'a, B>,
    /// Out `[t, h]` f32: the largest `l_i`, -inf when no row is valid.
    pub max_logits: Option<&'a mut B>,
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
