// Exact top-k positions of every row of index logits, optionally as cache slots.
//
// In:    index_logits [rows, stride_logits] f32; context_lens [rows] s32, n = clamped to 0..stride_logits; block_table.
// Out:   topk_positions, topk_slots [rows, topk] s32, ascending positions, -1 behind; topk_lens [rows] s32.
// Launch: grid [rows, num_splits], block 512, dynamic shared sizeof(SharedPlan), about 81 KB: one block per SM.
//
//   n <= topk:  0..n-1, without reading the logits
//   otherwise:  the topk first by (value descending, position ascending); NaN is -inf, -inf never, -0.0 equals +0.0
//
// How. A row is read once, in tiles of 32 Ki entries, 64 registers per thread; a tile leaves its candidates in a list in
// shared memory, in order of position.
//   1 bound       First tile: each thread reduces its entries to up to 4, 8 or 16 group maxima. The topk-th largest of all
//                 maxima is a lower bound of the topk-th largest entry, for any input, because at least topk entries reach
//                 it. Radix rounds over the maxima (4 to 16 keys per thread instead of 64) find an edge just below.
//   2 candidates  Entries at or above the floor, in the first tile about 1.3 topk of independent ones, are appended to the
//                 list. A warp has consecutive entries, so one number per warp crosses the barrier. The list takes
//                 positions; the values of the few are then read once more.
//   3 trim        When the list is full, it is cut to its topk best and the floor rises to the last of them.
//   4 exact       Radix rounds of 11, 11 and 10 bits over the list, ended as soon as a bin is taken whole. What is left
//                 after 32 bits are equal keys: the first ones in order of position are taken.
// A tile with more candidates than the list can take (all equal, say) is first cut to its own topk best by the same radix
// search over its registers. No list is bounded by hope.
//
// With num_splits > 1 a row longer than a tile is cut into slices, one block each; every block leaves its topk best, in
// order of position, in the scratch, and the block that arrives last selects among them by the same steps. The result does
// not depend on the number of slices.
//
// Numerics: comparisons only. Invalid: a page id below 0, a position beyond the block table or a row whose line
// (sequence_of_row) the table does not have gives slot -1 in its place.
// Caller: the attention step, between index_logits_decode and sparse_mla_decode.
#include "entry.cuh"
#include "ptx/atom.cuh"
#include "ptx/shared.cuh"
#include "ptx/warp.cuh"

constexpr int THREADS = 512;                  // half of 1024: twice the registers for scalars, half the scans
constexpr int WARPS = THREADS / 32;
constexpr int QUADS = 16;                     // 16-byte loads per thread and tile
constexpr int TILE = THREADS * QUADS * 4;     // entries held in registers
constexpr int BINS = 2048;                    // four per thread
constexpr int CAPACITY = 8192;                // candidates
constexpr int UNBOUNDED_LENGTH = 4096;        // up to here every entry becomes a candidate without a bound
constexpr int SLICE = TILE / 2;               // a split row has slices of about this length or more
static_assert(BINS == 4 * THREADS, "bins of the histogram");
static_assert(QUADS * THREADS <= CAPACITY, "the group maxima stand in the list before the candidates do");
static_assert(CAPACITY >= SM120_MAX_TOPK && UNBOUNDED_LENGTH <= CAPACITY, "candidate list");
static_assert(CAPACITY < 65536, "counts of candidates are packed into 16 bits");
static_assert(QUADS == 16, "a mask of the entries of a thread is two words");

constexpr uint32_t LOWEST = 0x00800000u;      // key of the smallest finite number: -inf and NaN stay below
constexpr uint32_t ALL = 0xffffffffu;

struct SharedPlan {
  uint4 histogram[2][BINS / 4];  // used in turns, so that one is cleared while the other is read
  uint32_t totals[2][WARPS];     // one number per warp; used in turns, so that one barrier per use is enough
  uint32_t last;                 // 1 when this block arrived last
  float value[CAPACITY];         // the list; before the first entry is in, the group maxima
  int32_t position[CAPACITY];    // where the entry stands in the slice or in the scratch
};

// Order-preserving key of a float; both zeros get the same, NaN that of -inf.
__device__ __forceinline__ uint32_t key_of(float value) {
  const uint32_t bits = __float_as_uint(fmaxf(value, -INFINITY) + 0.0f);
  return bits ^ (static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31) | 0x80000000u);
}
__device__ __forceinline__ float value_of(uint32_t key) {
  return __uint_as_float(key & 0x80000000u ? key ^ 0x80000000u : ~key);
}

