// Weight rows times tokens on the matrix unit, for linear and moe_experts: out[token, row] = sum_k w[row, k] x[token, k].
//
// The weights are operand a of m16n8k16 (16 rows), the tokens operand b (8 columns). The sum does not care in which order k
// is walked, as long as both operands agree: of every 32 inputs lane l takes the eight from 8 (l % 4) on, in one piece of
// memory, and hands them out as two steps of the matrix unit:
//
//     step 0   a[0], a[1] = inputs 0, 1 of rows g, g + 8     a[2], a[3] = inputs 2, 3      b[0] = inputs 0, 1   b[1] = 2, 3
//     step 1   a[0], a[1] = inputs 4, 5                      a[2], a[3] = inputs 6, 7      b[0] = inputs 4, 5   b[1] = 6, 7
//
// So weights go from global memory to registers, 64, 32 or 16 contiguous bytes per row and chunk of 32, and are decoded there
// once: no shared memory, no transposition. Two forms:
//
//   few    up to 16 tokens a block. Waits for memory: eight warps share the chunks of 16 rows (every warp a part of k), each
//          with LOADS chunks under way; their sums meet in shared memory, added in the order of the warps.
//   many   64 tokens a block. Four warps with 16 rows each walk k together; the tokens come through shared memory, STAGES
//          pieces of 64 inputs, weights one piece ahead in registers.
//
// TILES = 2 multiplies a second block of rows with the same tokens (gate and up rows of an expert).
// Numerics: weights become bf16: e4m3 and e2m1 times a power of two are exact down to 2^-133, products are exact, sums f32.
// A code or scale that is NaN gives NaN, a value beyond 2^128 infinity. Columns are independent: NaN stays with its token.
#pragma once
#include "e2m1.cuh"
#include "entry.cuh"
#include "ptx/convert.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/global.cuh"
#include "ptx/mma.cuh"
#include "ptx/prmt.cuh"
#include "ptx/shared.cuh"

enum class Format { BF16, FP8, FP4 };

constexpr int CHUNK = 32;            // inputs that two steps of the matrix unit take
constexpr int TILE_ROWS = 16;
constexpr int FEW_WARPS = 8;
constexpr int FEW_TOKENS = 16;
constexpr int LOADS = 4;             // chunks of a row tile that a warp of the few form has under way
constexpr int MANY_WARPS = 4;
constexpr int MANY_TOKENS = 64;
constexpr int STAGES = 4;
constexpr int STAGE_CHUNKS = 2;
constexpr int TOKEN_TILES = MANY_TOKENS / 8;
constexpr int FEW_PITCH = FEW_TOKENS + 1;

// Partial sums of the few form.
template <int TILES>
struct FewPlan {
  float sum[FEW_WARPS][TILES * TILE_ROWS][FEW_PITCH];
};

// Tokens of the many form, chunk by chunk: 64 bytes per token, so that eight tokens of a load lie side by side.
struct ManyPlan {
  alignas(16) uint8_t token[STAGES][STAGE_CHUNKS][MANY_TOKENS][2 * CHUNK];
};

extern __shared__ __align__(16) uint8_t shared_bytes[];

// Eight weights of a lane as they are stored, with their scale.
template <Format F>
struct Raw;
template <>
struct Raw<Format::BF16> {
  uint4 bits;
};
template <>
struct Raw<Format::FP8> {
  uint2 bits;
  uint32_t scale;
};
template <>
struct Raw<Format::FP4> {
  uint32_t bits;
  uint32_t scale;
};

// A matrix [rows, k], row-major.
template <Format F>
struct Matrix {
  const uint8_t* data;
  const uint8_t* scale;
  int k;

  // Where the weights of a lane and their scales start in a row.
  struct Row {
    const uint8_t* data;
    const uint8_t* scale;
  };

  __device__ __forceinline__ Row row(int64_t row, int quarter) const {
    if constexpr (F == Format::BF16) return {data + row * k * 2 + quarter * 16, nullptr};
    if constexpr (F == Format::FP8) return {data + row * k + quarter * 8, scale + row / 128 * ((k + 127) / 128)};
    return {data + row * (k / 2) + quarter * 4, scale + row * (k / CHUNK)};
  }

  static __device__ __forceinline__ Raw<F> load(const Row& row, int chunk) {
    if constexpr (F == Format::BF16) {
      return {ld_global_nc_v4(row.data + chunk * 64)};
    } else if constexpr (F == Format::FP8) {
      return {__ldg(reinterpret_cast<const uint2*>(row.data + chunk * 32)), __ldg(row.scale + chunk / 4)};
    } else {
      return {__ldg(reinterpret_cast<const uint32_t*>(row.data + chunk * 16)), __ldg(row.scale + chunk)};
    }
  }
};

// Eight weights as pairs of bf16, inputs ascending.
__device__ __forceinline__ void decode(uint32_t (&w)[4], const Raw<Format::BF16>& raw) {
  w[0] = raw.bits.x;
  w[1] = raw.bits.y;
  w[2] = raw.bits.z;
  w[3] = raw.bits.w;
}

