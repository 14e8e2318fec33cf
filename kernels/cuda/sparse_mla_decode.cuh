// What sparse_mla_decode and sparse_mla_prefill share in both variants: the share of a block, the online softmax, probabilities
// times values, the epilogue. The pipelines that bring rows into shared memory and the products q . k stand in
// sparse_mla_portable.cuh and sparse_mla_sm120a.cuh.
//
// A block of eight warps serves up to 64 heads of one token, so that a kv row is fetched once for all of them.
//   q . k    warp w holds the query of heads 8w .. 8w + 7 in registers, as the operand b (n = 8 heads), and reads every row
//            of a tile as operand a (m = rows): 512 channels of 8 heads are 64 registers, and the softmax over rows stays
//            within a warp. Warps beyond the heads there are do nothing here.
//   p . v    warp w owns channels 64w .. 64w + 63 of all heads: m = heads, k = rows, n = channels. The accumulators of 64
//            heads are 128 registers per thread, and a row is read once per block.
// Probabilities go through shared memory as [row][head] bf16 and come back transposed. One barrier per tile: between two
// barriers every warp multiplies tile i by its probabilities and computes those of tile i + 1 into the other buffer.
//
// The running maximum follows the true one only when that has grown by more than 2^RESCALE_LAG, so that the accumulators
// are rescaled seldom; p is then at most 2^RESCALE_LAG, which costs no bits.
#pragma once
#include "entry.cuh"
#include "ptx/approximate.cuh"
#include "ptx/convert.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/mma.cuh"
#include "ptx/shared.cuh"
#include "split_merge.cuh"

enum class Format { V4_FP8, BF16 };

// A decode call may cut the rows of a token into splits; a prefill call does not, and may ask for the largest logits.
enum class Kind { DECODE, PREFILL };

constexpr int LANES = 32;
constexpr int WARPS = 8;
constexpr int THREADS = WARPS * LANES;
constexpr int WARP_HEADS = 8;                                // heads whose softmax a warp does
constexpr int WARP_CHANNELS = SM120_D_KV / WARPS;            // channels whose sums a warp keeps
constexpr int PV_TILES = WARP_CHANNELS / 8;                  // mma columns
constexpr int VECTOR = 16;                                   // bytes of a copy
constexpr float RESCALE_LAG = 8.0f;

static_assert(WARP_CHANNELS == SM120_NOPE_TILE, "a warp's channels share one scale per row");

// Distance of rows in shared memory: 16 bytes more than a multiple of 128 (or an odd multiple of 16), so that eight rows
// of a matrix load touch all banks once.
constexpr bool conflict_free(int row_bytes) { return row_bytes / VECTOR % 2 == 1; }

template <int HEAD_TILE>
constexpr int PROBABILITY_PITCH = HEAD_TILE * 2 + VECTOR;

using Params = Sm120SparseMlaDecodeParams;

template <Kind K>
__device__ __forceinline__ int split_count(const Params& p) {
  return K == Kind::PREFILL ? 1 : p.num_splits;
}

// The same for all lanes by way of a shuffle, so that the assembler knows it and branches on it need no divergent twin.
__device__ __forceinline__ int warp_index() { return __shfl_sync(~0u, static_cast<int>(threadIdx.x) / LANES, 0); }

template <int N>
struct Int {
  static constexpr int value = N;
};

// Loop over compile-time indices: the scale selectors of an mma are immediates.
template <int FROM, int TO, class Body>
__device__ __forceinline__ void static_for(Body&& body) {
  if constexpr (FROM < TO) {
    body(Int<FROM>{});
    static_for<FROM + 1, TO>(body);
  }
}

// ------------------------------------------------------------------------------------------------------ work of a block
// The rows of a token are one list: the valid length of the window list, then that of the compressed list. It is cut into
// tiles of ROWS, and the tiles into num_splits runs that differ by one tile at most.
struct Work {
  int token, split;
  int head;          // first head of the block
  int groups;        // groups of eight heads that exist
  int window_rows;   // columns before this one belong to the window
  int rows;          // columns of the list
  int first_row;     // of this split, a multiple of the tile
  int tiles;         // of this split
};

__device__ __forceinline__ int list_len(const int32_t* lens, int token, int width) {
  return lens == nullptr ? width : min(max(__ldg(lens + token), 0), width);
}

