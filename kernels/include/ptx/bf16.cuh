// Arithmetic on pairs of bf16.
#pragma once
#include <stdint.h>

// fma.rn.bf16x2 with -0 added: a * b of both halves, rounded once, sub-normal numbers kept; sm_80 and later (mul.bf16x2 asks
// for sm_90).
__device__ __forceinline__ uint32_t mul_bf16x2(uint32_t a, uint32_t b) {
  uint32_t d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(0x80008000u));
  return d;
}
