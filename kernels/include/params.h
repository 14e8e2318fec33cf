// Parameter structs of every kernel: the one place where host and device agree. Plain C, so that bindgen reads it.
// A kernel takes exactly one of these by value (`const __grid_constant__`). Every pointer carries its shape, every
// stride its axis; strides are in elements unless the name ends in _bytes. Byte offsets are computed in 64 bits.
// Layouts, symbols and sentinels: README of this folder. Generated Rust: ../src/params.rs.
#pragma once
#include <stdint.h>

// ---------------------------------------------------------------------------------------------- layout constants
enum {
  SM120_D_KV = 512,        // kv row: 448 nope + 64 rope channels, key and value at once
  SM120_D_NOPE = 448,
  SM120_D_ROPE = 64,
  SM120_NOPE_TILE = 64,    // nope channels that share one ue8m0 scale
  SM120_V4_FP8_DATA_BYTES = 576,   // 448 e4m3 + 64 bf16
  SM120_V4_FP8_FOOTER_BYTES = 8,   // 7 ue8m0 + 1 pad, after all data rows of the page
  SM120_V4_FP8_PAGE_ALIGN = 576,   // page stride is rounded up to a multiple of this
  SM120_BF16_KV_BYTES = 1024,
  SM120_D_INDEX = 128,
  SM120_INDEX_HEADS = 64,
  SM120_INDEX_K_FP8_BYTES = 132,   // block-planar: P x 128 e4m3, then P x fp32 scale
  SM120_INDEX_K_BF16_BYTES = 256,
  SM120_INDEX_K_FP4_BYTES = 68,    // block-planar: P x 64 bytes of e2m1 pairs, then P x 4 ue8m0; a query head: side by side
  SM120_MAX_SHARED_BYTES = 101376, // 99 KiB, the limit of one block on SM120
  SM120_MAX_TOPK = 2048,
};

// A paged cache. row r of page p: see the row format; page p starts at data + p * page_stride_bytes.
typedef struct {
  const uint8_t* data;         // [num_pages] pages
  int64_t page_stride_bytes;   // multiple of 16; v4_fp8: multiple of 576
  int32_t num_pages;           // page ids outside 0..num_pages count as -1
  int32_t page_size;           // rows per page
} Sm120PagedCache;

// ---------------------------------------------------------------------------------------------- index_logits_decode
// logit[r, j] = k_scale[j] * sum_h w[r,h] * relu(q[r,h] . k[j]),  r = sequence * s_q + query
// j >= context_lens[r]: -inf when clean_logits, otherwise not written; a page id outside the pool inside n: -inf.
typedef struct {
  const void* index_q;            // [b, s_q, 64, 128] e4m3 | bf16, contiguous; fp4: [b, s_q, 64] of 68 B
  const float* index_weights;     // [b, s_q, 64] f32, contiguous; query scale and softmax factors folded in
  Sm120PagedCache index_k;        // fp8 (132 B rows, block-planar) | bf16 (256 B rows) | fp4 (68 B rows, block-planar)
  const int32_t* block_table;     // [b, max_pages] s32, row stride stride_block_table
  const int32_t* context_lens;    // [b, s_q] s32, in index rows
  float* index_logits;            // [b * s_q, stride_logits] f32
  const int32_t* split_plan;      // [grid + 1] s32: first work tile of every block; see index_logits_decode.cu
  int64_t stride_block_table;
  int64_t stride_logits;          // multiple of 256 elements
  int32_t b;
  int32_t s_q;                    // 1..4
  int32_t max_pages;
  int32_t clean_logits;           // 0 | 1
} Sm120IndexLogitsDecodeParams;

