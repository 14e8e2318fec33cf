// A query in registers and its products with index keys, for fp8 and bf16. A query is the left operand: row g of head block i is
// head 16i + g, with g = lane / 4, t = lane % 4.
//
// The k axis is permuted: lane t of a quad takes the 16-byte chunks t, t + 4, ... of a row as the operands of two steps each.
// Queries are loaded in the same order as keys, so the sums are over the whole row.
#pragma once
#include "index_logits_tile.cuh"
#include "ptx/mma.cuh"
#include "ptx/shared.cuh"

// Products of 64 heads with two blocks of eight keys.
using Dots = float[2][HEAD_BLOCKS][4];

#if SM120_TARGET_SM120A
constexpr bool WIDE_E4M3 = false;   // e4m3 products are one instruction
#else
constexpr bool WIDE_E4M3 = true;    // Hopper widens the operands of e4m3 products in registers
#endif

template <Format F>
__device__ __forceinline__ void mma_step(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  if constexpr (F == Format::BF16) {
    mma_bf16_m16n8k16(d, a, b, d);
  } else {
#if SM120_TARGET_SM120A
    constexpr uint32_t ONE = 0x7f7f7f7f;         // ue8m0 127: 2^0
    mma_e4m3_m16n8k32_block_scaled(d, a, b, d, ONE, ONE);
#else
    mma_e4m3_m16n8k32(d, a, b, d);
#endif
  }
}

// What this lane has of the head weights: heads 16i + g and 16i + 8 + g.
struct Weights {
  float of[HEAD_BLOCKS][2];

  __device__ __forceinline__ void load(const float* index_weights, int lane, int row) {
    const float* weights = index_weights + static_cast<int64_t>(row) * HEADS + lane / 4;
#pragma unroll
    for (int i = 0; i < HEAD_BLOCKS; ++i) {
      of[i][0] = __ldg(weights + i * 16);
      of[i][1] = __ldg(weights + i * 16 + 8);
    }
  }
};

// What a warp keeps of its query, and what it reads of the keys of a part.
template <Format F>
struct Query {
  using S = Shape<F>;
  static constexpr int STEPS = S::ROW_BYTES / 32;   // of a product: 32 e4m3 or 16 bf16, 32 B of a row
  static constexpr int CHUNKS = STEPS / 2;          // 16-byte loads per lane and row, two steps each
  // Pairs of key blocks unrolled where registers allow: then the head sums of some keys run beside the products of others.
  static constexpr int UNROLL = F == Format::FP8 && !WIDE_E4M3 ? 2 : 1;

  uint32_t q[HEAD_BLOCKS][STEPS][4];

  __device__ __forceinline__ void load(const void* index_q, int lane, int row) {
    const int g = lane / 4, t = lane % 4;
    const uint8_t* from =
        static_cast<const uint8_t*>(index_q) + (static_cast<int64_t>(row) * HEADS + g) * S::ROW_BYTES + t * 16;
#pragma unroll
    for (int i = 0; i < HEAD_BLOCKS; ++i) {
#pragma unroll
      for (int chunk = 0; chunk < CHUNKS; ++chunk) {
        // Word by word: 16-byte loads would tie the registers to an order that every product had to undo by moves.
#pragma unroll
        for (int r = 0; r < 8; ++r) {
          const uint8_t* at = from + (i * 16 + r % 2 * 8) * S::ROW_BYTES + chunk * 64 + r / 2 * 4;
          q[i][2 * chunk + r / 4][r % 4] = __ldg(reinterpret_cast<const uint32_t*>(at));
        }
      }
    }
  }

  // Column and offset in a row of this lane's first load of a key block.
  static __device__ __forceinline__ int column(int lane) { return lane / 4; }
  static __device__ __forceinline__ int offset(int lane) { return lane % 4 * 16; }

  // Adds the products with two key blocks whose loads begin at key0 and key1.
  __device__ __forceinline__ void multiply(Dots& dots, uint32_t key0, uint32_t key1) const {
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; ++chunk) {
      const uint4 k0 = ld_shared_v4(key0 + chunk * 64), k1 = ld_shared_v4(key1 + chunk * 64);
      const uint32_t b[2][2][2] = {{{k0.x, k0.y}, {k0.z, k0.w}}, {{k1.x, k1.y}, {k1.z, k1.w}}};
#pragma unroll
      for (int step = 0; step < 2; ++step) {
#pragma unroll
        for (int block = 0; block < 2; ++block) {
#pragma unroll
          for (int i = 0; i < HEAD_BLOCKS; ++i) mma_step<F>(dots[block][i], q[i][2 * chunk + step], b[block][step]);
        }
      }
    }
  }
};
