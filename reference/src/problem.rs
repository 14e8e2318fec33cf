//! An operation with its data: contents of every operand, dimensions, and what must come out.
//!
//! A problem is data. [`Problem::run`] carries it to any implementation of [`Ops`]; [`Problem::expected`] says what each
//! output must hold. Memory that a problem does not describe must not matter: it is filled with 0xff (NaN in every
//! format) or left as the implementation hands it out.

mod prefill;
mod products;
mod rows;
pub mod streams;

pub use prefill::{IndexLogitsPrefillProblem, SparseMlaPrefillProblem};

pub use products::{LinearProblem, MoeProblem, ProductsProblem, WeightMemory};

use std::ops::Range;

use crate::compare::{self, Bound, Float, Verdict};
use crate::layout::{D_INDEX, D_KV, D_NOPE};
use crate::ops::{
    Dtype, IndexKFormat, IndexKWrite, IndexLogitsDecode, KvFormat, KvWrite, Ops, OpsError, Paged, Pages, ScaleRule,
    SlotList, SparseMlaDecode, SplitCombine, TopkSelect,
};
use crate::plain::{self, Bytes, Cells};
use crate::tolerance;

pub use rows::{CompressProblem, HadamardProblem, IndexQProblem, NormRopeProblem, RopeProblem, RowsProblem};

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

/// Contents of one operand: pieces at their offsets, the rest undefined.
#[derive(Debug, Clone)]
pub struct Memory {
    /// Name in reports.
    pub label: &'static str,
    /// Size in bytes.
    pub len: u64,
    /// What is defined, by offset. Pieces do not overlap.
    pub pieces: Vec<(u64, Vec<u8>)>,
}

/// Above this size the undefined part is never filled: virtual pools.
const LARGE: u64 = 256 << 20;

impl Memory {
    /// Memory that is defined everywhere.
    pub fn full(label: &'static str, bytes: Vec<u8>) -> Memory {
        Memory { label, len: bytes.len() as u64, pieces: vec![(0, bytes)] }
    }

    /// Memory of which nothing is defined yet.
    pub fn undefined(label: &'static str, len: u64) -> Memory {
        Memory { label, len, pieces: Vec::new() }
    }

    /// Defines `bytes` at `offset`; a piece that continues the last one is joined to it.
    pub fn put(&mut self, offset: u64, bytes: &[u8]) {
        match self.pieces.last_mut() {
            Some((start, last)) if *start + last.len() as u64 == offset => last.extend_from_slice(bytes),
            _ => self.pieces.push((offset, bytes.to_vec())),
        }
    }

    /// All bytes, undefined ones as 0xff (0 in very large memory).
    pub fn image(&self) -> Bytes {
        let mut image = vec![if self.len > LARGE { 0 } else { 0xff }; self.len as usize];
        for (offset, bytes) in &self.pieces {
            image[*offset as usize..*offset as usize + bytes.len()].copy_from_slice(bytes);
        }
        image
    }

    /// Allocates and fills a buffer.
    fn load<O: Ops>(&self, ops: &O, fill: Fill) -> Result<O::Buffer, OpsError> {
        let mut buffer = ops.alloc(self.len, self.label)?;
        if fill == Fill::Poison && self.len <= LARGE {
            ops.upload(&mut buffer, 0, &self.image())?;
        } else {
            for (offset, bytes) in &self.pieces {
                ops.upload(&mut buffer, *offset, bytes)?;
            }
        }
        Ok(buffer)
    }
}

fn output<O: Ops>(ops: &O, label: &str, len: u64) -> Result<O::Buffer, OpsError> {
    let mut buffer = ops.alloc(len, label)?;
    ops.upload(&mut buffer, 0, &vec![BEFORE; len as usize])?;
    Ok(buffer)
}

fn fetch<O: Ops>(ops: &O, buffer: &O::Buffer) -> Result<Bytes, OpsError> {
    let mut bytes = vec![0; ops.len_bytes(buffer) as usize];
    ops.download(buffer, 0, &mut bytes)?;
    Ok(bytes)
}

