// How the cache writers turn bf16 channels into e4m3 codes with a scale.
#pragma once
#include <stdint.h>

#include "bf16.cuh"
#include "ptx/convert.cuh"

constexpr float E4M3_MAX = 448.0f;        // 1.75 * 2^8
constexpr float AMAX_FLOOR = 1e-4f;       // an all-zero tile gets the scale of this
constexpr float F32_MAX = 3.402823466e38f;

// Largest magnitude; fmaxf drops NaN, so that a NaN channel does not take its tile with it.
template <int N>
__device__ __forceinline__ float amax_of(const float (&x)[N], float amax) {
#pragma unroll
  for (int i = 0; i < N; ++i) amax = fmaxf(amax, fabsf(x[i]));
  return amax;
}

// Into the range where scales exist: an all-zero tile gets the floor, an infinity the largest finite number.
__device__ __forceinline__ float clamp_amax(float amax) { return fminf(fmaxf(amax, AMAX_FLOOR), F32_MAX); }

// The byte of ue8m0(2^ceil(log2(amax / 448))), i.e. the exponent plus 127, from the bits of a clamped amax = m * 2^e: 448
// is 1.75 * 2^8, so that the quotient's logarithm rounds up to e - 8 when m <= 1.75 and to e - 7 above. 105..247: never 0
// and never the NaN byte 255.
__device__ __forceinline__ uint32_t ue8m0_scale(float amax) {
  const uint32_t bits = __float_as_uint(amax);
  return (bits >> 23) - 8 + ((bits & 0x7fffffu) > 0x600000u);
}

// 2^(byte - 127) and its inverse, both normal numbers for the bytes above.
__device__ __forceinline__ float ue8m0_value(uint32_t byte) { return __uint_as_float(byte << 23); }
__device__ __forceinline__ float ue8m0_inverse(uint32_t byte) { return __uint_as_float((254 - byte) << 23); }

// 16 codes in channel order. The conversion clamps to +-448 and keeps the sign of zeros.
__device__ __forceinline__ uint4 e4m3x16(const float (&x)[16]) {
  uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i)
    words[i] = cvt_e4m3x2_f32(x[4 * i], x[4 * i + 1]) |
               static_cast<uint32_t>(cvt_e4m3x2_f32(x[4 * i + 2], x[4 * i + 3])) << 16;
  return make_uint4(words[0], words[1], words[2], words[3]);
}
