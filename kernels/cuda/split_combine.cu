// Merges the partial results of sparse_mla_decode along the rows and adds the attention sink to the denominator.
// targets: sm89 sm120a
//
// In   o_partial     [num_splits, t, h, 512] f32, contiguous, each normalised within its split
//      lse2_partial  [num_splits, t, h] f32, contiguous, base 2; -inf: the split is empty and its o_partial is not read
//      attn_sink     [h] f32, natural-log units, or null
// Out  out [t, h, 512] bf16, strides given, last axis contiguous;  lse [t, h] f32, natural, without the sink
// Launch: (t * h) blocks of 128 threads, no dynamic shared memory.
//
//      M = max_s lse2_s    o = sum_s 2^(lse2_s - M) o_s / (sum_s 2^(lse2_s - M) + 2^(sink log2 e - M))
//
// Numerics: f32, splits in ascending order, ex2 and rcp approximate (2^-22). Sub-normal weights are 0.
// Invalid: all splits empty: out 0, lse -inf. A sink of +inf: out 0.
// Called by kernel-bindings/src/ops/split_combine.rs and sparse_mla_decode.rs.
//
// A block is a row of one head, a thread four channels, so a warp reads 512 contiguous bytes of every split. The weights
// are the same for the whole block: each thread reads them for itself (one broadcast load each), which costs less than a
// barrier. Loads of four splits are in flight at a time; 16 B per thread and split, 2 KB per block and split.
#include "entry.cuh"
#include "ptx/arithmetic.cuh"
#include "ptx/convert.cuh"
#include "split_merge.cuh"

constexpr int CHANNELS = 4;                        // of a thread
constexpr int THREADS = SM120_D_KV / CHANNELS;

extern "C" __global__ __launch_bounds__(THREADS)
void SM120_ENTRY(split_combine)(const __grid_constant__ Sm120SplitCombineParams p) {
  declare_shared<0>();
  const int64_t row = blockIdx.x;                  // token * h + head
  const int token = blockIdx.x / p.h, head = blockIdx.x % p.h;
  const int channel = threadIdx.x * CHANNELS;
  const int64_t rows = static_cast<int64_t>(p.t) * p.h;
  const float* lse2 = p.lse2_partial + row;
  const float* o = p.o_partial + row * SM120_D_KV + channel;

  float max_lse2 = negative_infinity();
#pragma unroll 4
  for (int split = 0; split < p.num_splits; ++split) max_lse2 = max_nan(max_lse2, __ldg(lse2 + split * rows));

  float sum[CHANNELS] = {}, weights = 0.0f, scale = 0.0f;
  if (max_lse2 != negative_infinity()) {
#pragma unroll 4
    for (int split = 0; split < p.num_splits; ++split) {
      const float split_lse2 = __ldg(lse2 + split * rows);
      if (split_lse2 == negative_infinity()) continue;
      const float weight = split_weight(split_lse2, max_lse2);
      const float4 part = __ldg(reinterpret_cast<const float4*>(o + split * rows * SM120_D_KV));
      sum[0] = __fmaf_rn(weight, part.x, sum[0]);
      sum[1] = __fmaf_rn(weight, part.y, sum[1]);
      sum[2] = __fmaf_rn(weight, part.z, sum[2]);
      sum[3] = __fmaf_rn(weight, part.w, sum[3]);
      weights = __fadd_rn(weights, weight);
    }
    scale = merged_inverse(weights, sink_weight(p.attn_sink, head, max_lse2));
  }
  uint2 packed;
  packed.x = cvt_bf16x2_f32(__fmul_rn(sum[0], scale), __fmul_rn(sum[1], scale));
  packed.y = cvt_bf16x2_f32(__fmul_rn(sum[2], scale), __fmul_rn(sum[3], scale));
  uint16_t* out = static_cast<uint16_t*>(p.out) + token * p.stride_out_t + head * p.stride_out_h + channel;
  *reinterpret_cast<uint2*>(out) = packed;
  if (threadIdx.x == 0) p.lse[row] = merged_lse(weights, max_lse2);
}
