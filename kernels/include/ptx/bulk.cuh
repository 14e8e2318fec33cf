// Bulk copies, issued by one thread and carried out by the asynchronous proxy; sm_90 and later.
#pragma once
#include <stdint.h>

// cp.async.bulk global -> shared: addresses and `bytes` are multiples of 16; `bytes` are counted on the barrier.
__device__ __forceinline__ void bulk_load(uint32_t shared, const void* global, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared),
               "l"(global), "r"(bytes), "r"(barrier)
               : "memory");
}
