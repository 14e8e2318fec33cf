//! Results in memory: the cells of every operation, rounded once to the type of the output, where a call wants them.

use super::products;
use super::rows::{self, Queries};
use super::streams;
use super::{Bytes, Cells, put};
use crate::formats::{bf16, f32_bytes};
use crate::ops::{
    Compress, Dtype, Embed, GatherRows, Hadamard, HcMix, HcPost, IndexKWrite, IndexLogitsDecode, IndexLogitsPrefill,
    IndexQQuantise, KvWrite, Linear, MoeExperts, NormRope, Router, Sample, SparseMlaDecode, SparseMlaPrefill,
    SplitCombine, Swiglu, TopkSelect,
};

fn put_s32(memory: &mut [u8], values: &[i32]) {
    for (bytes, v) in memory.chunks_exact_mut(4).zip(values) {
        bytes.copy_from_slice(&v.to_le_bytes());
    }
}

/// Rounds to bf16 through f32: `bf16::from_f64` does not look at the lower 32 bits and takes numbers just above a tie for
/// one.
fn put_element(memory: &mut [u8], dtype: Dtype, element: u64, value: f64) {
    let value = value as f32;
    match dtype {
        Dtype::F32 => put(memory, 4 * element, &value.to_le_bytes()),
        Dtype::Bf16 => put(memory, 2 * element, &bf16::from_f32(value).to_le_bytes()),
    }
}

/// Writes what stands in `cells`, in order.
fn put_all(memory: &mut [u8], dtype: Dtype, cells: &Cells) {
    for (element, cell) in cells.iter().enumerate() {
        if let Some(exact) = cell {
            put_element(memory, dtype, element as u64, exact.value);
        }
    }
}

/// Writes what stands in `cells` with strides along the axes, the last of which is 1 and not given.
fn put_strided<const N: usize>(memory: &mut [u8], dtype: Dtype, cells: &Cells, strides: [u64; N]) {
    for (place, cell) in cells.indexed_iter() {
        if let Some(exact) = cell {
            let outer: u64 = strides.iter().enumerate().map(|(axis, stride)| place[axis] as u64 * stride).sum();
            put_element(memory, dtype, outer + place[N] as u64, exact.value);
        }
    }
}

// ------------------------------------------------------------------------------------------------ index and attention

pub(super) fn index_logits_decode(args: IndexLogitsDecode<'_, Bytes>) {
    let cells = super::index_logits(&args);
    put_all(args.index_logits, Dtype::F32, &cells);
}

pub(super) fn index_logits_prefill(args: IndexLogitsPrefill<'_, Bytes>) {
    let cells = super::index_logits_prefill(&args);
    put_all(args.index_logits, Dtype::F32, &cells);
}

pub(super) fn topk_select(args: TopkSelect<'_, Bytes>) {
    let chosen = super::topk_select(&args);
    if let Some(positions) = args.topk_positions {
        put_s32(positions, &chosen.positions);
    }
    if let Some(slots) = args.topk_slots {
        put_s32(slots, &chosen.slots);
    }
    if let Some(lens) = args.topk_lens {
        put_s32(lens, &chosen.lens);
    }
}

pub(super) fn sparse_mla_decode(args: SparseMlaDecode<'_, Bytes>) {
    let (out, lse) = super::sparse_mla(&args);
    put_strided(args.out, args.dtype, &out, args.stride_out);
    put_all(args.lse, Dtype::F32, &lse);
}

pub(super) fn sparse_mla_prefill(args: SparseMlaPrefill<'_, Bytes>) {
    if let Some(out) = args.max_logits {
        put_all(out, Dtype::F32, &super::max_logits(&args.attention));
    }
    sparse_mla_decode(args.attention);
}

pub(super) fn split_combine(args: SplitCombine<'_, Bytes>) {
    let (out, lse) = super::split_combine(&args);
    put_strided(args.out, Dtype::Bf16, &out, args.stride_out);
    put_all(args.lse, Dtype::F32, &lse);
}

pub(super) fn kv_write(mut args: KvWrite<'_, Bytes>) {
    super::kv_write(&mut args);
}

pub(super) fn index_k_write(mut args: IndexKWrite<'_, Bytes>) {
    super::index_k_write(&mut args);
}

// ------------------------------------------------------------------------------------------------ streams

pub(super) fn embed(args: Embed<'_, Bytes>) {
    let bytes = streams::embed(&args);
    put(args.out, 0, &bytes);
}

pub(super) fn gather_rows(args: GatherRows<'_, Bytes>) {
    let bytes = streams::gather_rows(&args);
    put(args.out, 0, &bytes);
}

pub(super) fn hc_mix(args: HcMix<'_, Bytes>) {
    let mixed = streams::hc_mix(&args);
    put_all(args.out, args.dtype, &mixed.out);
    if let Some(mixing) = args.mixing {
        put_all(mixing.post, Dtype::F32, &mixed.post);
        put_all(mixing.comb, Dtype::F32, &mixed.comb);
    }
}

pub(super) fn hc_post(args: HcPost<'_, Bytes>) {
    let cells = streams::hc_post(&args);
    put_all(args.streams, args.dtype, &cells);
}

pub(super) fn swiglu(args: Swiglu<'_, Bytes>) {
    let cells = streams::swiglu(&args);
    put_all(args.out, args.dtype, &cells);
}

pub(super) fn router(args: Router<'_, Bytes>) {
    let (picks, weights) = streams::router(&args);
    put_s32(args.expert_ids, &picks);
    put_all(args.expert_weights, Dtype::F32, &weights);
}

pub(super) fn sample(args: Sample<'_, Bytes>) {
    let chosen = streams::sample(&args);
    put_s32(args.out, &chosen);
}

// ------------------------------------------------------------------------------------------------ rows

pub(super) fn norm_rope(args: NormRope<'_, Bytes>) {
    let cells = rows::norm_rope(&args);
    put_strided(args.out, args.dtype, &cells, [args.stride_out, u64::from(args.d)]);
}

pub(super) fn hadamard(args: Hadamard<'_, Bytes>) {
    let cells = rows::hadamard(&args);
    put_all(args.out, args.dtype, &cells);
}

pub(super) fn index_q_quantise(args: IndexQQuantise<'_, Bytes>) {
    let (queries, weights) = rows::index_q_quantise(&args);
    match queries {
        Queries::Values(dtype, cells) => put_all(args.index_q, dtype, &cells),
        Queries::Codes(codes) => put(args.index_q, 0, &codes),
    }
    put_all(args.index_weights, Dtype::F32, &weights);
}

pub(super) fn compress(args: Compress<'_, Bytes>) {
    let (cells, writes) = (rows::compress(&args), rows::compress_writes(&args));
    put_all(args.out, args.dtype, &cells);
    for (offset, row) in writes {
        put(args.state, offset, &f32_bytes(&row));
    }
}

// ------------------------------------------------------------------------------------------------ products

pub(super) fn linear(args: Linear<'_, Bytes>) {
    let cells = products::linear(&args);
    put_strided(args.out, args.out_dtype, &cells, [args.stride_out]);
}

pub(super) fn moe_experts(args: MoeExperts<'_, Bytes>) {
    let cells = products::moe_experts(&args);
    put_all(args.out, Dtype::F32, &cells);
}
