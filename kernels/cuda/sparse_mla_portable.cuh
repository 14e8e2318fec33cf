// The portable pipeline of sparse_mla_decode and sparse_mla_prefill: rows arrive by cp.async, and v4_fp8 rows are turned into bf16
// in shared memory.
//
// Work of a block: sparse_mla_decode.cuh. Tiles of 16 rows.
//
// Pipeline, v4_fp8. A row is copied by 16 threads; thread j takes 16-byte pieces j, j + 16 and (j < 4) j + 32 of its 36, and the
// footer, into bytes that nobody else touches (`raw`, a ring of RAW_SLOTS tiles). The same thread turns them into bf16 when they
// have landed, so only its own wait is needed, and refills the slot at once. Decoded tiles go round a ring of three: between two
// barriers tile i is multiplied by its probabilities, tile i + 1 by the query, tile i + 2 is decoded, tiles i + 3 .. i + 5 arrive.
// Pipeline, bf16. Rows are copied to their place in a ring of five tiles; i and i + 1 are in use, i + 2 .. i + 4 arrive.
//
// Shared memory (64 heads): v4_fp8 3 x 16,640 decoded + 3 x 11,264 raw, bf16 5 x 16,640; 2 x 2,304 probabilities, 1.5 KB of
// factors and flags. A row has 1,024 + 16 bytes, so eight rows of a matrix load lie in different banks.
//
// Cost of a tile (16 rows, 64 heads, per SM): 512 mma of 4,096 FLOP = 2,048 cycles at 1,024 FLOP per cycle. Shared memory, 128 B
// per cycle: q . k reads the tile in all eight warps (1,024 cycles), p . v once (128) and the probabilities in all warps (128);
// raw in and out 72 + 72, decoded 128: 1,550 in all. Issue: about 350 instructions a warp, of which 100 decode: 700 of 2,048
// slots of a scheduler. Bytes: 16 x 584 in 2,048 cycles is 4.6 B per cycle and SM, where 1,597 GB/s over 188 SMs at 2.6 GHz are
// 3.3: memory binds, then the matrix unit.
#pragma once
#include "ptx/cp_async.cuh"
#include "sparse_mla_decode.cuh"

constexpr int ROWS = 16;
constexpr int ROW_THREADS = THREADS / ROWS;                  // threads that bring a row
constexpr int PITCH = SM120_D_KV * 2 + VECTOR;               // bytes from row to row of a bf16 tile
constexpr int TILE_BYTES = ROWS * PITCH;
constexpr int RAW_SLOTS = 3;
constexpr int RAW_PIECES = SM120_V4_FP8_DATA_BYTES / VECTOR; // 36 pieces of a row
constexpr int NOPE_PIECES = SM120_D_NOPE / VECTOR;           // 28 of them e4m3
constexpr int TILE_PIECES = SM120_NOPE_TILE / VECTOR;        // 4 of them share a scale
constexpr int RAW_ROUNDS = (RAW_PIECES + ROW_THREADS - 1) / ROW_THREADS;
constexpr int FLAG_SLOTS = 8;                                // tiles whose validity is kept: from the copy to the softmax

static_assert(conflict_free(PITCH), "rows of a tile must use different banks");
static_assert(RAW_PIECES % ROW_THREADS == 4 && RAW_ROUNDS == 3, "four threads of a row take a third piece");

template <Format F>
struct Ring {
  static constexpr int TILES = F == Format::V4_FP8 ? 3 : 5;
  static constexpr int AHEAD = F == Format::V4_FP8 ? 2 + RAW_SLOTS : TILES - 1;   // tiles from p . v to the newest copy
  static_assert(AHEAD <= FLAG_SLOTS - 1, "flags of a tile live until its softmax");
};

// Rows as they are stored, every piece where the thread that turns it into bf16 finds it.
struct Raw {
  alignas(VECTOR) uint8_t piece[RAW_ROUNDS - 1][THREADS][VECTOR];
  alignas(VECTOR) uint8_t last_piece[ROWS][RAW_PIECES % ROW_THREADS][VECTOR];
  alignas(VECTOR) uint8_t footer[THREADS][SM120_V4_FP8_FOOTER_BYTES];
};

template <Format F>
struct RawRing {
  Raw raw[RAW_SLOTS];
};
template <>
struct RawRing<Format::BF16> {};

template <Format F, int HEAD_TILE, Kind K>
struct Plan : RawRing<F>, MaxLogits<K, HEAD_TILE> {
  alignas(VECTOR) uint8_t tile[Ring<F>::TILES][TILE_BYTES];
  Exchange<ROWS, HEAD_TILE> exchange;
  uint32_t valid[FLAG_SLOTS][ROWS];
};

extern __shared__ __align__(128) uint8_t shared_raw[];

