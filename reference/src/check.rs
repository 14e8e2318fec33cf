//! What every implementation refuses, and in which words.
//!
//! Each operand record has a `check`: a pure function of its numbers and of the sizes of its buffers, without a device.
//! The order is fixed: sizes, format, strides, then buffer lengths (a buffer may be longer than needed). Data that
//! lives on a device (context lengths, slots, page ids) is not looked at; what odd values there mean is part of each
//! operation's contract. An empty batch is valid.

mod prefill;
mod products;
mod rows;
mod streams;

pub use products::K_MULTIPLE;

use crate::layout::{D_KV, LOGITS_STRIDE_MULTIPLE, MAX_F32_CHANNELS, MAX_HEADS, MAX_INDEX_HEADS, MAX_TOPK};
use crate::ops::{
    Dtype, IndexKFormat, IndexKWrite, IndexLogitsDecode, KvFormat, KvWrite, OpsError, Pages, SlotList, SparseMlaDecode,
    SplitCombine, TopkSelect,
};

/// Elements of a bf16 tensor between two rows that kernels read in 16-byte pieces.
const BF16_VECTOR: u64 = 8;

fn refuse(
    op: &'static str,
    tensor: &'static str,
    expected: impl Into<String>,
    got: impl ToString,
) -> Result<(), OpsError> {
    Err(OpsError::Operand { op, tensor, expected: expected.into(), got: got.to_string() })
}

/// Narrows a count, stride or length to the 32-bit signed integer of a parameter structure.
///
/// The one place where 64-bit sizes become 32-bit ones. Refuses anything above 2^31 - 1.
pub fn narrow(op: &'static str, tensor: &'static str, value: u64) -> Result<i32, OpsError> {
    i32::try_from(value).map_err(|_| OpsError::Operand {
        op,
        tensor,
        expected: format!("at most {}", i32::MAX),
        got: value.to_string(),
    })
}

/// Narrows a stride to the 64-bit signed integer of a parameter structure.
pub fn narrow_stride(op: &'static str, tensor: &'static str, value: u64) -> Result<i64, OpsError> {
    i64::try_from(value).map_err(|_| OpsError::Operand {
        op,
        tensor,
        expected: format!("at most {}", i64::MAX),
        got: value.to_string(),
    })
}

/// At least `least`, at most 2^31 - 1.
fn size(op: &'static str, tensor: &'static str, value: u32, least: u32) -> Result<(), OpsError> {
    narrow(op, tensor, u64::from(value))?;
    if value < least {
        return refuse(op, tensor, format!("at least {least}"), value);
    }
    Ok(())
}

fn within(op: &'static str, tensor: &'static str, value: u32, least: u32, most: u32) -> Result<(), OpsError> {
    if !(least..=most).contains(&value) {
        return refuse(op, tensor, format!("{least} to {most}"), value);
    }
    Ok(())
}

/// The width of f32 rows; other formats have a fixed one.
fn channels(op: &'static str, d: u32) -> Result<(), OpsError> {
    within(op, "format.d", d, 1, MAX_F32_CHANNELS)
}

/// A product of sizes that a kernel counts in 32 bits.
fn product(op: &'static str, tensor: &'static str, factors: &[u32]) -> Result<(), OpsError> {
    let value = factors.iter().fold(1u64, |all, &f| all.saturating_mul(u64::from(f)));
    narrow(op, tensor, value).map(|_| ())
}

fn stride_least(op: &'static str, tensor: &'static str, value: u64, least: u64) -> Result<(), OpsError> {
    narrow_stride(op, tensor, value)?;
    if value < least {
        return refuse(op, tensor, format!("at least {least} elements"), value);
    }
    Ok(())
}

fn stride_multiple(op: &'static str, tensor: &'static str, value: u64, of: u64) -> Result<(), OpsError> {
    if !value.is_multiple_of(of) {
        return refuse(op, tensor, format!("a multiple of {of} elements"), value);
    }
    Ok(())
}

