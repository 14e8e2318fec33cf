// Writes index-K rows into a paged cache, in the byte layout that index_logits_decode reads.
//
// In:    rows [t, 128] bf16, normed and rotated (and transformed, if the model does), row stride a multiple of 8
//        elements; slot_mapping [t] s32.
// Out:   cache pages, index_k_write_fp8: page_size rows of 128 e4m3, then page_size f32 scales (block-planar);
//        index_k_write_bf16: page_size rows of 128 bf16; index_k_write_fp4: page_size rows of 64 bytes of e2m1 (low nibble = even
//        channel), then page_size x 4 ue8m0.
// Launch: grid ceil(t / 16), block 128 (8 lanes per token), no shared memory, no barrier.
//
//   a = clamp(max |x| over the row, 1e-4, f32 max)     s = a / 448, or 2^ceil(log2(a / 448)) when scale_pow2
//   code = e4m3(clamp(x / s, -448, 448)), nearest even
//   fp4, per 32 channels: a = clamp(max |x|, 6 * 2^-126, f32 max), s = 2^ceil(log2(a / 6)), code = e2m1(clamp(x / s, -6, 6))
//
// Numerics: both divisions are IEEE f32, nearest even; by a power of two they are exact. The maximum ignores NaN; a NaN
//   channel is code 0x7f, in fp4, which has none, 0. e2m1 by its thresholds, ties to the even code.
// Invalid: a slot outside 0..num_pages*page_size is skipped. Page padding and other rows are not touched.
// Caller: the indexer after norm and rope, once per step. Two tokens for one slot: the caller's error.
#include "e2m1.cuh"
#include "entry.cuh"
#include "ptx/global.cuh"
#include "ptx/warp.cuh"
#include "quantise.cuh"
#include "slot.cuh"

constexpr int THREADS = 128;
constexpr int LANE_CHANNELS = 16;                              // 32 bytes in, 16 bytes of codes out
constexpr int LANES = SM120_D_INDEX / LANE_CHANNELS;           // 8 lanes per token
constexpr int TOKENS = THREADS / LANES;
static_assert(LANES == 8, "the reduction is written for 8 lanes");
static_assert(SM120_INDEX_K_FP8_BYTES == SM120_D_INDEX + 4, "128 codes and a scale");
static_assert(SM120_INDEX_K_FP4_BYTES == SM120_D_INDEX / 2 + SM120_D_INDEX / FP4_GROUP, "64 bytes of codes and 4 scales");
static_assert(FP4_GROUP == 2 * LANE_CHANNELS, "two lanes share a scale");

__device__ __forceinline__ int64_t token_of_lanes() {
  return static_cast<int64_t>(blockIdx.x) * TOKENS + threadIdx.x / LANES;
}

// 16 channels of this lane's token, and where its row goes: row -1 when there is none. Four tokens share a warp: lanes without
// a token take part in the shuffles with zeros. The loads start before the slot is known: the row of a skipped token exists,
// it is only not used.
__device__ __forceinline__ PageRow load(const Sm120CacheWriteParams& p, int part, float (&x)[LANE_CHANNELS]) {
  const int64_t token = token_of_lanes();
  uint4 packed[2] = {};
  PageRow place = {0, -1};
  if (token < p.t) {
    const uint16_t* source = static_cast<const uint16_t*>(p.rows) + token * p.stride_rows + part * LANE_CHANNELS;
    packed[0] = ld_global_nc_v4(source);
    packed[1] = ld_global_nc_v4(source + 8);
    place = locate(p.slot_mapping[token], p.num_pages, p.page_size, p.page_stride_bytes);
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float half[8];
    bf16x8_to_f32(packed[i], half);
#pragma unroll
    for (int j = 0; j < 8; ++j) x[8 * i + j] = half[j];
  }
  return place;
}

extern "C" __global__ __launch_bounds__(THREADS)
void SM120_ENTRY(index_k_write_fp8)(const __grid_constant__ Sm120CacheWriteParams p) {
  declare_shared<0>();
  const int part = threadIdx.x % LANES;
  float x[LANE_CHANNELS];
  const PageRow place = load(p, part, x);
  float amax = amax_of(x, 0.0f);
  amax = fmaxf(amax, shfl_bfly(amax, 1));
  amax = fmaxf(amax, shfl_bfly(amax, 2));
  amax = fmaxf(amax, shfl_bfly(amax, 4));
  if (place.row < 0) return;
  amax = clamp_amax(amax);

  float scale;
  if (p.scale_pow2 != 0) {
    const uint32_t byte = ue8m0_scale(amax);
    scale = ue8m0_value(byte);
    const float inverse = ue8m0_inverse(byte);
#pragma unroll
    for (int i = 0; i < LANE_CHANNELS; ++i) x[i] *= inverse;
  } else {
    scale = __fdiv_rn(amax, E4M3_MAX);
#pragma unroll
    for (int i = 0; i < LANE_CHANNELS; ++i) x[i] = __fdiv_rn(x[i], scale);
  }
  uint8_t* page = p.cache + place.page_offset;
  const int64_t row = place.row;
  st_global_v4(page + row * SM120_D_INDEX + part * LANE_CHANNELS, e4m3x16(x));
  if (part == 0) {
    float* scales = reinterpret_cast<float*>(page + static_cast<int64_t>(p.page_size) * SM120_D_INDEX);
    scales[row] = scale;
  }
}

extern "C" __global__ __launch_bounds__(THREADS)
void SM120_ENTRY(index_k_write_bf16)(const __grid_constant__ Sm120CacheWriteParams p) {
  declare_shared<0>();
  const int64_t token = token_of_lanes();
  if (token >= p.t) return;
  const int part = threadIdx.x % LANES;
  const uint16_t* source = static_cast<const uint16_t*>(p.rows) + token * p.stride_rows + part * 8;
  const uint4 packed[2] = {ld_global_nc_v4(source), ld_global_nc_v4(source + SM120_D_INDEX / 2)};
  const PageRow place = locate(p.slot_mapping[token], p.num_pages, p.page_size, p.page_stride_bytes);
  if (place.row < 0) return;
  uint8_t* data = p.cache + place.page_offset + static_cast<int64_t>(place.row) * SM120_INDEX_K_BF16_BYTES + part * 16;
  st_global_v4(data, packed[0]);
  st_global_v4(data + SM120_INDEX_K_BF16_BYTES / 2, packed[1]);
}

extern "C" __global__ __launch_bounds__(THREADS)
void SM120_ENTRY(index_k_write_fp4)(const __grid_constant__ Sm120CacheWriteParams p) {
  declare_shared<0>();
  const int part = threadIdx.x % LANES;
  float x[LANE_CHANNELS];
  const PageRow place = load(p, part, x);
  float amax = amax_of(x, FP4_AMAX_FLOOR);
  amax = fminf(fmaxf(amax, shfl_bfly(amax, 1)), F32_MAX);
  const uint32_t byte = fp4_scale(amax), scales = fp4_scales_of_row(byte, part);
  if (place.row < 0) return;
  const float inverse = ue8m0_inverse(byte);
#pragma unroll
  for (int i = 0; i < LANE_CHANNELS; ++i) x[i] *= inverse;

  constexpr int CODES = SM120_D_INDEX / 2;
  uint8_t* page = p.cache + place.page_offset;
  const int64_t row = place.row;
  st_global_v2(page + row * CODES + part * (LANE_CHANNELS / 2), e2m1x8(x), e2m1x8(x + 8));
  if (part == 0) reinterpret_cast<uint32_t*>(page + static_cast<int64_t>(p.page_size) * CODES)[row] = scales;
}
