// Hyper-connections after a sub-layer, in place.
//
// In:    y [t, d] f32; post [t, 4] f32; comb [t, 4, 4] f32.  In and out: streams [t, 4, d] bf16. d is a multiple of 8.
// Launch: grid (t, ceil(d / 1024)), block 128 threads, no shared memory, no barrier. A thread holds 8 channels of a token's
//         four streams: it reads all it needs before it writes.
//
//   streams[t, k] = post[t, k] bf16(y[t]) + sum_j comb[t, j, k] streams[t, j]
//
// Numerics: f32, j ascending, then the added term; rounded to bf16 once.
// Invalid: nothing; NaN and infinities go through the arithmetic.
// Caller: a layer, after attention and after the experts.
#include "bf16.cuh"
#include "entry.cuh"
#include "ptx/global.cuh"

constexpr int THREADS = 128;
constexpr int STREAMS = 4;

extern "C" __global__ __launch_bounds__(THREADS)
void SM120_ENTRY(hc_post_bf16)(const __grid_constant__ Sm120HcPostParams p) {
  declare_shared<0>();
  const int64_t token = blockIdx.x;
  const int channel = (blockIdx.y * THREADS + threadIdx.x) * BF16_VECTOR;
  if (channel >= p.d) return;
  uint16_t* streams = static_cast<uint16_t*>(p.streams) + token * STREAMS * p.d + channel;

  float x[STREAMS][BF16_VECTOR], added[BF16_VECTOR];
#pragma unroll
  for (int j = 0; j < STREAMS; ++j) {
    bf16x8_to_f32(*reinterpret_cast<const uint4*>(streams + static_cast<int64_t>(j) * p.d), x[j]);
  }
  const float* y = p.y + token * p.d + channel;
  f32x8(ld_global_nc_v4(y), ld_global_nc_v4(y + 4), added);
  bf16x8_to_f32(f32x8_to_bf16(added), added);

  const float* comb = p.comb + token * STREAMS * STREAMS;
  float m[STREAMS][STREAMS];
#pragma unroll
  for (int j = 0; j < STREAMS; ++j) {
    const float4 row = __ldg(reinterpret_cast<const float4*>(comb) + j);
    m[j][0] = row.x, m[j][1] = row.y, m[j][2] = row.z, m[j][3] = row.w;
  }
  const float4 weights = __ldg(reinterpret_cast<const float4*>(p.post) + token);
  const float post[STREAMS] = {weights.x, weights.y, weights.z, weights.w};
#pragma unroll
  for (int k = 0; k < STREAMS; ++k) {
    float sum[BF16_VECTOR];
#pragma unroll
    for (int c = 0; c < BF16_VECTOR; ++c) {
      sum[c] = __fmul_rn(m[0][k], x[0][c]);
#pragma unroll
      for (int j = 1; j < STREAMS; ++j) sum[c] = __fmaf_rn(m[j][k], x[j][c], sum[c]);
      sum[c] = __fmaf_rn(post[k], added[c], sum[c]);
    }
    st_global_v4(streams + static_cast<int64_t>(k) * p.d, f32x8_to_bf16(sum));
  }
}