// ---------------------------------------------------------------------------------------------- index_logits_prefill
// As index_logits_decode for the queries cu_seqlens_q[s] .. cu_seqlens_q[s + 1] of sequence s (ascending, clamped to 0..t), each
// over rows starts[r] .. ends[r] of the sequence (clamped to 0..max_pages * page_size). Other rows are not touched.
typedef struct {
  const void* index_q;            // [t, 64, 128] e4m3 | bf16, contiguous; fp4: [t, 64] of 68 B
  const float* index_weights;     // [t, 64] f32, contiguous
  Sm120PagedCache index_k;        // fp8 (132 B rows, block-planar) | bf16 (256 B rows) | fp4 (68 B rows, block-planar)
  const int32_t* block_table;     // [b, max_pages] s32, row stride stride_block_table
  const int32_t* cu_seqlens_q;    // [b + 1] s32
  const int32_t* starts;          // [t] s32, or null: 0
  const int32_t* ends;            // [t] s32
  float* index_logits;            // [t, stride_logits] f32
  int64_t stride_block_table;
  int64_t stride_logits;          // multiple of 256 elements
  int32_t t;
  int32_t b;                      // at least 1
  int32_t max_pages;
  int32_t clean_logits;           // 0 | 1: -inf outside starts .. ends
} Sm120IndexLogitsPrefillParams;

// ---------------------------------------------------------------------------------------------- topk_select
// The min(topk, finite-or-inf-above--inf count) best entries of every row: larger value first, then lower position;
// NaN counts as -inf, -inf is never selected, -0.0 equals +0.0. Emitted in ascending position, padded with -1.
typedef struct {
  const float* index_logits;      // [rows, stride_logits] f32
  const int32_t* context_lens;    // [rows] s32: entries of the row that exist
  const int32_t* block_table;     // [num_sequences, max_pages] s32, or null (then topk_slots is null)
  const int32_t* sequence_of_row; // [rows] s32: line of block_table, -1 slots outside it; null: row / rows_per_sequence
  int32_t* topk_positions;        // [rows, topk] s32, or null
  int32_t* topk_slots;            // [rows, topk] s32: block_table[j / page_size] * page_size + j % page_size, or null
  int32_t* topk_lens;             // [rows] s32: how many were selected, or null
  float* split_values;            // [rows, round_up(num_splits * topk, 4)] f32 scratch
  int32_t* split_positions;       // same shape, s32 scratch
  uint32_t* split_arrivals;       // [rows] u32, zeros before the first launch; every launch leaves zeros
  int64_t stride_logits;
  int64_t stride_block_table;
  int32_t rows;
  int32_t rows_per_sequence;      // s_q: rows r of sequence r / rows_per_sequence
  int32_t num_sequences;          // lines of block_table
  int32_t num_splits;             // blocks per row, 1..64; 1: the three split pointers are not used
  int32_t topk;                   // 1..2048
  int32_t page_size;
  int32_t max_pages;
  int32_t reserved;               // 0; no struct here has padding, so that its bytes are all defined
} Sm120TopkSelectParams;

// ---------------------------------------------------------------------------------------------- sparse_mla_decode
// One softmax over window rows and compressed rows of a query, sink in the denominator only.
// num_splits == 1: out and lse are written. num_splits > 1: o_partial and lse2_partial are, for split_combine.
typedef struct {
  const void* q;                  // [t, h, 512] bf16, strides below, last axis contiguous
  Sm120PagedCache window_kv;
  Sm120PagedCache compressed_kv;  // num_pages 0: no second list
  const int32_t* window_slots;    // [t, window_topk] s32, row stride stride_window_slots
  const int32_t* topk_slots;      // [t, topk] s32, row stride stride_topk_slots; null when topk == 0
  const int32_t* window_lens;     // [t] s32 valid length of each window list, or null: all
  const int32_t* topk_lens;       // [t] s32, or null: all
  const float* attn_sink;         // [h] f32, natural-log units, or null
  void* out;                      // [t, h, 512] bf16, strides below
  float* lse;                     // [t, h] f32, natural logarithm, without the sink; -inf when no row is valid
  float* o_partial;               // [num_splits, t, h, 512] f32, contiguous, normalised within the split
  float* lse2_partial;            // [num_splits, t, h] f32, base 2; -inf for an empty split
  int64_t stride_q_t, stride_q_h;
  int64_t stride_out_t, stride_out_h;
  int64_t stride_window_slots, stride_topk_slots;
  int32_t t;
  int32_t h;                      // 8, 16, 32, 64, 128
  int32_t window_topk;
  int32_t topk;
  int32_t num_splits;
  float sm_scale;                 // 512^-1/2
} Sm120SparseMlaDecodeParams;

