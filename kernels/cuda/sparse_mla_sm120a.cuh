// The SM120 pipeline of sparse_mla_decode and sparse_mla_prefill: rows arrive by bulk copies, and q . k multiplies the stored e4m3
// with their stored scales (block-scaled mma), so that keys are never converted.
//
// Numerics of q . k, v4_fp8. Every 32 channels of a head share a power of two 2^E with amax / 2^E in (224, 448], and
//      q / 2^E = hi + lo / 16,   hi = e4m3(q / 2^E),   lo = e4m3(16 (q / 2^E - hi))
// e4m3 has 4 significant bits and bf16 has 8: with e the exponent of hi, the remainder is an integer multiple, at most 8, of
// 2^(e - 7), so 16 times it has 4 bits again and is exact while 2^(e - 3) is not below 2^-9, the smallest e4m3: for all
// |q / 2^E| >= 2^-6, that is down to 2^-14 of the largest of its 32 channels. Smaller ones err by at most 2^-14, 2^-21 of that
// largest: sixty times less than its own rounding to bf16 (2^-9 of itself, 2^-15 typically of the sum) would allow. Two mma,
// scales 2^E and 2^(E - 4) on the query's side and the stored ue8m0 on the key's, give the sum. Products are exact, sums f32.
// p . v: values dequantised to bf16 in registers (exact), p rounded to bf16 as in the portable variant; softmax in base 2,
// f32; ex2, lg2, rcp approximate (2^-22), sub-normal p 0. A query of +-inf makes its head NaN.
//
// Work of a block: sparse_mla_decode.cuh. Tiles of 32 rows (v4_fp8) or 16 (bf16).
//
// Pipeline. A ring of tiles in shared memory, filled by the last warp: one bulk copy per row and lane. Between two barriers
// tile i is multiplied by its probabilities, tile i + 1 by the query; the slot of tile i - 1 is free for tile i + RING - 1,
// because everybody is past tile i - 1 at the barrier. A `full` barrier per slot counts the bytes of the bulk copies and one
// arrival per row: of the copy of its footer (8 B are too few for a bulk copy), or of the lane that wrote zeros in the place of
// a skipped row; and one more of the lane that wrote the mask of valid rows.
//
// Shared memory (64 heads): v4_fp8 4 x 18,944 rows + 4 x 256 footers, bf16 5 x 16,640; probabilities 9,216 (4,608), 1.5 KB of
// factors and flags. Rows are 576 + 16 (1,024 + 16) bytes apart: eight of them lie in different banks.
//
// Cost of a tile (v4_fp8, 32 rows, 64 heads, per SM): 8 warps x (56 + 8 + 64) mma = 1,024 x 4 = 4,096 cycles (m16n8k32 e4m3 at 2,048,
// m16n8k16 bf16 at 1,024 FLOP per cycle). Shared memory, 128 B per cycle: q . k reads the tile in all eight warps (1,152 cycles;
// half of what decoded rows would take), p . v once (144) and the probabilities in all warps (256), arrival 146: 1,730. Issue:
// about 620 instructions a warp, of which 190 turn values into bf16: 1,240 of 4,096 slots of a scheduler. Memory binds as in the
// portable variant (18,688 B per 4,096 cycles asked for, 3.3 B per cycle to be had), then the matrix unit.
//
// Not done: p . v in e4m3. The scale of a value depends on row and 64-channel group, the axes k and n of that product, which
// block scaling cannot express; folding it into p makes seven differently scaled copies of p, and splitting each into hi and lo
// costs 7 x 64 x 32 conversions per tile against 448 x 32 for the values, at the same time in the matrix unit (two e4m3 mma
// for one bf16 mma).
#pragma once
#include "ptx/bulk.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/fence.cuh"
#include "ptx/mbarrier.cuh"
#include "sparse_mla_decode.cuh"

template <Format F>
struct Shape;
template <>
struct Shape<Format::V4_FP8> {
  static constexpr int ROWS = 32;
  static constexpr int ROW_BYTES = SM120_V4_FP8_DATA_BYTES;
  static constexpr int RING = 4;
};
template <>
struct Shape<Format::BF16> {
  static constexpr int ROWS = 16;
  static constexpr int ROW_BYTES = SM120_BF16_KV_BYTES;
  static constexpr int RING = 5;
};

