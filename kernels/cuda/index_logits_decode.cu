// Scores of the lightning indexer for decoding: every cached index key against the index queries of its sequence.
// targets: sm89 sm120a
//
// In   index_q        [b, s_q, 64, 128] e4m3 | bf16, contiguous; fp4: [b, s_q, 64] of 64 bytes of e2m1 and 4 ue8m0
//      index_weights  [b, s_q, 64] f32, contiguous
//      index_k        pages of P rows (multiples of 32 are fast); fp8: P x 128 e4m3, then P x f32 scale; bf16: P x 128 bf16;
//                     fp4: P x 64 bytes of e2m1 (low nibble = even channel), then P x 4 ue8m0
//      block_table    [b, max_pages] s32, last axis contiguous;  context_lens [b, s_q] s32
// Out  index_logits   [b * s_q, stride_logits] f32
// Launch: any grid (one block per SM is meant), 224 threads = 6 consumer warps + 1 producer warp, Plan<format> bytes of
// shared memory.
//
//      logit[r, j] = k_scale[j] * sum_h w[r, h] * relu(q[r, h] . k[j])         (k_scale = 1 for bf16 and fp4 keys)
//      fp4: q . k = sum over 4 groups of 32 channels of q_scale * k_scale * sum_c q_c k_c
//
// Numerics: dot products summed in f32 by the matrix unit, everything after in f32, no flush to zero. A lane sums its heads
// g, g + 8, ... 56 + g by fused multiply-adds, then lanes g and g ^ 4, g ^ 2, g ^ 1 are added: the same order for every key,
// wherever it stands. relu lets NaN through; a scale byte of 255 is NaN.
// Invalid: a page id outside the pool, inside n, gives -inf and its memory is not read; n is context_lens clamped to
// 0..max_pages * P. Entries at and beyond n are -inf up to the row stride with clean_logits, else not written.
// Called by kernel-bindings/src/ops/index_logits_decode.rs.
//
// Work. A tile is 64 consecutive keys of one sequence for all of its queries. Tiles are numbered over the batch; a block
// takes an equal, contiguous share (or what split_plan says). Every warp finds its place by itself: each sums the tile
// counts of a seventh of the batch, one barrier later everybody knows the seven sums, the share and where it starts. Lengths
// are read on the device only, so a captured launch replays with other lengths.
//
// Pipeline. The producer warp walks the share, 32 tiles at a time (one lane each finds sequence and page ids), and fills a
// ring of STAGES tiles in shared memory: keys, scales and a four-word record arrive under one `full` barrier. Where P is a
// multiple of 32, half a tile is one copy of keys and one of scales; else a lane fetches a row at a time. A consumer
// warp belongs to one query of the sequence; it scores half a tile (32 keys) at a time, in turn with the other warps of that
// query, so keys are fetched once for all queries. The query is the left operand of the products and stays in registers (64
// for e4m3, 128 for bf16, 34 for fp4, on sm89 128 since it is decoded to bf16; 8 weights) until the sequence changes. Every lane that read from a slot arrives on its `empty`.
// A wait by parity cannot tell a phase from the one two phases back, so a warp has to see every phase of the slots that it
// waits for: the jobs of 6, 3, 2 or 1 warps (s_q = 1..4) repeat after 3, 3, 1, 1 tiles, and the ring is a multiple of 3 long.
//
// The score of a key: index_logits.cuh; the layout of a tile in shared memory: index_logits_tile.cuh.
//
// Cost per warp and 32 keys, e4m3 (bf16): 64 (128) mma, 64 max, 64 fma, 8 (16) shared loads of 16 B, 7 shuffles, one store.
// Per key and SM: 8 (16) cycles of the matrix pipe at 2048 e4m3 (1024 bf16) FLOP per cycle, about 3 of issue; a key's 132 + 4
// bytes (256 + 4) take 37 (71) cycles of a 188-SM card's 1792 GB/s. fp4 on sm120a: 32 mma, 4 matrix loads and 2 words per 32 keys;
// per key 4 cycles of the matrix pipe, 2 of issue, 20 of memory. Memory binds; README.md has the whole account.
#include "index_logits.cuh"
#include "ptx/bulk.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/fence.cuh"

constexpr int CONSUMERS = 6;               // warps
constexpr int WARPS = CONSUMERS + 1;       // the last one is the producer
constexpr int TURN = 3;                    // tiles after which the warps of a query take the same jobs again, or a divisor
constexpr int THREADS = WARPS * LANES;
constexpr int CLEAN_COLUMNS = 1024;        // logits that a warp cleans at a time