// Inclusive sum over the lanes up to this one.
__device__ __forceinline__ uint32_t scan_lanes(uint32_t value, int lane) {
#pragma unroll
  for (int delta = 1; delta < 32; delta *= 2) {
    const uint32_t other = shfl_up(value, delta);
    if (lane >= delta) value += other;
  }
  return value;
}

// Where this thread is in the block.
struct Place {
  int thread, lane, warp;
};

// What is searched: a slice of a row, later what all slices have left in the scratch.
struct Source {
  const float* values;  // 16-byte aligned
  int length;
  int quads;            // per thread in every tile

  __device__ __forceinline__ Source(const float* values, int length)
      : values(values), length(length), quads(min((length - 1) / (THREADS * 4) + 1, QUADS)) {}
  // The first entry of a thread's quad 0; quad i follows 128 i later, because the entries of a warp are consecutive.
  __device__ __forceinline__ int position(int tile, const Place& at) const {
    return tile * TILE + at.warp * quads * 128 + at.lane * 4;
  }
};

typedef float Tile[QUADS][4];

__device__ __forceinline__ void load_tile(Tile& entry, const Source& source, int tile, const Place& place) {
  const int first = source.position(tile, place);
  const int left = min(source.length - first, source.quads * 128);  // from quad 0 to the end of what this thread holds
  const float* values = source.values + first;
#pragma unroll
  for (int i = 0; i < QUADS; ++i) {
    float4 quad = make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
    if (i * 128 < left) quad = *reinterpret_cast<const float4*>(values + i * 128);
    entry[i][0] = quad.x;
    entry[i][1] = quad.y;
    entry[i][2] = quad.z;
    entry[i][3] = quad.w;
  }
  if (left > 0 && left % 128 > 0 && left % 128 < 4) {
    // The source ends inside one of this thread's quads.
#pragma unroll
    for (int i = 0; i < QUADS; ++i) {
      if (left - i * 128 < 2) entry[i][1] = -INFINITY;
      if (left - i * 128 < 3) entry[i][2] = -INFINITY;
      if (left - i * 128 < 4) entry[i][3] = -INFINITY;
    }
  }
}

// Puts this thread's group maxima into the list and returns how many all threads have: at least 4 * 512, 4 * 1024 or
// 4 * 2048 (with fewer entries, one group each quad), so that few of the topk best entries share one.
__device__ __forceinline__ int group_maxima(SharedPlan& shared, const Tile& entry, int topk, const Place& place) {
  float maximum[QUADS];
#pragma unroll
  for (int i = 0; i < QUADS; ++i)
    maximum[i] = fmaxf(fmaxf(entry[i][0], entry[i][1]), fmaxf(entry[i][2], entry[i][3]));
  // Quads i, i + groups, i + 2 groups .. make a group: short rows, which have few quads, keep them apart.
  int groups = QUADS;
  if (topk <= 1024) {
    groups = QUADS / 2;
#pragma unroll
    for (int i = 0; i < QUADS / 2; ++i) maximum[i] = fmaxf(maximum[i], maximum[i + QUADS / 2]);
  }
  if (topk <= 512) {
    groups = QUADS / 4;
#pragma unroll
    for (int i = 0; i < QUADS / 4; ++i) maximum[i] = fmaxf(maximum[i], maximum[i + QUADS / 4]);
  }
#pragma unroll
  for (int i = 0; i < QUADS; ++i)
    if (i < groups) shared.value[i * THREADS + place.thread] = maximum[i];
  return groups * THREADS;
}

// What is chosen: keys above `edge`, and the first `ties` of those equal to it. That holds for a bound from group maxima
// too: at least topk - ties entries are above the edge, so that of the equal ones no more than the first `ties` can win.
struct Threshold {
  uint32_t edge;
  uint32_t ties;
};

struct Turns {
  uint32_t histogram;
  uint32_t totals;
};