/// What one output must hold.
#[derive(Debug, Clone)]
pub enum Expected {
    /// Elements within a bound of the exact value.
    Floats {
        /// Exact values.
        cells: Cells,
        /// Type of the elements.
        float: Float,
        /// Strides in elements, one per axis.
        strides: Vec<u64>,
        /// Bound.
        bound: Bound,
    },
    /// Equal integers, `columns` to a row.
    Integers {
        /// Row length.
        columns: usize,
        /// Values.
        values: Vec<i32>,
    },
    /// Equal bytes, row after row.
    Rows {
        /// Bytes.
        bytes: Bytes,
        /// Row length.
        row_bytes: u64,
        /// e4m3 codes: both kinds of NaN are equal.
        e4m3: bool,
    },
    /// Equal bytes of a pool.
    Pages {
        /// Bytes of the watched regions, one after the other.
        bytes: Bytes,
        /// What is watched, as offsets in the pool.
        regions: Vec<Range<u64>>,
        /// Geometry.
        pages: Pages,
        /// Format.
        format: RowFormat,
    },
}

/// Row format of a written cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowFormat {
    /// KV rows.
    Kv(KvFormat),
    /// Index-K rows.
    IndexK(IndexKFormat),
}

impl RowFormat {
    /// What lies at `offset` of a pool, in words, and whether it is an e4m3 code.
    fn place(self, pages: &Pages, offset: u64) -> (String, bool) {
        let (page, at) = (offset / pages.page_stride_bytes, offset % pages.page_stride_bytes);
        let p = u64::from(pages.page_size);
        let (data, footer) = match self {
            RowFormat::Kv(KvFormat::V4Fp8) => (576, 8),
            RowFormat::Kv(KvFormat::Bf16) => (2 * D_KV as u64, 0),
            RowFormat::IndexK(IndexKFormat::Fp8) => (D_INDEX as u64, 4),
            RowFormat::IndexK(IndexKFormat::Bf16) => (2 * D_INDEX as u64, 0),
            RowFormat::IndexK(IndexKFormat::Fp4) => (D_INDEX as u64 / 2, 4),
            RowFormat::Kv(KvFormat::F32 { d }) | RowFormat::IndexK(IndexKFormat::F32 { d }) => (4 * u64::from(d), 0),
        };
        if at < p * data {
            let code = match self {
                RowFormat::Kv(KvFormat::V4Fp8) => at % data < D_NOPE as u64,
                RowFormat::IndexK(IndexKFormat::Fp8) => true,
                _ => false,
            };
            (format!("page {page}, row {}, data byte {}", at / data, at % data), code)
        } else if at < p * (data + footer) {
            let at = at - p * data;
            (format!("page {page}, row {}, scale byte {}", at / footer, at % footer), false)
        } else {
            (format!("page {page}, padding"), false)
        }
    }
}

/// Offset in the pool of byte `offset` of the watched regions.
fn in_pool(regions: &[Range<u64>], mut offset: u64) -> u64 {
    for region in regions {
        let len = region.end - region.start;
        if offset < len {
            return region.start + offset;
        }
        offset -= len;
    }
    offset
}

/// One output by name.
#[derive(Debug, Clone)]
pub struct ExpectedOutput {
    /// Name.
    pub name: &'static str,
    /// Contents.
    pub expected: Expected,
}

impl ExpectedOutput {
    /// Compares what an implementation wrote.
    pub fn compare(&self, got: &[u8]) -> Verdict {
        match &self.expected {
            Expected::Floats { cells, float, strides, bound } => {
                let before = vec![BEFORE; got.len()];
                compare::floats(self.name, got, &before, *float, strides, cells, bound)
            }
            Expected::Integers { columns, values } => compare::integers(self.name, got, *columns, values),
            Expected::Rows { bytes, row_bytes, e4m3 } => {
                let place = |at: usize| format!("row {}, byte {}", at as u64 / row_bytes, at as u64 % row_bytes);
                compare::bytes(self.name, got, bytes, |_| *e4m3, place)
            }
            Expected::Pages { bytes, regions, pages, format } => {
                let place = |offset: usize| format.place(pages, in_pool(regions, offset as u64));
                compare::bytes(self.name, got, bytes, |offset| place(offset).1, |offset| place(offset).0)
            }
        }
    }
}

/// Operands of `index_logits_decode`; shapes as in [`IndexLogitsDecode`].
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct IndexLogitsProblem {
    pub format: IndexKFormat,
    pub index_q: Memory,
    pub index_weights: Memory,
    pub index_k: Memory,
    pub pages: Pages,
    pub block_table: Memory,
    pub context_lens: Memory,
    pub b: u32,
    pub s_q: u32,
    pub index_heads: u32,
    pub max_pages: u32,
    pub stride_block_table: u64,
    pub stride_logits: u64,
    pub clean_logits: bool,
}