template <Format F>
constexpr int PITCH = Shape<F>::ROW_BYTES + VECTOR;
template <Format F>
constexpr int TILE_BYTES = Shape<F>::ROWS * PITCH<F>;

constexpr int LOADER_WARP = WARPS - 1;
constexpr int NOPE_STEPS = SM120_D_NOPE / 32;   // block-scaled mma steps, 32 channels
constexpr int ROPE_STEPS = SM120_D_ROPE / 16;   // bf16 mma steps
constexpr int ROPE_WARP = SM120_D_NOPE / WARP_CHANNELS;
static_assert(SM120_D_ROPE == WARP_CHANNELS && ROPE_WARP == WARPS - 1, "the last warp owns the rope channels");
static_assert(conflict_free(PITCH<Format::V4_FP8>) && conflict_free(PITCH<Format::BF16>),
              "rows of a tile must use different banks");

template <Format F>
struct Footers {
  alignas(VECTOR) uint8_t footer[Shape<F>::RING][Shape<F>::ROWS][SM120_V4_FP8_FOOTER_BYTES];
};
template <>
struct Footers<Format::BF16> {};

template <Format F, int HEAD_TILE, Kind K>
struct Plan : Footers<F>, MaxLogits<K, HEAD_TILE> {
  alignas(VECTOR) uint8_t tile[Shape<F>::RING][TILE_BYTES<F>];
  Exchange<Shape<F>::ROWS, HEAD_TILE> exchange;
  uint32_t valid[Shape<F>::RING];   // bit r: row r of the tile is not skipped
  uint64_t full[Shape<F>::RING];
};

extern __shared__ __align__(128) uint8_t shared_raw[];

// Brings rows into shared memory; run by the loader warp, lane = row of the tile. Tiles are issued in order.
template <Format F, int HEAD_TILE, Kind K>
struct Loader {
  static constexpr int RING = Shape<F>::RING, ROWS = Shape<F>::ROWS;
  static constexpr int ARRIVALS = ROWS + 1;   // of a phase of `full`
  const Params& p;
  const Work& w;
  Plan<F, HEAD_TILE, K>& plan;
  int lane;

  __device__ __forceinline__ int column(int tile) const { return w.first_row + tile * ROWS + lane; }
  __device__ __forceinline__ int slot(int tile) const { return column_slot(p, w, column(tile)); }

  // Starts the copies of a tile. `slot` is that of this lane's row, asked for earlier.
  __device__ __forceinline__ void issue(int tile, int slot) const {
    if (tile >= w.tiles) return;
    const uint32_t barrier = shared_address(&plan.full[tile % RING]);
    Row from{nullptr, nullptr};
    if (lane < ROWS) from = locate<F>(p, w, column(tile), slot);
    const uint32_t mask = __ballot_sync(~0u, from.data != nullptr);
    uint8_t* to = plan.tile[tile % RING] + lane * PITCH<F>;
    if (from.data != nullptr) {
      if constexpr (F == Format::V4_FP8) {
        mbarrier_expect_tx(barrier, Shape<F>::ROW_BYTES);
        cp_async_8(shared_address(plan.footer[tile % RING][lane]), from.footer);
        cp_async_mbarrier_arrive_noinc(barrier);
      } else {
        mbarrier_arrive_expect_tx(barrier, Shape<F>::ROW_BYTES);
      }
      bulk_load(shared_address(to), from.data, Shape<F>::ROW_BYTES, barrier);
    } else if (lane < ROWS) {
      const uint4 zero = make_uint4(0, 0, 0, 0);
#pragma unroll 4
      for (int i = 0; i < Shape<F>::ROW_BYTES; i += VECTOR) *reinterpret_cast<uint4*>(to + i) = zero;
      if constexpr (F == Format::V4_FP8) *reinterpret_cast<uint2*>(plan.footer[tile % RING][lane]) = make_uint2(0, 0);
      // The next bulk copy into this place, issued by this lane, comes after these stores.
      fence_proxy_async_shared();
      mbarrier_arrive(barrier);
    }
    if (lane == 0) {
      plan.valid[tile % RING] = mask;
      mbarrier_arrive(barrier);
    }
  }
};