template <int ROWS, int HEAD_TILE, Kind K>
__device__ __forceinline__ Work block_work(const Params& p) {
  Work w;
  const int splits = split_count<K>(p);
  w.token = blockIdx.x / splits;
  w.split = blockIdx.x % splits;
  w.head = blockIdx.y * HEAD_TILE;
  w.groups = min(HEAD_TILE, p.h - w.head) / WARP_HEADS;
  w.window_rows = list_len(p.window_lens, w.token, p.window_topk);
  w.rows = w.window_rows + list_len(p.topk_lens, w.token, p.topk);
  const int tiles = (w.rows + ROWS - 1) / ROWS;
  const int each = tiles / splits, more = tiles % splits;
  w.first_row = (each * w.split + min(w.split, more)) * ROWS;
  w.tiles = each + (w.split < more ? 1 : 0);
  return w;
}

// Slot of a column of the list; -1 beyond its end.
__device__ __forceinline__ int column_slot(const Params& p, const Work& w, int column) {
  if (column >= w.rows) return -1;
  const bool window = column < w.window_rows;
  const int32_t* slots = window ? p.window_slots : p.topk_slots;
  const int64_t stride = window ? p.stride_window_slots : p.stride_topk_slots;
  return __ldg(slots + w.token * stride + (window ? column : column - w.window_rows));
}

// Where a row lies; data is null for a slot that is to be skipped.
struct Row {
  const uint8_t* data;
  const uint8_t* footer;
};

template <Format F>
__device__ __forceinline__ Row locate(const Params& p, const Work& w, int column, int slot) {
  const bool window = column < w.window_rows;
  const uint8_t* base = window ? p.window_kv.data : p.compressed_kv.data;
  const int64_t stride = window ? p.window_kv.page_stride_bytes : p.compressed_kv.page_stride_bytes;
  const int num_pages = window ? p.window_kv.num_pages : p.compressed_kv.num_pages;
  const int page_size = window ? p.window_kv.page_size : p.compressed_kv.page_size;
  Row row{nullptr, nullptr};
  if (slot < 0) return row;
  const int page = slot / page_size, offset = slot - page * page_size;
  if (page >= num_pages) return row;
  const uint8_t* start = base + page * stride;
  if constexpr (F == Format::V4_FP8) {
    row.data = start + static_cast<int64_t>(offset) * SM120_V4_FP8_DATA_BYTES;
    row.footer = start + static_cast<int64_t>(page_size) * SM120_V4_FP8_DATA_BYTES +
                 static_cast<int64_t>(offset) * SM120_V4_FP8_FOOTER_BYTES;
  } else {
    row.data = start + static_cast<int64_t>(offset) * SM120_BF16_KV_BYTES;
  }
  return row;
}

// 2^(byte - 127) from a ue8m0 byte. 0 is 2^-127, a sub-normal; 255 gives inf where the format says NaN, and q . k of such a
// row is NaN either way.
__device__ __forceinline__ float scale_f32(uint32_t byte) { return __uint_as_float(max(byte << 23, 1u << 22)); }

// Four e4m3 (bytes ascending) times their scales, to two bf16 pairs: exact unless the result is sub-normal.
__device__ __forceinline__ uint2 dequantise(uint32_t e4m3, float s0, float s1, float s2, float s3) {
  const float2 low = cvt_f32_f16x2(cvt_f16x2_e4m3x2(static_cast<uint16_t>(e4m3)));
  const float2 high = cvt_f32_f16x2(cvt_f16x2_e4m3x2(static_cast<uint16_t>(e4m3 >> 16)));
  return {cvt_bf16x2_f32(low.x * s0, low.y * s1), cvt_bf16x2_f32(high.x * s2, high.y * s3)};
}

// ------------------------------------------------------------------------------------------------------------- exchange
// Shared memory through which the warps of a block meet. Buffers of tile i have index i % 2.
template <int ROWS, int HEAD_TILE>
struct Exchange {
  alignas(VECTOR) uint8_t probability[2][ROWS][PROBABILITY_PITCH<HEAD_TILE>];   // [row][head] bf16
  float alpha[2][HEAD_TILE];                                    // factor of the accumulators before tile i is added
  float inverse[HEAD_TILE];                                     // 1 / sum of p, 0 when there is none; with the last tile
  float merge[HEAD_TILE];                                       // 1 / (1 + sink term), unsplit only; with the last tile
  uint8_t rescale[2][WARPS];                                    // a group of heads has a factor other than 1
  static_assert(conflict_free(PROBABILITY_PITCH<HEAD_TILE>), "rows of probabilities must use different banks");
};

