// A query in registers and its products with index keys, for fp4: e2m1 codes with a ue8m0 scale per group of 32 channels, 16 bytes
// of codes, on both sides.
//
// sm120a   A group is half of a product's k, and the block-scaled product takes both scales as they are stored: nothing is decoded.
//          A register of an operand has to belong to one group in all lanes of a quad, word t of it in lane t, which is what a
//          matrix load gives: register c is group c. Lane l addresses column l % 8, group l / 8.
// sm89     Both sides become bf16, scale included, which is exact down to 2^-133 (beyond 2^128: infinite). The sum does not
//          care whose group is whose, so lane t takes group t of a row, 16 bytes with one scale.
#pragma once
#include "e2m1.cuh"
#include "index_logits_query.cuh"
#include "ptx/ldmatrix.cuh"

constexpr int GROUPS = SM120_D_INDEX / FP4_GROUP;
constexpr int GROUP_BYTES = FP4_GROUP / 2;

static_assert(GROUPS == 4 && GROUP_BYTES == COPY_ALIGN, "a group is a 16-byte chunk, one per lane of a quad");

template <>
struct Query<Format::FP4> {
  using S = Shape<Format::FP4>;
  static constexpr int HEAD_BYTES = SM120_INDEX_K_FP4_BYTES;   // codes, then scales
  static constexpr int UNROLL = SM120_TARGET_SM120A ? 2 : 1;

  static __device__ __forceinline__ uint32_t word_at(const void* index_q, int row, int head, int at) {
    const int64_t from = (static_cast<int64_t>(row) * HEADS + head) * HEAD_BYTES;
    return __ldg(reinterpret_cast<const uint32_t*>(static_cast<const uint8_t*>(index_q) + from + at));
  }

#if SM120_TARGET_SM120A
  uint32_t q[HEAD_BLOCKS][2][4];
  uint32_t scales[HEAD_BLOCKS / 2];   // lanes t = 0, 1: of head block 2i, rows g and g + 8; lanes t = 2, 3: of block 2i + 1

  __device__ __forceinline__ void load(const void* index_q, int lane, int row) {
    const int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int i = 0; i < HEAD_BLOCKS; ++i) {
#pragma unroll
      for (int r = 0; r < 8; ++r) {
        q[i][r / 4][r % 4] = word_at(index_q, row, i * 16 + r % 2 * 8 + g, r / 2 * GROUP_BYTES + t * 4);
      }
    }
#pragma unroll
    for (int i = 0; i < HEAD_BLOCKS / 2; ++i) {
      scales[i] = word_at(index_q, row, (2 * i + t / 2) * 16 + t % 2 * 8 + g, S::ROW_BYTES);
    }
  }

  static __device__ __forceinline__ int column(int lane) { return lane % 8; }
  static __device__ __forceinline__ int offset(int lane) { return lane / 8 * GROUP_BYTES; }

  template <int STEP, int BLOCK>
  __device__ __forceinline__ void step(Dots& dots, const uint32_t (&k)[4], uint32_t key_scales) const {
    const uint32_t b[2] = {k[2 * STEP], k[2 * STEP + 1]};
    auto& d = dots[BLOCK];
    mma_e2m1_m16n8k64_block_scaled<2 * STEP, 0, 2 * STEP, BLOCK>(d[0], q[0][STEP], b, d[0], scales[0], key_scales);
    mma_e2m1_m16n8k64_block_scaled<2 * STEP, 1, 2 * STEP, BLOCK>(d[1], q[1][STEP], b, d[1], scales[0], key_scales);
    mma_e2m1_m16n8k64_block_scaled<2 * STEP, 0, 2 * STEP, BLOCK>(d[2], q[2][STEP], b, d[2], scales[1], key_scales);
    mma_e2m1_m16n8k64_block_scaled<2 * STEP, 1, 2 * STEP, BLOCK>(d[3], q[3][STEP], b, d[3], scales[1], key_scales);
  }

  // Adds the products with two key blocks whose loads begin at key0 and key1. key_scales: the four scales of column g of block
  // t % 2.
  __device__ __forceinline__ void multiply(Dots& dots, uint32_t key0, uint32_t key1, uint32_t key_scales, int) const {
    uint32_t k0[4], k1[4];
    ldmatrix_x4(k0, key0);
    ldmatrix_x4(k1, key1);
    step<0, 0>(dots, k0, key_scales);
    step<0, 1>(dots, k1, key_scales);
    step<1, 0>(dots, k0, key_scales);
    step<1, 1>(dots, k1, key_scales);
  }
#else
  uint32_t q[HEAD_BLOCKS][GROUPS][2][4];   // per head block and word of a group: two steps

  __device__ __forceinline__ void load(const void* index_q, int lane, int row) {
    const int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int i = 0; i < HEAD_BLOCKS; ++i) {
#pragma unroll
      for (int upper = 0; upper < 2; ++upper) {
        const int head = i * 16 + upper * 8 + g;
        const uint32_t scales = ue8m0_bf16x2(word_at(index_q, row, head, S::ROW_BYTES) >> 8 * t & 0xff);
#pragma unroll
        for (int word = 0; word < 4; ++word) {
          uint32_t pairs[4];
          e2m1x8_to_bf16(pairs, word_at(index_q, row, head, t * GROUP_BYTES + word * 4), scales);
#pragma unroll
          for (int pair = 0; pair < 4; ++pair) q[i][word][pair / 2][pair % 2 * 2 + upper] = pairs[pair];
        }
      }
    }
  }

  static __device__ __forceinline__ int column(int lane) { return lane / 4; }
  static __device__ __forceinline__ int offset(int lane) { return lane % 4 * GROUP_BYTES; }

  // As above; the scale of this lane's group comes from the lane of its quad that has the block's.
  __device__ __forceinline__ void multiply(Dots& dots, uint32_t key0, uint32_t key1, uint32_t key_scales, int lane) const {
    const uint4 k0 = ld_shared_v4(key0), k1 = ld_shared_v4(key1);
    const uint32_t words[2][4] = {{k0.x, k0.y, k0.z, k0.w}, {k1.x, k1.y, k1.z, k1.w}};
    uint32_t scales[2];
#pragma unroll
    for (int block = 0; block < 2; ++block) {
      scales[block] = ue8m0_bf16x2(shfl_idx(key_scales, lane / 4 * 4 + block) >> lane % 4 * 8 & 0xff);
    }
#pragma unroll
    for (int word = 0; word < 4; ++word) {
#pragma unroll
      for (int block = 0; block < 2; ++block) {
        uint32_t pairs[4];
        e2m1x8_to_bf16(pairs, words[block][word], scales[block]);
#pragma unroll
        for (int step = 0; step < 2; ++step) {
          const uint32_t b[2] = {pairs[2 * step], pairs[2 * step + 1]};
#pragma unroll
          for (int i = 0; i < HEAD_BLOCKS; ++i) mma_bf16_m16n8k16(dots[block][i], q[i][word][step], b, dots[block][i]);
        }
      }
    }
  }
#endif
};
