// Byte selection.
#pragma once
#include <stdint.h>

// prmt.b32: byte i of the result is byte (selector >> 4 i) & 7 of the eight bytes of a (0..3) and b (4..7). Bit 3 of a
// selector nibble would ask for its sign: it must be 0.
__device__ __forceinline__ uint32_t prmt(uint32_t a, uint32_t b, uint32_t selector) {
  uint32_t d;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(selector));
  return d;
}
