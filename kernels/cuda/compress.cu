// One step of a compressor: rows pooled out of the batch and the state, then the state of the batch.
//
// In:    kv_gate rows [t] of [2 w] f32 (values, gates), ape [ratio, w] f32, state [slots, 2 w] f32, and who stands where.
// Out:   compress_pool: out [n, d] bf16. compress_write: state.
// Launch: compress_pool: grid [n, ceil(d / 128)], block 128, dynamic shared sizeof(SharedPlan); a block is 128 channels of a
//        row, its four warps take the tokens of the window in turn. compress_write: grid t, block 128, one token per block.
//        Pool first, then write, on one stream: the end of a launch is what keeps the state unchanged while it is read.
//
//   items of row position P: tokens P - ratio + 1 .. P (with overlap channels d + c of them, and channels c of the ratio
//   tokens before)        out[c] = sum e^(g - m) u / sum e^(g - m), m = max g
//   slot of position P: state_table[P / state_page_tokens] * ring_rows + P mod ring_rows
//
// Numerics: f32; each warp carries maximum, sum and weighted sum per channel, rescaled once per CHUNK items; base 2 inside.
//   A NaN gate, a gate of +inf and a channel of nothing but -inf give NaN.
// Invalid: padding tokens and rows of no token give zeros and write nothing; a page outside the pool has no items and is not
//   written. Of tokens of the batch that share a slot the last one writes.
// Caller: the compressor of a layer, or of its indexer, once per step.
#include "entry.cuh"
#include "ptx/approximate.cuh"
#include "ptx/convert.cuh"
#include "ptx/global.cuh"

constexpr int WARPS = 4;
constexpr int LANE_CHANNELS = 4;                            // 16 bytes of f32
constexpr int BLOCK_CHANNELS = 32 * LANE_CHANNELS;
constexpr int CHUNK = 8;                                    // items in flight per warp
constexpr float LOG2E = 1.44269504f;

struct SharedPlan {
  float4 most[WARPS][32];
  float4 sum[WARPS][32];
  float4 value[WARPS][32];
  int items[WARPS];
};

struct Place {
  int32_t sequence;   // negative: padding
  int32_t position;
};

__device__ __forceinline__ Place place_of(const Sm120CompressParams& p, int32_t token) {
  const int32_t sequence = p.seq[token], position = p.positions[token];
  return {static_cast<uint32_t>(sequence) < static_cast<uint32_t>(p.b) && position >= 0 ? sequence : -1, position};
}

// Slot of a position, -1 without a page.
__device__ __forceinline__ int32_t slot_of(const Sm120CompressParams& p, Place place) {
  const int32_t column = place.position / p.state_page_tokens;
  if (column >= p.max_state_pages) return -1;
  const int32_t page = p.state_table[static_cast<int64_t>(place.sequence) * p.max_state_pages + column];
  if (static_cast<uint32_t>(page) >= static_cast<uint32_t>(p.num_state_pages)) return -1;
  return page * p.ring_rows + place.position % p.ring_rows;
}

struct Item {
  const float* u;     // of this lane; null: no item
  const float* g;
  const float* ape;   // null: g holds it already
};

// What the token at `earlier` brings: out of the batch if it is there, else out of the state.
__device__ __forceinline__ Item item_at(const Sm120CompressParams& p, int32_t token, Place place, int32_t first,
                                        int32_t earlier, int w, int channel) {
  if (earlier < 0) return {};
  const int32_t in_batch = token - (place.position - earlier);
  if (in_batch >= first) {
    const float* row = p.kv_gate + in_batch * p.stride_kv_gate + channel;
    return {row, row + w, p.ape + static_cast<int64_t>(earlier % p.ratio) * w + channel};
  }
  const int32_t slot = slot_of(p, {place.sequence, earlier});
  if (slot < 0) return {};
  const float* row = p.state + static_cast<int64_t>(slot) * 2 * w + channel;
  return {row, row + w, nullptr};
}