template <Format F>
constexpr int STAGES = F == Format::FP8 ? 9 : F == Format::BF16 ? 6 : 18;
static_assert(STAGES<Format::FP8> % TURN == 0 && STAGES<Format::BF16> % TURN == 0 && STAGES<Format::FP4> % TURN == 0,
              "every use of a slot must be seen by the same warps");

// Shared memory of a block.
template <Format F>
struct Plan {
  uint8_t ring[STAGES<F>][Shape<F>::STAGE_BYTES];   // keys and scales
  uint4 record[STAGES<F>];                          // sequence, first key, rows loaded in half 0, in half 1 (bits)
  uint64_t full[STAGES<F>];
  uint64_t empty[STAGES<F>];
  int32_t section_tiles[WARPS];
};

extern __shared__ __align__(128) uint8_t shared_raw[];

// Whether keys arrive by bulk copies, which only SM120 has.
__device__ __forceinline__ bool bulk_copies(bool by_halves) { return SM120_TARGET_SM120A && by_halves; }

// ---------------------------------------------------------------------------------------------------- walk of the batch
using Params = Sm120IndexLogitsDecodeParams;

// Keys of row r = sequence * s_q + query.
__device__ __forceinline__ int row_len(const Params& p, int row) {
  const int limit = p.max_pages * p.index_k.page_size;   // fits: checked by the host
  return min(max(__ldg(p.context_lens + row), 0), limit);
}

// Keys of a sequence: what its longest query sees. 0 beyond the batch.
__device__ __forceinline__ int sequence_len(const Params& p, int sequence) {
  int keys = 0;
  if (sequence < p.b) {
#pragma unroll 1
    for (int query = 0; query < p.s_q; ++query) keys = max(keys, row_len(p, sequence * p.s_q + query));
  }
  return keys;
}

__device__ __forceinline__ int tiles_of(int keys) { return (static_cast<uint32_t>(keys) + TILE - 1) / TILE; }

// 32 consecutive sequences, one per lane.
struct Window {
  int first;    // sequence of lane 0
  int keys;     // this lane's
  int end;      // tiles of the batch up to and including this lane's sequence

  __device__ __forceinline__ void load(const Params& p, int lane, int first_sequence, int tiles_before) {
    first = first_sequence;
    keys = sequence_len(p, first + lane);
    end = tiles_of(keys);
    for (int step = 1; step < LANES; step *= 2) {
      const int other = __shfl_up_sync(~0u, end, step);
      if (lane >= step) end += other;
    }
    end += tiles_before;
  }

  __device__ __forceinline__ int last_end() const { return __shfl_sync(~0u, end, LANES - 1); }

  // Moves on until the window holds that tile of the batch, which exists and is not before the window.
  __device__ __forceinline__ void advance(const Params& p, int lane, int tile) {
    for (int before = last_end(); before <= tile; before = last_end()) load(p, lane, first + LANES, before);
  }
};

// A block's share of the tiles.
struct Share {
  int begin;
  int count;
};

// Sequences whose tiles one warp counts at the start: a multiple of 32, so that windows line up.
__device__ __forceinline__ int section_len(const Params& p) {
  return (p.b + WARPS * LANES - 1) / (WARPS * LANES) * LANES;
}

__device__ __forceinline__ int section_tiles(const Params& p, int warp, int lane) {
  const int section = section_len(p);
  int tiles = 0;
#pragma unroll 4
  for (int i = lane; i < section; i += LANES) tiles += tiles_of(sequence_len(p, warp * section + i));
  return __reduce_add_sync(~0u, tiles);
}

__device__ __forceinline__ Share block_share(const Params& p, const int32_t (&sections)[WARPS]) {
  int total = 0;
  for (int i = 0; i < WARPS; ++i) total += sections[i];
  const int block = blockIdx.x;
  if (p.split_plan != nullptr) {
    const int begin = min(max(__ldg(p.split_plan + block), 0), total);
    return {begin, max(min(__ldg(p.split_plan + block + 1), total) - begin, 0)};
  }
  const int each = total / gridDim.x, more = total % gridDim.x;   // the first `more` blocks take one tile more
  return {each * block + min(block, more), each + (block < more ? 1 : 0)};
}

// The window that holds a tile of the batch, which must exist.
__device__ __forceinline__ Window seek(const Params& p, const int32_t (&sections)[WARPS], int lane, int tile) {
  const int section = section_len(p);
  int before = 0, i = 0;
  while (before + sections[i] <= tile) before += sections[i++];
  Window window;
  window.load(p, lane, i * section, before);
  window.advance(p, lane, tile);
  return window;
}

