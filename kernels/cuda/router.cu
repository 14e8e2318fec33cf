// Experts of every token and their weights.
//
// In:    scores [t, experts] f32; bias [experts] f32, or tid2eid [vocab, topk] s32 with ids [t] s32.
// Out:   expert_ids [t, topk] s32, best first (of a table: in its order); expert_weights [t, topk] f32.
// Launch: grid ceil(t / 4), block 128 (one warp per token), no shared memory, no barrier.
//
//   s = sqrt(softplus(scores))      picks: the topk largest of s + bias, ties to the lower expert
//   weight_e = routed_scaling s_e / sum of the picked s
//
// Numerics: f32. Below -20 softplus is the exponential to within f32, whose root e^(z/2) does not run out of exponents.
// Invalid: NaN counts as -inf when picked; an id outside 0..vocab takes line 0; a table entry outside 0..experts is kept
//   with weight 0.
// Caller: the MoE block, after the product with the gate.
//
// Lane l holds experts l, l + 32, ... as integers that sort like the sums. A pick: the lane's largest, the largest of the
// lanes (redux), the lowest expert that has it (redux).
#include "entry.cuh"
#include "ptx/warp.cuh"

constexpr int WARPS = 4;
constexpr int PER_LANE = 16;
constexpr int MAX_PICKS = 16;
constexpr uint32_t NONE = 0;                       // below the key of -inf: no expert, or picked already

__device__ __forceinline__ float affinity(float z) {
  if (z > 20.0f) return sqrtf(z);
  if (z < -20.0f) return expf(0.5f * z);
  return sqrtf(log1pf(expf(z)));
}

// Larger floats have larger keys; NaN has that of -inf, which is not NONE.
__device__ __forceinline__ uint32_t ordered(float x) {
  const uint32_t bits = x == x ? __float_as_uint(x) : 0xff800000u;
  return bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
}

__device__ __forceinline__ int32_t pick_best(const Sm120RouterParams& p, const float* scores, int lane) {
  uint32_t keys[PER_LANE];
#pragma unroll
  for (int i = 0; i < PER_LANE; ++i) {
    const int expert = 32 * i + lane;
    keys[i] = NONE;
    if (expert < p.experts) keys[i] = ordered(__fadd_rn(affinity(__ldg(scores + expert)), __ldg(p.bias + expert)));
  }
  int32_t own = 0;
  for (int pick = 0; pick < p.topk; ++pick) {
    uint32_t most = keys[0];
#pragma unroll
    for (int i = 1; i < PER_LANE; ++i) most = max(most, keys[i]);
    most = redux_max(most);
    uint32_t expert = 0xffffffffu;
#pragma unroll
    for (int i = PER_LANE - 1; i >= 0; --i) {
      if (keys[i] == most) expert = 32 * i + lane;
    }
    expert = redux_min(expert);
#pragma unroll
    for (int i = 0; i < PER_LANE; ++i) {
      if (expert == 32 * i + lane) keys[i] = NONE;
    }
    if (pick == lane) own = static_cast<int32_t>(expert);
  }
  return own;
}

extern "C" __global__ __launch_bounds__(WARPS * 32)
void SM120_ENTRY(router)(const __grid_constant__ Sm120RouterParams p) {
  declare_shared<0>();
  const int64_t token = static_cast<int64_t>(blockIdx.x) * WARPS + threadIdx.x / 32;
  if (token >= p.t) return;
  const int lane = threadIdx.x % 32;
  const float* scores = p.scores + token * p.experts;
  const bool holds = lane < p.topk;

  int32_t expert = 0;
  if (p.bias != nullptr) {
    expert = pick_best(p, scores, lane);
  } else if (holds) {
    const int32_t id = p.ids[token];
    const int64_t line = id >= 0 && id < p.vocab ? id : 0;
    expert = __ldg(p.tid2eid + line * p.topk + lane);
  }
  const bool counts = holds && expert >= 0 && expert < p.experts;
  const float s = counts ? affinity(__ldg(scores + expert)) : 0.0f;
  float sum = s;
#pragma unroll
  for (int mask = MAX_PICKS / 2; mask > 0; mask /= 2) sum += shfl_bfly(sum, mask);
  if (holds) {
    p.expert_ids[token * p.topk + lane] = expert;
    p.expert_weights[token * p.topk + lane] = counts ? p.routed_scaling * s / sum : 0.0f;
  }
}