// ---------------------------------------------------------------------------------------------- sparse_mla_prefill
// sparse_mla_decode without splits: num_splits, o_partial and lse2_partial are not looked at.
typedef struct {
  Sm120SparseMlaDecodeParams attention;
  float* max_logits;              // [t, h] f32: the largest logit, natural; -inf when no row is valid; or null
} Sm120SparseMlaPrefillParams;

// ---------------------------------------------------------------------------------------------- split_combine
// M = max_s lse2_s;  o = sum_s 2^(lse2_s - M) o_s / (sum_s 2^(lse2_s - M) + 2^(sink * log2 e - M))
typedef struct {
  const float* o_partial;         // [num_splits, t, h, 512] f32
  const float* lse2_partial;      // [num_splits, t, h] f32
  const float* attn_sink;         // [h] f32 or null
  void* out;                      // [t, h, 512] bf16
  float* lse;                     // [t, h] f32
  int64_t stride_out_t, stride_out_h;
  int32_t t;
  int32_t h;
  int32_t num_splits;
  int32_t reserved;               // 0; no struct here has padding, so that its bytes are all defined
} Sm120SplitCombineParams;

// ---------------------------------------------------------------------------------------------- cache writers
// Rows whose slot is outside 0..num_pages*page_size are skipped. Neighbouring rows and page padding stay untouched.
typedef struct {
  const void* rows;               // [t, 512] bf16 (kv_write) | [t, 128] bf16 (index_k_write)
  const int32_t* slot_mapping;    // [t] s32
  uint8_t* cache;                 // pages
  int64_t stride_rows;
  int64_t page_stride_bytes;
  int32_t t;
  int32_t num_pages;
  int32_t page_size;
  int32_t scale_pow2;             // index_k_write fp8: 1 = round the scale up to a power of two
} Sm120CacheWriteParams;

// ---------------------------------------------------------------------------------------------- linear
// out[t, g, i] = sum_k x[t, g, k] w[g * n + i, k]
typedef struct {
  const void* x;                  // [t, groups * k] bf16, row stride stride_x
  const void* weight;             // [groups * n, k] f32 | bf16 | e4m3 | two e2m1 per byte
  const uint8_t* scale;           // fp8 [ceil(groups * n / 128), ceil(k / 128)], fp4 [groups * n, k / 32] ue8m0; else null
  void* out;                      // [t, groups * n] f32 | bf16, row stride stride_out
  int64_t stride_x;               // multiple of 8
  int64_t stride_out;
  int32_t t;
  int32_t n;
  int32_t k;                      // multiple of 32
  int32_t groups;
  int32_t out_bf16;               // 0 | 1
  int32_t accumulate;             // 0 | 1, with f32 output
} Sm120LinearParams;

// ---------------------------------------------------------------------------------------------- moe_experts
// Every launch of the operation takes the same struct; moe_experts.cu says which part each reads and writes.
typedef struct {
  const void* x;                  // [t, d] bf16
  const int32_t* expert_ids;      // [t, topk] s32
  const float* expert_weights;    // [t, topk] f32
  const void* w13;                // [num_experts * 2 * inter, d] bf16 | e4m3 | two e2m1 per byte
  const uint8_t* w13_scale;       // as in linear
  const void* w2;                 // [num_experts * d, inter]
  const uint8_t* w2_scale;
  float* out;                     // [t, d] f32
  int32_t* starts;                // [num_experts + 1] s32 scratch: first place of every expert
  int32_t* picks;                 // [t * topk] s32 scratch: pick at a place
  int32_t* places;                // [t * topk] s32 scratch: place of a pick, -1 for experts that are not here
  void* hidden;                   // [t * topk, inter] bf16 scratch, by place
  float* partial;                 // [t * topk, d] f32 scratch, by place
  int32_t t;
  int32_t d;                      // multiple of 32
  int32_t inter;                  // multiple of 32
  int32_t topk;
  int32_t first_expert;
  int32_t num_experts;
  float limit;                    // not negative; infinity for none
  int32_t reserved;               // 0
} Sm120MoeExpertsParams;

