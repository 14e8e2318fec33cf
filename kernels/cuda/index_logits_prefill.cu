// Scores of the lightning indexer for prefill: the queries of ragged sequences, each against a range of its sequence's keys.
// targets: sm89 sm120a
//
// In   index_q        [t, 64, 128] e4m3 | bf16, contiguous; fp4: [t, 64] of 64 bytes of e2m1 and 4 ue8m0
//      index_weights  [t, 64] f32, contiguous
//      index_k        pages of P rows; fp8: P x 128 e4m3, then P x f32 scale; bf16: P x 128 bf16; fp4: P x 64 bytes of e2m1
//                     (low nibble = even channel), then P x 4 ue8m0
//      block_table    [b, max_pages] s32, last axis contiguous
//      cu_seqlens_q   [b + 1] s32, ascending: sequence s brings the queries cu_seqlens_q[s] .. cu_seqlens_q[s + 1]
//      starts, ends   [t] s32, starts or null (0): query r scores keys starts[r] .. ends[r] of its sequence
// Out  index_logits   [t, stride_logits] f32
// Launch: grid (t / 8 + b, splits), 256 threads, Plan<format> bytes of shared memory. splits: any, the result is the same.
//
//      logit[r, j] = k_scale[j] * sum_h w[r, h] * relu(q[r, h] . k[j])         (k_scale = 1 for bf16 and fp4 keys)
//
// Numerics and fp4 dot products: index_logits_decode.cu; a key has the same bits as from index_logits_decode.
// Invalid: entries of cu_seqlens_q are clamped to 0..t, starts and ends to 0..max_pages * P; a page id outside the pool gives
// -inf and its memory is not read, nor is a key's that no query of the block asks for. Entries outside starts .. ends are -inf
// up to the row stride with clean_logits, else not written. Rows of no sequence are not touched.
// Called by kernel-bindings/src/ops/index_logits_prefill.rs.
//
// Work. A block has eight consecutive queries of one sequence, a warp each, and a share of the 64-key tiles from their least
// start to their largest end: tiles outside are nobody's work, so that a causal batch costs what lies below its diagonal.
// Sequence s is given (cu_seqlens_q[s + 1] / 8) - (cu_seqlens_q[s] / 8) + 1 blocks, at least as many as it needs; so the blocks
// before it are cu_seqlens_q[s] / 8 + s, a block finds its sequence by search, 32 sequences per step, and one without queries
// leaves. Blocks are counted from the last one on: in a causal batch the longest go first.
//
// Pipeline. All warps fetch and all warps score. A ring of STAGES tiles in shared memory: while tile i is scored, tile i + AHEAD is
// fetched, eight keys per warp: a lane of eight finds a key (its page id asked for a tile earlier), all 32 copy. A barrier `full`
// per slot counts the copies of every thread, and one arrival per warp for the byte that says which of its keys are there; a
// barrier `empty` counts every thread that is done with the slot. AHEAD is two less than the ring is long, so that a warp may be
// a tile behind the others before they wait for it.
//
// Cost per warp and 64 keys, e4m3 (bf16): 128 (256) mma, 128 max, 128 fma, 16 (32) shared loads of 16 B, 14 shuffles, 2 stores; to
// fetch, about 90 (110) instructions. Per tile and SM: 4,096 (8,192) cycles of the matrix pipe at 2048 e4m3 (1024 bf16) FLOP per
// cycle, about 1,450 (1,870) of issue, 550 (1,050) of shared memory. A tile's 8,448 B (16,384 B) in that time are 2.1 B (2.0 B) per cycle
// and SM, out of L2: all blocks of a sequence read the same keys. The matrix pipe binds; README.md has the whole account.
#include "index_logits.cuh"
#include "ptx/cp_async.cuh"

using Params = Sm120IndexLogitsPrefillParams;