/// A stride that kernels step by in 16-byte pieces. f32 tensors are for the host, which does not care.
fn stride_vector(op: &'static str, tensor: &'static str, value: u64, dtype: Dtype) -> Result<(), OpsError> {
    match dtype {
        Dtype::Bf16 => stride_multiple(op, tensor, value, BF16_VECTOR),
        Dtype::F32 => Ok(()),
    }
}

/// Elements up to the last one addressed: `extents` with their strides, outermost first, then `inner` contiguous ones.
/// 0 if any extent is 0.
fn addressed(extents: &[(u64, u64)], inner: u64) -> u128 {
    if extents.iter().any(|&(extent, _)| extent == 0) {
        return 0;
    }
    extents.iter().map(|&(extent, stride)| u128::from(extent - 1) * u128::from(stride)).sum::<u128>()
        + u128::from(inner)
}

fn buffer(
    op: &'static str,
    tensor: &'static str,
    elements: u128,
    element_bytes: u64,
    len_bytes: u64,
) -> Result<(), OpsError> {
    let needed = elements * u128::from(element_bytes);
    if needed > u128::from(len_bytes) {
        return refuse(op, tensor, format!("at least {needed} bytes"), format!("{len_bytes} bytes"));
    }
    Ok(())
}

/// Page geometry of one operand: what it is called, and what its row format asks for.
struct PageRule {
    op: &'static str,
    num_pages: &'static str,
    page_size: &'static str,
    stride: &'static str,
    slots: &'static str,
    cache: &'static str,
    format: &'static str,
    row_bytes: u64,
    align: u64,
}

impl PageRule {
    fn sizes(&self, pages: &Pages) -> Result<(), OpsError> {
        size(self.op, self.num_pages, pages.num_pages, 0)?;
        size(self.op, self.page_size, pages.page_size, 1)?;
        narrow(self.op, self.slots, pages.num_slots()).map(|_| ())
    }

    fn strides(&self, pages: &Pages) -> Result<(), OpsError> {
        narrow_stride(self.op, self.stride, pages.page_stride_bytes)?;
        let page = self.row_bytes * u64::from(pages.page_size);
        if pages.page_stride_bytes < page {
            let why = format!("at least {page} bytes ({} {} rows)", pages.page_size, self.format);
            return refuse(self.op, self.stride, why, pages.page_stride_bytes);
        }
        if !pages.page_stride_bytes.is_multiple_of(self.align) {
            let why = format!("a multiple of {} bytes ({} pages)", self.align, self.format);
            return refuse(self.op, self.stride, why, pages.page_stride_bytes);
        }
        Ok(())
    }

    /// The last page need not be padded.
    fn length(&self, pages: &Pages, len_bytes: u64) -> Result<(), OpsError> {
        let page = self.row_bytes * u64::from(pages.page_size);
        let bytes = addressed(&[(u64::from(pages.num_pages), pages.page_stride_bytes)], page);
        buffer(self.op, self.cache, bytes, 1, len_bytes)
    }
}

fn kv_rule(op: &'static str, format: KvFormat, names: [&'static str; 5]) -> PageRule {
    let [cache, num_pages, page_size, stride, slots] = names;
    PageRule {
        op,
        num_pages,
        page_size,
        stride,
        slots,
        cache,
        format: format.name(),
        row_bytes: format.row_bytes(),
        align: format.page_align(),
    }
}

fn index_rule(op: &'static str, format: IndexKFormat, names: [&'static str; 5]) -> PageRule {
    let [cache, num_pages, page_size, stride, slots] = names;
    PageRule {
        op,
        num_pages,
        page_size,
        stride,
        slots,
        cache,
        format: format.name(),
        row_bytes: format.row_bytes(),
        align: format.page_align(),
    }
}

