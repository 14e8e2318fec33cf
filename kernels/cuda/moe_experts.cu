// Routed experts of a batch: out[t] = sum over picks e of weight_e * w2[e] (silu(min(a, limit)) * clamp(b, -limit, limit)),
// [a, b] = w13[e] x[t], in the order of the picks.
//
// In:    x [t, d] bf16; expert_ids [t, topk] s32, expert_weights [t, topk] f32; w13 [num_experts * 2 * inter, d] (per expert the
//        gate rows, then the up rows) and w2 [num_experts * d, inter], bf16, fp8 or fp4 as in linear.cu.
// Out:   out [t, d] f32.
// Scratch, between the launches: starts [num_experts + 1], picks [t * topk], places [t * topk] s32; hidden [t * topk, inter] bf16;
//        partial [t * topk, d] f32. A place is a position in the list of local picks, sorted by expert and stable.
// Launches, in this order:
//   moe_experts_group            grid num_experts, 256 threads: starts, picks (place -> pick), places (pick -> place or -1)
//   moe_experts_gate_up_<format>_few | _many   grid (ceil(inter / 16 | 64), num_experts), 256 | 128 threads: hidden
//   moe_experts_down_<format>_few | _many      grid (ceil(d / 16 | 64), num_experts), 256 | 128 threads: partial
//   moe_experts_combine          grid (ceil(d / 256), t), 256 threads: out
//
// Numerics: products.cuh; a, b and hidden rounded to bf16; exp by ex2 (2^-22); the sum over picks one fma each, f32.
// Invalid: a pick outside first_expert..first_expert + num_experts adds nothing; a pick that stands there twice counts twice.
//   NaN passes through the clamps. Nothing depends on the order of blocks: places follow from counts, every sum has one order.
// Caller: kernel-bindings/src/ops/moe_experts.rs, which chooses few or many by the tokens per expert.
//
// An expert's block walks its tokens 16 (few) or 64 (many) at a time; an expert without tokens costs an empty block per row tile.
#include "products.cuh"
#include "ptx/approximate.cuh"
#include "ptx/warp.cuh"

using Params = Sm120MoeExpertsParams;

constexpr int GROUP_THREADS = 256;
constexpr int GROUP_WARPS = GROUP_THREADS / 32;
constexpr int COMBINE_THREADS = 256;
constexpr float LOG2_E = 1.4426950408889634f;

struct GroupPlan {
  uint32_t lower[GROUP_WARPS];     // picks of experts before this one, by warp
  uint32_t here[2][GROUP_WARPS];   // picks of this expert in a round, by warp; used in turns
};

// Number of the expert of a pick among those that are here, or -1.
__device__ __forceinline__ int local_expert(const Params& p, int pick) {
  const int64_t expert = static_cast<int64_t>(p.expert_ids[pick]) - p.first_expert;
  return expert >= 0 && expert < p.num_experts ? static_cast<int>(expert) : -1;
}

// Every block sorts for one expert: it counts the picks of the experts before, then gives its own their places in order.
extern "C" __global__ __launch_bounds__(GROUP_THREADS)
void SM120_ENTRY(moe_experts_group)(const __grid_constant__ Params p) {
  declare_shared<sizeof(GroupPlan)>();
  GroupPlan& plan = *reinterpret_cast<GroupPlan*>(shared_bytes);
  const int expert = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32, picks = p.t * p.topk;
  uint32_t lower = 0;
  for (int pick = threadIdx.x; pick < picks; pick += GROUP_THREADS) {
    const int local = local_expert(p, pick);
    lower += local >= 0 && local < expert;
    if (expert == 0 && local < 0) p.places[pick] = -1;
  }
  lower = redux_add(lower);
  if (lane == 0) plan.lower[warp] = lower;
  __syncthreads();
  uint32_t next = 0;
#pragma unroll
  for (int w = 0; w < GROUP_WARPS; ++w) next += plan.lower[w];
  if (threadIdx.x == 0) p.starts[expert] = static_cast<int>(next);

  for (int round = 0; round * GROUP_THREADS < picks; ++round) {
    const int pick = round * GROUP_THREADS + threadIdx.x;
    const bool mine = pick < picks && local_expert(p, pick) == expert;
    const uint32_t in_warp = vote_ballot(mine);
    if (lane == 0) plan.here[round % 2][warp] = __popc(in_warp);
    __syncthreads();
    uint32_t before = next + __popc(in_warp & ((1u << lane) - 1));
#pragma unroll
    for (int w = 0; w < GROUP_WARPS; ++w) {
      if (w < warp) before += plan.here[round % 2][w];
      next += plan.here[round % 2][w];
    }
    if (mine) {
      p.picks[before] = pick;
      p.places[pick] = static_cast<int>(before);
    }
  }
  if (expert == p.num_experts - 1 && threadIdx.x == 0) p.starts[p.num_experts] = static_cast<int>(next);
}

__device__ __forceinline__ float round_bf16(float value) {
  return __uint_as_float(cvt_bf16x2_f32(0.0f, value) & 0xffff0000u);
}

// silu(min(a, limit)) * clamp(b, -limit, limit) as bf16; comparisons leave NaN alone. For a < -88.7 the exponential is
// infinite and its inverse 0.
__device__ __forceinline__ uint16_t gated(float a, float b, float limit) {
  a = round_bf16(a);
  b = round_bf16(b);
  a = a > limit ? limit : a;
  b = b > limit ? limit : b < -limit ? -limit : b;
  const float silu = a * rcp_approx(1.0f + ex2_approx(-a * LOG2_E));
  return static_cast<uint16_t>(cvt_bf16x2_f32(silu * b, 0.0f));
}

