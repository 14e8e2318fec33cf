// Barriers of some warps of a block. `__syncthreads` is barrier 0.
#pragma once

// bar.sync ID, THREADS: that many threads of the block, in whole warps, wait for each other; what each wrote to memory before
// is seen by all after. All threads of the warps that come take part.
template <int ID, int THREADS>
__device__ __forceinline__ void barrier_of_warps() {
  static_assert(ID > 0 && ID < 16 && THREADS % 32 == 0, "16 barriers, of whole warps");
  asm volatile("bar.sync %0, %1;" ::"n"(ID), "n"(THREADS) : "memory");
}
