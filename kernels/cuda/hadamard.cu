// Hadamard transform of rows in Sylvester order, between rotation and quantisation of index queries and keys.
//
// In:    x [rows, d] bf16, d a power of two from 8 to 256.
// Out:   out [rows, d] bf16.
// Launch: grid ceil(rows * d / 8 / 128), block 128 (d / 8 lanes per row), no shared memory, no barrier.
//
//   H_1 = [1], H_2n = [[H_n, H_n], [H_n, -H_n]]: a stage of sums and differences per bit of the channel number, three of
//   them inside a lane, the rest between lanes.        out = d^-1/2 * (H x)
//
// Numerics: f32 throughout, one product and one rounding at the end.
// Caller: the indexer, on queries and on finished keys, when the index format wants it.
#include "entry.cuh"
#include "ptx/convert.cuh"
#include "ptx/global.cuh"
#include "ptx/warp.cuh"
#include "quantise.cuh"

constexpr int THREADS = 128;
constexpr int LANE_CHANNELS = 8;   // 16 bytes in and out

extern "C" __global__ __launch_bounds__(THREADS)
void SM120_ENTRY(hadamard)(const __grid_constant__ Sm120HadamardParams p) {
  declare_shared<0>();
  const int64_t chunk = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
  const int lanes = p.d / LANE_CHANNELS;
  const bool inside = chunk < static_cast<int64_t>(p.rows) * lanes;
  // Rows are whole groups of lanes; a lane without a row takes part in the exchange with zeros.
  const uint4 packed =
      inside ? ld_global_nc_v4(static_cast<const uint16_t*>(p.x) + chunk * LANE_CHANNELS) : make_uint4(0, 0, 0, 0);
  float x[LANE_CHANNELS];
  bf16x8_to_f32(packed, x);
#pragma unroll
  for (int half = 1; half < LANE_CHANNELS; half *= 2) {
#pragma unroll
    for (int i = 0; i < LANE_CHANNELS; ++i) {
      if ((i & half) != 0) continue;
      const float a = x[i], b = x[i + half];
      x[i] = a + b;
      x[i + half] = a - b;
    }
  }
  for (int mask = 1; mask < lanes; mask *= 2) {
    const float sign = (threadIdx.x & mask) != 0 ? -1.0f : 1.0f;   // groups are aligned: the bit of the lane is that of the row
#pragma unroll
    for (int i = 0; i < LANE_CHANNELS; ++i) x[i] = fmaf(sign, x[i], shfl_bfly(x[i], mask));
  }
  if (!inside) return;
#pragma unroll
  for (int i = 0; i < LANE_CHANNELS; ++i) x[i] *= p.scale;
  st_global_v4(static_cast<uint16_t*>(p.out) + chunk * LANE_CHANNELS,
               make_uint4(cvt_bf16x2_f32(x[0], x[1]), cvt_bf16x2_f32(x[2], x[3]), cvt_bf16x2_f32(x[4], x[5]),
                          cvt_bf16x2_f32(x[6], x[7])));
}
