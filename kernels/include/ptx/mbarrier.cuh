// Barriers in shared memory. An arrive releases what the arriving thread did before; a wait that returns true acquires
// it. Data of threads that neither arrive nor synchronise with one that does is not covered.
#pragma once
#include <stdint.h>

// mbarrier.init: `count` arrivals complete a phase. Publish it to other threads (and to bulk copies) before use.
__device__ __forceinline__ void mbarrier_init(uint32_t barrier, uint32_t count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

// mbarrier.arrive: one arrival.
__device__ __forceinline__ void mbarrier_arrive(uint32_t barrier) {
  asm volatile("{\n .reg .b64 state;\n mbarrier.arrive.shared.b64 state, [%0];\n}" ::"r"(barrier) : "memory");
}

// mbarrier.expect_tx: the phase also waits for `bytes` of bulk copies. Only while an arrival of the phase is outstanding;
// sm_90 and later.
__device__ __forceinline__ void mbarrier_expect_tx(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// mbarrier.arrive.expect_tx: one arrival that also makes the phase wait for `bytes` of bulk copies; sm_90 and later.
__device__ __forceinline__ void mbarrier_arrive_expect_tx(uint32_t barrier, uint32_t bytes) {
  asm volatile("{\n .reg .b64 state;\n mbarrier.arrive.expect_tx.shared.b64 state, [%0], %1;\n}" ::"r"(barrier),
               "r"(bytes)
               : "memory");
}

// mbarrier.test_wait.parity: true when the phase of that parity (0 first) has completed; never suspends.
__device__ __forceinline__ bool mbarrier_test_wait_parity(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  asm volatile("{\n .reg .pred p;\n mbarrier.test_wait.parity.shared.b64 p, [%1], %2;\n selp.u32 %0, 1, 0, p;\n}"
               : "=r"(done)
               : "r"(barrier), "r"(parity)
               : "memory");
  return done != 0;
}

// mbarrier.try_wait.parity: the same, may suspend the warp for a while before it answers; sm_90 and later.
__device__ __forceinline__ bool mbarrier_try_wait_parity(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  asm volatile("{\n .reg .pred p;\n mbarrier.try_wait.parity.shared.b64 p, [%1], %2;\n selp.u32 %0, 1, 0, p;\n}"
               : "=r"(done)
               : "r"(barrier), "r"(parity)
               : "memory");
  return done != 0;
}