// --------------------------------------------------------------------------------------------------------------- producer
__device__ __forceinline__ Source locate(const Params& p, int sequence, int key, int keys) {
  Source source = {-1, key % p.index_k.page_size};
  if (key < keys) {
    const int page = __ldg(p.block_table + sequence * p.stride_block_table + key / p.index_k.page_size);
    if (page >= 0 && page < p.index_k.num_pages) source.page = page;
  }
  return source;
}

// Halves of tiles lie in one page each when the page size is a multiple of 32. Else rows are found and copied one by one.
__device__ __forceinline__ bool one_page_per_half(const Params& p) { return p.index_k.page_size % HALF == 0; }

// Bytes that the scales of the first rows of a half take up in a copy. The page has a multiple of 32 of them, so what is
// copied beyond the last row lies in the page; nobody uses it.
template <Format F>
__device__ __forceinline__ int scale_bytes(int rows) {
  return (rows * Shape<F>::SCALE_BYTES + COPY_ALIGN - 1) / COPY_ALIGN * COPY_ALIGN;
}

// Starts the copy of the first `rows` rows of a half, which lie side by side from `source` on; called by the whole warp.
template <Format F>
__device__ __forceinline__ void copy_half(const Params& p, int lane, uint32_t shared, Source source, int rows, uint32_t full) {
  using S = Shape<F>;
  const uint8_t* keys = key_address<F>(p.index_k, source);
  const uint8_t* scales = scale_address<F>(p.index_k, source);
#if SM120_TARGET_SM120A
  if (lane == 0 && rows > 0) {
    bulk_load(shared, keys, min(rows, S::RUN) * S::ROW_BYTES, full);
    if constexpr (S::RUNS == 2) {
      if (rows > S::RUN) bulk_load(shared + S::RUN_PITCH, keys + S::RUN * S::ROW_BYTES, (rows - S::RUN) * S::ROW_BYTES, full);
    }
    if constexpr (S::SCALE_BYTES != 0) bulk_load(shared + S::HALF_SCALES, scales, scale_bytes<F>(rows), full);
  }
#else
#pragma unroll
  for (int i = 0; i < HALF * S::ROW_BYTES; i += LANES * COPY_ALIGN) {
    const int at = i + lane * COPY_ALIGN, run = i / (S::RUN * S::ROW_BYTES);
    if (at < rows * S::ROW_BYTES) cp_async_16(shared + run * (S::RUN_PITCH - S::RUN * S::ROW_BYTES) + at, keys + at);
  }
  if constexpr (S::SCALE_BYTES != 0) {
    const int at = lane * COPY_ALIGN;
    if (at < scale_bytes<F>(rows)) cp_async_16(shared + S::HALF_SCALES + at, scales + at);
  }
#endif
}

// Starts the copy of this lane's row of a half.
template <Format F>
__device__ __forceinline__ void copy_row(const Params& p, int lane, uint32_t shared, Source source) {
  using S = Shape<F>;
  if (source.page < 0) return;
  const uint8_t* key = key_address<F>(p.index_k, source);
#pragma unroll
  for (int at = 0; at < S::ROW_BYTES; at += COPY_ALIGN) cp_async_16(shared + S::row_at(lane) + at, key + at);
  if constexpr (S::SCALE_BYTES != 0) cp_async_4(shared + S::HALF_SCALES + lane * S::SCALE_BYTES, scale_address<F>(p.index_k, source));
}

__device__ __forceinline__ Source broadcast(Source source, int lane) {
  return {__shfl_sync(~0u, source.page, lane), __shfl_sync(~0u, source.offset, lane)};
}

// The first `count` of 32 rows, as bits; none when it is negative.
__device__ __forceinline__ uint32_t first_rows(int count) { return count <= 0 ? 0 : ~0u >> (HALF - min(count, HALF)); }

