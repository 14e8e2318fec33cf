// Matrix product with a weight, in diagonal blocks (groups): out[t, g, i] = sum_k x[t, g, k] w[g * n + i, k].
//
// In:    x [t, groups * k] bf16, row stride a multiple of 8 elements; weight [groups * n, k] in one of four formats:
//        f32; bf16; e4m3 with one ue8m0 scale per 128 x 128 block; e2m1, two per byte (low half = even k), with one ue8m0 scale
//        per 32 along k. k is a multiple of 32, n is anything.
// Out:   out [t, groups * n] bf16 or f32, row stride given; f32 is added to when `accumulate` is set.
// Launch: linear_<format>_few   grid (ceil(n / 16), groups), 256 threads: t <= 16
//         linear_<format>_many  grid (ceil(n / 64), ceil(t / 64), groups), 128 threads
//         linear_f32            grid (ceil(n / 32), ceil(t / 8), groups), 256 threads
//
// Numerics: products.cuh for bf16, fp8 and fp4: products exact, sums f32, one rounding to bf16. linear_f32: x widened, fma in
//   f32, 32 partial sums per output (one per lane), then a tree. The order of a sum depends on the form, so on t <= 16 or not,
//   and on nothing else.
// Invalid: elements of out between the rows are not written. Sizes: kernel-bindings/src/ops/linear.rs.
//
// Cost (188 SMs at 2.4 GHz, 1,597 GB/s): few reads every weight once, 3.5 B per cycle and SM, that is 3.5 fp8 or 7 fp4 weights,
// for 16 tokens 3.5 * 16 = 57 or 113 of 512 products per cycle; decoding costs 2.5 instructions per fp8 weight and 1.1 per fp4,
// 9 of 128 lanes. many reads 64 rows and 64 tokens per block: 64 * 64 * 64 products against 64 x (64 + 128) bytes per stage.
#include "products.cuh"
#include "ptx/warp.cuh"

using Params = Sm120LinearParams;

constexpr int F32_ROWS = 4;                    // rows of a warp
constexpr int F32_TOKENS = 8;
constexpr int F32_WARPS = 8;
static_assert(F32_ROWS * F32_TOKENS == 32, "a lane stores one output");

__device__ __forceinline__ void store_out(const Params& p, int64_t token, int64_t column, float value) {
  const int64_t at = token * p.stride_out + column;
  if (p.out_bf16) {
    static_cast<uint16_t*>(p.out)[at] = static_cast<uint16_t>(cvt_bf16x2_f32(value, 0.0f));
  } else {
    float* out = static_cast<float*>(p.out) + at;
    *out = p.accumulate ? *out + value : value;
  }
}

template <Format F>
__device__ __forceinline__ Matrix<F> matrix_of(const Params& p) {
  return {static_cast<const uint8_t*>(p.weight), p.scale, p.k};
}

template <Format F>
__device__ __forceinline__ void few(const Params& p) {
  const int64_t group = blockIdx.y, base[1] = {group * p.n};
  const uint16_t* x = static_cast<const uint16_t*>(p.x) + group * p.k;
  const auto token = [&](int t) { return x + t * p.stride_x; };
  const auto store = [&](int row, int t, const float (&sum)[1]) { store_out(p, t, base[0] + row, sum[0]); };
  multiply_few<F, 1>(matrix_of<F>(p), base, blockIdx.x * TILE_ROWS, p.n, p.t, token, store);
}

template <Format F>
__device__ __forceinline__ void many(const Params& p) {
  const int64_t group = blockIdx.z, base[1] = {group * p.n};
  const int first = blockIdx.y * MANY_TOKENS;
  const uint16_t* x = static_cast<const uint16_t*>(p.x) + first * p.stride_x + group * p.k;
  const auto token = [&](int t) { return x + t * p.stride_x; };
  const auto store = [&](int row, int t, const float (&sum)[1]) { store_out(p, first + t, base[0] + row, sum[0]); };
  const int tokens = min(p.t - first, MANY_TOKENS);
  multiply_many<F, 1>(matrix_of<F>(p), base, blockIdx.x * (MANY_WARPS * TILE_ROWS), p.n, tokens, token, store);
}