// Heads that the tile has and the operands have not: their probabilities are 0 from the start, their sums are not stored.
template <int ROWS, int HEAD_TILE>
__device__ __forceinline__ void clear_absent_heads(Exchange<ROWS, HEAD_TILE>& x, int warp, int lane) {
  for (int buffer = 0; buffer < 2; ++buffer) {
    for (int row = lane; row < ROWS; row += LANES) {
      *reinterpret_cast<uint4*>(&x.probability[buffer][row][warp * VECTOR]) = make_uint4(0, 0, 0, 0);
    }
    if (lane < WARP_HEADS) x.alpha[buffer][warp * WARP_HEADS + lane] = 1.0f;
    if (lane == 0) x.rescale[buffer][warp] = 0;
  }
  if (lane < WARP_HEADS) {
    x.inverse[warp * WARP_HEADS + lane] = 0.0f;
    x.merge[warp * WARP_HEADS + lane] = 0.0f;
  }
}

// -------------------------------------------------------------------------------------------------------------- softmax
// State of the two heads 2t, 2t + 1 of a warp that a lane of quad position t looks after, together with the seven other
// lanes of that position. `sum` is over this lane's rows only.
struct Softmax {
  float max[2] = {negative_infinity(), negative_infinity()};   // reference of the exponent, base 2
  float sum[2] = {0.0f, 0.0f};
};

// The largest logits of a block's heads so far, base 2; kept by a prefill call only. Lane t of a warp looks after its two heads
// alone, so that no barrier is needed.
template <Kind K, int HEAD_TILE>
struct MaxLogits {
  alignas(8) float most[HEAD_TILE];

  __device__ __forceinline__ float2& pair(int warp, int lane) {
    return *reinterpret_cast<float2*>(&most[warp * WARP_HEADS + lane % 4 * 2]);
  }
  __device__ __forceinline__ void clear(int warp, int lane) {
    if (lane < 4) pair(warp, lane) = make_float2(negative_infinity(), negative_infinity());
  }
  __device__ __forceinline__ void add(const float (&best)[2], int warp, int lane) {
    if (lane >= 4) return;
    float2& so_far = pair(warp, lane);
    so_far = make_float2(fmaxf(so_far.x, best[0]), fmaxf(so_far.y, best[1]));
  }
  __device__ __forceinline__ void store(float* max_logits, int64_t row, int head) const {
    if (max_logits != nullptr) max_logits[row] = __fmul_rn(most[head], LN_2);
  }
};
template <int HEAD_TILE>
struct MaxLogits<Kind::DECODE, HEAD_TILE> {
  __device__ __forceinline__ void clear(int, int) {}
  __device__ __forceinline__ void add(const float (&)[2], int, int) {}
  __device__ __forceinline__ void store(float*, int64_t, int) const {}
};

// Products of a tile to probabilities. s[i][0], [1]: row 16i + g of heads 2t, 2t + 1; [2], [3]: row 16i + 8 + g.
// valid(row) tells rows of the tile from skipped ones.
template <int ROWS, int HEAD_TILE, Kind K, class Valid>
__device__ __forceinline__ void softmax_tile(const Params& p, Softmax& state, Exchange<ROWS, HEAD_TILE>& x,
                                             MaxLogits<K, HEAD_TILE>& most, int buffer, const Valid& valid,
                                             float (&s)[ROWS / 16][4], int warp, int lane) {
  const int g = lane / 4, t = lane % 4;
  const float scale = p.sm_scale * LOG2_E;
  float best[2] = {negative_infinity(), negative_infinity()};
#pragma unroll
  for (int i = 0; i < ROWS / 16; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const bool row_valid = valid(i * 16 + half * 8 + g);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float& element = s[i][half * 2 + j];
        element = row_valid ? __fmul_rn(element, scale) : negative_infinity();
        best[j] = fmaxf(best[j], element);
      }
    }
  }
  float alpha[2], reference[2];
#pragma unroll
  for (int j = 0; j < 2; ++j) {
#pragma unroll
    for (int step = 4; step < LANES; step *= 2) best[j] = fmaxf(best[j], __shfl_xor_sync(~0u, best[j], step));
    const float next = best[j] > state.max[j] + RESCALE_LAG ? best[j] : state.max[j];
    reference[j] = next == negative_infinity() ? 0.0f : next;   // nothing valid yet: p = 2^(-inf - 0) = 0
    // No factor while nothing has been summed.
    const bool same = next == state.max[j] || state.max[j] == negative_infinity();
    alpha[j] = same ? 1.0f : ex2_approx(state.max[j] - next);
    state.max[j] = next;
    state.sum[j] *= alpha[j];
  }
  most.add(best, warp, lane);