const WINDOW: [&str; 5] = [
    "window_kv",
    "window_kv.num_pages",
    "window_kv.page_size",
    "window_kv.page_stride_bytes",
    "window_kv.num_pages * page_size",
];
const COMPRESSED: [&str; 5] = [
    "compressed_kv",
    "compressed_kv.num_pages",
    "compressed_kv.page_size",
    "compressed_kv.page_stride_bytes",
    "compressed_kv.num_pages * page_size",
];
const INDEX_K: [&str; 5] =
    ["index_k", "index_k.num_pages", "index_k.page_size", "index_k.page_stride_bytes", "index_k.num_pages * page_size"];
const CACHE: [&str; 5] =
    ["cache", "cache.num_pages", "cache.page_size", "cache.page_stride_bytes", "cache.num_pages * page_size"];

impl<B> IndexLogitsDecode<'_, B> {
    /// Refuses operands that do not fit together; `len_bytes` is the size of a buffer.
    pub fn check(&self, len_bytes: impl Fn(&B) -> u64) -> Result<(), OpsError> {
        const OP: &str = "index_logits_decode";
        size(OP, "b", self.b, 0)?;
        within(OP, "s_q", self.s_q, 1, 4)?;
        product(OP, "b * s_q", &[self.b, self.s_q])?;
        within(OP, "index_heads", self.index_heads, 1, MAX_INDEX_HEADS)?;
        channels(OP, self.format.d())?;
        size(OP, "max_pages", self.max_pages, 0)?;
        let rule = index_rule(OP, self.format, INDEX_K);
        rule.sizes(&self.index_k.pages)?;
        let columns = u64::from(self.max_pages) * u64::from(self.index_k.pages.page_size);
        narrow(OP, "max_pages * page_size", columns)?;

        rule.strides(&self.index_k.pages)?;
        stride_least(OP, "stride_block_table", self.stride_block_table, u64::from(self.max_pages))?;
        stride_multiple(OP, "stride_logits", self.stride_logits, LOGITS_STRIDE_MULTIPLE)?;
        stride_least(OP, "stride_logits", self.stride_logits, columns)?;

        let (b, rows) = (u64::from(self.b), u64::from(self.b) * u64::from(self.s_q));
        let heads = u64::from(self.index_heads);
        let query = heads * self.format.query_head_bytes();
        buffer(OP, "index_q", addressed(&[(rows, query)], query), 1, len_bytes(self.index_q))?;
        buffer(OP, "index_weights", addressed(&[(rows, heads)], heads), 4, len_bytes(self.index_weights))?;
        rule.length(&self.index_k.pages, len_bytes(self.index_k.buffer))?;
        let table = addressed(&[(b, self.stride_block_table)], u64::from(self.max_pages));
        buffer(OP, "block_table", table, 4, len_bytes(self.block_table))?;
        buffer(OP, "context_lens", u128::from(rows), 4, len_bytes(self.context_lens))?;
        let logits = addressed(&[(rows, self.stride_logits)], self.stride_logits);
        buffer(OP, "index_logits", logits, 4, len_bytes(self.index_logits))
    }
}

