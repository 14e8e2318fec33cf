// Where a slot of a paged cache is.
#pragma once
#include <stdint.h>

struct PageRow {
  int64_t page_offset;  // bytes from the cache's start to the page
  int32_t row;          // within the page; negative: the slot lies outside the pool
};

// The host guarantees that num_pages * page_size fits 31 bits; the unsigned comparison rejects every negative slot.
__device__ __forceinline__ PageRow locate(int32_t slot, uint32_t num_pages, uint32_t page_size, int64_t page_stride_bytes) {
  if (static_cast<uint32_t>(slot) >= num_pages * page_size) return {0, -1};
  const uint32_t page = static_cast<uint32_t>(slot) / page_size;
  return {page * page_stride_bytes, static_cast<int32_t>(static_cast<uint32_t>(slot) - page * page_size)};
}