// ---------------------------------------------------------------------------------------------------------------- query
// A warp's heads as operand b of the block-scaled mma, and the rope channels as operand b of the bf16 mma.
struct SplitQuery {
  uint32_t hi[NOPE_STEPS][2], lo[NOPE_STEPS][2];
  uint32_t rope[ROPE_STEPS][2];
  uint32_t scale_hi, scale_lo;   // lane 4g + t: bytes of steps 4t .. 4t + 3 of head g
};

__device__ __forceinline__ float bf16_low(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float bf16_high(uint32_t pair) { return __uint_as_float(pair & 0xffff0000); }

// Four values to hi and lo.
__device__ __forceinline__ void split_e4m3(uint32_t& hi, uint32_t& lo, const float (&x)[4]) {
  const uint16_t hi01 = cvt_e4m3x2_f32(x[0], x[1]), hi23 = cvt_e4m3x2_f32(x[2], x[3]);
  const float2 back01 = cvt_f32_f16x2(cvt_f16x2_e4m3x2(hi01)), back23 = cvt_f32_f16x2(cvt_f16x2_e4m3x2(hi23));
  const uint16_t lo01 = cvt_e4m3x2_f32((x[0] - back01.x) * 16.0f, (x[1] - back01.y) * 16.0f);
  const uint16_t lo23 = cvt_e4m3x2_f32((x[2] - back23.x) * 16.0f, (x[3] - back23.y) * 16.0f);
  hi = hi01 | static_cast<uint32_t>(hi23) << 16;
  lo = lo01 | static_cast<uint32_t>(lo23) << 16;
}

__device__ __forceinline__ void load_query(SplitQuery& q, const Params& p, const Work& w, int warp, int lane) {
  const int t = lane % 4;
  const uint16_t* row = static_cast<const uint16_t*>(p.q) + w.token * p.stride_q_t +
                        (w.head + warp * WARP_HEADS + lane / 4) * p.stride_q_h;
  q.scale_hi = 0;
#pragma unroll
  for (int k = 0; k < NOPE_STEPS; ++k) {
    // Channels 4t .. 4t + 3 and 16 + 4t .. of the step: a quad reads 32 contiguous bytes each time.
    float x[2][4], amax = 0.0f;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint2 four = __ldg(reinterpret_cast<const uint2*>(row + k * 32 + i * 16 + t * 4));
      x[i][0] = bf16_low(four.x);
      x[i][1] = bf16_high(four.x);
      x[i][2] = bf16_low(four.y);
      x[i][3] = bf16_high(four.y);
#pragma unroll
      for (int e = 0; e < 4; ++e) amax = fmaxf(amax, fabsf(x[i][e]));
    }
    amax = fmaxf(amax, __shfl_xor_sync(~0u, amax, 1));
    amax = fmaxf(amax, __shfl_xor_sync(~0u, amax, 2));
    // The smallest 2^E with amax / 2^E <= 448 = 1.75 * 2^8; biased, at least 5 so that the byte of 2^(E - 4) exists. The byte
    // 255 is NaN: inf has no place in e4m3.
    const uint32_t bits = __float_as_uint(amax);
    const uint32_t above = (bits & 0x7fffff) > 0x600000 ? 1 : 0;
    uint32_t scale = max(static_cast<int>((bits >> 23) + above) - 8, 5);
    const float inverse = __uint_as_float((254 - scale) << 23);
    if (bits >= 0x7f800000) scale = 255;
    if (k / 4 == t) q.scale_hi |= scale << (k % 4 * 8);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) x[i][e] *= inverse;
      split_e4m3(q.hi[k][i], q.lo[k][i], x[i]);
    }
  }
  // Bytes are at least 5 where they are used: no borrow between them. The last lane's upper two are not used.
  q.scale_lo = t == 3 ? q.scale_hi - 0x0404 : q.scale_hi - 0x04040404;
  load_query_bf16(q.rope, p, w, SM120_D_NOPE, warp, lane);
}