impl<B> TopkSelect<'_, B> {
    /// Refuses operands that do not fit together; `len_bytes` is the size of a buffer.
    pub fn check(&self, len_bytes: impl Fn(&B) -> u64) -> Result<(), OpsError> {
        const OP: &str = "topk_select";
        size(OP, "rows", self.rows, 0)?;
        within(OP, "topk", self.topk, 1, MAX_TOPK)?;
        if self.sequence_of_row.is_some() {
            size(OP, "num_sequences", self.num_sequences, 0)?;
        } else {
            size(OP, "rows_per_sequence", self.rows_per_sequence, 1)?;
            if !self.rows.is_multiple_of(self.rows_per_sequence) {
                let why = format!("a multiple of rows_per_sequence ({})", self.rows_per_sequence);
                return refuse(OP, "rows", why, self.rows);
            }
        }
        narrow(OP, "stride_logits", self.stride_logits)?;
        if self.topk_positions.is_none() && self.topk_slots.is_none() {
            return refuse(OP, "topk_positions, topk_slots", "at least one of them", "none");
        }
        match (&self.topk_slots, self.block_table) {
            (Some(_), None) => return refuse(OP, "block_table", "a table, because topk_slots is asked for", "none"),
            (None, Some(_)) => {
                return refuse(OP, "block_table", "none, because topk_slots is not asked for", "a table");
            }
            (Some(_), Some(_)) => {
                size(OP, "page_size", self.page_size, 1)?;
                size(OP, "max_pages", self.max_pages, 0)?;
            }
            (None, None) if self.sequence_of_row.is_some() => {
                return refuse(OP, "sequence_of_row", "none, because there is no block table", "a list");
            }
            (None, None) => {}
        }

        stride_multiple(OP, "stride_logits", self.stride_logits, LOGITS_STRIDE_MULTIPLE)?;
        if self.block_table.is_some() {
            stride_least(OP, "stride_block_table", self.stride_block_table, u64::from(self.max_pages))?;
        }

        let rows = u64::from(self.rows);
        let logits = addressed(&[(rows, self.stride_logits)], self.stride_logits);
        buffer(OP, "index_logits", logits, 4, len_bytes(self.index_logits))?;
        buffer(OP, "context_lens", u128::from(rows), 4, len_bytes(self.context_lens))?;
        if let Some(block_table) = self.block_table {
            let sequences = match self.sequence_of_row {
                Some(_) => u64::from(self.num_sequences),
                None => rows / u64::from(self.rows_per_sequence),
            };
            let table = addressed(&[(sequences, self.stride_block_table)], u64::from(self.max_pages));
            buffer(OP, "block_table", table, 4, len_bytes(block_table))?;
        }
        if let Some(lines) = self.sequence_of_row {
            buffer(OP, "sequence_of_row", u128::from(rows), 4, len_bytes(lines))?;
        }
        let chosen = u128::from(rows) * u128::from(self.topk);
        if let Some(positions) = &self.topk_positions {
            buffer(OP, "topk_positions", chosen, 4, len_bytes(positions))?;
        }
        if let Some(slots) = &self.topk_slots {
            buffer(OP, "topk_slots", chosen, 4, len_bytes(slots))?;
        }
        if let Some(lens) = &self.topk_lens {
            buffer(OP, "topk_lens", u128::from(rows), 4, len_bytes(lens))?;
        }
        Ok(())
    }
}

/// Names of the parts of a slot list.
struct ListNames {
    slots: &'static str,
    width: &'static str,
    stride: &'static str,
    lens: &'static str,
}

const WINDOW_LIST: ListNames =
    ListNames { slots: "window_slots", width: "window_topk", stride: "stride_window_slots", lens: "window_lens" };
const TOPK_LIST: ListNames =
    ListNames { slots: "topk_slots", width: "topk", stride: "stride_topk_slots", lens: "topk_lens" };

fn list_length<B>(
    op: &'static str,
    names: &ListNames,
    list: &SlotList<'_, B>,
    t: u32,
    len_bytes: impl Fn(&B) -> u64,
) -> Result<(), OpsError> {
    let slots = addressed(&[(u64::from(t), list.stride_slots)], u64::from(list.width));
    buffer(op, names.slots, slots, 4, len_bytes(list.slots))?;
    if let Some(lens) = list.lens {
        buffer(op, names.lens, u128::from(t), 4, len_bytes(lens))?;
    }
    Ok(())
}

/// Queries or outputs, `[t, h, d]`.
struct Heads {
    op: &'static str,
    dtype: Dtype,
    t: u32,
    h: u32,
    d: u64,
}

