// Exchange between the 32 lanes of a warp. All lanes take part in every call here.
#pragma once
#include <stdint.h>

#define SM120_FULL_WARP 0xffffffffu

// shfl.sync.bfly.b32: the value of lane (own lane xor `mask`).
__device__ __forceinline__ float shfl_bfly(float value, int mask) {
  float d;
  asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, 0xffffffff;" : "=f"(d) : "f"(value), "r"(mask));
  return d;
}

// shfl.sync.up.b32: the value of lane (own lane - `delta`); lanes below `delta` get their own.
__device__ __forceinline__ uint32_t shfl_up(uint32_t value, int delta) {
  uint32_t d;
  asm volatile("shfl.sync.up.b32 %0, %1, %2, 0, 0xffffffff;" : "=r"(d) : "r"(value), "r"(delta));
  return d;
}

// shfl.sync.idx.b32: the value of lane `source`.
__device__ __forceinline__ uint32_t shfl_idx(uint32_t value, int source) {
  uint32_t d;
  asm volatile("shfl.sync.idx.b32 %0, %1, %2, 31, 0xffffffff;" : "=r"(d) : "r"(value), "r"(source));
  return d;
}

// vote.sync.ballot.b32: bit i is the predicate of lane i.
__device__ __forceinline__ uint32_t vote_ballot(bool predicate) {
  uint32_t d;
  asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.u32 p, %1, 0;\n\tvote.sync.ballot.b32 %0, p, 0xffffffff;\n\t}"
               : "=r"(d)
               : "r"(static_cast<uint32_t>(predicate)));
  return d;
}

// redux.sync.add.u32: sum over the lanes; sm_80 and later.
__device__ __forceinline__ uint32_t redux_add(uint32_t value) {
  uint32_t d;
  asm volatile("redux.sync.add.u32 %0, %1, 0xffffffff;" : "=r"(d) : "r"(value));
  return d;
}

// redux.sync.or.b32: bitwise or over the lanes; sm_80 and later.
__device__ __forceinline__ uint32_t redux_or(uint32_t value) {
  uint32_t d;
  asm volatile("redux.sync.or.b32 %0, %1, 0xffffffff;" : "=r"(d) : "r"(value));
  return d;
}

// redux.sync.max.u32: largest over the lanes; sm_80 and later.
__device__ __forceinline__ uint32_t redux_max(uint32_t value) {
  uint32_t d;
  asm volatile("redux.sync.max.u32 %0, %1, 0xffffffff;" : "=r"(d) : "r"(value));
  return d;
}

// redux.sync.min.u32: smallest over the lanes; sm_80 and later.
__device__ __forceinline__ uint32_t redux_min(uint32_t value) {
  uint32_t d;
  asm volatile("redux.sync.min.u32 %0, %1, 0xffffffff;" : "=r"(d) : "r"(value));
  return d;
}
