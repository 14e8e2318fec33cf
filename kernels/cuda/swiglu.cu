// Gated activation of the shared expert and of dense layers.
//
// In:    gate_up [t, 2 * inter] bf16, a in the first half of a row, b in the second.  Out: out [t, inter] bf16.
//        inter is a multiple of 8.
// Launch: grid ceil(t * inter / 2048), block 256 threads of 8 channels, no shared memory, no barrier.
//
//   out = silu(min(a, limit)) * clamp(b, -limit, limit)      silu(a) = a / (1 + e^-a)
//
// Numerics: f32, the exponential and the reciprocal approximate (2^-22), below 2^-126 zero; rounded to bf16 once.
// Invalid: nothing. Comparisons instead of minima keep a NaN.
// Caller: the MoE block, between the two products.
#include "bf16.cuh"
#include "entry.cuh"
#include "logistic.cuh"
#include "ptx/global.cuh"

constexpr int THREADS = 256;

extern "C" __global__ __launch_bounds__(THREADS)
void SM120_ENTRY(swiglu_bf16)(const __grid_constant__ Sm120SwigluParams p) {
  declare_shared<0>();
  const int vectors = p.inter / BF16_VECTOR;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
  const int64_t token = index / vectors;
  if (token >= p.t) return;
  const int channel = static_cast<int>(index - token * vectors) * BF16_VECTOR;
  const uint16_t* row = static_cast<const uint16_t*>(p.gate_up) + token * 2 * p.inter + channel;
  const uint4 gate = ld_global_nc_v4(row), up = ld_global_nc_v4(row + p.inter);

  float a[BF16_VECTOR], b[BF16_VECTOR];
  bf16x8_to_f32(gate, a);
  bf16x8_to_f32(up, b);
#pragma unroll
  for (int c = 0; c < BF16_VECTOR; ++c) {
    const float g = a[c] > p.limit ? p.limit : a[c];
    float u = b[c] > p.limit ? p.limit : b[c];
    u = u < -p.limit ? -p.limit : u;
    a[c] = g * sigmoid_approx(g) * u;
  }
  st_global_v4(static_cast<uint16_t*>(p.out) + token * p.inter + channel, f32x8_to_bf16(a));
}