// Products of a tile with the query. `rows`: this lane's address. Sixteen rows after the other: the sums of hi and lo are two
// chains of mma, and two warps share a scheduler.
template <int ROWS>
__device__ __forceinline__ void multiply_query(float (&s)[ROWS / 16][4], const SplitQuery& q, uint32_t rows,
                                               const uint8_t (&footer)[ROWS][SM120_V4_FP8_FOOTER_BYTES], int lane) {
#pragma unroll
  for (int i = 0; i < ROWS / 16; ++i) {
    // Rows g and g + 8 in the even and odd lane of a pair; scales of groups 0..3 in the first pair of a quad, 4..6 in the
    // second.
    const int row = i * 16 + lane / 4 + lane % 2 * 8;
    const uint32_t scale = *reinterpret_cast<const uint32_t*>(&footer[row][lane / 2 % 2 * 4]);
    const uint32_t from = rows + i * 16 * PITCH<Format::V4_FP8>;
    float hi[4] = {}, lo[4] = {};
    static_for<0, NOPE_STEPS>([&](auto step) {
      constexpr int K = decltype(step)::value, GROUP = K * 32 / SM120_NOPE_TILE;
      uint32_t a[4];
      ldmatrix_x4(a, from + K * 32);
      mma_e4m3_m16n8k32_block_scaled<GROUP % 4, GROUP / 4, K % 4, K / 4>(hi, a, q.hi[K], hi, scale, q.scale_hi);
      mma_e4m3_m16n8k32_block_scaled<GROUP % 4, GROUP / 4, K % 4, K / 4>(lo, a, q.lo[K], lo, scale, q.scale_lo);
    });
#pragma unroll
    for (int k = 0; k < ROPE_STEPS; ++k) {
      uint32_t a[4];
      ldmatrix_x4(a, from + SM120_D_NOPE + k * 32);
      mma_bf16_m16n8k16(k % 2 == 0 ? hi : lo, a, q.rope[k], k % 2 == 0 ? hi : lo);
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) s[i][e] = hi[e] + lo[e];
  }
}

// Adds a tile of e4m3 values of one 64-channel group. A byte-transposed load hands a lane rows 4t .. 4t + 3 of a channel.
template <int ROWS, int HEAD_TILE>
__device__ __forceinline__ void add_e4m3(Accumulator<HEAD_TILE>& sums, uint32_t probability, uint32_t value,
                                         const uint8_t (&footer)[ROWS][SM120_V4_FP8_FOOTER_BYTES], int group, int lane) {
#pragma unroll 1
  for (int k = 0; k < ROWS / 16; ++k) {
    uint32_t a[HEAD_TILE / 16][4];
    sums.load_probabilities(a, probability + k * 16 * PROBABILITY_PITCH<HEAD_TILE>);
    float scale[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) scale[i] = scale_f32(footer[k * 16 + lane % 4 * 4 + i][group]);
#pragma unroll
    for (int n = 0; n < PV_TILES; n += 4) {
      uint32_t bytes[4];
      ldmatrix_b8_x2_trans(bytes, value + k * 16 * PITCH<Format::V4_FP8> + n * 8);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint2 v = dequantise(bytes[j], scale[0], scale[1], scale[2], scale[3]);
        const uint32_t b[2] = {v.x, v.y};
#pragma unroll
        for (int i = 0; i < HEAD_TILE / 16; ++i) mma_bf16_m16n8k16(sums.o[i][n + j], a[i], b, sums.o[i][n + j]);
      }
    }
  }
}

// ---------------------------------------------------------------------------------------------------------------- block
template <Format F>
struct Query;
template <>
struct Query<Format::V4_FP8> {
  using type = SplitQuery;
};
template <>
struct Query<Format::BF16> {
  struct type {
    uint32_t q[SM120_D_KV / 16][2];
  };
};

