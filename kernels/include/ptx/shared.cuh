// Shared-memory addresses as the 32-bit numbers that the instructions of the other headers here take.
#pragma once
#include <stdint.h>

// cvta.to.shared: compute once, then do arithmetic on the number.
__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}