// Sums of one number per thread: over lower warps (`before`) and over all (`total`). One barrier. The numbers are given
// as the sum of the warp.
struct Sums {
  uint32_t before, total;
};
__device__ __forceinline__ Sums sum_warps(SharedPlan& shared, Turns& turns, uint32_t of_warp, const Place& place) {
  uint32_t* totals = shared.totals[turns.totals];
  turns.totals ^= 1;
  if (place.lane == 0) totals[place.warp] = of_warp;
  __syncthreads();
  const uint32_t other = place.lane < WARPS ? totals[place.lane] : 0;
  return {redux_add(place.lane < place.warp ? other : 0), redux_add(other)};
}

// The threshold that chooses the `wanted` largest keys (all above -inf, if there are fewer), or up to `slack` more, of the
// first `listed` numbers in the list or, when `listed` is 0, of the tile, which is read again. Thread t reads the same
// places t, t + THREADS .. that it filled with group maxima. Radix search from the highest bits down; every round narrows the edge to one bin of
// the previous one. Two barriers per round.
__device__ __forceinline__ Threshold search(SharedPlan& shared, Turns& turns, int listed, const Source& source, int tile,
                                            uint32_t wanted, uint32_t slack, const Place& place) {
  Threshold found = {0, ALL};
#pragma unroll 1
  for (int round = 0; round < 3; ++round) {
    const int shift = round == 0 ? 21 : round == 1 ? 10 : 0;
    const uint32_t decided = round == 0 ? 0 : round == 1 ? 0xffe00000u : 0xfffffc00u;
    const uint4* bins = shared.histogram[turns.histogram];
    const uint32_t address = shared_address(bins);
    const uint32_t edge = found.edge;
    auto count = [=](uint32_t key) {
      if (key >= LOWEST && ((key ^ edge) & decided) == 0) red_shared_add(address + ((key & ~decided) >> shift) * 4, 1);
    };
    if (listed == 0) {
      const int first = source.position(tile, place);
      const int left = min(source.length - first, source.quads * 128);
#pragma unroll 1
      for (int i = 0; i < left; i += 128) {
        const float4 quad = *reinterpret_cast<const float4*>(source.values + first + i);
        count(key_of(quad.x));
        if (i + 1 < left) count(key_of(quad.y));
        if (i + 2 < left) count(key_of(quad.z));
        if (i + 3 < left) count(key_of(quad.w));
      }
    } else {
#pragma unroll 1
      for (int i = place.thread; i < listed; i += THREADS) count(key_of(shared.value[i]));
    }
    __syncthreads();
    turns.histogram ^= 1;
    shared.histogram[turns.histogram][place.thread] = make_uint4(0, 0, 0, 0);

    // Thread 0 has the highest four bins. Sums from the top: of the warps, then inside the warp that reaches `wanted`.
    uint4 four = bins[THREADS - 1 - place.thread];
    uint32_t* totals = shared.totals[turns.totals];
    turns.totals ^= 1;
    const uint32_t sum = redux_add(four.x + four.y + four.z + four.w);
    if (place.lane == 0) totals[place.warp] = sum;
    __syncthreads();
    const uint32_t of_warp = place.lane < WARPS ? totals[place.lane] : 0;
    const uint32_t to_warp = scan_lanes(of_warp, place.lane);
    if (round == 0 && shfl_idx(to_warp, 31) <= wanted) {
      found.edge = LOWEST;
      break;
    }
    const int hit_warp = __ffs(vote_ballot(to_warp >= wanted)) - 1;
    four = bins[THREADS - 1 - (hit_warp * 32 + place.lane)];
    const uint32_t to_four =
        shfl_idx(to_warp - of_warp, hit_warp) + scan_lanes(four.x + four.y + four.z + four.w, place.lane);
    const int hit_lane = __ffs(vote_ballot(to_four >= wanted)) - 1;
    // From here on all threads compute the same: the bin of the four, how many are in it and how many above it.
    const uint32_t inside_of[4] = {shfl_idx(four.w, hit_lane), shfl_idx(four.z, hit_lane), shfl_idx(four.y, hit_lane),
                                   shfl_idx(four.x, hit_lane)};
    uint32_t above = shfl_idx(to_four, hit_lane) - inside_of[0] - inside_of[1] - inside_of[2] - inside_of[3];
    uint32_t bin = BINS - 1 - 4 * (hit_warp * 32 + hit_lane), inside = inside_of[0];
#pragma unroll
    for (int i = 1; i < 4; ++i)
      if (above + inside < wanted) {
        above += inside;
        inside = inside_of[i];
        bin -= 1;
      }
    found.edge |= bin << shift;
    wanted -= above;
    if (inside - wanted <= slack) break;  // the bin is taken whole
    if (round == 2) found.ties = wanted;  // one key is left
  }
  return found;
}

