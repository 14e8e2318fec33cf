// What index_logits_decode and index_logits_prefill share: where keys lie, the layout of a tile of keys in shared memory, a
// query in registers, and the score of 32 keys of a tile. A key gets the same bits from both, wherever it stands.
//
//      logit = k_scale * sum_h w_h * relu(q_h . k)         (k_scale = 1 for bf16 keys)
//
// Numerics: dot products summed in f32 by the matrix unit, everything after in f32, no flush to zero. A lane sums its heads
// g, g + 8, ... 56 + g by fused multiply-adds, then lanes g and g ^ 4, g ^ 2, g ^ 1 are added. relu lets NaN through.
//
// A tile is 64 consecutive keys of a sequence, in two halves. A warp scores 32 of them, 16 of each half, at a time: the query is
// the left operand of the products and stays in registers (64 for e4m3, 128 for bf16, 8 weights).
//
// Shared memory. Copies cannot swizzle, and rows of 128 B put the same 16-byte chunk of all rows into the same banks. Two
// things make the loads free of conflicts: the k axis is permuted (lane t of a quad takes chunks t, t + 4, ... of a row
// as the operands of two mma steps each; q is loaded in the same order, so the sums are over the whole row), so that a quad
// reads 64 B of a key; and the second half of a tile (32 rows) starts 64 B off the bank period, with even matrix columns
// taken from the first half and odd ones from the second, so that the two quads of a quarter warp use different banks.
#pragma once
#include "entry.cuh"
#include "ptx/arithmetic.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/mma.cuh"
#include "ptx/shared.cuh"
#include "ptx/warp.cuh"

enum class Format { FP8, BF16 };

constexpr int LANES = 32;
constexpr int TILE = 64;                   // keys
constexpr int HALF = TILE / 2;
constexpr int HEADS = SM120_INDEX_HEADS;
constexpr int HEAD_BLOCKS = HEADS / 16;    // mma rows
constexpr int COPY_ALIGN = 16;             // addresses and sizes of copies

static_assert(SM120_D_INDEX == 128 && SM120_INDEX_HEADS == 64, "fragment loads and head sums are written for 64 x 128");

template <Format F>
struct Shape {
  static constexpr int ROW_BYTES = F == Format::FP8 ? 128 : 256;
  static constexpr int SCALE_BYTES = F == Format::FP8 ? 4 : 0;
  static constexpr int STEPS = ROW_BYTES / 32;      // mma k steps: 32 e4m3 or 16 bf16, 32 B of a row
  static constexpr int CHUNKS = STEPS / 2;          // 16-byte loads per lane and row, two steps each
  static constexpr int HALF_SCALES = HALF * ROW_BYTES;                       // where the scales of a half start
  static constexpr int HALF_PITCH = HALF * (ROW_BYTES + SCALE_BYTES) + 64;   // 64 B off the bank period of 128 B
  static constexpr int STAGE_BYTES = 2 * HALF_PITCH;
  static_assert(HALF_PITCH % 128 == 64, "rows of the two halves must use different banks");
  static_assert(SCALE_BYTES == 0 || ROW_BYTES + SCALE_BYTES == SM120_INDEX_K_FP8_BYTES, "fp8 row");
  static_assert(SCALE_BYTES != 0 || ROW_BYTES == SM120_INDEX_K_BF16_BYTES, "bf16 row");
};

// ------------------------------------------------------------------------------------------------- target differences
#if SM120_TARGET_SM120A
constexpr bool WIDE_E4M3 = false;                // e4m3 products are one instruction
__device__ __forceinline__ void wait(uint32_t barrier, uint32_t parity) {
  while (!mbarrier_try_wait_parity(barrier, parity)) {
  }
}
#else
constexpr bool WIDE_E4M3 = true;                 // Hopper widens the operands of e4m3 products in registers
__device__ __forceinline__ void wait(uint32_t barrier, uint32_t parity) {
  while (!mbarrier_test_wait_parity(barrier, parity)) {
  }
}
#endif