// Brings rows into shared memory. Tiles are issued in order, one copy group each, empty beyond the end.
template <Format F, int HEAD_TILE, Kind K>
struct Loader {
  const Params& p;
  const Work& w;
  Plan<F, HEAD_TILE, K>& plan;
  int row, j;   // this thread's row of every tile, and its place among the threads of the row

  __device__ __forceinline__ Loader(const Params& p, const Work& w, Plan<F, HEAD_TILE, K>& plan)
      : p(p), w(w), plan(plan), row(threadIdx.x / ROW_THREADS), j(threadIdx.x % ROW_THREADS) {}

  __device__ __forceinline__ int column(int tile) const { return w.first_row + tile * ROWS + row; }
  __device__ __forceinline__ int slot(int tile) const { return column_slot(p, w, column(tile)); }

  __device__ __forceinline__ uint8_t* piece(Raw& raw, int round) const {
    return round < RAW_ROUNDS - 1 ? raw.piece[round][threadIdx.x] : raw.last_piece[row][j];
  }

  __device__ __forceinline__ bool has_piece(int round) const {
    return round < RAW_ROUNDS - 1 || j < RAW_PIECES % ROW_THREADS;
  }

  // A thread reads back only what it wrote, so a skipped row is written as zeros in the place of the copies.
  __device__ __forceinline__ void issue_raw(int tile, const Row& from) const {
    Raw& raw = plan.raw[tile % RAW_SLOTS];
    const uint4 zero = make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int round = 0; round < RAW_ROUNDS; ++round) {
      if (!has_piece(round)) continue;
      uint8_t* to = piece(raw, round);
      if (from.data != nullptr) {
        cp_async_16(shared_address(to), from.data + (j + round * ROW_THREADS) * VECTOR);
      } else {
        *reinterpret_cast<uint4*>(to) = zero;
      }
    }
    if (from.data != nullptr) {
      cp_async_8(shared_address(raw.footer[threadIdx.x]), from.footer);
    } else {
      *reinterpret_cast<uint2*>(raw.footer[threadIdx.x]) = make_uint2(0, 0);
    }
  }

  __device__ __forceinline__ void issue_bf16(int tile, const Row& from) const {
    uint8_t* to = plan.tile[tile % Ring<F>::TILES] + row * PITCH + j * VECTOR;
    constexpr int PIECES = SM120_BF16_KV_BYTES / (ROW_THREADS * VECTOR);
#pragma unroll
    for (int i = 0; i < PIECES; ++i) {
      const int offset = i * ROW_THREADS * VECTOR;
      if (from.data != nullptr) {
        cp_async_16(shared_address(to + offset), from.data + j * VECTOR + offset);
      } else {
        *reinterpret_cast<uint4*>(to + offset) = make_uint4(0, 0, 0, 0);
      }
    }
  }

  // Starts the copies of a tile. `slot` is that of this thread's row, asked for earlier.
  __device__ __forceinline__ void issue(int tile, int slot) const {
    if (tile < w.tiles) {
      const Row from = locate<F>(p, w, column(tile), slot);
      if constexpr (F == Format::V4_FP8) {
        issue_raw(tile, from);
      } else {
        issue_bf16(tile, from);
      }
      if (j == 0) plan.valid[tile % FLAG_SLOTS][row] = from.data != nullptr;
    }
    cp_async_commit_group();
  }

  // Turns this thread's pieces of a tile into bf16. RAW_SLOTS tiles have been issued from this one on.
  __device__ __forceinline__ void decode(int tile) const {
    if (tile >= w.tiles) return;
    cp_async_wait_group<RAW_SLOTS - 1>();
    Raw& raw = plan.raw[tile % RAW_SLOTS];
    uint8_t* to = plan.tile[tile % Ring<F>::TILES] + row * PITCH;
    const uint64_t footer = *reinterpret_cast<const uint64_t*>(raw.footer[threadIdx.x]);
#pragma unroll
    for (int round = 0; round < RAW_ROUNDS; ++round) {
      if (!has_piece(round)) continue;
      const uint4 bytes = *reinterpret_cast<const uint4*>(piece(raw, round));
      const int index = j + round * ROW_THREADS;
      if (index < NOPE_PIECES) {
        const float scale = scale_f32(static_cast<uint32_t>(footer >> (index / TILE_PIECES * 8)) & 0xff);
        const uint2 a = dequantise(bytes.x, scale, scale, scale, scale), b = dequantise(bytes.y, scale, scale, scale, scale);
        const uint2 c = dequantise(bytes.z, scale, scale, scale, scale), d = dequantise(bytes.w, scale, scale, scale, scale);
        const uint4 low = make_uint4(a.x, a.y, b.x, b.y), high = make_uint4(c.x, c.y, d.x, d.y);
        // Sixteen bytes of every thread of eight must lie in different banks: half of them write the upper half first.
        const bool swap = j / 4 % 2 == 1;
        uint8_t* piece_to = to + index * VECTOR * 2;
        *reinterpret_cast<uint4*>(piece_to + (swap ? VECTOR : 0)) = swap ? high : low;
        *reinterpret_cast<uint4*>(piece_to + (swap ? 0 : VECTOR)) = swap ? low : high;
      } else {
        *reinterpret_cast<uint4*>(to + SM120_D_NOPE * 2 + (index - NOPE_PIECES) * VECTOR) = bytes;
      }
    }
  }
};