constexpr int QUERIES = 8;                  // of a block, one per warp
constexpr int WARPS = QUERIES;
constexpr int THREADS = WARPS * LANES;
constexpr int WARP_KEYS = TILE / WARPS;     // keys of a tile that a warp fetches
constexpr int STAGES = 5;
constexpr int AHEAD = STAGES - 2;           // tiles from the one that is scored to the one that is fetched
constexpr int CLEAN_COLUMNS = 256;          // the row stride is a multiple of this

static_assert(WARP_KEYS == 8, "a byte says which keys of a warp are there");

struct Range {
  int start, end;   // empty ones are 0, 0
};

// Shared memory of a block.
template <Format F>
struct Plan {
  Range asked[QUERIES];                             // by the queries of the block
  uint8_t ring[STAGES][Shape<F>::STAGE_BYTES];      // keys and scales
  alignas(8) uint8_t loaded[STAGES][WARPS];         // bit i of byte w: key 8w + i of the tile is there
  uint64_t full[STAGES];
  uint64_t empty[STAGES];
};

extern __shared__ __align__(128) uint8_t shared_raw[];

// ------------------------------------------------------------------------------------------------------- work of a block
struct Block {
  int sequence;
  int first;     // query
  int queries;   // none: nothing to do
};

// First query of sequence s; of s = b, the one behind the last.
__device__ __forceinline__ int first_query(const Params& p, int s) { return min(max(__ldg(p.cu_seqlens_q + s), 0), p.t); }

// The same for all lanes.
__device__ __forceinline__ Block find_block(const Params& p, int lane) {
  const int begin = first_query(p, 0) / QUERIES, end = first_query(p, p.b) / QUERIES + p.b;
  const int index = end - 1 - static_cast<int>(blockIdx.x);
  Block block = {0, 0, 0};
  if (index < begin) return block;
  // The last sequence with no more than `index` blocks before it: among `count` from `low` on, the first of which is one.
  int low = 0, count = p.b;
  while (count > 1) {
    const int step = (count + LANES - 1) / LANES, s = lane * step;
    const bool reached = s < count && first_query(p, low + s) / QUERIES + low + s <= index;
    const int last = (__popc(__ballot_sync(~0u, reached)) - 1) * step;
    low += last;
    count = min(step, count - last);
  }
  const int from = first_query(p, low);
  block.sequence = low;
  block.first = from + (index - from / QUERIES - low) * QUERIES;
  block.queries = min(first_query(p, low + 1) - block.first, QUERIES);
  return block;
}

__device__ __forceinline__ Range query_range(const Params& p, int row) {
  const int limit = p.max_pages * p.index_k.page_size;   // fits: checked by the host
  const int start = p.starts == nullptr ? 0 : min(max(__ldg(p.starts + row), 0), limit);
  const int end = min(max(__ldg(p.ends + row), 0), limit);
  return start < end ? Range{start, end} : Range{0, 0};
}

// A block's tiles, and which of their keys some query asks for.
struct Keys {
  Range all;               // from the least start to the largest end
  bool gaps;               // there may be keys in between that no query asks for
  int first_tile, tiles;   // of this block: its share

  // `own`: the range of the query of lane 0 .. 7, empty in the other lanes.
  __device__ __forceinline__ void find(Range own) {
    const bool empty = own.end == 0;
    all.start = __reduce_min_sync(~0u, empty ? 0x7fffffff : own.start);
    all.end = __reduce_max_sync(~0u, own.end);
    gaps = __reduce_max_sync(~0u, own.start) > __reduce_min_sync(~0u, empty ? 0x7fffffff : own.end);
    first_tile = all.start / TILE;
    const int total = all.end == 0 ? 0 : (all.end + TILE - 1) / TILE - first_tile;
    const int splits = gridDim.y, split = blockIdx.y, each = total / splits, more = total % splits;
    first_tile += each * split + min(split, more);
    tiles = each + (split < more ? 1 : 0);
  }