template <Format F>
__device__ __forceinline__ void mma_step(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], const float (&c)[4]) {
  if constexpr (F == Format::BF16) {
    mma_bf16_m16n8k16(d, a, b, c);
  } else {
#if SM120_TARGET_SM120A
    constexpr uint32_t ONE = 0x7f7f7f7f;         // ue8m0 127: 2^0
    mma_e4m3_m16n8k32_block_scaled(d, a, b, c, ONE, ONE);
#else
    mma_e4m3_m16n8k32(d, a, b, c);
#endif
  }
}

// ------------------------------------------------------------------------------------------------------- keys in memory
// Where a key is.
struct Source {
  int page;     // -1: nowhere
  int offset;   // row in the page
};

template <Format F>
__device__ __forceinline__ const uint8_t* key_address(const Sm120PagedCache& cache, Source source) {
  return cache.data + source.page * cache.page_stride_bytes + static_cast<int64_t>(source.offset) * Shape<F>::ROW_BYTES;
}

template <Format F>
__device__ __forceinline__ const uint8_t* scale_address(const Sm120PagedCache& cache, Source source) {
  const int64_t scales = static_cast<int64_t>(cache.page_size) * Shape<F>::ROW_BYTES;
  return cache.data + source.page * cache.page_stride_bytes + scales + source.offset * Shape<F>::SCALE_BYTES;
}

// ---------------------------------------------------------------------------------------------------- a query, its scores
// What a warp keeps of its query, as the left operand: row g of head block i is head 16i + g, and this lane has the chunks
// t, t + 4, ... of heads 16i + g and 16i + 8 + g.
template <Format F>
struct Query {
  uint32_t q[HEAD_BLOCKS][Shape<F>::STEPS][4];
  float weight[HEAD_BLOCKS][2];

  __device__ __forceinline__ void load(const void* index_q, const float* index_weights, int lane, int row) {
    using S = Shape<F>;
    const int g = lane / 4, t = lane % 4;
    const uint8_t* from =
        static_cast<const uint8_t*>(index_q) + (static_cast<int64_t>(row) * HEADS + g) * S::ROW_BYTES + t * 16;
    const float* weights = index_weights + static_cast<int64_t>(row) * HEADS + g;
#pragma unroll
    for (int i = 0; i < HEAD_BLOCKS; ++i) {
#pragma unroll
      for (int chunk = 0; chunk < S::CHUNKS; ++chunk) {
        // Word by word: 16-byte loads would tie the registers to an order that every product had to undo by moves.
#pragma unroll
        for (int r = 0; r < 8; ++r) {
          const uint8_t* at = from + (i * 16 + r % 2 * 8) * S::ROW_BYTES + chunk * 64 + r / 2 * 4;
          q[i][2 * chunk + r / 4][r % 4] = __ldg(reinterpret_cast<const uint32_t*>(at));
        }
      }
      weight[i][0] = __ldg(weights + i * 16);
      weight[i][1] = __ldg(weights + i * 16 + 8);
    }
  }
};

// Weighted head sums, over this lane's 8 heads, of two blocks of 8 keys: .x and .y are columns 2t and 2t + 1 of the first,
// .z and .w of the second. The addresses are those of this lane's first chunk of the keys in column g.
template <Format F>
__device__ __forceinline__ float4 score(const Query<F>& query, uint32_t key0, uint32_t key1) {
  using S = Shape<F>;
  float dots[2][HEAD_BLOCKS][4] = {};
#pragma unroll
  for (int chunk = 0; chunk < S::CHUNKS; ++chunk) {
    const uint4 k0 = ld_shared_v4(key0 + chunk * 64), k1 = ld_shared_v4(key1 + chunk * 64);
    const uint32_t b[2][2][2] = {{{k0.x, k0.y}, {k0.z, k0.w}}, {{k1.x, k1.y}, {k1.z, k1.w}}};
#pragma unroll
    for (int step = 0; step < 2; ++step) {
#pragma unroll
      for (int block = 0; block < 2; ++block) {
#pragma unroll
        for (int i = 0; i < HEAD_BLOCKS; ++i) {
          mma_step<F>(dots[block][i], query.q[i][2 * chunk + step], b[block][step], dots[block][i]);
        }
      }
    }
  }
  float sum[2][2] = {};
#pragma unroll
  for (int i = 0; i < HEAD_BLOCKS; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {   // row g + 8 (j / 2), column 2t + j % 2
#pragma unroll
      for (int block = 0; block < 2; ++block) {
        float& to = sum[block][j % 2];
        to = fmaf(query.weight[i][j / 2], max_nan(dots[block][i][j], 0.f), to);
      }
    }
  }
  return {sum[0][0], sum[0][1], sum[1][0], sum[1][1]};
}