// A block of either kernel; `max_logits` may be null.
template <Format F, int HEAD_TILE, Kind K>
__device__ __forceinline__ void attention_block(const Params& p, float* max_logits) {
  Plan<F, HEAD_TILE, K>& plan = *reinterpret_cast<Plan<F, HEAD_TILE, K>*>(shared_raw);
  const int warp = warp_index(), lane = threadIdx.x % LANES;
  const Work w = block_work<ROWS, HEAD_TILE, K>(p);
  if (w.tiles == 0) return store_empty<K>(p, max_logits, w, warp, lane);

  constexpr int IN_FLIGHT = F == Format::V4_FP8 ? RAW_SLOTS : Ring<F>::TILES - 1;
  constexpr int AHEAD = Ring<F>::AHEAD;
  const Loader<F, HEAD_TILE, K> loader(p, w, plan);
  int slots[AHEAD + 1];   // of the tiles issued next; all at once at the start, then one ahead
#pragma unroll
  for (int i = 0; i < AHEAD + 1; ++i) slots[i] = loader.slot(i);
#pragma unroll
  for (int i = 0; i < IN_FLIGHT; ++i) loader.issue(i, slots[i]);

  const bool has_heads = warp < w.groups;
  uint32_t q[SM120_D_KV / 16][2];
  if (has_heads) {
    load_query_bf16(q, p, w, 0, warp, lane);
  } else if (warp < HEAD_TILE / WARP_HEADS) {
    clear_absent_heads(plan.exchange, warp, lane);
  }
  if constexpr (F == Format::V4_FP8) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      loader.decode(i);
      loader.issue(RAW_SLOTS + i, slots[RAW_SLOTS + i]);
    }
  } else {
    cp_async_wait_group<IN_FLIGHT - 1>();
  }
  int next_slot = slots[AHEAD];
  __syncthreads();

  const uint32_t tiles = shared_address(plan.tile[0]);
  const uint32_t row_lane = tile_lane<PITCH>(lane);
  const uint32_t probability = shared_address(plan.exchange.probability[0][0]) + probability_lane<HEAD_TILE, false>(lane);
  constexpr uint32_t PROBABILITY_BYTES = sizeof(plan.exchange.probability[0]);
  MaxLogits<K, HEAD_TILE>& most = plan;
  if (has_heads) most.clear(warp, lane);
  Softmax softmax;
  Accumulator<HEAD_TILE> sums;
  sums.clear();

  // Probabilities of a tile that has landed.
  const auto score = [&](int tile) {
    float s[ROWS / 16][4];
    multiply_query_bf16<ROWS, PITCH>(s, q, tiles + tile % Ring<F>::TILES * TILE_BYTES + row_lane);
    const auto valid = [&](int row) { return plan.valid[tile % FLAG_SLOTS][row] != 0; };
    softmax_tile(p, softmax, plan.exchange, most, tile % 2, valid, s, warp, lane);
    if (tile == w.tiles - 1) finish_softmax(p, max_logits, w, softmax, plan.exchange, most, warp, lane);
  };

  if (has_heads) score(0);
#pragma unroll 1
  for (int i = 0; i < w.tiles; ++i) {
    if constexpr (F == Format::BF16) cp_async_wait_group<IN_FLIGHT - 2>();   // tile i + 1, for all threads after the barrier
    // Probabilities of tile i and rows of tile i + 1 are there; nobody uses tile i - 1 any more.
    __syncthreads();
    sums.rescale(plan.exchange, i % 2, lane);
    sums.template add_bf16<ROWS, PITCH>(probability + i % 2 * PROBABILITY_BYTES,
                                        tiles + i % Ring<F>::TILES * TILE_BYTES + row_lane + warp * WARP_CHANNELS * 2);
    if constexpr (F == Format::V4_FP8) loader.decode(i + 2);
    loader.issue(i + AHEAD, next_slot);
    next_slot = loader.slot(i + AHEAD + 1);
    if (has_heads && i + 1 < w.tiles) score(i + 1);
  }
  store_sums<K>(p, w, sums, plan.exchange, warp, lane);
}