#pragma unroll
  for (int i = 0; i < ROWS / 16; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float p0 = ex2_approx(__fadd_rn(s[i][half * 2], -reference[0]));
      const float p1 = ex2_approx(__fadd_rn(s[i][half * 2 + 1], -reference[1]));
      state.sum[0] += p0;
      state.sum[1] += p1;
      const int row = i * 16 + half * 8 + g;
      *reinterpret_cast<uint32_t*>(&x.probability[buffer][row][warp * VECTOR + t * 4]) = cvt_bf16x2_f32(p0, p1);
    }
  }
  if (g == 0) *reinterpret_cast<float2*>(&x.alpha[buffer][warp * WARP_HEADS + t * 2]) = make_float2(alpha[0], alpha[1]);
  const bool any = __any_sync(~0u, alpha[0] != 1.0f || alpha[1] != 1.0f);
  if (lane == 0) x.rescale[buffer][warp] = any ? 1 : 0;
}

// After the last tile of a split: denominators for all warps, log-sum-exp to memory.
template <int ROWS, int HEAD_TILE, Kind K>
__device__ __forceinline__ void finish_softmax(const Params& p, float* max_logits, const Work& w, Softmax& state,
                                               Exchange<ROWS, HEAD_TILE>& x, const MaxLogits<K, HEAD_TILE>& most, int warp,
                                               int lane) {
  const int t = lane % 4;
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    float sum = state.sum[j];
#pragma unroll
    for (int step = 4; step < LANES; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
    if (lane != t) continue;                                  // one lane per quad position writes
    const int head = warp * WARP_HEADS + t * 2 + j;
    const bool empty = sum == 0.0f;
    const float lse2 = empty ? negative_infinity() : __fadd_rn(state.max[j], lg2_approx(sum));
    x.inverse[head] = empty ? 0.0f : rcp_approx(sum);
    const int64_t row = static_cast<int64_t>(w.token) * p.h + w.head + head;
    most.store(max_logits, row, head);
    if (split_count<K>(p) == 1) {
      x.merge[head] = empty ? 0.0f : merged_inverse(1.0f, sink_weight(p.attn_sink, w.head + head, lse2));
      p.lse[row] = merged_lse(1.0f, lse2);
    } else {
      p.lse2_partial[w.split * (static_cast<int64_t>(p.t) * p.h) + row] = lse2;
    }
  }
}

// ------------------------------------------------------------------------------------------------ probabilities . values
// The flags of all groups in one load.
template <int BYTES>
struct FlagWord;
template <>
struct FlagWord<2> {
  using type = uint16_t;
};
template <>
struct FlagWord<4> {
  using type = uint32_t;
};
template <>
struct FlagWord<8> {
  using type = uint64_t;
};

// Where a lane's row of the first matrix load of a tile lies: row lane % 16, 16-byte column lane / 16. The same for rows
// as operand a (q . k), for bf16 values transposed and for byte values transposed.
template <int PITCH>
__device__ __forceinline__ uint32_t tile_lane(int lane) {
  return lane % 16 * PITCH + lane / 16 * VECTOR;
}

// The same for probabilities as operand a, transposed. BYTE_VALUES: the byte transpose hands a lane rows 4t .. 4t + 3, which
// become k = 2t, 2t + 1, 2t + 8, 2t + 9 of the mma; the probabilities are read in that order.
template <int HEAD_TILE, bool BYTE_VALUES>
__device__ __forceinline__ uint32_t probability_lane(int lane) {
  const int k = lane % 8 + lane / 16 * 8;
  const int row = BYTE_VALUES ? k % 8 / 2 * 4 + k % 2 + k / 8 * 2 : k;
  return row * PROBABILITY_PITCH<HEAD_TILE> + lane / 8 % 2 * VECTOR;
}