  __device__ __forceinline__ bool wanted(const Range (&asked)[QUERIES], int key) const {
    if (key < all.start || key >= all.end) return false;
    bool any = !gaps;
    for (int i = 0; i < QUERIES && !any; ++i) any = key >= asked[i].start && key < asked[i].end;
    return any;
  }
};

// --------------------------------------------------------------------------------------------------------------- producer
// Fetches tiles into the ring, in order; every warp its eight keys.
template <Format F>
struct Fetcher {
  using S = Shape<F>;
  static constexpr int PIECES = S::ROW_BYTES / COPY_ALIGN;      // of a key
  static constexpr int KEYS_PER_COPY = LANES / PIECES;          // that a warp copies at a time
  const Params& p;
  Plan<F>& plan;
  const Keys& keys;
  const int32_t* line;   // of the block table
  int warp, lane;
  int tile = 0;          // of the share, to be fetched next
  uint32_t stage = 0, parity = 1;   // a wait on a slot that nothing has been in passes
  Source next = {-1, 0};            // lanes 0 .. 7: the key of that tile, page id as it stands in the table

  __device__ __forceinline__ void look_up() {
    const int key = (keys.first_tile + tile) * TILE + warp * WARP_KEYS + lane;
    next.page = -1;
    if (lane < WARP_KEYS && tile < keys.tiles && keys.wanted(plan.asked, key)) {
      const int column = key / p.index_k.page_size;
      next = {__ldg(line + column), key - column * p.index_k.page_size};
    }
  }

  // FIRST: nothing has been in the slot, so there is nobody to wait for.
  template <bool FIRST>
  __device__ __forceinline__ void fetch() {
    if (tile >= keys.tiles) return;
    const uint32_t full = shared_address(&plan.full[stage]);
    if (!FIRST) wait(shared_address(&plan.empty[stage]), parity);
    const bool valid = next.page >= 0 && next.page < p.index_k.num_pages;
    const uint32_t loaded = __ballot_sync(~0u, valid);
    const uint32_t half = shared_address(plan.ring[stage]) + warp / (WARPS / 2) * S::HALF_PITCH;
    const int first = warp % (WARPS / 2) * WARP_KEYS;   // row of the half
#pragma unroll
    for (int i = 0; i < WARP_KEYS; i += KEYS_PER_COPY) {
      const int key = i + lane / PIECES, at = lane % PIECES * COPY_ALIGN;
      const Source source = {__shfl_sync(~0u, next.page, key), __shfl_sync(~0u, next.offset, key)};
      if (loaded >> key & 1) {
        cp_async_16(half + S::row_at(first + key) + at, key_address<F>(p.index_k, source) + at);
      }
    }
    if constexpr (S::SCALE_BYTES != 0) {
      if (valid) cp_async_4(half + S::HALF_SCALES + (first + lane) * S::SCALE_BYTES, scale_address<F>(p.index_k, next));
    }
    if (lane == 0) {
      plan.loaded[stage][warp] = static_cast<uint8_t>(loaded);
      mbarrier_arrive(full);
    }
    cp_async_mbarrier_arrive_noinc(full);
    if (++stage == STAGES) stage = 0, parity ^= 1;
    ++tile;
    look_up();
  }
};

// --------------------------------------------------------------------------------------------------------------- consumers
// -inf in columns from .. to of a row.
__device__ __forceinline__ void clean(float* logits, int64_t from, int64_t to, int lane) {
  const float INF = __int_as_float(0x7f800000);
  for (int64_t column = from / 4 * 4 + lane * 4; column < to; column += LANES * 4) {
    if (column >= from && column + 4 <= to) {
      *reinterpret_cast<float4*>(logits + column) = make_float4(-INF, -INF, -INF, -INF);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (column + i >= from && column + i < to) logits[column + i] = -INF;
      }
    }
  }
}