/// Operands of `topk_select`; shapes as in [`TopkSelect`].
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct TopkProblem {
    pub index_logits: Memory,
    pub context_lens: Memory,
    /// With it, slots are asked for.
    pub block_table: Option<Memory>,
    pub sequence_of_row: Option<Memory>,
    pub want_positions: bool,
    pub want_lens: bool,
    pub rows: u32,
    pub rows_per_sequence: u32,
    pub num_sequences: u32,
    pub topk: u32,
    pub page_size: u32,
    pub max_pages: u32,
    pub stride_logits: u64,
    pub stride_block_table: u64,
}

/// A slot list and its cache; shapes as in [`SlotList`].
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct ListProblem {
    pub cache: Memory,
    pub pages: Pages,
    pub slots: Memory,
    pub lens: Option<Memory>,
    pub width: u32,
    pub stride_slots: u64,
}

/// Operands of `sparse_mla_decode`; shapes as in [`SparseMlaDecode`].
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct SparseMlaProblem {
    pub dtype: Dtype,
    pub format: KvFormat,
    pub q: Memory,
    pub window: ListProblem,
    pub compressed: Option<ListProblem>,
    pub attn_sink: Option<Memory>,
    pub t: u32,
    pub h: u32,
    pub stride_q: [u64; 2],
    pub stride_out: [u64; 2],
    pub sm_scale: f32,
    pub num_splits: Option<u32>,
}

/// Operands of `split_combine`; shapes as in [`SplitCombine`].
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct CombineProblem {
    pub o_partial: Memory,
    pub lse2_partial: Memory,
    pub attn_sink: Option<Memory>,
    pub t: u32,
    pub h: u32,
    pub num_splits: u32,
    pub stride_out: [u64; 2],
}

/// Operands of the two writers; shapes as in [`KvWrite`] and [`IndexKWrite`].
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct WriteProblem {
    /// Type of `rows`.
    pub dtype: Dtype,
    pub format: RowFormat,
    /// Of fp8 index rows.
    pub scale_rule: ScaleRule,
    pub rows: Memory,
    pub slot_mapping: Memory,
    /// Contents before the call: defined wherever it is watched, so that a byte too many is seen.
    pub cache: Memory,
    /// What is downloaded and compared, as offsets in the pool: all of it, but for virtual pools.
    pub watched: Vec<Range<u64>>,
    pub pages: Pages,
    pub t: u32,
    pub stride_rows: u64,
}

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

/// Bytes of a `[t, h, d]` output with strides along t and h, up to its last element.
fn out_bytes(dtype: Dtype, t: u32, h: u32, d: u32, strides: [u64; 2]) -> u64 {
    if t == 0 {
        return 0;
    }
    dtype.bytes() * (u64::from(t - 1) * strides[0] + u64::from(h - 1) * strides[1] + u64::from(d))
}

impl IndexLogitsProblem {
    fn rows(&self) -> u64 {
        u64::from(self.b) * u64::from(self.s_q)
    }

    fn run<O: Ops>(&self, ops: &O, fill: Fill) -> Result<Vec<Bytes>, OpsError> {
        let index_q = self.index_q.load(ops, fill)?;
        let index_weights = self.index_weights.load(ops, fill)?;
        let index_k = self.index_k.load(ops, fill)?;
        let block_table = self.block_table.load(ops, fill)?;
        let context_lens = self.context_lens.load(ops, fill)?;
        let mut index_logits = output(ops, "index_logits", 4 * self.rows() * self.stride_logits)?;
        ops.index_logits_decode(IndexLogitsDecode {
            format: self.format,
            index_q: &index_q,
            index_weights: &index_weights,
            index_k: Paged { buffer: &index_k, pages: self.pages },
            block_table: &block_table,
            context_lens: &context_lens,
            index_logits: &mut index_logits,
            b: self.b,
            s_q: self.s_q,
            index_heads: self.index_heads,
            max_pages: self.max_pages,
            stride_block_table: self.stride_block_table,
            stride_logits: self.stride_logits,
            clean_logits: self.clean_logits,
        })?;
        Ok(vec![fetch(ops, &index_logits)?])
    }

