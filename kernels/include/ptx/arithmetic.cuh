// Arithmetic that CUDA C++ has no word for.
#pragma once

// max.NaN.f32: NaN when either operand is one (fmaxf would drop it); sm_80 and later.
__device__ __forceinline__ float max_nan(float a, float b) {
  float d;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(d) : "f"(a), "f"(b));
  return d;
}
