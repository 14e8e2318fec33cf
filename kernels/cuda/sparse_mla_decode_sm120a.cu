// Sparse attention of one query token per head over listed kv rows: a window and a selection of compressed rows in one
// softmax, with an attention sink. SM120 variant.
//
// In   q              [t, h, 512] bf16, strides given, last axis contiguous; h = 8, 16, 32, 64, 128
//      window_kv, compressed_kv   pages of rows: v4_fp8 (576 B data, then 8 B footer per row) or bf16 (1,024 B)
//      window_slots   [t, window_topk] s32, topk_slots [t, topk] s32, row strides given; window_lens, topk_lens [t] s32 or null
//      attn_sink      [h] f32, natural-log units, or null
// Out  num_splits == 1: out [t, h, 512] bf16, strides given; lse [t, h] f32, natural, without the sink
//      num_splits > 1:  o_partial [num_splits, t, h, 512] f32, normalised within the split; lse2_partial [num_splits, t, h]
// Launch: grid (t * num_splits, ceil(h / HEAD_TILE)), 256 threads, sizeof(Plan) bytes shared.
//
//      l_i = sm_scale * q_h . k_i    m = max l_i    o_h = sum e^(l_i - m) k_i / (sum e^(l_i - m) + e^(sink_h - m))
//      lse_h = m + ln sum e^(l_i - m)
//
// Numerics, pipeline and cost: sparse_mla_sm120a.cuh. Work of a block: sparse_mla_decode.cuh.
// Invalid: a slot outside the pool, or at or beyond the valid length, is skipped: its memory is not read, its row is zero in
// shared memory and its p is 0. No valid row: out 0, lse -inf. A sink of +inf: out 0. Duplicated slots count twice.
// Called by kernel-bindings/src/ops/sparse_mla_decode.rs.
#include "sparse_mla_sm120a.cuh"

#define SPARSE_MLA_DECODE(form, format, head_tile)                                                                     \
  extern "C" __global__ __launch_bounds__(THREADS, 1)                                                                  \
  void SM120_ENTRY(sparse_mla_decode_##form##_h##head_tile)(const __grid_constant__ Params p) {                        \
    declare_shared<sizeof(Plan<format, head_tile, Kind::DECODE>)>();                                                   \
    attention_block<format, head_tile, Kind::DECODE>(p, nullptr);                                                      \
  }

SPARSE_MLA_DECODE(v4_fp8, Format::V4_FP8, 16)
SPARSE_MLA_DECODE(v4_fp8, Format::V4_FP8, 32)
SPARSE_MLA_DECODE(v4_fp8, Format::V4_FP8, 64)
SPARSE_MLA_DECODE(bf16, Format::BF16, 16)
SPARSE_MLA_DECODE(bf16, Format::BF16, 32)
SPARSE_MLA_DECODE(bf16, Format::BF16, 64)