    fn expected(&self) -> Vec<ExpectedOutput> {
        let cells = plain::index_logits(&IndexLogitsDecode {
            format: self.format,
            index_q: &self.index_q.image(),
            index_weights: &self.index_weights.image(),
            index_k: Paged { buffer: &self.index_k.image(), pages: self.pages },
            block_table: &self.block_table.image(),
            context_lens: &self.context_lens.image(),
            index_logits: &mut Vec::new(),
            b: self.b,
            s_q: self.s_q,
            index_heads: self.index_heads,
            max_pages: self.max_pages,
            stride_block_table: self.stride_block_table,
            stride_logits: self.stride_logits,
            clean_logits: self.clean_logits,
        });
        vec![ExpectedOutput {
            name: "index_logits",
            expected: Expected::Floats {
                cells,
                float: Float::F32,
                strides: vec![self.stride_logits, 1],
                bound: tolerance::INDEX_LOGITS,
            },
        }]
    }
}

impl TopkProblem {
    fn run<O: Ops>(&self, ops: &O, fill: Fill) -> Result<Vec<Bytes>, OpsError> {
        let index_logits = self.index_logits.load(ops, fill)?;
        let context_lens = self.context_lens.load(ops, fill)?;
        let block_table = self.block_table.as_ref().map(|t| t.load(ops, fill)).transpose()?;
        let sequence_of_row = self.sequence_of_row.as_ref().map(|s| s.load(ops, fill)).transpose()?;
        let chosen = 4 * u64::from(self.rows) * u64::from(self.topk);
        let wanted = |name, len, want: bool| want.then(|| output(ops, name, len)).transpose();
        let mut positions = wanted("topk_positions", chosen, self.want_positions)?;
        let mut slots = wanted("topk_slots", chosen, self.block_table.is_some())?;
        let mut lens = wanted("topk_lens", 4 * u64::from(self.rows), self.want_lens)?;
        ops.topk_select(TopkSelect {
            index_logits: &index_logits,
            context_lens: &context_lens,
            block_table: block_table.as_ref(),
            sequence_of_row: sequence_of_row.as_ref(),
            topk_positions: positions.as_mut(),
            topk_slots: slots.as_mut(),
            topk_lens: lens.as_mut(),
            rows: self.rows,
            rows_per_sequence: self.rows_per_sequence,
            num_sequences: self.num_sequences,
            topk: self.topk,
            page_size: self.page_size,
            max_pages: self.max_pages,
            stride_logits: self.stride_logits,
            stride_block_table: self.stride_block_table,
        })?;
        [positions, slots, lens].iter().flatten().map(|buffer| fetch(ops, buffer)).collect()
    }

    fn expected(&self) -> Vec<ExpectedOutput> {
        let table = self.block_table.as_ref().map(Memory::image);
        let sequence_of_row = self.sequence_of_row.as_ref().map(Memory::image);
        let chosen = plain::topk_select(&TopkSelect {
            index_logits: &self.index_logits.image(),
            context_lens: &self.context_lens.image(),
            block_table: table.as_ref(),
            sequence_of_row: sequence_of_row.as_ref(),
            topk_positions: None,
            topk_slots: None,
            topk_lens: None,
            rows: self.rows,
            rows_per_sequence: self.rows_per_sequence,
            num_sequences: self.num_sequences,
            topk: self.topk,
            page_size: self.page_size,
            max_pages: self.max_pages,
            stride_logits: self.stride_logits,
            stride_block_table: self.stride_block_table,
        });
        let integers = |name, columns, values: &[i32]| ExpectedOutput {
            name,
            expected: Expected::Integers { columns, values: values.to_vec() },
        };
        let mut outputs = Vec::new();
        if self.want_positions {
            outputs.push(integers("topk_positions", self.topk as usize, &chosen.positions));
        }
        if self.block_table.is_some() {
            outputs.push(integers("topk_slots", self.topk as usize, &chosen.slots));
        }
        if self.want_lens {
            outputs.push(integers("topk_lens", 1, &chosen.lens));
        }
        outputs
    }
}

/// A list with its memory in place.
struct LoadedList<B> {
    cache: B,
    slots: B,
    lens: Option<B>,
}

impl ListProblem {
    fn load<O: Ops>(&self, ops: &O, fill: Fill) -> Result<LoadedList<O::Buffer>, OpsError> {
        Ok(LoadedList {
            cache: self.cache.load(ops, fill)?,
            slots: self.slots.load(ops, fill)?,
            lens: self.lens.as_ref().map(|l| l.load(ops, fill)).transpose()?,
        })
    }

    fn images(&self) -> LoadedList<Bytes> {
        LoadedList { cache: self.cache.image(), slots: self.slots.image(), lens: self.lens.as_ref().map(Memory::image) }
    }