// Entries of this thread: bit 4 i + c is entry (i, c), with the second word from quad 8 on.
struct Mask {
  uint32_t half[2];
};

// Ranks of the entries in a mask among those of all threads, in order of position.
struct Ranks {
  uint2 lanes[2];   // how many lower lanes have, a byte per quad: quads 0 2 4 6 and 1 3 5 7 of each half
  uint32_t before;  // lane i: how many come before quad i of this warp
  uint32_t total;   // of all threads
};

// One barrier.
__device__ __forceinline__ Ranks rank(SharedPlan& shared, Turns& turns, const Mask& mask, const Place& place) {
  Ranks ranks;
  const Sums sums = sum_warps(shared, turns, redux_add(__popc(mask.half[0]) + __popc(mask.half[1])), place);
  ranks.total = sums.total;
  uint32_t of_quad = 0;  // lane i: how many quad i of the warp has
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    // Bits per nibble, then per byte: a quad of the whole warp has at most 128.
    uint32_t bits = mask.half[h];
    bits -= (bits >> 1) & 0x55555555u;
    bits = (bits & 0x33333333u) + ((bits >> 2) & 0x33333333u);
    const uint32_t even = bits & 0x0f0f0f0fu, odd = bits >> 4 & 0x0f0f0f0fu;
    const uint32_t to_even = scan_lanes(even, place.lane), to_odd = scan_lanes(odd, place.lane);
    ranks.lanes[h] = make_uint2(to_even - even, to_odd - odd);
    const uint32_t all_even = shfl_idx(to_even, 31), all_odd = shfl_idx(to_odd, 31);
    if (place.lane / 8 == h) of_quad = (place.lane % 2 == 0 ? all_even : all_odd) >> place.lane % 8 / 2 * 8 & 0xffu;
  }
  ranks.before = sums.before + scan_lanes(of_quad, place.lane) - of_quad;
  return ranks;
}

// Calls f(h, bit, quad, rank) for every set bit of the mask, upwards; the bit is in half h.
template <class F>
__device__ __forceinline__ void each_entry(const Mask& mask, const Ranks& ranks, F f) {
  uint32_t last = QUADS, in_quad = 0;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    uint32_t left = mask.half[h];
#pragma unroll 1
    while (vote_ballot(left != 0) != 0) {
      const uint32_t bit = __ffs(left) - 1, quad = bit / 4 + h * (QUADS / 2);
      const uint32_t before = shfl_idx(ranks.before, quad);
      if (left == 0) continue;
      in_quad = quad == last ? in_quad + 1 : 0;
      last = quad;
      const uint32_t lanes = (quad % 2 == 0 ? ranks.lanes[h].x : ranks.lanes[h].y) >> (bit / 8 * 8) & 0xffu;
      f(h, bit, quad, before + lanes + in_quad);
      left &= left - 1;
    }
  }
}

// Appends the positions of the chosen entries of the tile to the list of length `listed`, in order, and returns the new
// length. When they do not fit, nothing is written and the length that they would need is returned. One barrier, two with
// ties. `first`: position of the first entry of this thread.
__device__ __forceinline__ int append(SharedPlan& shared, Turns& turns, int listed, Threshold threshold,
                                      const Tile& entry, int first, const Place& place) {
  const float bound = value_of(threshold.edge);
  Mask mask = {{0, 0}};
#pragma unroll
  for (int i = 0; i < QUADS; ++i)
#pragma unroll
    for (int c = 0; c < 4; ++c)
      if (entry[i][c] >= bound) mask.half[i / 8] |= 1u << (4 * (i % 8) + c);
  if (threshold.ties != ALL) {
    // Leave out the equal entries that come too late.
    Mask equal = {{0, 0}};
#pragma unroll
    for (int i = 0; i < QUADS; ++i)
#pragma unroll
      for (int c = 0; c < 4; ++c)
        if (entry[i][c] == bound) equal.half[i / 8] |= 1u << (4 * (i % 8) + c);
    each_entry(equal, rank(shared, turns, equal, place), [&](int h, uint32_t bit, uint32_t, uint32_t rank) {
      if (rank >= threshold.ties) mask.half[h] &= ~(1u << bit);
    });
  }
  const Ranks ranks = rank(shared, turns, mask, place);
  const int length = listed + ranks.total;
  if (length <= CAPACITY)
    each_entry(mask, ranks, [&](int, uint32_t bit, uint32_t quad, uint32_t rank) {
      shared.position[listed + rank] = first + quad * 128 + bit % 4;
    });
  return length;
}