__device__ __forceinline__ void decode(uint32_t (&w)[4], const Raw<Format::FP8>& raw) {
  const float scale = __uint_as_float(ue8m0_bits(raw.scale));
#pragma unroll
  for (int pair = 0; pair < 4; ++pair) {
    const uint32_t word = pair < 2 ? raw.bits.x : raw.bits.y;
    const float2 value = cvt_f32_f16x2(cvt_f16x2_e4m3x2(static_cast<uint16_t>(word >> 16 * (pair % 2))));
    w[pair] = cvt_bf16x2_f32(value.x * scale, value.y * scale);
  }
}

__device__ __forceinline__ void decode(uint32_t (&w)[4], const Raw<Format::FP4>& raw) {
  e2m1x8_to_bf16(w, raw.bits, ue8m0_bf16x2(raw.scale));
}

// One chunk of a row tile times eight tokens.
__device__ __forceinline__ void multiply(float (&sum)[4], const uint32_t (&upper)[4], const uint32_t (&lower)[4],
                                         const uint4& x) {
  const uint32_t a0[4] = {upper[0], lower[0], upper[1], lower[1]}, b0[2] = {x.x, x.y};
  mma_bf16_m16n8k16(sum, a0, b0, sum);
  const uint32_t a1[4] = {upper[2], lower[2], upper[3], lower[3]}, b1[2] = {x.z, x.w};
  mma_bf16_m16n8k16(sum, a1, b1, sum);
}

// The rows of a tile that a lane loads: g and g + 8, those beyond the end are the last one again.
template <Format F>
struct TileRows {
  typename Matrix<F>::Row row[2];

  __device__ __forceinline__ TileRows(const Matrix<F>& matrix, int64_t base, int first, int rows, int lane) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      row[half] = matrix.row(base + min(first + lane / 4 + 8 * half, rows - 1), lane % 4);
  }
};

// Rows first.. of `rows` rows from base[tile] on, times `tokens` (1..16) tokens; token(i) is where the inputs of token i
// start. All threads of the block (256). store(row, token, values) gets the sums of a row, one per tile.
template <Format F, int TILES, typename Token, typename Store>
__device__ __forceinline__ void multiply_few(const Matrix<F>& matrix, const int64_t (&base)[TILES], int first, int rows,
                                             int tokens, const Token& token, const Store& store) {
  FewPlan<TILES>& plan = *reinterpret_cast<FewPlan<TILES>*>(shared_bytes);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, quarter = lane % 4;
  const int chunks = matrix.k / CHUNK;
  constexpr int AHEAD = LOADS / TILES;   // what is under way waits in registers
  const bool wide = tokens > 8;
  const uint16_t* x[2] = {token(min(g, tokens - 1)) + 8 * quarter, token(min(g + 8, tokens - 1)) + 8 * quarter};
  float sum[TILES][2][4] = {};
  typename Matrix<F>::Row row[TILES][2];
#pragma unroll
  for (int tile = 0; tile < TILES; ++tile) {
    const TileRows<F> of(matrix, base[tile], first, rows, lane);
    row[tile][0] = of.row[0];
    row[tile][1] = of.row[1];
  }

#pragma unroll 1
  for (int at = warp; at < chunks; at += FEW_WARPS * AHEAD) {
    Raw<F> raw[AHEAD][TILES][2];
    uint4 in[AHEAD][2];
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
      const int chunk = min(at + i * FEW_WARPS, chunks - 1);
#pragma unroll
      for (int tile = 0; tile < TILES; ++tile) {
        raw[i][tile][0] = Matrix<F>::load(row[tile][0], chunk);
        raw[i][tile][1] = Matrix<F>::load(row[tile][1], chunk);
      }
      in[i][0] = ld_global_nc_v4(x[0] + chunk * CHUNK);
      if (wide) in[i][1] = ld_global_nc_v4(x[1] + chunk * CHUNK);
    }
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
      if (at + i * FEW_WARPS >= chunks) break;
#pragma unroll
      for (int tile = 0; tile < TILES; ++tile) {
        uint32_t upper[4], lower[4];
        decode(upper, raw[i][tile][0]);
        decode(lower, raw[i][tile][1]);
        multiply(sum[tile][0], upper, lower, in[i][0]);
        if (wide) multiply(sum[tile][1], upper, lower, in[i][1]);
      }
    }
  }

#pragma unroll
  for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        plan.sum[warp][tile * TILE_ROWS + g + i / 2 * 8][n * 8 + 2 * quarter + i % 2] = sum[tile][n][i];
  __syncthreads();
  // A thread per row and token; neighbours have neighbouring rows.
  const int r = threadIdx.x % TILE_ROWS, t = threadIdx.x / TILE_ROWS;
  if (t < tokens && first + r < rows) {
    float total[TILES];
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile) {
      total[tile] = plan.sum[0][tile * TILE_ROWS + r][t];
#pragma unroll
      for (int w = 1; w < FEW_WARPS; ++w) total[tile] += plan.sum[w][tile * TILE_ROWS + r][t];
    }
    store(first + r, t, total);
  }
}
static_assert(FEW_WARPS * 32 == TILE_ROWS * FEW_TOKENS, "a thread adds up one row of one token");