    fn operand<'a, B>(&self, loaded: &'a LoadedList<B>) -> SlotList<'a, B> {
        SlotList {
            cache: Paged { buffer: &loaded.cache, pages: self.pages },
            slots: &loaded.slots,
            lens: loaded.lens.as_ref(),
            width: self.width,
            stride_slots: self.stride_slots,
        }
    }
}

impl SparseMlaProblem {
    fn run<O: Ops>(&self, ops: &O, fill: Fill) -> Result<Vec<Bytes>, OpsError> {
        self.run_with(ops, fill, |attention| ops.sparse_mla_decode(attention))
    }

    /// Uploads the operands, runs `call` on them, and downloads `out` and `lse`.
    fn run_with<O: Ops>(
        &self,
        ops: &O,
        fill: Fill,
        call: impl FnOnce(SparseMlaDecode<'_, O::Buffer>) -> Result<(), OpsError>,
    ) -> Result<Vec<Bytes>, OpsError> {
        let q = self.q.load(ops, fill)?;
        let window = self.window.load(ops, fill)?;
        let compressed = self.compressed.as_ref().map(|c| c.load(ops, fill)).transpose()?;
        let sink = self.attn_sink.as_ref().map(|s| s.load(ops, fill)).transpose()?;
        let bytes = out_bytes(self.dtype, self.t, self.h, self.format.d(), self.stride_out);
        let mut out = output(ops, "out", bytes)?;
        let mut lse = output(ops, "lse", 4 * u64::from(self.t) * u64::from(self.h))?;
        call(self.operands(&q, &window, compressed.as_ref(), sink.as_ref(), &mut out, &mut lse))?;
        Ok(vec![fetch(ops, &out)?, fetch(ops, &lse)?])
    }

    fn operands<'a, B>(
        &self,
        q: &'a B,
        window: &'a LoadedList<B>,
        compressed: Option<&'a LoadedList<B>>,
        attn_sink: Option<&'a B>,
        out: &'a mut B,
        lse: &'a mut B,
    ) -> SparseMlaDecode<'a, B> {
        SparseMlaDecode {
            dtype: self.dtype,
            format: self.format,
            q,
            window: self.window.operand(window),
            compressed: self.compressed.as_ref().zip(compressed).map(|(list, loaded)| list.operand(loaded)),
            attn_sink,
            out,
            lse,
            t: self.t,
            h: self.h,
            stride_q: self.stride_q,
            stride_out: self.stride_out,
            sm_scale: self.sm_scale,
            num_splits: self.num_splits,
        }
    }

    /// What a plain operation makes of the operands.
    fn on_images<T>(&self, operation: impl FnOnce(&SparseMlaDecode<'_, Bytes>) -> T) -> T {
        let (q, window) = (self.q.image(), self.window.images());
        let compressed = self.compressed.as_ref().map(ListProblem::images);
        let sink = self.attn_sink.as_ref().map(Memory::image);
        let (mut no_out, mut no_lse) = (Vec::new(), Vec::new());
        operation(&self.operands(&q, &window, compressed.as_ref(), sink.as_ref(), &mut no_out, &mut no_lse))
    }

    fn expected(&self) -> Vec<ExpectedOutput> {
        let (mut out, lse) = self.on_images(plain::sparse_mla);
        let out_bound = match self.dtype {
            Dtype::Bf16 => tolerance::ATTENTION_OUT,
            Dtype::F32 => {
                tolerance::scale_by_scores(&mut out, &lse);
                tolerance::ATTENTION_OUT_F32
            }
        };
        attention_outputs((out, lse), self.dtype, self.stride_out, self.h, [out_bound, tolerance::ATTENTION_LSE])
    }
}

fn attention_outputs(
    (out, lse): (Cells, Cells),
    dtype: Dtype,
    stride_out: [u64; 2],
    h: u32,
    bounds: [Bound; 2],
) -> Vec<ExpectedOutput> {
    let out = Expected::Floats {
        cells: out,
        float: dtype.into(),
        strides: vec![stride_out[0], stride_out[1], 1],
        bound: bounds[0],
    };
    let lse = Expected::Floats { cells: lse, float: Float::F32, strides: vec![u64::from(h), 1], bound: bounds[1] };
    vec![ExpectedOutput { name: "out", expected: out }, ExpectedOutput { name: "lse", expected: lse }]
}

