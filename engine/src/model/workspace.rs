//! Every buffer of a forward, allocated once for the largest batch, and the arrays of a batch on the device.

use reference::ops::{Dtype, Ops, OpsError};

use super::numerics::Numerics;
use crate::batch::Batch;
use crate::config::ModelConfig;

/// The largest batch that a model is prepared for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Tokens of a batch.
    pub tokens: u32,
    /// Rows of vocabulary logits of a batch.
    pub logits_rows: u32,
    /// Tokens of the longest sequence.
    pub context: u32,
}

/// Multiple of the logits' row stride, elements.
const LOGITS_STRIDE: u64 = 256;

/// Row stride of index logits for `rows` compressed rows of `page` each.
pub(super) fn logits_stride(rows: u64) -> u64 {
    rows.max(1).next_multiple_of(LOGITS_STRIDE)
}

/// Sequences and queries per sequence of the decode tokens in front, if they are regular.
pub(super) fn decode_part(batch: &Batch) -> Option<(u32, u32)> {
    let (b, tokens) = (batch.num_decode_entries, batch.num_decode_tokens);
    let s_q = tokens.checked_div(b)?;
    ((1..=4).contains(&s_q) && s_q * b == tokens).then_some((b, s_q))
}

/// Activations between the operations. Shapes for `t` tokens, `h` heads of this rank.
#[derive(Debug)]
pub(super) struct Workspace<B> {
    /// `[t, hc, D]` activations.
    pub(super) streams: B,
    /// `[t, D]` activations: input of a sub-layer.
    pub(super) x: B,
    /// `[t, hc]` f32.
    pub(super) post: B,
    /// `[t, hc, hc]` f32.
    pub(super) comb: B,
    /// `[t, D]` f32: output of a sub-layer.
    pub(super) y: B,
    /// `[t, q_lora]` activations, before and after its norm.
    pub(super) qa: B,
    pub(super) qr: B,
    /// `[t, h, d]` activations: raw query, then the attention output; and the turned form of either.
    pub(super) wide: B,
    pub(super) q: B,
    /// `[t, d]` activations: KV row before and after norm and rotation; also compressed rows.
    pub(super) kv_raw: B,
    pub(super) kv: B,
    /// `[t, 2 w]` f32 of a compressor.
    pub(super) kv_gate: B,
    /// `[rows, d]` activations of a compressor, and after norm and rotation.
    pub(super) pooled: B,
    pub(super) row: B,
    pub(super) row_turned: B,
    /// `[t, hi, di]` activations of the indexer.
    pub(super) iq_raw: B,
    pub(super) iq: B,
    /// `[t, hi]` activations.
    pub(super) iw: B,
    /// `[t, hi]` codes and f32 weights.
    pub(super) index_q: B,
    pub(super) index_weights: B,
    /// `[t, stride]` f32.
    pub(super) index_logits: B,
    /// `[t, K]` s32, `[t]` s32.
    pub(super) topk_positions: B,
    pub(super) topk_slots: B,
    pub(super) topk_lens: B,
    /// `[t, h]` f32.
    pub(super) lse: B,
    /// `[t, groups * o_lora]` activations.
    pub(super) o_low: B,
    /// `[t, experts]` f32.
    pub(super) scores: B,
    /// `[t, k]`.
    pub(super) expert_ids: B,
    pub(super) expert_weights: B,
    /// `[t, 2 * inter]`, `[t, inter]` of the shared expert.
    pub(super) gate_up: B,
    pub(super) hidden: B,
    /// `[n, hc, D]`, `[n, D]`, `[n, vocab]` of the rows whose logits are wanted.
    pub(super) head_streams: B,
    pub(super) head_x: B,
    pub(super) logits: B,
    pub(super) sampled: B,
    /// `[t, hc, D]` of the draft layer's inputs.
    pub(super) draft_in: B,
    pub(super) draft_normed: B,
}

/// Sizes of this rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankShape {
    /// Ranks.
    pub size: u32,
    /// This one.
    pub rank: u32,
    /// Query heads here.
    pub heads: u32,
    /// Output groups here.
    pub groups: u32,
    /// Routed experts here.
    pub experts: u32,
    /// Channels of the shared expert here.
    pub shared_inter: u32,
}

impl<B> Workspace<B> {
    pub(super) fn new<O: Ops<Buffer = B>>(
        ops: &O,
        config: &ModelConfig,
        numerics: &Numerics,
        shape: &RankShape,
        limits: &Limits,
        drafts: bool,
    ) -> Result<Self, OpsError> {
        Self::of(config, numerics, shape, limits, drafts, |label, bytes| ops.alloc(bytes, label))
    }

