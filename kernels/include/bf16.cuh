// Eight bf16 channels at a time: one 16-byte load or store.
#pragma once
#include <stdint.h>

#include "ptx/convert.cuh"

constexpr int BF16_VECTOR = 8;

// Channels of one 16-byte load, exactly: a bf16 is the upper half of an f32.
__device__ __forceinline__ void bf16x8_to_f32(uint4 packed, float (&x)[8]) {
  const uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    x[2 * i] = __uint_as_float(words[i] << 16);
    x[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
  }
}

// Rounded to nearest even.
__device__ __forceinline__ uint4 f32x8_to_bf16(const float (&x)[8]) {
  return make_uint4(cvt_bf16x2_f32(x[0], x[1]), cvt_bf16x2_f32(x[2], x[3]), cvt_bf16x2_f32(x[4], x[5]),
                    cvt_bf16x2_f32(x[6], x[7]));
}

// Eight consecutive f32 of two 16-byte loads.
__device__ __forceinline__ void f32x8(uint4 low, uint4 high, float (&x)[8]) {
  const uint32_t words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = __uint_as_float(words[i]);
}
