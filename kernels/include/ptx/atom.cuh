// Atomic operations.
#pragma once
#include <stdint.h>

// red.shared.add.u32: adds without returning; address from shared_address().
__device__ __forceinline__ void red_shared_add(uint32_t address, uint32_t value) {
  asm volatile("red.shared.add.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

// atom.acq_rel.gpu.global.inc.u32: stores old >= limit ? 0 : old + 1 and returns old. What the caller's block wrote
// before (and ordered by a barrier) is seen by whoever reads the new value this way, and the other way round; sm_70 and
// later.
__device__ __forceinline__ uint32_t atom_acq_rel_inc(uint32_t* address, uint32_t limit) {
  uint32_t d;
  asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
               : "=r"(d)
               : "l"(__cvta_generic_to_global(address)), "r"(limit)
               : "memory");
  return d;
}
