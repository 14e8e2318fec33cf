//! Rows written into paged caches.

use super::{Bytes, elements, put, values};
use crate::formats::{
    bf16_bytes, bf16s, f32_bytes, f32s, quantise_fp4_row, quantise_index_row, quantise_nope_tile, s32s,
};
use crate::layout::{
    D_NOPE, NOPE_TILE, NOPE_TILES, bf16_kv, f32_row, index_k_bf16, index_k_fp4_data, index_k_fp4_scale,
    index_k_fp8_data, index_k_fp8_scale, v4_fp8_data, v4_fp8_footer, v4_fp8_rope,
};
use crate::ops::{Dtype, IndexKFormat, IndexKWrite, KvFormat, KvWrite};

/// Elements of type `from` stored as `to`: a copy if the types are equal.
fn converted(from: Dtype, to: Dtype, bytes: &[u8]) -> Vec<u8> {
    match (from, to) {
        (Dtype::F32, Dtype::Bf16) => bf16_bytes(&f32s(bytes)),
        (Dtype::Bf16, Dtype::F32) => f32_bytes(&bf16s(bytes)),
        (Dtype::F32, Dtype::F32) | (Dtype::Bf16, Dtype::Bf16) => bytes.to_vec(),
    }
}

/// Writes KV rows into the cache of `args`.
pub fn kv_write(args: &mut KvWrite<'_, Bytes>) {
    let slots = s32s(args.slot_mapping);
    for (token, &slot) in slots.iter().enumerate().take(args.t as usize) {
        let Some((page, row)) = args.pages.locate(slot) else { continue };
        let d = args.format.d();
        let given = elements(args.dtype, args.rows, token as u64 * args.stride_rows, d as usize);
        match args.format {
            KvFormat::Bf16 => {
                put(args.cache, bf16_kv(&args.pages, page, row), &converted(args.dtype, Dtype::Bf16, given));
            }
            KvFormat::F32 { d } => {
                put(args.cache, f32_row(&args.pages, page, row, d), &converted(args.dtype, Dtype::F32, given));
            }
            KvFormat::V4Fp8 => {
                let values = values(args.dtype, given);
                let mut footer = [0; NOPE_TILES + 1];
                for (tile, scale) in footer.iter_mut().enumerate().take(NOPE_TILES) {
                    let from = tile * NOPE_TILE;
                    let nope: [f32; NOPE_TILE] = std::array::from_fn(|c| values[from + c]);
                    let (byte, codes) = quantise_nope_tile(&nope);
                    *scale = byte;
                    put(args.cache, v4_fp8_data(&args.pages, page, row) + from as u64, &codes);
                }
                let rope = converted(args.dtype, Dtype::Bf16, &given[args.dtype.bytes() as usize * D_NOPE..]);
                put(args.cache, v4_fp8_rope(&args.pages, page, row), &rope);
                put(args.cache, v4_fp8_footer(&args.pages, page, row), &footer);
            }
        }
    }
}

/// Writes index-K rows into the cache of `args`.
pub fn index_k_write(args: &mut IndexKWrite<'_, Bytes>) {
    let slots = s32s(args.slot_mapping);
    for (token, &slot) in slots.iter().enumerate().take(args.t as usize) {
        let Some((page, row)) = args.pages.locate(slot) else { continue };
        let d = args.format.d();
        let given = elements(args.dtype, args.rows, token as u64 * args.stride_rows, d as usize);
        match args.format {
            IndexKFormat::Bf16 => {
                put(args.cache, index_k_bf16(&args.pages, page, row), &converted(args.dtype, Dtype::Bf16, given));
            }
            IndexKFormat::F32 { d } => {
                put(args.cache, f32_row(&args.pages, page, row, d), &converted(args.dtype, Dtype::F32, given));
            }
            IndexKFormat::Fp4 => {
                let values = values(args.dtype, given);
                let (codes, scales) = quantise_fp4_row(&std::array::from_fn(|c| values[c]));
                put(args.cache, index_k_fp4_data(&args.pages, page, row), &codes);
                put(args.cache, index_k_fp4_scale(&args.pages, page, row), &scales);
            }
            IndexKFormat::Fp8 => {
                let values = values(args.dtype, given);
                let (scale, codes) = quantise_index_row(&std::array::from_fn(|c| values[c]), args.scale_rule);
                put(args.cache, index_k_fp8_data(&args.pages, page, row), &codes);
                put(args.cache, index_k_fp8_scale(&args.pages, page, row), &scale.to_le_bytes());
            }
        }
    }
}
