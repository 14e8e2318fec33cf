// Writes KV rows into a paged cache, in the byte layout that sparse_mla_decode reads.
//
// In:    rows [t, 512] bf16, normed and rotated (rope last), row stride a multiple of 8 elements; slot_mapping [t] s32.
// Out:   cache pages, kv_write_v4_fp8: page_size rows of 448 e4m3 + 64 bf16, then page_size footers of 7 ue8m0 + 0;
//        kv_write_bf16: page_size rows of 512 bf16.
// Launch: grid ceil(t / 4), block 128 (one warp per token), no shared memory, no barrier.
//
//   a    = clamp(max |x| over a tile of 64 nope channels, 1e-4, f32 max)      s = 2^ceil(log2(a / 448))
//   code = e4m3(clamp(x / s, -448, 448)), nearest even                        footer byte = log2 s + 127
//
// Numerics: s is a power of two taken from the bits of a, x / s is a multiplication by its inverse and exact until the
//   conversion (or so small that the code is a zero of x's sign). The maximum ignores NaN; a NaN channel is code 0x7f.
// Invalid: a slot outside 0..num_pages*page_size is skipped. Page padding and other rows are not touched.
// Caller: the attention layer after norm and rope, once per step. Two tokens for one slot: the caller's error.
#include "entry.cuh"
#include "ptx/global.cuh"
#include "ptx/warp.cuh"
#include "quantise.cuh"
#include "slot.cuh"

constexpr int WARPS = 4;
constexpr int LANE_CHANNELS = 16;                               // 32 bytes in, 16 bytes of codes out
constexpr int TILE_LANES = SM120_NOPE_TILE / LANE_CHANNELS;     // 4 lanes share a scale
constexpr int NOPE_LANES = SM120_D_NOPE / LANE_CHANNELS;        // lanes 0..27; 28..31 carry the rope channels
constexpr int TILES = SM120_D_NOPE / SM120_NOPE_TILE;
static_assert(LANE_CHANNELS * 32 == SM120_D_KV, "a warp holds a row");
static_assert(TILE_LANES == 4 && TILES == 7, "the reduction and the footer are written for 7 tiles of 4 lanes");
static_assert(SM120_V4_FP8_DATA_BYTES == SM120_D_NOPE + 2 * SM120_D_ROPE, "data part of a row");
static_assert(SM120_V4_FP8_DATA_BYTES % 16 == 0 && SM120_D_NOPE % 16 == 0, "16-byte stores");

__device__ __forceinline__ int64_t token_of_warp() {
  return static_cast<int64_t>(blockIdx.x) * WARPS + threadIdx.x / 32;
}

extern "C" __global__ __launch_bounds__(WARPS * 32)
void SM120_ENTRY(kv_write_v4_fp8)(const __grid_constant__ Sm120CacheWriteParams p) {
  declare_shared<0>();
  const int64_t token = token_of_warp();
  if (token >= p.t) return;
  const int lane = threadIdx.x % 32;

  // Consecutive 16 channels per lane: two loads from the same sectors, one store of 16 codes. They start before the slot
  // is known: the row of a skipped token exists, it is only not used.
  const uint16_t* source = static_cast<const uint16_t*>(p.rows) + token * p.stride_rows + lane * LANE_CHANNELS;
  const uint4 packed[2] = {ld_global_nc_v4(source), ld_global_nc_v4(source + 8)};
  const PageRow place = locate(p.slot_mapping[token], p.num_pages, p.page_size, p.page_stride_bytes);
  if (place.row < 0) return;
  uint8_t* page = p.cache + place.page_offset;
  uint8_t* data = page + static_cast<int64_t>(place.row) * SM120_V4_FP8_DATA_BYTES;

  float x[LANE_CHANNELS];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float half[8];
    bf16x8_to_f32(packed[i], half);
#pragma unroll
    for (int j = 0; j < 8; ++j) x[8 * i + j] = half[j];
  }
  float amax = amax_of(x, 0.0f);
  amax = fmaxf(amax, shfl_bfly(amax, 1));
  amax = fmaxf(amax, shfl_bfly(amax, 2));
  const uint32_t scale = ue8m0_scale(clamp_amax(amax));

  // The footer's two words: the first lane of a tile contributes the byte.
  const int tile = lane / TILE_LANES;
  const uint32_t byte = lane % TILE_LANES == 0 && tile < TILES ? scale << 8 * (tile % 4) : 0;
  const uint32_t low = redux_or(tile < 4 ? byte : 0);
  const uint32_t high = redux_or(tile < 4 ? 0 : byte);

  if (lane < NOPE_LANES) {
    const float inverse = ue8m0_inverse(scale);
#pragma unroll
    for (int i = 0; i < LANE_CHANNELS; ++i) x[i] *= inverse;
    st_global_v4(data + lane * LANE_CHANNELS, e4m3x16(x));
  } else {
    uint8_t* rope = data + SM120_D_NOPE + (lane - NOPE_LANES) * LANE_CHANNELS * 2;
    st_global_v4(rope, packed[0]);
    st_global_v4(rope + 16, packed[1]);
  }
  if (lane == 0) {
    uint8_t* footers = page + static_cast<int64_t>(p.page_size) * SM120_V4_FP8_DATA_BYTES;
    st_global_v2(footers + static_cast<int64_t>(place.row) * SM120_V4_FP8_FOOTER_BYTES, low, high);
  }
}

extern "C" __global__ __launch_bounds__(WARPS * 32)
void SM120_ENTRY(kv_write_bf16)(const __grid_constant__ Sm120CacheWriteParams p) {
  declare_shared<0>();
  const int64_t token = token_of_warp();
  if (token >= p.t) return;
  const int lane = threadIdx.x % 32;
  const uint16_t* source = static_cast<const uint16_t*>(p.rows) + token * p.stride_rows + lane * 8;
  const uint4 packed[2] = {ld_global_nc_v4(source), ld_global_nc_v4(source + SM120_D_KV / 2)};
  const PageRow place = locate(p.slot_mapping[token], p.num_pages, p.page_size, p.page_stride_bytes);
  if (place.row < 0) return;
  uint8_t* data = p.cache + place.page_offset + static_cast<int64_t>(place.row) * SM120_BF16_KV_BYTES + lane * 16;
  st_global_v4(data, packed[0]);
  st_global_v4(data + SM120_BF16_KV_BYTES / 2, packed[1]);
}
