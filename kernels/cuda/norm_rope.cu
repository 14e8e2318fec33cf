// Root-mean-square norm and rotation of rows: queries per head, KV rows, latent rows; the rotation alone, forth and back.
//
// In:    x rows [t] of [h, d] bf16, weight [d] f32 or none, rope_table [max_positions, d_rope / 2, 2] f32, positions [t] s32.
// Out:   out rows [t] of [h, d] bf16. d, d_rope and the strides are multiples of 8.
// Launch: grid ceil(t * h / 4), block 128 (one warp per token and head), no shared memory, no barrier.
//
//   y = bf16(x / sqrt(mean(x^2) + eps) * weight), or x        (a, b) = (y[2 i], y[2 i + 1]) of the last d_rope channels
//   out = y, or bf16(a cos - b sin), bf16(b cos + a sin)
//
// Numerics: squares are summed in f32; rsqrt.approx is good to 2^-22, a bf16 to 2^-8. NaN in a row makes the row NaN.
// Invalid: a position outside the table leaves its row unrotated.
// Caller: the layers, several times per step. Up to 1,024 channels a row is read once; longer ones come out of L1 again.
#include "entry.cuh"
#include "ptx/approximate.cuh"
#include "ptx/convert.cuh"
#include "ptx/global.cuh"
#include "ptx/warp.cuh"
#include "quantise.cuh"

constexpr int WARPS = 4;
constexpr int CHUNK = 8;   // channels of a 16-byte access
constexpr int KEPT = 4;    // chunks of a lane that stay in registers: rows of up to 32 * 8 * 4 = 1,024 channels

// What a warp needs to finish its row.
struct Row {
  const float* weight;   // null: none
  const float* angles;   // of channel `turned`, null: none
  uint16_t* out;
  int turned;            // first channel that turns
  float factor;
  float sign;            // of the sine
};

__device__ __forceinline__ float sum_of_squares(uint4 packed) {
  float x[CHUNK];
  bf16x8_to_f32(packed, x);
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < CHUNK; ++i) sum = fmaf(x[i], x[i], sum);
  return sum;
}

__device__ __forceinline__ void eight(const float* source, float (&values)[CHUNK]) {
  const float4 low = ld_global_nc_v4_f32(source), high = ld_global_nc_v4_f32(source + 4);
  values[0] = low.x, values[1] = low.y, values[2] = low.z, values[3] = low.w;
  values[4] = high.x, values[5] = high.y, values[6] = high.z, values[7] = high.w;
}

__device__ __forceinline__ uint4 bf16x8(const float (&x)[CHUNK]) {
  return make_uint4(cvt_bf16x2_f32(x[0], x[1]), cvt_bf16x2_f32(x[2], x[3]), cvt_bf16x2_f32(x[4], x[5]),
                    cvt_bf16x2_f32(x[6], x[7]));
}

__device__ __forceinline__ void finish(const Row& row, uint4 packed, int channel) {
  float x[CHUNK];
  bf16x8_to_f32(packed, x);
#pragma unroll
  for (int i = 0; i < CHUNK; ++i) x[i] *= row.factor;
  if (row.weight != nullptr) {
    float w[CHUNK];
    eight(row.weight + channel, w);
#pragma unroll
    for (int i = 0; i < CHUNK; ++i) x[i] *= w[i];
  }
  uint4 result = bf16x8(x);
  if (row.angles != nullptr && channel >= row.turned) {
    float y[CHUNK], angle[CHUNK];
    bf16x8_to_f32(result, y);
    eight(row.angles + (channel - row.turned), angle);   // two floats per pair: as many as channels
#pragma unroll
    for (int i = 0; i < CHUNK; i += 2) {
      const float cos = angle[i], sin = row.sign * angle[i + 1];
      x[i] = y[i] * cos - y[i + 1] * sin;
      x[i + 1] = y[i + 1] * cos + y[i] * sin;
    }
    result = bf16x8(x);
  }
  st_global_v4(row.out + channel, result);
}

extern "C" __global__ __launch_bounds__(WARPS * 32)
void SM120_ENTRY(norm_rope)(const __grid_constant__ Sm120NormRopeParams p) {
  declare_shared<0>();
  const uint32_t number = blockIdx.x * WARPS + threadIdx.x / 32;
  if (number >= static_cast<uint32_t>(p.t) * p.h) return;
  const uint32_t token = number / p.h;
  const int64_t head = static_cast<int64_t>(number - token * p.h) * p.d;
  const int lane = threadIdx.x % 32;
  const uint16_t* x = static_cast<const uint16_t*>(p.x) + token * p.stride_x + head;

  Row row = {};
  row.weight = p.weight;
  row.out = static_cast<uint16_t*>(p.out) + token * p.stride_out + head;
  row.factor = 1.0f;
  row.sign = p.inverse != 0 ? -1.0f : 1.0f;
  row.turned = p.d - p.d_rope;
  if (p.d_rope > 0) {
    const int32_t position = p.positions[token];
    if (static_cast<uint32_t>(position) < static_cast<uint32_t>(p.max_positions))
      row.angles = p.rope_table + static_cast<int64_t>(position) * p.d_rope;
  }

  uint4 kept[KEPT];
#pragma unroll
  for (int i = 0; i < KEPT; ++i) {
    const int channel = (i * 32 + lane) * CHUNK;
    kept[i] = channel < p.d ? ld_global_nc_v4(x + channel) : make_uint4(0, 0, 0, 0);
  }
  const int rest = (KEPT * 32 + lane) * CHUNK;
  if (p.normed != 0) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < KEPT; ++i) sum += sum_of_squares(kept[i]);
    for (int channel = rest; channel < p.d; channel += 32 * CHUNK) sum += sum_of_squares(ld_global_nc_v4(x + channel));
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) sum += shfl_bfly(sum, mask);
    row.factor = rsqrt_approx(sum / static_cast<float>(p.d) + p.eps);
  }
#pragma unroll
  for (int i = 0; i < KEPT; ++i) {
    const int channel = (i * 32 + lane) * CHUNK;
    if (channel < p.d) finish(row, kept[i], channel);
  }
  for (int channel = rest; channel < p.d; channel += 32 * CHUNK) finish(row, ld_global_nc_v4(x + channel), channel);
}