// Sums of a warp. [i][n]: heads 16i .. 16i + 15, channels 8n .. 8n + 7; [0], [1]: head g, channels 2t, 2t + 1; [2], [3]: head
// g + 8.
template <int HEAD_TILE>
struct Accumulator {
  static constexpr int HEAD_TILES = HEAD_TILE / 16;
  float o[HEAD_TILES][PV_TILES][4];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < HEAD_TILES; ++i) {
#pragma unroll
      for (int n = 0; n < PV_TILES; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) o[i][n][e] = 0.0f;
      }
    }
  }

  // Moves the sums to the reference of the tile that comes next.
  template <int ROWS>
  __device__ __forceinline__ void rescale(const Exchange<ROWS, HEAD_TILE>& x, int buffer, int lane) {
    using Flags = typename FlagWord<HEAD_TILE / WARP_HEADS>::type;
    if (*reinterpret_cast<const Flags*>(x.rescale[buffer]) == 0) return;
#pragma unroll
    for (int i = 0; i < HEAD_TILES; ++i) {
      const float low = x.alpha[buffer][i * 16 + lane / 4], high = x.alpha[buffer][i * 16 + 8 + lane / 4];
#pragma unroll
      for (int n = 0; n < PV_TILES; ++n) {
        o[i][n][0] *= low;
        o[i][n][1] *= low;
        o[i][n][2] *= high;
        o[i][n][3] *= high;
      }
    }
  }

  // Probabilities of sixteen rows, all heads.
  __device__ __forceinline__ void load_probabilities(uint32_t (&a)[HEAD_TILES][4], uint32_t probability) const {
#pragma unroll
    for (int i = 0; i < HEAD_TILES; ++i) ldmatrix_x4_trans(a[i], probability + i * 16 * 2);
  }

  // Adds a tile of bf16 values. `probability`, `value`: this lane's addresses, the latter at the warp's channels.
  template <int ROWS, int PITCH>
  __device__ __forceinline__ void add_bf16(uint32_t probability, uint32_t value) {
#pragma unroll
    for (int k = 0; k < ROWS / 16; ++k) {
      uint32_t a[HEAD_TILES][4];
      load_probabilities(a, probability + k * 16 * PROBABILITY_PITCH<HEAD_TILE>);
#pragma unroll
      for (int n = 0; n < PV_TILES; n += 2) {
        uint32_t v[4];
        ldmatrix_x4_trans(v, value + k * 16 * PITCH + n * 8 * 2);
        const uint32_t b[2][2] = {{v[0], v[1]}, {v[2], v[3]}};
#pragma unroll
        for (int i = 0; i < HEAD_TILES; ++i) {
          mma_bf16_m16n8k16(o[i][n], a[i], b[0], o[i][n]);
          mma_bf16_m16n8k16(o[i][n + 1], a[i], b[1], o[i][n + 1]);
        }
      }
    }
  }

  // Partial sums to memory, f32. A quad writes 32 contiguous bytes.
  template <int ROWS>
  __device__ __forceinline__ void store_partial(const Params& p, const Work& w, const Exchange<ROWS, HEAD_TILE>& x, int warp,
                                                int lane) const {
    const int64_t row = (static_cast<int64_t>(w.split) * p.t + w.token) * p.h + w.head;
    float* out = p.o_partial + row * SM120_D_KV + warp * WARP_CHANNELS + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < HEAD_TILES * 2; ++i) {
      if (i >= w.groups) continue;
      const int head = i * WARP_HEADS + lane / 4;
      const float inverse = x.inverse[head];
#pragma unroll
      for (int n = 0; n < PV_TILES; ++n) {
        const float* e = &o[i / 2][n][i % 2 * 2];
        const float2 pair = make_float2(__fmul_rn(e[0], inverse), __fmul_rn(e[1], inverse));
        *reinterpret_cast<float2*>(out + head * SM120_D_KV + n * 8) = pair;
      }
    }
  }

  // The final output, bf16, by the arithmetic of split_combine on one split. Neighbouring lanes swap so that each holds four
  // channels of one of two column tiles: a quad writes 32 contiguous bytes.
  template <int ROWS>
  __device__ __forceinline__ void store_final(const Params& p, const Work& w, const Exchange<ROWS, HEAD_TILE>& x, int warp,
                                              int lane) const {
    const int t = lane % 4;
    uint16_t* out = static_cast<uint16_t*>(p.out) + w.token * p.stride_out_t + w.head * p.stride_out_h +
                    warp * WARP_CHANNELS + t % 2 * 8 + t / 2 * 4;
#pragma unroll
    for (int i = 0; i < HEAD_TILES * 2; ++i) {
      if (i >= w.groups) continue;
      const int head = i * WARP_HEADS + lane / 4;
      const float inverse = x.inverse[head], merge = x.merge[head];
#pragma unroll
      for (int n = 0; n < PV_TILES; n += 2) {
        uint32_t word[2];
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const float* e = &o[i / 2][n + j][i % 2 * 2];
          // The merge adds the weighted split to +0, which turns -0 into +0.
          const float low = __fadd_rn(__fmul_rn(e[0], inverse), 0.0f), high = __fadd_rn(__fmul_rn(e[1], inverse), 0.0f);
          word[j] = cvt_bf16x2_f32(__fmul_rn(low, merge), __fmul_rn(high, merge));
        }
        const uint32_t other = __shfl_xor_sync(~0u, t % 2 == 0 ? word[1] : word[0], 1);
        const uint2 four = t % 2 == 0 ? make_uint2(word[0], other) : make_uint2(other, word[1]);
        *reinterpret_cast<uint2*>(out + head * p.stride_out_h + n * 8) = four;
      }
    }
  }
};