// Fills in the values from `from` on; thread t has the places t, t + THREADS .. of the list. The entries were in registers,
// but at places that only the position tells; a few reads from the cache are quicker than 64 predicated stores.
__device__ __forceinline__ void fetch_values(SharedPlan& shared, int from, int listed, const Source& source,
                                             const Place& place) {
#pragma unroll 1
  for (int i = place.thread; i < listed; i += THREADS)
    if (i >= from) shared.value[i] = source.values[shared.position[i]];
}

// Calls f(rank, value, position) for the chosen ones of the list, whose first `listed` entries are in order of position.
// The list may be written from rank on: one barrier stands between the reading of a stretch of THREADS entries and the
// calls for it. Returns how many are chosen.
template <class F>
__device__ __forceinline__ int each_chosen(SharedPlan& shared, Turns& turns, int listed, Threshold threshold,
                                           const Place& place, F f) {
  uint32_t above_before = 0, equal_before = 0;
#pragma unroll 1
  for (int from = 0; from < listed; from += THREADS) {
    const int at = from + place.thread;
    const float value = at < listed ? shared.value[at] : -INFINITY;
    const int32_t position = at < listed ? shared.position[at] : 0;
    const uint32_t key = key_of(value);
    // Keys above the edge are counted in the upper half, keys equal to it in the lower.
    const bool is_above = key > threshold.edge, is_equal = key == threshold.edge;
    const uint32_t flags = (is_above ? 0x10000u : 0) + is_equal;
    const uint32_t to_lane = scan_lanes(flags, place.lane);
    const Sums sums = sum_warps(shared, turns, shfl_idx(to_lane, 31), place);
    const uint32_t before = sums.before + to_lane - flags;
    const uint32_t above = above_before + (before >> 16), equal = equal_before + (before & 0xffffu);
    if (is_above || (is_equal && equal < threshold.ties)) f(above + min(equal, threshold.ties), value, position);
    above_before += sums.total >> 16;
    equal_before += sums.total & 0xffffu;
  }
  return above_before + min(equal_before, threshold.ties);
}

// Writes one entry of the row's result; position -1 stands for none.
__device__ __forceinline__ void emit(const Sm120TopkSelectParams& p, int row_index, int rank, int32_t position) {
  const int64_t at = static_cast<int64_t>(row_index) * p.topk + rank;
  if (p.topk_positions != nullptr) p.topk_positions[at] = position;
  if (p.topk_slots == nullptr) return;
  int32_t slot = -1;
  if (position >= 0) {
    const uint32_t page_size = p.page_size, column = static_cast<uint32_t>(position) / page_size;
    if (column < static_cast<uint32_t>(p.max_pages)) {
      const int line = p.sequence_of_row == nullptr ? row_index / p.rows_per_sequence : p.sequence_of_row[row_index];
      int32_t page = -1;
      if (static_cast<uint32_t>(line) < static_cast<uint32_t>(p.num_sequences)) {
        page = p.block_table[line * p.stride_block_table + column];
      }
      const uint32_t offset = position - column * page_size;
      if (page >= 0) slot = static_cast<int32_t>(static_cast<uint32_t>(page) * page_size + offset);
    }
  }
  p.topk_slots[at] = slot;
}

// What follows the chosen entries: the ranks below `identity` are positions themselves, the rest is padding.
__device__ __forceinline__ void finish(const Sm120TopkSelectParams& p, int row_index, int chosen, int identity) {
#pragma unroll 1
  for (int rank = chosen + threadIdx.x; rank < p.topk; rank += THREADS)
    emit(p, row_index, rank, rank < identity ? rank : -1);
  if (threadIdx.x == 0 && p.topk_lens != nullptr) p.topk_lens[row_index] = max(chosen, identity);
}

// What a search of the list or the tile is for.
enum Purpose { BOUND, TRIM, CUT_TILE, RESULT };