template <Format F, bool MANY>
__device__ __forceinline__ void gate_up(const Params& p) {
  constexpr int TOKENS = MANY ? MANY_TOKENS : FEW_TOKENS;
  const int expert = blockIdx.y, end = p.starts[expert + 1];
  const Matrix<F> matrix = {static_cast<const uint8_t*>(p.w13), p.w13_scale, p.d};
  const int64_t gate = static_cast<int64_t>(expert) * 2 * p.inter, base[2] = {gate, gate + p.inter};
  const int first_row = blockIdx.x * (MANY ? MANY_WARPS * TILE_ROWS : TILE_ROWS);
#pragma unroll 1
  for (int first = p.starts[expert]; first < end; first += TOKENS) {
    const auto token = [&](int t) {
      return static_cast<const uint16_t*>(p.x) + static_cast<int64_t>(p.picks[first + t] / p.topk) * p.d;
    };
    const auto store = [&](int row, int t, const float (&sum)[2]) {
      static_cast<uint16_t*>(p.hidden)[static_cast<int64_t>(first + t) * p.inter + row] = gated(sum[0], sum[1], p.limit);
    };
    const int tokens = min(end - first, TOKENS);
    if constexpr (MANY) {
      multiply_many<F, 2>(matrix, base, first_row, p.inter, tokens, token, store);
    } else {
      multiply_few<F, 2>(matrix, base, first_row, p.inter, tokens, token, store);
    }
    __syncthreads();
  }
}

template <Format F, bool MANY>
__device__ __forceinline__ void down(const Params& p) {
  constexpr int TOKENS = MANY ? MANY_TOKENS : FEW_TOKENS;
  const int expert = blockIdx.y, end = p.starts[expert + 1];
  const Matrix<F> matrix = {static_cast<const uint8_t*>(p.w2), p.w2_scale, p.inter};
  const int64_t base[1] = {static_cast<int64_t>(expert) * p.d};
  const int first_row = blockIdx.x * (MANY ? MANY_WARPS * TILE_ROWS : TILE_ROWS);
#pragma unroll 1
  for (int first = p.starts[expert]; first < end; first += TOKENS) {
    const auto token = [&](int t) {
      return static_cast<const uint16_t*>(p.hidden) + static_cast<int64_t>(first + t) * p.inter;
    };
    const auto store = [&](int row, int t, const float (&sum)[1]) {
      p.partial[static_cast<int64_t>(first + t) * p.d + row] = sum[0];
    };
    const int tokens = min(end - first, TOKENS);
    if constexpr (MANY) {
      multiply_many<F, 1>(matrix, base, first_row, p.d, tokens, token, store);
    } else {
      multiply_few<F, 1>(matrix, base, first_row, p.d, tokens, token, store);
    }
    __syncthreads();
  }
}

#define MOE_EXPERTS(form, format)                                                                                      \
  extern "C" __global__ __launch_bounds__(FEW_WARPS * 32)                                                              \
  void SM120_ENTRY(moe_experts_gate_up_##form##_few)(const __grid_constant__ Params p) {                               \
    declare_shared<sizeof(FewPlan<2>)>();                                                                              \
    gate_up<Format::format, false>(p);                                                                                 \
  }                                                                                                                    \
  extern "C" __global__ __launch_bounds__(MANY_WARPS * 32, 2)                                                            \
  void SM120_ENTRY(moe_experts_gate_up_##form##_many)(const __grid_constant__ Params p) {                              \
    declare_shared<sizeof(ManyPlan)>();                                                                                \
    gate_up<Format::format, true>(p);                                                                                  \
  }                                                                                                                    \
  extern "C" __global__ __launch_bounds__(FEW_WARPS * 32)                                                              \
  void SM120_ENTRY(moe_experts_down_##form##_few)(const __grid_constant__ Params p) {                                  \
    declare_shared<sizeof(FewPlan<1>)>();                                                                              \
    down<Format::format, false>(p);                                                                                    \
  }                                                                                                                    \
  extern "C" __global__ __launch_bounds__(MANY_WARPS * 32, 3)                                                            \
  void SM120_ENTRY(moe_experts_down_##form##_many)(const __grid_constant__ Params p) {                                 \
    declare_shared<sizeof(ManyPlan)>();                                                                                \
    down<Format::format, true>(p);                                                                                     \
  }
MOE_EXPERTS(bf16, BF16)
MOE_EXPERTS(fp8, FP8)
MOE_EXPERTS(fp4, FP4)

extern "C" __global__ __launch_bounds__(COMBINE_THREADS)
void SM120_ENTRY(moe_experts_combine)(const __grid_constant__ Params p) {
  declare_shared<0>();
  const int channel = blockIdx.x * COMBINE_THREADS + threadIdx.x, token = blockIdx.y;
  if (channel >= p.d) return;
  float sum = 0.0f;
  for (int pick = token * p.topk; pick < (token + 1) * p.topk; ++pick) {
    const int place = p.places[pick];
    if (place < 0) continue;
    sum = fmaf(p.expert_weights[pick], p.partial[static_cast<int64_t>(place) * p.d + channel], sum);
  }
  p.out[static_cast<int64_t>(token) * p.d + channel] = sum;
}