// A split without rows: nothing for split_combine to read but the sentinel; unsplit, the result of no rows.
template <Kind K>
__device__ __forceinline__ void store_empty(const Params& p, float* max_logits, const Work& w, int warp, int lane) {
  for (int head = warp; head < w.groups * WARP_HEADS; head += WARPS) {
    const int64_t row = static_cast<int64_t>(w.token) * p.h + w.head + head;
    if (split_count<K>(p) > 1) {
      if (lane == 0) p.lse2_partial[w.split * (static_cast<int64_t>(p.t) * p.h) + row] = negative_infinity();
      continue;
    }
    uint16_t* out = static_cast<uint16_t*>(p.out) + w.token * p.stride_out_t + (w.head + head) * p.stride_out_h;
    for (int channel = lane * 8; channel < SM120_D_KV; channel += LANES * 8) {
      *reinterpret_cast<uint4*>(out + channel) = make_uint4(0, 0, 0, 0);
    }
    if (lane == 0) {
      p.lse[row] = negative_infinity();
      if (K == Kind::PREFILL && max_logits != nullptr) max_logits[row] = negative_infinity();
    }
  }
}

// Final sums of a block to memory.
template <Kind K, int ROWS, int HEAD_TILE>
__device__ __forceinline__ void store_sums(const Params& p, const Work& w, const Accumulator<HEAD_TILE>& sums,
                                           const Exchange<ROWS, HEAD_TILE>& x, int warp, int lane) {
  if (split_count<K>(p) == 1) {
    sums.store_final(p, w, x, warp, lane);
  } else {
    sums.store_partial(p, w, x, warp, lane);
  }
}

// --------------------------------------------------------------------------------------------------- query, bf16 operand
// Channels `first` .. `first` + 16 * STEPS - 1 of a warp's heads as operand b: q[k][0] channels 16k + 2t, 2t + 1 of head g,
// q[k][1] channels 16k + 8 + 2t ...
template <int STEPS>
__device__ __forceinline__ void load_query_bf16(uint32_t (&q)[STEPS][2], const Params& p, const Work& w, int first, int warp,
                                                int lane) {
  const uint16_t* row = static_cast<const uint16_t*>(p.q) + w.token * p.stride_q_t +
                        (w.head + warp * WARP_HEADS + lane / 4) * p.stride_q_h + first + lane % 4 * 2;
#pragma unroll
  for (int k = 0; k < STEPS; ++k) {
    q[k][0] = __ldg(reinterpret_cast<const uint32_t*>(row + k * 16));
    q[k][1] = __ldg(reinterpret_cast<const uint32_t*>(row + k * 16 + 8));
  }
}

// Products of ROWS bf16 rows with the whole query; four chains of sums, so that an mma need not wait for the one before.
template <int ROWS, int PITCH>
__device__ __forceinline__ void multiply_query_bf16(float (&s)[ROWS / 16][4], const uint32_t (&q)[SM120_D_KV / 16][2],
                                                    uint32_t rows) {
  constexpr int CHAINS = 4;
#pragma unroll
  for (int i = 0; i < ROWS / 16; ++i) {
    float chain[CHAINS][4] = {};
#pragma unroll
    for (int k = 0; k < SM120_D_KV / 16; ++k) {
      uint32_t a[4];
      ldmatrix_x4(a, rows + i * 16 * PITCH + k * 16 * 2);
      mma_bf16_m16n8k16(chain[k % CHAINS], a, q[k], chain[k % CHAINS]);
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) s[i][e] = (chain[0][e] + chain[1][e]) + (chain[2][e] + chain[3][e]);
  }
}