impl CombineProblem {
    fn run<O: Ops>(&self, ops: &O, fill: Fill) -> Result<Vec<Bytes>, OpsError> {
        let o_partial = self.o_partial.load(ops, fill)?;
        let lse2_partial = self.lse2_partial.load(ops, fill)?;
        let sink = self.attn_sink.as_ref().map(|s| s.load(ops, fill)).transpose()?;
        let mut out = output(ops, "out", out_bytes(Dtype::Bf16, self.t, self.h, D_KV as u32, self.stride_out))?;
        let mut lse = output(ops, "lse", 4 * u64::from(self.t) * u64::from(self.h))?;
        ops.split_combine(self.operands(&o_partial, &lse2_partial, sink.as_ref(), &mut out, &mut lse))?;
        Ok(vec![fetch(ops, &out)?, fetch(ops, &lse)?])
    }

    fn operands<'a, B>(
        &self,
        o_partial: &'a B,
        lse2_partial: &'a B,
        attn_sink: Option<&'a B>,
        out: &'a mut B,
        lse: &'a mut B,
    ) -> SplitCombine<'a, B> {
        SplitCombine {
            o_partial,
            lse2_partial,
            attn_sink,
            out,
            lse,
            t: self.t,
            h: self.h,
            num_splits: self.num_splits,
            stride_out: self.stride_out,
        }
    }

    fn expected(&self) -> Vec<ExpectedOutput> {
        let (o_partial, lse2_partial) = (self.o_partial.image(), self.lse2_partial.image());
        let sink = self.attn_sink.as_ref().map(Memory::image);
        let (mut no_out, mut no_lse) = (Vec::new(), Vec::new());
        let cells =
            plain::split_combine(&self.operands(&o_partial, &lse2_partial, sink.as_ref(), &mut no_out, &mut no_lse));
        attention_outputs(cells, Dtype::Bf16, self.stride_out, self.h, [tolerance::COMBINE_OUT, tolerance::COMBINE_LSE])
    }
}

impl WriteProblem {
    fn run<O: Ops>(&self, ops: &O, fill: Fill) -> Result<Vec<Bytes>, OpsError> {
        let rows = self.rows.load(ops, fill)?;
        let slot_mapping = self.slot_mapping.load(ops, fill)?;
        let mut cache = self.cache.load(ops, fill)?;
        match self.format {
            RowFormat::Kv(_) => ops.kv_write(self.kv(&rows, &slot_mapping, &mut cache))?,
            RowFormat::IndexK(_) => ops.index_k_write(self.index_k(&rows, &slot_mapping, &mut cache))?,
        }
        let mut bytes = Vec::new();
        for region in &self.watched {
            let mut part = vec![0; (region.end - region.start) as usize];
            ops.download(&cache, region.start, &mut part)?;
            bytes.extend(part);
        }
        Ok(vec![bytes])
    }

    fn kv<'a, B>(&self, rows: &'a B, slot_mapping: &'a B, cache: &'a mut B) -> KvWrite<'a, B> {
        let RowFormat::Kv(format) = self.format else { unreachable!("called for KV rows") };
        KvWrite {
            dtype: self.dtype,
            format,
            rows,
            slot_mapping,
            cache,
            pages: self.pages,
            t: self.t,
            stride_rows: self.stride_rows,
        }
    }

    fn index_k<'a, B>(&self, rows: &'a B, slot_mapping: &'a B, cache: &'a mut B) -> IndexKWrite<'a, B> {
        let RowFormat::IndexK(format) = self.format else { unreachable!("called for index-K rows") };
        IndexKWrite {
            dtype: self.dtype,
            format,
            scale_rule: self.scale_rule,
            rows,
            slot_mapping,
            cache,
            pages: self.pages,
            t: self.t,
            stride_rows: self.stride_rows,
        }
    }

    fn expected(&self) -> Vec<ExpectedOutput> {
        let (rows, slot_mapping, mut cache) = (self.rows.image(), self.slot_mapping.image(), self.cache.image());
        match self.format {
            RowFormat::Kv(_) => plain::kv_write(&mut self.kv(&rows, &slot_mapping, &mut cache)),
            RowFormat::IndexK(_) => plain::index_k_write(&mut self.index_k(&rows, &slot_mapping, &mut cache)),
        }
        let watched = self.watched.iter().flat_map(|r| &cache[r.start as usize..r.end as usize]);
        let bytes = watched.copied().collect();
        let regions = self.watched.clone();
        vec![ExpectedOutput {
            name: "cache",
            expected: Expected::Pages { bytes, regions, pages: self.pages, format: self.format },
        }]
    }
}