    /// Buffers by label and bytes.
    pub(super) fn of<E>(
        config: &ModelConfig,
        numerics: &Numerics,
        shape: &RankShape,
        limits: &Limits,
        drafts: bool,
        mut alloc: impl FnMut(&str, u64) -> Result<B, E>,
    ) -> Result<Self, E> {
        let drafts = u64::from(drafts);
        let t = u64::from(limits.tokens);
        let a = numerics.activations.bytes();
        let f = Dtype::F32.bytes();
        let hidden = u64::from(config.hidden_size);
        let hc = u64::from(config.hc_mult);
        let d = u64::from(config.head_dim);
        let di = u64::from(config.index_head_dim);
        let hi = u64::from(config.index_heads);
        let q_width = u64::from(shape.heads) * d;
        let n = u64::from(limits.logits_rows);
        let topk = u64::from(config.index_topk);
        let stride = logits_stride(u64::from(limits.context).div_ceil(4).next_multiple_of(64));
        let index_q_bytes = numerics.index_q_bytes();
        Ok(Self {
            streams: alloc("streams", t * hc * hidden * a)?,
            x: alloc("x", t * hidden * a)?,
            post: alloc("post", t * hc * f)?,
            comb: alloc("comb", t * hc * hc * f)?,
            y: alloc("y", t * hidden * f)?,
            qa: alloc("qa", t * u64::from(config.q_lora_rank) * a)?,
            qr: alloc("qr", t * u64::from(config.q_lora_rank) * a)?,
            wide: alloc("wide", t * q_width * a)?,
            q: alloc("q", t * q_width * a)?,
            kv_raw: alloc("kv_raw", t * d * a)?,
            kv: alloc("kv", t * d * a)?,
            kv_gate: alloc("kv_gate", t * 4 * d * f)?,
            pooled: alloc("pooled", t * d * a)?,
            row: alloc("row", t * d * a)?,
            row_turned: alloc("row_turned", t * d * a)?,
            iq_raw: alloc("iq_raw", t * hi * di * a)?,
            iq: alloc("iq", t * hi * di * a)?,
            iw: alloc("iw", t * hi * a)?,
            index_q: alloc("index_q", t * hi * index_q_bytes)?,
            index_weights: alloc("index_weights", t * hi * f)?,
            index_logits: alloc("index_logits", t * stride * f)?,
            topk_positions: alloc("topk_positions", t * topk * f)?,
            topk_slots: alloc("topk_slots", t * topk * f)?,
            topk_lens: alloc("topk_lens", t * f)?,
            lse: alloc("lse", t * u64::from(shape.heads) * f)?,
            o_low: alloc("o_low", t * u64::from(shape.groups * config.o_lora_rank) * a)?,
            scores: alloc("scores", t * u64::from(config.experts) * f)?,
            expert_ids: alloc("expert_ids", t * u64::from(config.experts_per_tok) * f)?,
            expert_weights: alloc("expert_weights", t * u64::from(config.experts_per_tok) * f)?,
            gate_up: alloc("gate_up", t * u64::from(2 * shape.shared_inter) * a)?,
            hidden: alloc("hidden", t * u64::from(shape.shared_inter) * a)?,
            head_streams: alloc("head_streams", n * hc * hidden * a)?,
            head_x: alloc("head_x", n * hidden * a)?,
            logits: alloc("logits", n * u64::from(config.vocab_size) * f)?,
            sampled: alloc("sampled", n * f)?,
            draft_in: alloc("draft_in", drafts * t * hidden * a)?,
            draft_normed: alloc("draft_normed", drafts * t * hc * hidden * a)?,
        })
    }
}

/// A small array whose size changes from step to step: a buffer that grows until its size is fixed.
#[derive(Debug)]
pub(super) struct Array<B> {
    label: &'static str,
    buffer: Option<B>,
    fixed: bool,
}

impl<B> Array<B> {
    pub(super) fn named(label: &'static str) -> Self {
        Self { label, buffer: None, fixed: false }
    }

    /// Keeps the buffer for good, because its address has been recorded or is going to be. Longer contents are refused from now
    /// on.
    pub(super) fn fix(&mut self) {
        self.fixed = true;
    }

    /// Holds `bytes` from now on; a longer buffer is kept.
    pub(super) fn put<O: Ops<Buffer = B>>(&mut self, ops: &O, bytes: &[u8]) -> Result<(), OpsError> {
        let fits = self.buffer.as_ref().is_some_and(|b| ops.len_bytes(b) >= bytes.len() as u64);
        if !fits && self.fixed {
            let room = self.buffer.as_ref().map_or(0, |b| ops.len_bytes(b));
            return Err(OpsError::Operand {
                op: "decode step",
                tensor: self.label,
                expected: format!("at most {room} bytes"),
                got: bytes.len().to_string(),
            });
        }
        if !fits {
            let size = (bytes.len() as u64).next_power_of_two().max(64);
            self.buffer = Some(ops.alloc(size, self.label)?);
        }
        let buffer = self.buffer.as_mut().expect("allocated above");
        ops.upload(buffer, 0, bytes)
    }

