// e2m1 codes with a ue8m0 scale per 32 channels: how fp4 rows are made, and their values as bf16. Of the two codes in a byte the
// low nibble is the even channel's.
#pragma once
#include <stdint.h>

#include "ptx/bf16.cuh"
#include "ptx/prmt.cuh"
#include "ptx/warp.cuh"

constexpr int FP4_GROUP = 32;             // channels that share a scale
constexpr float FP4_AMAX_FLOOR = 6.0f * 1.17549435e-38f;   // an all-zero group gets the scale of this: 2^-126

// ------------------------------------------------------------------------------------------------------------ writing
// Byte of ue8m0(2^ceil(log2(amax / 6))) of a clamped amax: 6 is 1.5 * 2^2. 1..253 for an amax from 6 * 2^-126 on.
__device__ __forceinline__ uint32_t fp4_scale(float amax) {
  const uint32_t bits = __float_as_uint(amax);
  return (bits >> 23) - 2 + ((bits & 0x7fffffu) > 0x400000u);
}

// The four scales of a row as a word, in the first of the eight lanes that share it: lanes 2i and 2i + 1 bring that of group i.
__device__ __forceinline__ uint32_t fp4_scales_of_row(uint32_t byte, int part) {
  uint32_t scales = part % 2 == 0 ? byte << (4 * part) : 0;
  scales |= __float_as_uint(shfl_bfly(__uint_as_float(scales), 2));
  return scales | __float_as_uint(shfl_bfly(__uint_as_float(scales), 4));
}

// The code counts the thresholds below the magnitude; on a threshold the even code next to it wins. NaN becomes 0.
__device__ __forceinline__ uint32_t e2m1(float x) {
  const float m = fabsf(x);
  const uint32_t code = (m > 0.25f) + (m >= 0.75f) + (m > 1.25f) + (m >= 1.75f) + (m > 2.5f) + (m >= 3.5f) + (m > 5.0f);
  return x != x ? 0 : code | (__float_as_uint(x) >> 31) << 3;
}

__device__ __forceinline__ uint32_t e2m1x8(const float* x) {
  uint32_t word = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) word |= e2m1(x[i]) << (4 * i);
  return word;
}

// ------------------------------------------------------------------------------------------------------------ reading
// 2^(byte - 127) as f32; byte 0 is sub-normal, 255 is NaN.
__device__ __forceinline__ uint32_t ue8m0_bits(uint32_t byte) {
  return byte == 255 ? 0x7fc00000u : max(byte << 23, 1u << 22);
}

// The same as bf16, twice.
__device__ __forceinline__ uint32_t ue8m0_bf16x2(uint32_t byte) {
  const uint32_t scale = ue8m0_bits(byte) >> 16;
  return scale | scale << 16;
}

// Eight codes times `scales` as pairs of bf16, channels ascending. Exact down to 2^-133; beyond 2^128 infinite.
// The bytes of a bf16 that holds 0, 0.5, 1, 1.5, 2, 3, 4 or 6 are looked up by the code; the sign is moved to its place.
__device__ __forceinline__ void e2m1x8_to_bf16(uint32_t (&w)[4], uint32_t bits, uint32_t scales) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint32_t codes = bits >> 16 * half, index = codes & 0x7777u;
    const uint32_t low = prmt(0xc0800000u, 0xc0804000u, index), high = prmt(0x3f3f3f00u, 0x40404040u, index);
    const uint32_t first = prmt(low, high, 0x5140) | (codes << 12 & 0x8000u) | (codes << 24 & 0x80000000u);
    const uint32_t second = prmt(low, high, 0x7362) | (codes << 4 & 0x8000u) | (codes << 16 & 0x80000000u);
    w[2 * half] = mul_bf16x2(first, scales);
    w[2 * half + 1] = mul_bf16x2(second, scales);
  }
}
