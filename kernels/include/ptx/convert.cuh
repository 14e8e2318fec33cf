// Packed conversions. The element named first in a pair is the lower half of the register.
#pragma once
#include <stdint.h>

// cvt.rn.satfinite.e4m3x2.f32: beyond +-448 becomes +-448, NaN stays NaN; sm_89 and later.
__device__ __forceinline__ uint16_t cvt_e4m3x2_f32(float low, float high) {
  uint16_t d;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(d) : "f"(high), "f"(low));
  return d;
}

// cvt.rn.f16x2.e4m3x2: exact; sm_89 and later.
__device__ __forceinline__ uint32_t cvt_f16x2_e4m3x2(uint16_t a) {
  uint32_t d;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(d) : "h"(a));
  return d;
}

// cvt.f32.f16 of both halves: exact.
__device__ __forceinline__ float2 cvt_f32_f16x2(uint32_t a) {
  float2 d;
  asm("{\n .reg .b16 low, high;\n mov.b32 {low, high}, %2;\n cvt.f32.f16 %0, low;\n cvt.f32.f16 %1, high;\n}"
      : "=f"(d.x), "=f"(d.y)
      : "r"(a));
  return d;
}

// cvt.rn.bf16x2.f32; sm_80 and later.
__device__ __forceinline__ uint32_t cvt_bf16x2_f32(float low, float high) {
  uint32_t d;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
  return d;
}