__device__ __forceinline__ float4 gates(const Item& item) {
  float4 g = ld_global_nc_v4_f32(item.g);
  if (item.ape != nullptr) {
    const float4 a = ld_global_nc_v4_f32(item.ape);
    g.x += a.x, g.y += a.y, g.z += a.z, g.w += a.w;
  }
  return g;
}

// Online softmax of one channel.
struct Pool {
  float most, sum, value;

  // Where gates are measured from; without a finite one from 0, so that -inf is a weight of 0 and not NaN.
  __device__ __forceinline__ static float origin(float most) { return most == -INFINITY ? 0.0f : most; }

  __device__ __forceinline__ void rise(float above) {
    const float risen = fmaxf(most, above);
    const float factor = ex2_approx((most - origin(risen)) * LOG2E);
    most = risen;
    sum *= factor;
    value *= factor;
  }

  __device__ __forceinline__ void add(float u, float g) {
    const float weight = ex2_approx((g - origin(most)) * LOG2E);
    sum += weight;
    value = fmaf(weight, u, value);
  }

  __device__ __forceinline__ void merge(float other_most, float other_sum, float other_value) {
    const float factor = ex2_approx((other_most - origin(most)) * LOG2E);
    sum = fmaf(factor, other_sum, sum);
    value = fmaf(factor, other_value, value);
  }
};

