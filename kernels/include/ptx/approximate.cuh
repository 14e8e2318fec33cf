// Approximate functions of the special function unit, sub-normal inputs and results flushed to zero.
#pragma once

// ex2.approx.ftz.f32: 2^a, relative error at most 2^-22; 2^-inf = 0, 2^inf = inf.
__device__ __forceinline__ float ex2_approx(float a) {
  float d;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(d) : "f"(a));
  return d;
}

// lg2.approx.ftz.f32: log2 a; lg2 0 = -inf, lg2 1 = 0.
__device__ __forceinline__ float lg2_approx(float a) {
  float d;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(d) : "f"(a));
  return d;
}

// rcp.approx.ftz.f32: 1 / a within one unit in the last place; 1 / inf = 0.
__device__ __forceinline__ float rcp_approx(float a) {
  float d;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(d) : "f"(a));
  return d;
}

// rsqrt.approx.ftz.f32: 1 / sqrt(a), relative error at most 2^-22.9; 1 / sqrt(inf) = 0.
__device__ __forceinline__ float rsqrt_approx(float a) {
  float d;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(d) : "f"(a));
  return d;
}