template <Format F>
__device__ __forceinline__ void produce(const Params& p, const Plan<F>& plan, int lane, Share share) {
  using S = Shape<F>;
  const uint32_t ring = shared_address(plan.ring), record = shared_address(plan.record);
  const uint32_t full = shared_address(plan.full), empty = shared_address(plan.empty);
  const bool by_halves = one_page_per_half(p);
  Window window = seek(p, plan.section_tiles, lane, share.begin);
  uint32_t stage = 0, parity = 1;   // the first wait on every slot passes: nothing is in it
  for (int done = 0; done < share.count;) {
    // One tile per lane, up to the last tile of the window.
    const int tile = share.begin + done + lane;
    int position = 0;   // sequences of the window that end at or before the tile
    for (int step = LANES / 2; step > 0; step /= 2) {
      if (__shfl_sync(~0u, window.end, position + step - 1) <= tile) position += step;
    }
    const int end = __shfl_sync(~0u, window.end, position), keys = __shfl_sync(~0u, window.keys, position);
    const int batch = min(min(share.count - done, LANES), window.last_end() - (share.begin + done));
    const int sequence = window.first + position;
    const int first = (tile - end + tiles_of(keys)) * TILE;
    const int until = lane < batch ? keys : 0;
    const Source half0 = locate(p, sequence, first, until), half1 = locate(p, sequence, first + HALF, until);

    for (int i = 0; i < batch; ++i) {
      const int first_i = __shfl_sync(~0u, first, i), sequence_i = __shfl_sync(~0u, sequence, i);
      const int keys_i = __shfl_sync(~0u, keys, i);
      Source from0 = broadcast(half0, i), from1 = broadcast(half1, i);   // of the first row of each half
      uint32_t rows0 = from0.page < 0 ? 0 : first_rows(keys_i - first_i);
      uint32_t rows1 = from1.page < 0 ? 0 : first_rows(keys_i - first_i - HALF);
      int bytes = (__popc(rows0) + __popc(rows1)) * S::ROW_BYTES + scale_bytes<F>(__popc(rows0)) + scale_bytes<F>(__popc(rows1));
      if (!by_halves) {   // of this lane's row of each half
        from0 = locate(p, sequence_i, first_i + lane, keys_i), from1 = locate(p, sequence_i, first_i + HALF + lane, keys_i);
        rows0 = __ballot_sync(~0u, from0.page >= 0), rows1 = __ballot_sync(~0u, from1.page >= 0);
        bytes = 0;
      }
      const uint32_t slot = ring + stage * S::STAGE_BYTES, full_i = full + stage * 8;
      wait(empty + stage * 8, parity);
      if (lane == 0) {
        st_shared_v4(record + stage * 16, make_uint4(sequence_i, first_i, rows0, rows1));
#if SM120_TARGET_SM120A
        mbarrier_arrive_expect_tx(full_i, bytes);
#else
        mbarrier_arrive(full_i);
#endif
      }
      if (by_halves) {
        copy_half<F>(p, lane, slot, from0, __popc(rows0), full_i);
        copy_half<F>(p, lane, slot + S::HALF_PITCH, from1, __popc(rows1), full_i);
      } else {
        copy_row<F>(p, lane, slot, from0);
        copy_row<F>(p, lane, slot + S::HALF_PITCH, from1);
      }
      if (!bulk_copies(by_halves)) cp_async_mbarrier_arrive_noinc(full_i);
      if (++stage == STAGES<F>) stage = 0, parity ^= 1;
    }
    done += batch;
    if (done < share.count) window.advance(p, lane, share.begin + done);
  }
}

// --------------------------------------------------------------------------------------------------------------- consumers
// -inf behind the end of every row. Units of CLEAN_COLUMNS logits, dealt out over the warps of the grid.
__device__ __forceinline__ void clean(const Params& p, int warp, int lane) {
  const float INF = __int_as_float(0x7f800000);
  const uint32_t chunks = static_cast<uint32_t>((p.stride_logits + CLEAN_COLUMNS - 1) / CLEAN_COLUMNS);
  const uint32_t units = static_cast<uint32_t>(p.b) * p.s_q * chunks;
  for (uint32_t unit = blockIdx.x * CONSUMERS + warp; unit < units; unit += gridDim.x * CONSUMERS) {
    const int row = static_cast<int>(unit / chunks);
    const int64_t begin = static_cast<int64_t>(unit % chunks) * CLEAN_COLUMNS;
    const int64_t end = min(begin + CLEAN_COLUMNS, p.stride_logits);
    const int len = row_len(p, row);
    if (end <= len) continue;
    float* logits = p.index_logits + row * p.stride_logits;
    for (int64_t column = begin + lane * 4; column < end; column += LANES * 4) {
      if (column >= len) {
        *reinterpret_cast<float4*>(logits + column) = make_float4(-INF, -INF, -INF, -INF);
      } else {
#pragma unroll
        for (int i = 1; i < 4; ++i) {
          if (column + i >= len) logits[column + i] = -INF;
        }
      }
    }
  }
}