    /// The buffer.
    ///
    /// # Panics
    /// Before the first [`Array::put`].
    pub(super) fn get(&self) -> &B {
        self.buffer.as_ref().expect("a step uploads its arrays before it uses them")
    }
}

/// Little-endian bytes of 32-bit values.
pub(super) fn bytes_of<const N: usize, T: Copy>(values: &[T], to: impl Fn(T) -> [u8; N]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(values.len() * N);
    for &value in values {
        bytes.extend_from_slice(&to(value));
    }
    bytes
}

macro_rules! step_arrays {
    ($($(#[$doc:meta])* $name:ident: $to:path = $field:expr;)*) => {
        /// The arrays of [`Batch`] on the device; shapes stand there.
        #[derive(Debug)]
        pub(super) struct StepArrays<B> {
            /// `[b + 1]`: `cu_seqlens`, the decode entries empty.
            pub(super) cu_seqlens_q: Array<B>,
            $($(#[$doc])* pub(super) $name: Array<B>,)*
        }

        impl<B> StepArrays<B> {
            pub(super) fn new() -> Self {
                Self { cu_seqlens_q: Array::named("cu_seqlens_q"), $($name: Array::named(stringify!($name)),)* }
            }

            /// Keeps every buffer for good.
            pub(super) fn fix(&mut self) {
                self.cu_seqlens_q.fix();
                $(self.$name.fix();)*
            }

            /// Uploads a batch.
            pub(super) fn put<O: Ops<Buffer = B>>(&mut self, ops: &O, batch: &Batch) -> Result<(), OpsError> {
                let first = decode_part(batch).map_or(0, |(b, s_q)| (b * s_q) as i32);
                let ragged: Vec<i32> = batch.cu_seqlens.iter().map(|&token| token.max(first)).collect();
                self.cu_seqlens_q.put(ops, &bytes_of(&ragged, i32::to_le_bytes))?;
                $(
                    let of: fn(&Batch) -> &[_] = $field;
                    self.$name.put(ops, &bytes_of(of(batch), $to))?;
                )*
                Ok(())
            }
        }
    };
}

step_arrays! {
    ids: i32::to_le_bytes = |b| &b.ids;
    positions: i32::to_le_bytes = |b| &b.positions;
    seq: i32::to_le_bytes = |b| &b.seq;
    cu_seqlens: i32::to_le_bytes = |b| &b.cu_seqlens;
    window_mapping: i32::to_le_bytes = |b| &b.window_mapping;
    window_slots: i32::to_le_bytes = |b| &b.window_slots;
    window_table: i32::to_le_bytes = |b| &b.window_table;
    hca_state_table: i32::to_le_bytes = |b| &b.hca_state_table;
    block_table: i32::to_le_bytes = |b| &b.block_table;
    csa_num_rows: i32::to_le_bytes = |b| &b.csa.num_rows;
    csa_slot_mapping: i32::to_le_bytes = |b| &b.csa.slot_mapping;
    csa_row_tokens: i32::to_le_bytes = |b| &b.csa.row_tokens;
    csa_row_positions: i32::to_le_bytes = |b| &b.csa.row_positions;
    hca_num_rows: i32::to_le_bytes = |b| &b.hca.num_rows;
    hca_slot_mapping: i32::to_le_bytes = |b| &b.hca.slot_mapping;
    hca_row_tokens: i32::to_le_bytes = |b| &b.hca.row_tokens;
    hca_row_positions: i32::to_le_bytes = |b| &b.hca.row_positions;
    hca_slots: i32::to_le_bytes = |b| &b.hca_slots;
    logits_rows: i32::to_le_bytes = |b| &b.logits_rows;
    temperature: f32::to_le_bytes = |b| &b.temperature;
    seeds: u32::to_le_bytes = |b| &b.seeds;
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernel_bindings::host::HostOps;

    /// What a recorded step has the address of is never replaced.
    #[test]
    fn a_fixed_array_does_not_move() {
        let mut array = Array::named("block_table");
        array.put(&HostOps, &[1; 100]).expect("grows");
        array.fix();
        array.put(&HostOps, &[2; 128]).expect("fits: buffers are powers of two");
        let error = array.put(&HostOps, &[3; 129]).expect_err("does not fit").to_string();
        assert_eq!(error, "decode step: block_table: expected at most 128 bytes, got 129");
        let mut kept = [0; 128];
        HostOps.download(array.get(), 0, &mut kept).expect("there");
        assert_eq!(kept, [2; 128]);
    }
}
