// How partial results along the rows become one: the arithmetic that split_combine and an unsplit sparse_mla_decode share,
// so that one split and none give the same bits.
//
//      M = max_s lse2_s    w_s = 2^(lse2_s - M)    o = sum_s w_s o_s / (sum_s w_s + 2^(sink log2 e - M))
//      lse = ln 2 (M + log2 sum_s w_s)
//
// Every product and sum is a written-out rounding step: the compiler must not fuse them differently in the two kernels.
#pragma once
#include "ptx/approximate.cuh"

constexpr float LOG2_E = 1.44269504088896340736f;
constexpr float LN_2 = 0.693147180559945309417f;

__device__ __forceinline__ float negative_infinity() { return __int_as_float(0xff800000); }

// w_s. An empty split has lse2 = -inf and weighs 0; its partial result must not be multiplied by it.
__device__ __forceinline__ float split_weight(float lse2, float max_lse2) {
  return ex2_approx(__fadd_rn(lse2, -max_lse2));
}

// The sink's term of the denominator: 0 without a sink, inf for a sink of +inf, which makes the output 0.
__device__ __forceinline__ float sink_weight(const float* attn_sink, int head, float max_lse2) {
  if (attn_sink == nullptr) return 0.0f;
  return ex2_approx(__fmaf_rn(__ldg(attn_sink + head), LOG2_E, -max_lse2));
}

// 1 / denominator. `weights` is at least 1: the largest split weighs 1.
__device__ __forceinline__ float merged_inverse(float weights, float sink) { return rcp_approx(__fadd_rn(weights, sink)); }

__device__ __forceinline__ float merged_lse(float weights, float max_lse2) {
  return __fmul_rn(__fadd_rn(max_lse2, lg2_approx(weights)), LN_2);
}