impl Heads {
    fn strides(&self, names: [&'static str; 2], strides: [u64; 2]) -> Result<(), OpsError> {
        let [stride_t, stride_h] = strides;
        stride_least(self.op, names[1], stride_h, self.d)?;
        stride_vector(self.op, names[1], stride_h, self.dtype)?;
        let token = addressed(&[(u64::from(self.h), stride_h)], self.d);
        stride_least(self.op, names[0], stride_t, u64::try_from(token).unwrap_or(u64::MAX))?;
        stride_vector(self.op, names[0], stride_t, self.dtype)
    }

    fn length(&self, tensor: &'static str, strides: [u64; 2], len_bytes: u64) -> Result<(), OpsError> {
        let elements = addressed(&[(u64::from(self.t), strides[0]), (u64::from(self.h), strides[1])], self.d);
        buffer(self.op, tensor, elements, self.dtype.bytes(), len_bytes)
    }
}

impl<B> SparseMlaDecode<'_, B> {
    /// Refuses operands that do not fit together; `len_bytes` is the size of a buffer.
    pub fn check(&self, len_bytes: impl Fn(&B) -> u64) -> Result<(), OpsError> {
        self.check_as("sparse_mla_decode", len_bytes)
    }

    /// The same in the name of another operation.
    fn check_as(&self, op: &'static str, len_bytes: impl Fn(&B) -> u64) -> Result<(), OpsError> {
        size(op, "t", self.t, 0)?;
        within(op, "h", self.h, 1, MAX_HEADS)?;
        channels(op, self.format.d())?;
        product(op, "t * h", &[self.t, self.h])?;
        if self.num_splits == Some(0) {
            return refuse(op, "num_splits", "at least 1", 0);
        }
        if let Some(splits) = self.num_splits {
            size(op, "num_splits", splits, 1)?;
        }
        if !self.sm_scale.is_finite() {
            return refuse(op, "sm_scale", "a finite number", self.sm_scale);
        }
        size(op, WINDOW_LIST.width, self.window.width, 0)?;
        let window_rule = kv_rule(op, self.format, WINDOW);
        window_rule.sizes(&self.window.cache.pages)?;
        let compressed_rule = kv_rule(op, self.format, COMPRESSED);
        if let Some(list) = &self.compressed {
            size(op, TOPK_LIST.width, list.width, 0)?;
            compressed_rule.sizes(&list.cache.pages)?;
        }
        let widths = u64::from(self.window.width) + self.compressed.as_ref().map_or(0, |list| u64::from(list.width));
        narrow(op, "window_topk + topk", widths)?;

        window_rule.strides(&self.window.cache.pages)?;
        stride_least(op, WINDOW_LIST.stride, self.window.stride_slots, u64::from(self.window.width))?;
        if let Some(list) = &self.compressed {
            compressed_rule.strides(&list.cache.pages)?;
            stride_least(op, TOPK_LIST.stride, list.stride_slots, u64::from(list.width))?;
        }
        let heads = Heads { op, dtype: self.dtype, t: self.t, h: self.h, d: u64::from(self.format.d()) };
        heads.strides(["stride_q_t", "stride_q_h"], self.stride_q)?;
        heads.strides(["stride_out_t", "stride_out_h"], self.stride_out)?;

        heads.length("q", self.stride_q, len_bytes(self.q))?;
        window_rule.length(&self.window.cache.pages, len_bytes(self.window.cache.buffer))?;
        list_length(op, &WINDOW_LIST, &self.window, self.t, &len_bytes)?;
        if let Some(list) = &self.compressed {
            compressed_rule.length(&list.cache.pages, len_bytes(list.cache.buffer))?;
            list_length(op, &TOPK_LIST, list, self.t, &len_bytes)?;
        }
        if let Some(sink) = self.attn_sink {
            buffer(op, "attn_sink", u128::from(self.h), 4, len_bytes(sink))?;
        }
        heads.length("out", self.stride_out, len_bytes(self.out))?;
        buffer(op, "lse", u128::from(self.t) * u128::from(self.h), 4, len_bytes(self.lse))
    }
}

