// Sparse attention of many query tokens per head over listed kv rows: as sparse_mla_decode, without splits.
// targets: sm89 sm120a
//
// In   q              [t, h, 512] bf16, strides given, last axis contiguous; h = 8, 16, 32, 64, 128
//      window_kv, compressed_kv   pages of rows: v4_fp8 (576 B data, then 8 B footer per row) or bf16 (1,024 B)
//      window_slots   [t, window_topk] s32, topk_slots [t, topk] s32, row strides given; window_lens, topk_lens [t] s32 or null
//      attn_sink      [h] f32, natural-log units, or null
// Out  out [t, h, 512] bf16, strides given; lse [t, h] f32, natural, without the sink; max_logits [t, h] f32 or null
// Launch: grid (t, ceil(h / HEAD_TILE)), 256 threads, sizeof(Plan) bytes shared.
//
//      l_i = sm_scale * q_h . k_i    m = max l_i    o_h = sum e^(l_i - m) k_i / (sum e^(l_i - m) + e^(sink_h - m))
//      lse_h = m + ln sum e^(l_i - m)    max_logits_h = m
//
// Numerics, work of a block, pipeline: sparse_mla_decode.cuh and the file of the variant. A token gets the bits that an unsplit
// sparse_mla_decode gives it. The softmax follows the maximum with a lag, so the maximum itself is kept beside it, in shared
// memory: a lane has no register left for it.
// Invalid: as sparse_mla_decode; max_logits of a token without valid rows is -inf.
// Called by kernel-bindings/src/ops/sparse_mla_prefill.rs.
#include "entry.cuh"
#if SM120_TARGET_SM120A
#include "sparse_mla_sm120a.cuh"
#else
#include "sparse_mla_portable.cuh"
#endif

#define SPARSE_MLA_PREFILL(form, format, head_tile)                                                                    \
  extern "C" __global__ __launch_bounds__(THREADS, 1)                                                                  \
  void SM120_ENTRY(sparse_mla_prefill_##form##_h##head_tile)(const __grid_constant__ Sm120SparseMlaPrefillParams p) {  \
    declare_shared<sizeof(Plan<format, head_tile, Kind::PREFILL>)>();                                                  \
    attention_block<format, head_tile, Kind::PREFILL>(p.attention, p.max_logits);                                      \
  }

SPARSE_MLA_PREFILL(v4_fp8, Format::V4_FP8, 16)
SPARSE_MLA_PREFILL(v4_fp8, Format::V4_FP8, 32)
SPARSE_MLA_PREFILL(v4_fp8, Format::V4_FP8, 64)
SPARSE_MLA_PREFILL(bf16, Format::BF16, 16)
SPARSE_MLA_PREFILL(bf16, Format::BF16, 32)
SPARSE_MLA_PREFILL(bf16, Format::BF16, 64)
