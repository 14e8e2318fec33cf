// Index queries in the form of the index keys, and the weights of their heads with every factor folded in.
//
// In:    q [t, h, 128] bf16, rotated (and transformed, if the format wants it); weights rows [t] of [h] bf16.
// Out:   index_q, index_q_quantise_fp8: [t, h, 128] e4m3; _bf16: [t, h, 128] bf16; _fp4: [t, h] of 64 bytes of e2m1 (low
//        nibble = even channel) and 4 ue8m0; index_weights [t, h] f32.
// Launch: grid ceil(t * h / 16), block 128 (8 lanes per head), no shared memory, no barrier.
//
//   fp8: a = clamp(max |x|, 1e-4, f32 max), s = a / 448 or 2^ceil(log2(a / 448)), code = e4m3(clamp(x / s, -448, 448))
//   fp4: per 32 channels a = clamp(max |x|, 6 * 2^-126, f32 max), s = 2^ceil(log2(a / 6)), code = e2m1(clamp(x / s, -6, 6))
//   index_weights = weights * weight_scale, times s for fp8
//
// Numerics: as index_k_write; e2m1 by its thresholds, ties to the even code. A NaN is e4m3 0x7f, e2m1 0.
// Caller: the indexer, once per step, before index_logits_decode and index_logits_prefill.
#include "e2m1.cuh"
#include "entry.cuh"
#include "ptx/global.cuh"
#include "ptx/warp.cuh"
#include "quantise.cuh"

constexpr int THREADS = 128;
constexpr int LANE_CHANNELS = 16;                      // 32 bytes in
constexpr int LANES = SM120_D_INDEX / LANE_CHANNELS;   // 8 lanes per head
constexpr int HEADS = THREADS / LANES;
static_assert(LANES == 8, "the reductions are written for 8 lanes");

// Head of this thread, in the order of memory; at or beyond t * h there is none.
__device__ __forceinline__ uint32_t head_of_lanes() { return blockIdx.x * HEADS + threadIdx.x / LANES; }

__device__ __forceinline__ bool exists(const Sm120IndexQQuantiseParams& p, uint32_t head) {
  return head < static_cast<uint32_t>(p.t) * p.h;
}

__device__ __forceinline__ const uint16_t* query(const Sm120IndexQQuantiseParams& p, uint32_t head) {
  return static_cast<const uint16_t*>(p.q) + static_cast<int64_t>(head) * SM120_D_INDEX;
}

// 16 channels of this lane; zeros without a head, so that all lanes of the warp can exchange.
__device__ __forceinline__ void load(const Sm120IndexQQuantiseParams& p, uint32_t head, int part, float (&x)[LANE_CHANNELS]) {
  uint4 packed[2] = {};
  if (exists(p, head)) {
    const uint16_t* source = query(p, head) + part * LANE_CHANNELS;
    packed[0] = ld_global_nc_v4(source);
    packed[1] = ld_global_nc_v4(source + 8);
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float half[8];
    bf16x8_to_f32(packed[i], half);
#pragma unroll
    for (int j = 0; j < 8; ++j) x[8 * i + j] = half[j];
  }
}

__device__ __forceinline__ void weigh(const Sm120IndexQQuantiseParams& p, uint32_t head, float scale) {
  const uint32_t token = head / p.h;
  const uint16_t bits = static_cast<const uint16_t*>(p.weights)[token * p.stride_weights + (head - token * p.h)];
  const float weight = __uint_as_float(static_cast<uint32_t>(bits) << 16);
  p.index_weights[head] = weight * p.weight_scale * scale;
}

extern "C" __global__ __launch_bounds__(THREADS)
void SM120_ENTRY(index_q_quantise_fp8)(const __grid_constant__ Sm120IndexQQuantiseParams p) {
  declare_shared<0>();
  const uint32_t head = head_of_lanes();
  const int part = threadIdx.x % LANES;
  float x[LANE_CHANNELS];
  load(p, head, part, x);
  float amax = amax_of(x, 0.0f);
  amax = fmaxf(amax, shfl_bfly(amax, 1));
  amax = fmaxf(amax, shfl_bfly(amax, 2));
  amax = fmaxf(amax, shfl_bfly(amax, 4));
  if (!exists(p, head)) return;
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
  uint8_t* codes = static_cast<uint8_t*>(p.index_q) + static_cast<int64_t>(head) * SM120_D_INDEX;
  st_global_v4(codes + part * LANE_CHANNELS, e4m3x16(x));
  if (part == 0) weigh(p, head, scale);
}

extern "C" __global__ __launch_bounds__(THREADS)
void SM120_ENTRY(index_q_quantise_bf16)(const __grid_constant__ Sm120IndexQQuantiseParams p) {
  declare_shared<0>();
  const uint32_t head = head_of_lanes();
  if (!exists(p, head)) return;
  const int part = threadIdx.x % LANES;
  const uint16_t* source = query(p, head) + part * 8;
  uint16_t* out = static_cast<uint16_t*>(p.index_q) + static_cast<int64_t>(head) * SM120_D_INDEX + part * 8;
  st_global_v4(out, ld_global_nc_v4(source));
  st_global_v4(out + SM120_D_INDEX / 2, ld_global_nc_v4(source + SM120_D_INDEX / 2));
  if (part == 0) weigh(p, head, 1.0f);
}

extern "C" __global__ __launch_bounds__(THREADS)
void SM120_ENTRY(index_q_quantise_fp4)(const __grid_constant__ Sm120IndexQQuantiseParams p) {
  declare_shared<0>();
  const uint32_t head = head_of_lanes();
  const int part = threadIdx.x % LANES;
  float x[LANE_CHANNELS];
  load(p, head, part, x);
  float amax = amax_of(x, FP4_AMAX_FLOOR);
  amax = fminf(fmaxf(amax, shfl_bfly(amax, 1)), F32_MAX);   // two lanes share a scale
  const uint32_t byte = fp4_scale(amax);
  const uint32_t scales = fp4_scales_of_row(byte, part);
  if (!exists(p, head)) return;
  const float inverse = ue8m0_inverse(byte);
#pragma unroll
  for (int i = 0; i < LANE_CHANNELS; ++i) x[i] *= inverse;
  // 68 bytes per head: words, not more, are aligned.
  uint32_t* out = reinterpret_cast<uint32_t*>(static_cast<uint8_t*>(p.index_q) + static_cast<int64_t>(head) * SM120_INDEX_K_FP4_BYTES);
  out[2 * part] = e2m1x8(x);
  out[2 * part + 1] = e2m1x8(x + 8);
  if (part == 0) {
    out[SM120_D_INDEX / 8] = scales;
    weigh(p, head, 1.0f);
  }
}