extern "C" __global__ __launch_bounds__(THREADS, 1)
void SM120_ENTRY(topk_select)(const __grid_constant__ Sm120TopkSelectParams p) {
  declare_shared<sizeof(SharedPlan)>();
  extern __shared__ __align__(16) uint8_t shared_bytes[];
  SharedPlan& shared = *reinterpret_cast<SharedPlan*>(shared_bytes);
  const int topk = p.topk;

  const int row_index = blockIdx.x, slice = blockIdx.y;
  const int row_length = static_cast<int>(min(static_cast<int64_t>(max(p.context_lens[row_index], 0)), p.stride_logits));
  const int slices = row_length > TILE ? min(p.num_splits, (row_length - 1) / SLICE + 1) : 1;
  if (slice >= slices) return;
  if (row_length <= topk) return finish(p, row_index, 0, row_length);

  const Place place = {static_cast<int>(threadIdx.x), static_cast<int>(threadIdx.x % 32),
                       static_cast<int>(threadIdx.x / 32)};
  shared.histogram[0][place.thread] = make_uint4(0, 0, 0, 0);
  shared.histogram[1][place.thread] = make_uint4(0, 0, 0, 0);
  __syncthreads();
  Turns turns = {0, 0};

  const int slice_length = ((row_length - 1) / slices / 4 + 1) * 4;
  const int slice_first = slice * slice_length;
  const int64_t scratch = static_cast<int64_t>(row_index) * ((p.num_splits * topk + 3) & ~3);
  Source source(p.index_logits + row_index * p.stride_logits + slice_first,
                min(slice_length, row_length - slice_first));
  bool merging = false;

#pragma unroll 1
  for (;;) {
    const bool final = slices == 1 || merging;
    const int64_t own_scratch = scratch + slice * topk;
    int tile = 0, listed = 0, chosen;
    Tile entry;
    bool loaded = false;
    // What an entry must be to become a candidate; after the tiles, which candidates are the result.
    Threshold threshold = {LOWEST, ALL};
    bool searching = source.length > UNBOUNDED_LENGTH;
    Purpose purpose = BOUND;
#pragma unroll 1
    for (;;) {
      if (!loaded) load_tile(entry, source, tile, place);
      loaded = true;
      if (searching) {
        int in_list = listed;
        if (purpose == BOUND) in_list = group_maxima(shared, entry, topk, place);
        if (purpose == CUT_TILE) in_list = 0;
        threshold = search(shared, turns, in_list, source, tile, topk, purpose == BOUND ? topk / 2 : 0, place);
      }
      if (purpose == TRIM || purpose == RESULT) {
        chosen = each_chosen(shared, turns, listed, threshold, place, [&](int rank, float value, int32_t position) {
          if (purpose == TRIM) {
            shared.value[rank] = value;
            shared.position[rank] = position;
          } else if (final) {
            emit(p, row_index, rank, merging ? p.split_positions[scratch + position] : position);
          } else {
            p.split_values[own_scratch + rank] = value;
            p.split_positions[own_scratch + rank] = slice_first + position;
          }
        });
        if (purpose == RESULT) break;
        // The list is full of better or earlier ones: what is equal to the last of them comes too late.
        listed = chosen;
        if (threshold.ties != ALL) threshold = {threshold.edge + 1, ALL};
      }

      const int length = append(shared, turns, listed, threshold, entry, source.position(tile, place), place);
      searching = true;
      if (length > CAPACITY) {
        purpose = listed > topk ? TRIM : CUT_TILE;
        continue;
      }
      if (threshold.ties != ALL) threshold = {threshold.edge + 1, ALL};
      __syncthreads();
      fetch_values(shared, listed, length, source, place);
      listed = length;
      if (source.length - tile * TILE > TILE) {
        ++tile;
        loaded = searching = false;
        purpose = BOUND;
      } else {
        purpose = RESULT;
        searching = listed > topk;
        if (!searching) threshold = {LOWEST, ALL};
      }
    }
    if (final) return finish(p, row_index, chosen, 0);

    // The block that arrives last sees the scratch of all.
#pragma unroll 1
    for (int rank = chosen + place.thread; rank < topk; rank += THREADS) p.split_values[own_scratch + rank] = -INFINITY;
    __syncthreads();
    if (place.thread == 0) shared.last = atom_acq_rel_inc(p.split_arrivals + row_index, slices - 1) == slices - 1;
    __syncthreads();
    if (shared.last == 0) return;
    source = Source(p.split_values + scratch, slices * topk);
    merging = true;
  }
}