#define LINEAR(form, format)                                                                                           \
  extern "C" __global__ __launch_bounds__(FEW_WARPS * 32)                                                              \
  void SM120_ENTRY(linear_##form##_few)(const __grid_constant__ Params p) {                                            \
    declare_shared<sizeof(FewPlan<1>)>();                                                                              \
    few<Format::format>(p);                                                                                            \
  }                                                                                                                    \
  extern "C" __global__ __launch_bounds__(MANY_WARPS * 32, 3)                                                            \
  void SM120_ENTRY(linear_##form##_many)(const __grid_constant__ Params p) {                                           \
    declare_shared<sizeof(ManyPlan)>();                                                                                \
    many<Format::format>(p);                                                                                           \
  }
LINEAR(bf16, BF16)
LINEAR(fp8, FP8)
LINEAR(fp4, FP4)

// Lanes share k, four inputs at a time; every lane keeps a sum per row and token of its warp.
extern "C" __global__ __launch_bounds__(F32_WARPS * 32)
void SM120_ENTRY(linear_f32)(const __grid_constant__ Params p) {
  declare_shared<0>();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int first_row = (blockIdx.x * F32_WARPS + warp) * F32_ROWS, first_token = blockIdx.y * F32_TOKENS;
  if (first_row >= p.n) return;
  const int64_t group = blockIdx.z;
  const float* row[F32_ROWS];
  const uint16_t* x[F32_TOKENS];
#pragma unroll
  for (int r = 0; r < F32_ROWS; ++r)
    row[r] = static_cast<const float*>(p.weight) + (group * p.n + min(first_row + r, p.n - 1)) * p.k;
#pragma unroll
  for (int t = 0; t < F32_TOKENS; ++t)
    x[t] = static_cast<const uint16_t*>(p.x) + min(first_token + t, p.t - 1) * p.stride_x + group * p.k;

  float sum[F32_ROWS][F32_TOKENS] = {};
#pragma unroll 1
  for (int at = 4 * lane; at < p.k; at += 128) {
    float w[F32_ROWS][4];
#pragma unroll
    for (int r = 0; r < F32_ROWS; ++r) {
      const uint4 bits = ld_global_nc_v4(row[r] + at);
      w[r][0] = __uint_as_float(bits.x);
      w[r][1] = __uint_as_float(bits.y);
      w[r][2] = __uint_as_float(bits.z);
      w[r][3] = __uint_as_float(bits.w);
    }
#pragma unroll
    for (int t = 0; t < F32_TOKENS; ++t) {
      const uint2 bits = __ldg(reinterpret_cast<const uint2*>(x[t] + at));
      const float in[4] = {__uint_as_float(bits.x << 16), __uint_as_float(bits.x & 0xffff0000u),
                           __uint_as_float(bits.y << 16), __uint_as_float(bits.y & 0xffff0000u)};
#pragma unroll
      for (int r = 0; r < F32_ROWS; ++r)
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[r][t] = fmaf(w[r][i], in[i], sum[r][t]);
    }
  }
  float mine = 0.0f;
#pragma unroll
  for (int t = 0; t < F32_TOKENS; ++t)
#pragma unroll
    for (int r = 0; r < F32_ROWS; ++r) {
      float total = sum[r][t];
#pragma unroll
      for (int mask = 16; mask > 0; mask /= 2) total += shfl_bfly(total, mask);
      if (lane == t * F32_ROWS + r) mine = total;
    }
  const int r = first_row + lane % F32_ROWS, t = first_token + lane / F32_ROWS;
  if (r < p.n && t < p.t) store_out(p, t, group * p.n + r, mine);
}
