// Shared-memory addresses as the 32-bit numbers that the instructions of the other headers here take.
#pragma once
#include <stdint.h>

// cvta.to.shared: compute once, then do arithmetic on the number.
__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// ld.shared.v4.b32: 16 bytes. Volatile so that it stays between the barrier operations around it.
__device__ __forceinline__ uint4 ld_shared_v4(uint32_t address) {
  uint4 d;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(d.x), "=r"(d.y), "=r"(d.z), "=r"(d.w)
               : "r"(address));
  return d;
}

// ld.shared.b32.
__device__ __forceinline__ uint32_t ld_shared_b32(uint32_t address) {
  uint32_t d;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(d) : "r"(address));
  return d;
}

// ld.shared.f32.
__device__ __forceinline__ float ld_shared_f32(uint32_t address) {
  float d;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(d) : "r"(address));
  return d;
}

// st.shared.v4.b32: 16 bytes.
__device__ __forceinline__ void st_shared_v4(uint32_t address, uint4 value) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(value.x), "r"(value.y), "r"(value.z),
               "r"(value.w)
               : "memory");
}