// ---------------------------------------------------------------------------------------------- norm_rope
// out = x / sqrt(mean(x^2) + eps) * weight per token and head, rounded, then the last d_rope channels turned in pairs.
typedef struct {
  const void* x;                  // rows [t] of [h, d] bf16, stride_x apart
  const float* weight;            // [d] f32, or null: 1
  const float* rope_table;        // [max_positions, d_rope / 2, 2] f32: cosine, sine
  const int32_t* positions;       // [t] s32; outside 0..max_positions: the row does not turn
  void* out;                      // rows [t] of [h, d] bf16, stride_out apart
  int64_t stride_x, stride_out;   // multiples of 8
  int32_t t;
  int32_t h;
  int32_t d;                      // multiple of 8
  int32_t d_rope;                 // multiple of 8; 0: nothing turns, table and positions are not looked at
  int32_t max_positions;
  int32_t normed;                 // 0 | 1
  int32_t inverse;                // 0 | 1: turn back
  float eps;
} Sm120NormRopeParams;

// ---------------------------------------------------------------------------------------------- hadamard
// out[r] = scale * H x[r], H[i][j] = (-1)^popcount(i & j)
typedef struct {
  const void* x;                  // [rows, d] bf16
  void* out;                      // [rows, d] bf16
  int32_t rows;
  int32_t d;                      // power of two, 8..256
  float scale;                    // d^-1/2
  int32_t reserved;               // 0
} Sm120HadamardParams;

// ---------------------------------------------------------------------------------------------- index_q_quantise
// Index queries in the form of the index keys; index_weights = weights * weight_scale, times the query's scale for fp8.
typedef struct {
  const void* q;                  // [t, h, 128] bf16
  const void* weights;            // rows [t] of [h] bf16, stride_weights apart
  void* index_q;                  // [t, h] of 128 e4m3 | 128 bf16 | 64 bytes of e2m1 and 4 ue8m0
  float* index_weights;           // [t, h] f32
  int64_t stride_weights;
  int32_t t;
  int32_t h;
  float weight_scale;
  int32_t scale_pow2;             // fp8: 1 = round the scale up to a power of two
} Sm120IndexQQuantiseParams;

// ---------------------------------------------------------------------------------------------- compress
// Rows pooled out of batch and state (compress_pool), then the state of the batch (compress_write). w = d, 2 d with overlap.
typedef struct {
  const float* kv_gate;           // rows [t] of [2 w] f32, stride_kv_gate apart: values, gates
  const float* ape;               // [ratio, w] f32, added to the gates
  float* state;                   // [num_state_pages * ring_rows, 2 w] f32: values, gates with ape
  const int32_t* state_table;     // [b, max_state_pages] s32; ids outside 0..num_state_pages count as -1
  const int32_t* positions;       // [t] s32; negative: padding
  const int32_t* seq;             // [t] s32; outside 0..b: padding
  const int32_t* cu_seqlens;      // [b + 1] s32
  const int32_t* row_tokens;      // [n] s32; outside 0..t: the row is zeros
  void* out;                      // [n, d] bf16
  int64_t stride_kv_gate;         // multiple of 4
  int32_t t;
  int32_t b;
  int32_t n;
  int32_t ratio;
  int32_t d;                      // multiple of 4
  int32_t overlap;                // 0 | 1
  int32_t max_state_pages;
  int32_t num_state_pages;
  int32_t state_page_tokens;
  int32_t ring_rows;              // num_state_pages * ring_rows fits 31 bits
} Sm120CompressParams;
// ---------------------------------------------------------------------------------------------- embed
// out[t, c, :] = table[ids[t], :]; zeros for an id outside 0..vocab
typedef struct {
  const void* table;              // [vocab, d] bf16
  const int32_t* ids;             // [t] s32
  void* out;                      // [t, copies, d] bf16
  int32_t t;
  int32_t vocab;
  int32_t d;                      // multiple of 8
  int32_t copies;
} Sm120EmbedParams;