impl<B> SplitCombine<'_, B> {
    /// Refuses operands that do not fit together; `len_bytes` is the size of a buffer.
    pub fn check(&self, len_bytes: impl Fn(&B) -> u64) -> Result<(), OpsError> {
        const OP: &str = "split_combine";
        size(OP, "t", self.t, 0)?;
        within(OP, "h", self.h, 1, MAX_HEADS)?;
        size(OP, "num_splits", self.num_splits, 1)?;
        product(OP, "num_splits * t * h", &[self.num_splits, self.t, self.h])?;

        let heads = Heads { op: OP, dtype: Dtype::Bf16, t: self.t, h: self.h, d: D_KV as u64 };
        heads.strides(["stride_out_t", "stride_out_h"], self.stride_out)?;

        let rows = u128::from(self.t) * u128::from(self.h);
        let partials = u128::from(self.num_splits) * rows;
        buffer(OP, "o_partial", partials * D_KV as u128, 4, len_bytes(self.o_partial))?;
        buffer(OP, "lse2_partial", partials, 4, len_bytes(self.lse2_partial))?;
        if let Some(sink) = self.attn_sink {
            buffer(OP, "attn_sink", u128::from(self.h), 4, len_bytes(sink))?;
        }
        heads.length("out", self.stride_out, len_bytes(self.out))?;
        buffer(OP, "lse", rows, 4, len_bytes(self.lse))
    }
}

/// Rows that a writer reads; the two writers differ in format and row width only.
struct Written<'a> {
    rule: PageRule,
    pages: &'a Pages,
    dtype: Dtype,
    t: u32,
    d: u32,
    stride_rows: u64,
}

impl Written<'_> {
    /// With the sizes of `rows`, `slot_mapping` and `cache`.
    fn check(&self, [rows, mapping, cache]: [u64; 3]) -> Result<(), OpsError> {
        let (op, d) = (self.rule.op, u64::from(self.d));
        size(op, "t", self.t, 0)?;
        channels(op, self.d)?;
        self.rule.sizes(self.pages)?;
        self.rule.strides(self.pages)?;
        stride_least(op, "stride_rows", self.stride_rows, d)?;
        stride_vector(op, "stride_rows", self.stride_rows, self.dtype)?;
        let elements = addressed(&[(u64::from(self.t), self.stride_rows)], d);
        buffer(op, "rows", elements, self.dtype.bytes(), rows)?;
        buffer(op, "slot_mapping", u128::from(self.t), 4, mapping)?;
        self.rule.length(self.pages, cache)
    }
}

impl<B> KvWrite<'_, B> {
    /// Refuses operands that do not fit together; `len_bytes` is the size of a buffer.
    pub fn check(&self, len_bytes: impl Fn(&B) -> u64) -> Result<(), OpsError> {
        Written {
            rule: kv_rule("kv_write", self.format, CACHE),
            pages: &self.pages,
            dtype: self.dtype,
            t: self.t,
            d: self.format.d(),
            stride_rows: self.stride_rows,
        }
        .check([len_bytes(self.rows), len_bytes(self.slot_mapping), len_bytes(self.cache)])
    }
}

impl<B> IndexKWrite<'_, B> {
    /// Refuses operands that do not fit together; `len_bytes` is the size of a buffer.
    pub fn check(&self, len_bytes: impl Fn(&B) -> u64) -> Result<(), OpsError> {
        Written {
            rule: index_rule("index_k_write", self.format, CACHE),
            pages: &self.pages,
            dtype: self.dtype,
            t: self.t,
            d: self.format.d(),
            stride_rows: self.stride_rows,
        }
        .check([len_bytes(self.rows), len_bytes(self.slot_mapping), len_bytes(self.cache)])
    }
}
