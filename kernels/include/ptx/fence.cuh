// Fences.
#pragma once

// fence.proxy.async.shared::cta: earlier accesses of this thread to shared memory come before later ones of the
// asynchronous proxy (bulk copies and their counting on a barrier); sm_90 and later.
__device__ __forceinline__ void fence_proxy_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