// ---------------------------------------------------------------------------------------------- gather_rows
// out[i] = src[rows[i]]; zeros for a row outside 0..num_rows
typedef struct {
  const void* src;                // [num_rows, row_bytes]
  const int32_t* rows;            // [n] s32
  void* out;                      // [n, row_bytes]
  int32_t n;
  int32_t num_rows;
  int32_t row_bytes;              // multiple of 16
  int32_t reserved;               // 0
} Sm120GatherRowsParams;

// ---------------------------------------------------------------------------------------------- hc_mix
// Streams of a token to pre, post and the Sinkhorn matrix, their weighted sum, normed: see hc_mix.cu
typedef struct {
  const void* streams;            // [t, 4, d] bf16
  const float* weight;            // [24 | 4, 4 * d] f32; 4 rows for the head
  const float* base;              // [24 | 4] f32
  const float* scale;             // [3 | 1] f32
  const float* norm_weight;       // [d] f32
  void* out;                      // [t, d] bf16
  float* post;                    // [t, 4] f32; null for the head
  float* comb;                    // [t, 4, 4] f32; null for the head
  float* products;                // [num_splits, t, 32] f32 scratch: 24 | 4 products, then the sum of squares
  int32_t t;
  int32_t d;                      // multiple of 8, at most 8192
  int32_t num_splits;             // ceil(4 * d / (512 * steps))
  int32_t steps;                  // of 512 channels, of a split
  int32_t sinkhorn_iters;         // at least 1
  float norm_eps;
  float hc_eps;
  int32_t reserved;               // 0
} Sm120HcMixParams;

// ---------------------------------------------------------------------------------------------- hc_post
// streams[t, k] = post[t, k] bf16(y[t]) + sum_j comb[t, j, k] streams[t, j]
typedef struct {
  void* streams;                  // [t, 4, d] bf16, in and out
  const float* y;                 // [t, d] f32
  const float* post;              // [t, 4] f32
  const float* comb;              // [t, 4, 4] f32
  int32_t t;
  int32_t d;                      // multiple of 8
} Sm120HcPostParams;

// ---------------------------------------------------------------------------------------------- swiglu
// out = silu(min(a, limit)) * clamp(b, -limit, limit), NaN kept
typedef struct {
  const void* gate_up;            // [t, 2 * inter] bf16: a, then b
  void* out;                      // [t, inter] bf16
  int32_t t;
  int32_t inter;                  // multiple of 8
  float limit;                    // above 0
  int32_t reserved;               // 0
} Sm120SwigluParams;

// ---------------------------------------------------------------------------------------------- router
// s = sqrt(softplus(scores)); the topk best of s + bias, or a line of a table; weights s over the sum of the picked ones
typedef struct {
  const float* scores;            // [t, experts] f32
  const float* bias;              // [experts] f32, or null: by the table
  const int32_t* tid2eid;         // [vocab, topk] s32, or null
  const int32_t* ids;             // [t] s32, or null
  int32_t* expert_ids;            // [t, topk] s32
  float* expert_weights;          // [t, topk] f32
  int32_t t;
  int32_t experts;                // 1..512
  int32_t topk;                   // 1..16
  int32_t vocab;
  float routed_scaling;
  int32_t reserved;               // 0
} Sm120RouterParams;

// ---------------------------------------------------------------------------------------------- sample
// The largest logit of a row, or of logit / temperature + Gumbel noise; ties to the lower id
typedef struct {
  const float* logits;            // [n, vocab] f32
  const float* temperature;       // [n] f32
  const uint32_t* seeds;          // [n, 2] u32
  int32_t* out;                   // [n] s32
  int32_t n;
  int32_t vocab;                  // multiple of 4
} Sm120SampleParams;