// The sum of a and of b over a pair of lanes: a for the lane whose bit `step` is 0, b for the other.
__device__ __forceinline__ float fold(float a, float b, int lane, int step) {
  const bool upper = lane & step;
  return (upper ? b : a) + shfl_bfly(upper ? a : b, step);
}

// A tile in shared memory; bit r of rows0 and rows1: row r of that half was loaded.
struct Tile {
  uint32_t base;
  uint32_t rows0, rows1;
};

// Where in the tile the key stands whose logit a lane ends up with: row `key_row` of half lane / 16.
__device__ __forceinline__ int key_row(int part, int lane) { return part * (HALF / 2) + lane % 16; }
__device__ __forceinline__ int key_in_tile(int part, int lane) { return lane / 16 * HALF + key_row(part, lane); }

// Head sums of 32 keys, spread over the lanes.
struct Sums {
  float4 first, second;
  float scale;
  bool loaded;
};

// Scores rows 16 part .. 16 part + 15 of both halves of a tile. `wanted`, the same for the whole warp: otherwise neither the
// tile nor the query is touched.
template <Format F>
__device__ __forceinline__ Sums score_part(const Query<F>& query, const Tile& tile, int part, bool wanted, int lane) {
  using S = Shape<F>;
  const int g = lane / 4, t = lane % 4, own_half = lane / 16;
  // Column g of key block v is row first_row + 4v of half g % 2.
  const int first_row = part * (HALF / 2) + g / 2, own_row = key_row(part, lane);
  const uint32_t rows0 = tile.rows0, rows1 = tile.rows1;
  uint32_t key[4];
#pragma unroll
  for (int v = 0; v < 4; ++v) key[v] = tile.base + g % 2 * S::HALF_PITCH + (first_row + 4 * v) * S::ROW_BYTES + t * 16;
  if ((rows0 & rows1) != ~0u) {
    // Rows that were not loaded: read some row that was, the result is not used.
    const uint32_t rows = g % 2 ? rows1 : rows0;
    const uint32_t some =
        tile.base + t * 16 + (rows0 != 0 ? 0 : S::HALF_PITCH) + (__ffs(rows0 != 0 ? rows0 : rows1) - 1) * S::ROW_BYTES;
#pragma unroll
    for (int v = 0; v < 4; ++v) key[v] = rows >> (first_row + 4 * v) & 1 ? key[v] : some;
  }
  Sums sums = {{0.f, 0.f, 0.f, 0.f}, {0.f, 0.f, 0.f, 0.f}, 1.f, ((own_half ? rows1 : rows0) >> own_row & 1) != 0};
  // Unrolled where registers allow: then the head sums of some keys run beside the products of others.
  constexpr int UNROLL = F == Format::FP8 && !WIDE_E4M3 ? 2 : 1;
  if ((rows0 | rows1) != 0 && wanted) {
#pragma unroll(UNROLL)
    for (int pair = 0; pair < 2; ++pair) {
      sums.first = sums.second;
      sums.second = score<F>(query, pair == 0 ? key[0] : key[2], pair == 0 ? key[1] : key[3]);
    }
    if constexpr (F == Format::FP8) {
      if (sums.loaded) sums.scale = ld_shared_f32(tile.base + own_half * S::HALF_PITCH + S::HALF_SCALES + own_row * 4);
    }
  }
  return sums;
}

// This lane's logit of a scored part: that of key_in_tile(part, lane). -inf for a key that was not loaded.
__device__ __forceinline__ float logit_of(const Sums& sums, int lane) {
  const float v0 = fold(sums.first.x, sums.first.y, lane, 16), v1 = fold(sums.first.z, sums.first.w, lane, 16);
  const float v2 = fold(sums.second.x, sums.second.y, lane, 16), v3 = fold(sums.second.z, sums.second.w, lane, 16);
  const float sum = fold(fold(v0, v2, lane, 8), fold(v1, v3, lane, 8), lane, 4);
  return sums.loaded ? sum * sums.scale : __int_as_float(0xff800000);
}
