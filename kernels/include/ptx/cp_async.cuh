// Asynchronous 16-byte copies from global to shared memory, issued by every lane for itself; sm_80 and later.
#pragma once
#include <stdint.h>

// cp.async.cg 16 B: both addresses are multiples of 16. Past L1, since the data is used from shared memory.
__device__ __forceinline__ void cp_async_16(uint32_t shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
}

// cp.async.ca 4 B: both addresses are multiples of 4.
__device__ __forceinline__ void cp_async_4(uint32_t shared, const void* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared), "l"(global) : "memory");
}

// cp.async.mbarrier.arrive.noinc: one arrival on the barrier once all earlier cp.async of this thread have landed. The
// arrival is counted like any other: the barrier's count must include it.
__device__ __forceinline__ void cp_async_mbarrier_arrive_noinc(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

// cp.async.ca 8 B: both addresses are multiples of 8.
__device__ __forceinline__ void cp_async_8(uint32_t shared, const void* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(shared), "l"(global) : "memory");
}

// cp.async.commit_group: the copies of this thread since the last commit, none or more, become its newest group.
__device__ __forceinline__ void cp_async_commit_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// cp.async.wait_group: all groups of this thread but the PENDING newest have landed. Says nothing about other threads'.
template <int PENDING>
__device__ __forceinline__ void cp_async_wait_group() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}