// A block of a split cleans a share of the columns, whatever keys it scores.
__device__ __forceinline__ void clean_outside(const Params& p, float* logits, Range range, int lane) {
  const int64_t units = p.stride_logits / CLEAN_COLUMNS;
  const int64_t begin = units * blockIdx.y / gridDim.y * CLEAN_COLUMNS, end = units * (blockIdx.y + 1) / gridDim.y * CLEAN_COLUMNS;
  clean(logits, begin, min(end, static_cast<int64_t>(range.start)), lane);
  clean(logits, max(begin, static_cast<int64_t>(range.end)), end, lane);
}

// ------------------------------------------------------------------------------------------------------------------ entries
template <Format F>
__device__ __forceinline__ void index_logits(const Params& p) {
  using S = Shape<F>;
  Plan<F>& plan = *reinterpret_cast<Plan<F>*>(shared_raw);
  const int warp = threadIdx.x / LANES, lane = threadIdx.x % LANES;
  const Block block = find_block(p, lane);
  if (block.queries <= 0) return;
  const Range own = lane < block.queries ? query_range(p, block.first + lane) : Range{0, 0};
  Keys keys;
  keys.find(own);

  const int row = block.first + warp;
  const Range range = {__shfl_sync(~0u, own.start, warp), __shfl_sync(~0u, own.end, warp)};
  float* logits = p.index_logits + row * p.stride_logits;
  if (p.clean_logits && warp < block.queries) clean_outside(p, logits, range, lane);
  if (keys.tiles == 0) return;

  if (threadIdx.x < QUERIES) plan.asked[lane] = own;
  if (threadIdx.x < STAGES) {
    mbarrier_init(shared_address(&plan.full[threadIdx.x]), THREADS + WARPS);
    mbarrier_init(shared_address(&plan.empty[threadIdx.x]), THREADS);
  }
  __syncthreads();

  Fetcher<F> fetcher{p, plan, keys, p.block_table + block.sequence * p.stride_block_table, warp, lane};
  fetcher.look_up();
#pragma unroll 1
  for (int i = 0; i < AHEAD; ++i) fetcher.template fetch<true>();
  Query<F> query;
  Weights weights;
  if (range.start < range.end) query.load(p.index_q, lane, row), weights.load(p.index_weights, lane, row);

  uint32_t stage = 0, parity = 0;
#pragma unroll 1
  for (int i = 0; i < keys.tiles; ++i) {
    fetcher.template fetch<false>();
    const int first_key = (keys.first_tile + i) * TILE;
    wait(shared_address(&plan.full[stage]), parity);
    if (first_key < range.end && first_key + TILE > range.start) {
      const uint2 rows = *reinterpret_cast<const uint2*>(plan.loaded[stage]);
      const Tile tile = {shared_address(plan.ring[stage]), rows.x, rows.y};
#pragma unroll 1
      for (int part = 0; part < 2; ++part) {
        const float logit = logit_of(score_part<F>(query, weights, tile, part, true, lane), lane);
        const int key = first_key + key_in_tile<F>(part, lane);
        if (key >= range.start && key < range.end) logits[key] = logit;
      }
    }
    mbarrier_arrive(shared_address(&plan.empty[stage]));
    if (++stage == STAGES) stage = 0, parity ^= 1;
  }
}

extern "C" __global__ __launch_bounds__(THREADS, 1)
void SM120_ENTRY(index_logits_prefill_fp8)(const __grid_constant__ Params p) {
  declare_shared<sizeof(Plan<Format::FP8>)>();
  index_logits<Format::FP8>(p);
}

extern "C" __global__ __launch_bounds__(THREADS, 1)
void SM120_ENTRY(index_logits_prefill_bf16)(const __grid_constant__ Params p) {
  declare_shared<sizeof(Plan<Format::BF16>)>();
  index_logits<Format::BF16>(p);
}

extern "C" __global__ __launch_bounds__(THREADS, 1)
void SM120_ENTRY(index_logits_prefill_fp4)(const __grid_constant__ Params p) {
  declare_shared<sizeof(Plan<Format::FP4>)>();
  index_logits<Format::FP4>(p);
}
