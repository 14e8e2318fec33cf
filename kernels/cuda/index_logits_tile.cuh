// Index keys: where they lie in the cache, and the layout of a tile of them in shared memory. Shared by index_logits_decode and
// index_logits_prefill.
//
// A tile is 64 consecutive keys of a sequence, in two halves. A warp scores 32 of them, a part, at a time: four blocks of eight
// keys, the columns of a product.
//
// Copies cannot swizzle, and rows of 128 B put the same 16-byte chunk of all rows into the same banks. So rows stand in runs, each
// at another offset from the bank period of 128 B, and the columns of a block come from different runs:
//
//   fp8, bf16   a run is a half, the second 64 B off; even columns from the first, odd ones from the second. A lane's 16-byte load
//               takes 16 of the 64 B that its quad reads of a key: the two keys of a quarter warp use different banks.
//   fp4         a run is 16 rows of 64 B, run r 16 r B off; columns 2r and 2r + 1 from run r, two neighbours. The same 16 B chunk
//               of the eight keys of a block is in eight different sets of four banks (a matrix load), and so are the four chunks
//               of two neighbours (16-byte loads of a quarter warp). The second half's scales are 32 B off those of the first.
#pragma once
#include "entry.cuh"
#include "ptx/mbarrier.cuh"

enum class Format { FP8, BF16, FP4 };

constexpr int LANES = 32;
constexpr int TILE = 64;                   // keys
constexpr int HALF = TILE / 2;
constexpr int BLOCKS = 4;                  // of eight keys, in a part
constexpr int HEADS = SM120_INDEX_HEADS;
constexpr int HEAD_BLOCKS = HEADS / 16;    // mma rows
constexpr int COPY_ALIGN = 16;             // addresses and sizes of copies

static_assert(SM120_D_INDEX == 128 && SM120_INDEX_HEADS == 64, "fragment loads and head sums are written for 64 x 128");

template <Format F>
struct Shape {
  static constexpr int ROW_BYTES = F == Format::FP8 ? 128 : F == Format::BF16 ? 256 : 64;
  static constexpr int SCALE_BYTES = F == Format::BF16 ? 0 : 4;
  static constexpr int RUN = F == Format::FP4 ? 16 : HALF;                         // rows
  static constexpr int RUN_PITCH = RUN * ROW_BYTES + (F == Format::FP4 ? 16 : 0);
  static constexpr int RUNS = HALF / RUN;                                          // of a half
  static constexpr int HALF_SCALES = RUNS * RUN_PITCH;                             // where the scales of a half start
  static constexpr int HALF_PITCH = HALF_SCALES + HALF * SCALE_BYTES + (F == Format::FP4 ? 0 : 64);
  static constexpr int STAGE_BYTES = 2 * HALF_PITCH;
  static_assert(HALF_PITCH % 128 == (F == Format::FP4 ? 32 : 64), "rows of the two halves must use different banks");
  static_assert(ROW_BYTES + SCALE_BYTES == (F == Format::FP8    ? SM120_INDEX_K_FP8_BYTES
                                            : F == Format::BF16 ? SM120_INDEX_K_BF16_BYTES
                                                                : SM120_INDEX_K_FP4_BYTES),
                "bytes of a row");

  // Where a row of a half starts.
  static __device__ __forceinline__ int row_at(int row) {
    if constexpr (RUN == HALF) return row * ROW_BYTES;
    return row / RUN * RUN_PITCH + row % RUN * ROW_BYTES;
  }
};

// ------------------------------------------------------------------------------------------------- target differences
#if SM120_TARGET_SM120A
__device__ __forceinline__ void wait(uint32_t barrier, uint32_t parity) {
  while (!mbarrier_try_wait_parity(barrier, parity)) {
  }
}
#else
__device__ __forceinline__ void wait(uint32_t barrier, uint32_t parity) {
  while (!mbarrier_test_wait_parity(barrier, parity)) {
  }
}
#endif

// ------------------------------------------------------------------------------------------------------- keys in memory
// Where a key is.
struct Source {
  int page;     // -1: nowhere
  int offset;   // row in the page
};

template <Format F>
__device__ __forceinline__ const uint8_t* key_address(const Sm120PagedCache& cache, Source source) {
  return cache.data + source.page * cache.page_stride_bytes + static_cast<int64_t>(source.offset) * Shape<F>::ROW_BYTES;
}

template <Format F>
__device__ __forceinline__ const uint8_t* scale_address(const Sm120PagedCache& cache, Source source) {
  const int64_t scales = static_cast<int64_t>(cache.page_size) * Shape<F>::ROW_BYTES;
  return cache.data + source.page * cache.page_stride_bytes + scales + source.offset * Shape<F>::SCALE_BYTES;
}

// --------------------------------------------------------------------------------------------------------- keys in a tile
// A tile in shared memory; bit r of rows0 and rows1: row r of that half was loaded.
struct Tile {
  uint32_t base;
  uint32_t rows0, rows1;

  __device__ __forceinline__ bool complete() const { return (rows0 & rows1) == ~0u; }
  __device__ __forceinline__ bool empty() const { return (rows0 | rows1) == 0; }
};

// A key of a tile.
template <Format F>
struct Place {
  using S = Shape<F>;
  int half;
  int run;   // of the half
  int row;   // of the run

  // Column `column` of key block `block` of a part.
  static __device__ __forceinline__ Place of_column(int part, int block, int column) {
    if constexpr (F == Format::FP4) return {column / 4, column / 2 % 2, part * (S::RUN / 2) + 2 * block + column % 2};
    return {column % 2, 0, part * (S::RUN / 2) + 4 * block + column / 2};
  }

  // The key whose logit a lane ends up with (see logit_of): column 2 (lane % 4) + lane / 16 of block lane / 4 % 4.
  static __device__ __forceinline__ Place of_lane(int part, int lane) {
    if constexpr (F == Format::FP4) return {lane % 4 / 2, lane % 2, part * (S::RUN / 2) + lane / 4 % 4 * 2 + lane / 16};
    return {lane / 16, 0, part * (S::RUN / 2) + lane % 16};
  }

  // Some key that was loaded; one must be.
  static __device__ __forceinline__ Place loaded_in(const Tile& tile) {
    const int row = __ffs(tile.rows0 != 0 ? tile.rows0 : tile.rows1) - 1;
    return {tile.rows0 != 0 ? 0 : 1, row / S::RUN, row % S::RUN};
  }

  __device__ __forceinline__ int row_of_half() const { return run * S::RUN + row; }
  __device__ __forceinline__ int key() const { return half * HALF + row_of_half(); }
  __device__ __forceinline__ bool loaded(const Tile& tile) const {
    return ((half ? tile.rows1 : tile.rows0) >> row_of_half() & 1) != 0;
  }
  // In a tile at `base`.
  __device__ __forceinline__ uint32_t address(uint32_t base) const {
    return base + half * S::HALF_PITCH + run * S::RUN_PITCH + row * S::ROW_BYTES;
  }
  __device__ __forceinline__ uint32_t scale_address(uint32_t base) const {
    return base + half * S::HALF_PITCH + S::HALF_SCALES + row_of_half() * S::SCALE_BYTES;
  }
};