// A block of either kernel; `max_logits` may be null.
template <Format F, int HEAD_TILE, Kind K>
__device__ __forceinline__ void attention_block(const Params& p, float* max_logits) {
  constexpr int ROWS = Shape<F>::ROWS, RING = Shape<F>::RING;
  Plan<F, HEAD_TILE, K>& plan = *reinterpret_cast<Plan<F, HEAD_TILE, K>*>(shared_raw);
  const int warp = warp_index(), lane = threadIdx.x % LANES;
  const Work w = block_work<ROWS, HEAD_TILE, K>(p);
  if (w.tiles == 0) return store_empty<K>(p, max_logits, w, warp, lane);

  const Loader<F, HEAD_TILE, K> loader{p, w, plan, lane};
  const bool loads = warp == LOADER_WARP;
  int slots[RING];   // of the tiles issued next; all at once at the start, then one ahead
  if (loads) {
#pragma unroll
    for (int i = 0; i < RING; ++i) slots[i] = loader.slot(i);
  }
  if (threadIdx.x == 0) {
    for (int i = 0; i < RING; ++i) mbarrier_init(shared_address(&plan.full[i]), Loader<F, HEAD_TILE, K>::ARRIVALS);
    fence_proxy_async_shared();
  }
  __syncthreads();

  if (loads) {
#pragma unroll
    for (int i = 0; i < RING - 1; ++i) loader.issue(i, slots[i]);
  }
  int next_slot = slots[RING - 1];
  const bool has_heads = warp < w.groups;
  typename Query<F>::type q;
  if (has_heads) {
    if constexpr (F == Format::V4_FP8) {
      load_query(q, p, w, warp, lane);
    } else {
      load_query_bf16(q.q, p, w, 0, warp, lane);
    }
  } else if (warp < HEAD_TILE / WARP_HEADS) {
    clear_absent_heads(plan.exchange, warp, lane);
  }

  const uint32_t tiles = shared_address(plan.tile[0]);
  const uint32_t row_lane = tile_lane<PITCH<F>>(lane);
  const bool byte_values = F == Format::V4_FP8 && warp != ROPE_WARP;
  const uint32_t probability = shared_address(plan.exchange.probability[0][0]) +
                               (byte_values ? probability_lane<HEAD_TILE, true>(lane) : probability_lane<HEAD_TILE, false>(lane));
  constexpr uint32_t PROBABILITY_BYTES = sizeof(plan.exchange.probability[0]);
  MaxLogits<K, HEAD_TILE>& most = plan;
  if (has_heads) most.clear(warp, lane);
  Softmax softmax;
  Accumulator<HEAD_TILE> sums;
  sums.clear();

  // Waits for a tile and computes its probabilities.
  const auto score = [&](int tile) {
    const int slot = tile % RING;
    const uint32_t rows = tiles + slot * TILE_BYTES<F> + row_lane;
    while (!mbarrier_try_wait_parity(shared_address(&plan.full[slot]), tile / RING % 2)) {
    }
    float s[ROWS / 16][4];
    if constexpr (F == Format::V4_FP8) {
      multiply_query<ROWS>(s, q, rows, plan.footer[slot], lane);
    } else {
      multiply_query_bf16<ROWS, PITCH<F>>(s, q.q, rows);
    }
    const uint32_t mask = plan.valid[slot];
    softmax_tile(p, softmax, plan.exchange, most, tile % 2, [&](int row) { return (mask >> row & 1) != 0; }, s, warp, lane);
    if (tile == w.tiles - 1) finish_softmax(p, max_logits, w, softmax, plan.exchange, most, warp, lane);
  };

  if (has_heads) score(0);
#pragma unroll 1
  for (int i = 0; i < w.tiles; ++i) {
    // Probabilities of tile i are there; nobody uses tile i - 1 any more. Warps without heads have not waited for tile i
    // themselves: its rows reach them through the warps that have.
    __syncthreads();
    if (loads) {
      loader.issue(i + RING - 1, next_slot);
      next_slot = loader.slot(i + RING);
    }
    sums.rescale(plan.exchange, i % 2, lane);
    const uint32_t values = tiles + i % RING * TILE_BYTES<F> + row_lane;
    const uint32_t probabilities = probability + i % 2 * PROBABILITY_BYTES;
    if constexpr (F == Format::V4_FP8) {
      if (byte_values) {
        add_e4m3<ROWS>(sums, probabilities, values + warp * WARP_CHANNELS, plan.footer[i % RING], warp, lane);
      } else {
        sums.template add_bf16<ROWS, PITCH<F>>(probabilities, values + SM120_D_NOPE);
      }
    } else {
      sums.template add_bf16<ROWS, PITCH<F>>(probabilities, values + warp * WARP_CHANNELS * 2);
    }
    if (has_heads && i + 1 < w.tiles) score(i + 1);
  }
  store_sums<K>(p, w, sums, plan.exchange, warp, lane);
}