template <Format F>
__device__ __forceinline__ void consume(const Params& p, const Plan<F>& plan, int warp, int lane, Share share) {
  using S = Shape<F>;
  const uint32_t ring = shared_address(plan.ring), record = shared_address(plan.record);
  const uint32_t full = shared_address(plan.full), empty = shared_address(plan.empty);
  const uint32_t query_index = warp % p.s_q, warps = CONSUMERS / p.s_q;   // of one query
  uint32_t job = warp / p.s_q;
  if (job >= warps || static_cast<int>(job / 2) >= share.count) return;

  const Window window = seek(p, plan.section_tiles, lane, share.begin + job / 2);
  int wanted = window.first + __popc(__ballot_sync(~0u, window.end <= share.begin + job / 2));
  int sequence = -1;
  Query<F> query;
  Weights weights;
  int len = 0;                // keys that the query sees
  float* logits = nullptr;    // its row
  uint32_t stage = job / 2, parity = 0;
  for (int tile = job / 2; tile < share.count;) {
    // The first query is loaded while the first keys are under way.
    uint4 record_i;
    for (;;) {
      if (wanted != sequence) {
        sequence = wanted;
        const int row = sequence * p.s_q + query_index;
        query.load(p.index_q, lane, row);
        weights.load(p.index_weights, lane, row);
        len = row_len(p, row);
        logits = p.index_logits + row * p.stride_logits;
      }
      wait(full + stage * 8, parity);
      record_i = ld_shared_v4(record + stage * 16);
      wanted = static_cast<int>(record_i.x);
      if (wanted == sequence) break;
    }
    const int first_key = static_cast<int>(record_i.y);
    const Tile keys = {ring + stage * S::STAGE_BYTES, record_i.z, record_i.w};
    const int part = job % 2;
    // A query that ends before this tile scores nothing: what lies in the place of an empty query is not touched either.
    const Sums sums = score_part<F>(query, weights, keys, part, first_key < len, lane);
    mbarrier_arrive(empty + stage * 8);
    const float logit = logit_of(sums, lane);
    const int position = first_key + key_in_tile<F>(part, lane);
    if (position < len) logits[position] = logit;

    job += warps;
    stage += job / 2 - tile;
    tile = job / 2;
    if (stage >= STAGES<F>) stage -= STAGES<F>, parity ^= 1;
  }
}

// ------------------------------------------------------------------------------------------------------------------ entries
template <Format F>
__device__ __forceinline__ void index_logits(const Params& p) {
  using S = Shape<F>;
  Plan<F>& plan = *reinterpret_cast<Plan<F>*>(shared_raw);
  const int warp = threadIdx.x / LANES, lane = threadIdx.x % LANES;
  if (threadIdx.x < STAGES<F>) {
    // Lane 0 of the producer with the record (and the bytes of bulk copies), each of its lanes with its own copies.
    mbarrier_init(shared_address(&plan.full[threadIdx.x]), bulk_copies(one_page_per_half(p)) ? 1 : 1 + LANES);
    mbarrier_init(shared_address(&plan.empty[threadIdx.x]), 2 * p.s_q * LANES);   // every lane of the jobs of a tile
#if SM120_TARGET_SM120A
    fence_proxy_async_shared();   // the copies count on these barriers
#endif
  }
  const int tiles = section_tiles(p, warp, lane);
  if (lane == 0) plan.section_tiles[warp] = tiles;
  __syncthreads();

  const Share share = block_share(p, plan.section_tiles);
  if (warp == CONSUMERS) {
    if (share.count > 0) produce<F>(p, plan, lane, share);
  } else {
    if (p.clean_logits) clean(p, warp, lane);
    consume<F>(p, plan, warp, lane, share);
  }
}

extern "C" __global__ __launch_bounds__(THREADS, 1)
void SM120_ENTRY(index_logits_decode_fp8)(const __grid_constant__ Sm120IndexLogitsDecodeParams p) {
  declare_shared<sizeof(Plan<Format::FP8>)>();
  index_logits<Format::FP8>(p);
}

extern "C" __global__ __launch_bounds__(THREADS, 1)
void SM120_ENTRY(index_logits_decode_bf16)(const __grid_constant__ Sm120IndexLogitsDecodeParams p) {
  declare_shared<sizeof(Plan<Format::BF16>)>();
  index_logits<Format::BF16>(p);
}

extern "C" __global__ __launch_bounds__(THREADS, 1)
void SM120_ENTRY(index_logits_decode_fp4)(const __grid_constant__ Sm120IndexLogitsDecodeParams p) {
  declare_shared<sizeof(Plan<Format::FP4>)>();
  index_logits<Format::FP4>(p);
}