// The same for up to 64 tokens and 64 rows (per tile) from `first` on; 128 threads. Before either is called again by the same
// block, all its threads must have returned.
template <Format F, int TILES, typename Token, typename Store>
__device__ __forceinline__ void multiply_many(const Matrix<F>& matrix, const int64_t (&base)[TILES], int first, int rows,
                                              int tokens, const Token& token, const Store& store) {
  ManyPlan& plan = *reinterpret_cast<ManyPlan*>(shared_bytes);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, quarter = lane % 4;
  const int chunks = matrix.k / CHUNK, stages = (chunks + STAGE_CHUNKS - 1) / STAGE_CHUNKS;

  // A thread copies 16 bytes of the same chunk of four tokens.
  constexpr int COPIES = MANY_TOKENS * STAGE_CHUNKS * 4 / (MANY_WARPS * 32);
  constexpr int COPY_TOKENS = MANY_TOKENS / COPIES;
  const int piece = threadIdx.x % 4, copy_chunk = threadIdx.x / 4 % STAGE_CHUNKS, copy_token = threadIdx.x / 8;
  const uint16_t* from[COPIES];
#pragma unroll
  for (int i = 0; i < COPIES; ++i)
    from[i] = token(min(copy_token + i * COPY_TOKENS, tokens - 1)) + copy_chunk * CHUNK + piece * 8;
  const auto issue = [&](int stage) {
    if (stage < stages && stage * STAGE_CHUNKS + copy_chunk < chunks) {
#pragma unroll
      for (int i = 0; i < COPIES; ++i) {
        uint8_t* to = plan.token[stage % STAGES][copy_chunk][copy_token + i * COPY_TOKENS] + piece * 16;
        cp_async_16(shared_address(to), from[i] + stage * (STAGE_CHUNKS * CHUNK));
      }
    }
    cp_async_commit_group();
  };

  const int tile_first = first + warp * TILE_ROWS;
  typename Matrix<F>::Row row[TILES][2];
#pragma unroll
  for (int tile = 0; tile < TILES; ++tile) {
    const TileRows<F> of(matrix, base[tile], tile_first, rows, lane);
    row[tile][0] = of.row[0];
    row[tile][1] = of.row[1];
  }
  Raw<F> raw[STAGE_CHUNKS][TILES][2];
  const auto fetch = [&](int stage) {
#pragma unroll
    for (int c = 0; c < STAGE_CHUNKS; ++c) {
      const int chunk = min(stage * STAGE_CHUNKS + c, chunks - 1);
#pragma unroll
      for (int tile = 0; tile < TILES; ++tile) {
        raw[c][tile][0] = Matrix<F>::load(row[tile][0], chunk);
        raw[c][tile][1] = Matrix<F>::load(row[tile][1], chunk);
      }
    }
  };

  float sum[TILES][TOKEN_TILES][4] = {};
#pragma unroll
  for (int i = 0; i < STAGES - 1; ++i) issue(i);
  fetch(0);
#pragma unroll 1
  for (int stage = 0; stage < stages; ++stage) {
    uint32_t upper[STAGE_CHUNKS][TILES][4], lower[STAGE_CHUNKS][TILES][4];
#pragma unroll
    for (int c = 0; c < STAGE_CHUNKS; ++c)
#pragma unroll
      for (int tile = 0; tile < TILES; ++tile) {
        decode(upper[c][tile], raw[c][tile][0]);
        decode(lower[c][tile], raw[c][tile][1]);
      }
    fetch(stage + 1);
    cp_async_wait_group<STAGES - 2>();
    // Every thread's part of this stage is there, and nobody reads the stage before, whose place is filled next.
    __syncthreads();
    issue(stage + STAGES - 1);
#pragma unroll
    for (int c = 0; c < STAGE_CHUNKS; ++c) {
      if (stage * STAGE_CHUNKS + c >= chunks) break;
      const uint32_t in = shared_address(plan.token[stage % STAGES][c][g]) + quarter * 16;
#pragma unroll
      for (int n = 0; n < TOKEN_TILES; ++n) {
        const uint4 x = ld_shared_v4(in + n * 8 * 2 * CHUNK);
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) multiply(sum[tile][n], upper[c][tile], lower[c][tile], x);
      }
    }
  }

#pragma unroll
  for (int n = 0; n < TOKEN_TILES; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int r = tile_first + g + i / 2 * 8, t = n * 8 + 2 * quarter + i % 2;
      float total[TILES];
#pragma unroll
      for (int tile = 0; tile < TILES; ++tile) total[tile] = sum[tile][n][i];
      if (r < rows && t < tokens) store(r, t, total);
    }
}
static_assert(STAGE_CHUNKS == 2, "threadIdx.x / 8 is a token: four pieces of two chunks each");
