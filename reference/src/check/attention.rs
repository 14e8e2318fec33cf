//! Checks of sparse attention and of the merge of its splits.

use super::pages::{COMPRESSED, WINDOW, kv_rule};
use super::{addressed, buffer, channels, narrow, product, refuse, size, stride_least, stride_vector, within};
use crate::layout::{D_KV, MAX_HEADS};
use crate::ops::{Dtype, OpsError, SlotList, SparseMlaDecode, SparseMlaPrefill, SplitCombine};

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

impl<B> SparseMlaPrefill<'_, B> {
    /// Refuses operands that do not fit together; `len_bytes` is the size of a buffer.
    pub fn check(&self, len_bytes: impl Fn(&B) -> u64) -> Result<(), OpsError> {
        const OP: &str = "sparse_mla_prefill";
        self.attention.check_as(OP, &len_bytes)?;
        if let Some(max_logits) = &self.max_logits {
            let rows = u128::from(self.attention.t) * u128::from(self.attention.h);
            buffer(OP, "max_logits", rows, 4, len_bytes(max_logits))?;
        }
        Ok(())
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
