// What index_logits_decode and index_logits_prefill share beside the layout of a tile and the products: the score of 32 keys of a
// tile. A key gets the same bits from both, wherever it stands.
//
//      logit = k_scale * sum_h w_h * relu(q_h . k)         (k_scale = 1 for bf16 keys; fp4: inside the dot product)
//
// Numerics: dot products summed in f32 by the matrix unit, everything after in f32, no flush to zero. A lane sums its heads
// g, g + 8, ... 56 + g by fused multiply-adds, then lanes g and g ^ 4, g ^ 2, g ^ 1 are added. relu lets NaN through.
#pragma once
#include "index_logits_fp4.cuh"
#include "index_logits_query.cuh"
#include "ptx/arithmetic.cuh"
#include "ptx/warp.cuh"

// Weighted head sums, over this lane's 8 heads, of two blocks of 8 keys: .x and .y are columns 2t and 2t + 1 of the first,
// .z and .w of the second.
__device__ __forceinline__ float4 head_sums(const Weights& weights, const Dots& dots) {
  float sum[2][2] = {};
#pragma unroll
  for (int i = 0; i < HEAD_BLOCKS; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {   // row g + 8 (j / 2), column 2t + j % 2
#pragma unroll
      for (int block = 0; block < 2; ++block) {
        float& to = sum[block][j % 2];
        to = fmaf(weights.of[i][j / 2], max_nan(dots[block][i][j], 0.f), to);
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

// Where in the tile the key stands whose logit a lane ends up with.
template <Format F>
__device__ __forceinline__ int key_in_tile(int part, int lane) {
  return Place<F>::of_lane(part, lane).key();
}

// Head sums of 32 keys, spread over the lanes.
struct Sums {
  float4 first, second;
  float scale;
  bool loaded;
};

// What a lane reads of the keys of a part.
template <Format F>
struct Reads {
  uint32_t key[BLOCKS];          // first load of each key block
  uint32_t scales[BLOCKS / 2];   // fp4: scales of column g of block 2 pair + t % 2

  // Of keys that were not loaded some other's, of which there is one: the result is not used.
  __device__ __forceinline__ Reads(const Tile& tile, int part, int lane) {
    const uint32_t base = tile.base + Query<F>::offset(lane);
    Place<F> place[BLOCKS], scaled[BLOCKS / 2];
#pragma unroll
    for (int v = 0; v < BLOCKS; ++v) {
      place[v] = Place<F>::of_column(part, v, Query<F>::column(lane));
      key[v] = place[v].address(base);
    }
#pragma unroll
    for (int pair = 0; pair < BLOCKS / 2; ++pair) {
      scaled[pair] = Place<F>::of_column(part, 2 * pair + lane % 2, lane / 4);
      scales[pair] = scaled[pair].scale_address(tile.base);
    }
    if (tile.complete()) return;
    const Place<F> some = Place<F>::loaded_in(tile);
#pragma unroll
    for (int v = 0; v < BLOCKS; ++v) key[v] = place[v].loaded(tile) ? key[v] : some.address(base);
#pragma unroll
    for (int pair = 0; pair < BLOCKS / 2; ++pair) {
      scales[pair] = scaled[pair].loaded(tile) ? scales[pair] : some.scale_address(tile.base);
    }
  }
};

// Scores a part of a tile. `wanted`, the same for the whole warp: otherwise neither the tile nor the query is touched.
template <Format F>
__device__ __forceinline__ Sums score_part(const Query<F>& query, const Weights& weights, const Tile& tile, int part, bool wanted,
                                           int lane) {
  const Place<F> own = Place<F>::of_lane(part, lane);
  Sums sums = {{0.f, 0.f, 0.f, 0.f}, {0.f, 0.f, 0.f, 0.f}, 1.f, own.loaded(tile)};
  if (tile.empty() || !wanted) return sums;
  const Reads<F> reads(tile, part, lane);
#pragma unroll(Query<F>::UNROLL)
  for (int pair = 0; pair < BLOCKS / 2; ++pair) {
    const uint32_t key0 = pair == 0 ? reads.key[0] : reads.key[2], key1 = pair == 0 ? reads.key[1] : reads.key[3];
    Dots dots = {};
    if constexpr (F == Format::FP4) {
      query.multiply(dots, key0, key1, ld_shared_b32(pair == 0 ? reads.scales[0] : reads.scales[1]), lane);
    } else {
      query.multiply(dots, key0, key1);
    }
    sums.first = sums.second;
    sums.second = head_sums(weights, dots);
  }
  if constexpr (F == Format::FP8) {
    if (sums.loaded) sums.scale = ld_shared_f32(own.scale_address(tile.base));
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
