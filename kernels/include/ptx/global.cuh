// Loads from and stores to global memory, 16 bytes at a time. Addresses are multiples of 16.
#pragma once
#include <stdint.h>

// ld.global.nc.v4.b32: memory that nothing writes during the launch.
__device__ __forceinline__ uint4 ld_global_nc_v4(const void* address) {
  uint4 d;
  asm("ld.global.nc.v4.b32 {%0, %1, %2, %3}, [%4];"
      : "=r"(d.x), "=r"(d.y), "=r"(d.z), "=r"(d.w)
      : "l"(__cvta_generic_to_global(address)));
  return d;
}

// st.global.v4.b32
__device__ __forceinline__ void st_global_v4(void* address, uint4 value) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(address)), "r"(value.x),
               "r"(value.y), "r"(value.z), "r"(value.w)
               : "memory");
}

// st.global.v2.b32: address a multiple of 8.
__device__ __forceinline__ void st_global_v2(void* address, uint32_t low, uint32_t high) {
  asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(address)), "r"(low), "r"(high)
               : "memory");
}

// ld.global.nc.v4.f32: memory that nothing writes during the launch.
__device__ __forceinline__ float4 ld_global_nc_v4_f32(const float* address) {
  float4 d;
  asm("ld.global.nc.v4.f32 {%0, %1, %2, %3}, [%4];"
      : "=f"(d.x), "=f"(d.y), "=f"(d.z), "=f"(d.w)
      : "l"(__cvta_generic_to_global(address)));
  return d;
}