extern "C" __global__ __launch_bounds__(WARPS * 32)
void SM120_ENTRY(compress_pool)(const __grid_constant__ Sm120CompressParams p) {
  declare_shared<sizeof(SharedPlan)>();
  extern __shared__ __align__(16) unsigned char memory[];
  SharedPlan& shared = *reinterpret_cast<SharedPlan*>(memory);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int channel = blockIdx.y * BLOCK_CHANNELS + lane * LANE_CHANNELS;
  const bool inside = channel < p.d;
  uint8_t* out = static_cast<uint8_t*>(p.out) + (static_cast<int64_t>(blockIdx.x) * p.d + channel) * 2;

  const int32_t token = p.row_tokens[blockIdx.x];
  Place place = {-1, 0};
  if (static_cast<uint32_t>(token) < static_cast<uint32_t>(p.t)) place = place_of(p, token);
  if (place.sequence < 0) {
    if (warp == 0 && inside) st_global_v2(out, 0, 0);
    return;
  }
  const int32_t first = max(p.cu_seqlens[place.sequence], 0);
  const int w = p.overlap != 0 ? 2 * p.d : p.d;
  const int total = p.overlap != 0 ? 2 * p.ratio : p.ratio;

  Pool pools[LANE_CHANNELS];
#pragma unroll
  for (int i = 0; i < LANE_CHANNELS; ++i) pools[i] = {-INFINITY, 0.0f, 0.0f};
  int items = 0;
  for (int from = warp; from < total; from += WARPS * CHUNK) {
    float4 u[CHUNK], g[CHUNK];
    uint32_t present = 0;
#pragma unroll
    for (int i = 0; i < CHUNK; ++i) {
      const int number = from + i * WARPS;
      Item item = {};
      if (number < total) {
        const int of_half = channel + (p.overlap != 0 && number >= p.ratio ? p.d : 0);
        item = item_at(p, token, place, first, place.position - (total - 1 - number), w, of_half);
      }
      u[i] = g[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      if (item.u == nullptr) continue;
      present |= 1u << i;
      if (!inside) continue;
      u[i] = ld_global_nc_v4_f32(item.u);
      g[i] = gates(item);
    }
    items += __popc(present);
    float4 above = make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
#pragma unroll
    for (int i = 0; i < CHUNK; ++i) {
      if ((present >> i & 1) == 0) continue;
      above.x = fmaxf(above.x, g[i].x), above.y = fmaxf(above.y, g[i].y);
      above.z = fmaxf(above.z, g[i].z), above.w = fmaxf(above.w, g[i].w);
    }
    pools[0].rise(above.x), pools[1].rise(above.y), pools[2].rise(above.z), pools[3].rise(above.w);
#pragma unroll
    for (int i = 0; i < CHUNK; ++i) {
      if ((present >> i & 1) == 0) continue;
      pools[0].add(u[i].x, g[i].x), pools[1].add(u[i].y, g[i].y);
      pools[2].add(u[i].z, g[i].z), pools[3].add(u[i].w, g[i].w);
    }
  }

  shared.most[warp][lane] = make_float4(pools[0].most, pools[1].most, pools[2].most, pools[3].most);
  shared.sum[warp][lane] = make_float4(pools[0].sum, pools[1].sum, pools[2].sum, pools[3].sum);
  shared.value[warp][lane] = make_float4(pools[0].value, pools[1].value, pools[2].value, pools[3].value);
  if (lane == 0) shared.items[warp] = items;
  __syncthreads();
  if (warp != 0 || !inside) return;
  // The first warp keeps its own and adds the others in order.
#pragma unroll
  for (int other = 1; other < WARPS; ++other) {
    items += shared.items[other];
    const float4 most = shared.most[other][lane];
    pools[0].rise(most.x), pools[1].rise(most.y), pools[2].rise(most.z), pools[3].rise(most.w);
    const float4 sum = shared.sum[other][lane], value = shared.value[other][lane];
    pools[0].merge(most.x, sum.x, value.x), pools[1].merge(most.y, sum.y, value.y);
    pools[2].merge(most.z, sum.z, value.z), pools[3].merge(most.w, sum.w, value.w);
  }
  float row[LANE_CHANNELS];
#pragma unroll
  for (int i = 0; i < LANE_CHANNELS; ++i) row[i] = items > 0 ? __fdiv_rn(pools[i].value, pools[i].sum) : 0.0f;
  st_global_v2(out, cvt_bf16x2_f32(row[0], row[1]), cvt_bf16x2_f32(row[2], row[3]));
}

extern "C" __global__ __launch_bounds__(WARPS * 32)
void SM120_ENTRY(compress_write)(const __grid_constant__ Sm120CompressParams p) {
  declare_shared<0>();
  const int32_t token = blockIdx.x;
  const Place place = place_of(p, token);
  if (place.sequence < 0) return;
  // A token of the batch one ring later, on the same page, takes the slot. Unsigned: a position has 31 bits, the sum 32.
  const uint32_t later = static_cast<uint32_t>(token) + p.ring_rows;
  const uint32_t later_position = static_cast<uint32_t>(place.position) + p.ring_rows;
  const uint32_t page_tokens = p.state_page_tokens;
  if (later < static_cast<uint32_t>(p.t) && later_position / page_tokens == place.position / page_tokens) {
    const Place other = place_of(p, static_cast<int32_t>(later));
    if (other.sequence == place.sequence && static_cast<uint32_t>(other.position) == later_position) return;
  }
  const int32_t slot = slot_of(p, place);
  if (slot < 0) return;
  const int w = p.overlap != 0 ? 2 * p.d : p.d;
  float* state = p.state + static_cast<int64_t>(slot) * 2 * w;
  for (int channel = threadIdx.x * LANE_CHANNELS; channel < w; channel += WARPS * 32 * LANE_CHANNELS) {
    const float* row = p.kv_gate + token * p.stride_kv_gate + channel;
    const float4 u = ld_global_nc_v4_f32(row);
    const float4 g = gates({row, row + w, p.ape + static_cast<int64_t>(place.position % p.ratio) * w + channel});
    st_global_v4(state + channel, make_uint4(__float_as_uint(u.x), __float_as_uint(u.y), __float_as_uint(u.z), __float_as_uint(u.w)));
    st_global_v4(state + w + channel, make_uint4(__float_as_uint(g.x), __float_as_uint(g.y), __float_as_uint(g.z), __float_as_uint(g.w)));
  }
}
