// A token per row of vocabulary logits: the largest, with Gumbel noise where a temperature asks for it.
//
// In:    logits [n, vocab] f32, vocab a multiple of 4; temperature [n] f32; seeds [n, 2] u32.  Out: out [n] s32.
// Launch: a block of 512 threads per row, 128 B of shared memory, one barrier.
//
//   temperature <= 1e-5: argmax logit      otherwise: argmax logit / temperature - ln(-ln u)
//   u = (2 r + 1) 2^-25, r the upper 24 bits of word v mod 4 of Philox4x32-10(key seeds, counter (v / 4, 0, 0, 0))
//
// Numerics: f32; the quotient correctly rounded, the logarithms to 2 units; above u = 1/2 from 1 - u, which is exact.
// Invalid: NaN counts as -inf, a row without anything larger gives 0; ties go to the lower id.
// Caller: the end of a step.
//
// A thread takes four consecutive tokens at a time, so that one call of Philox serves them. Most are too far below the
// thread's best for any noise to lift them (it is at most 17.33): their noise is not computed.
#include "entry.cuh"
#include "ptx/global.cuh"
#include "ptx/warp.cuh"

constexpr int THREADS = 512;
constexpr int WARPS = THREADS / 32;
constexpr float COLD = 1e-5f;
constexpr float MOST_NOISE = 17.5f;

struct Best {
  float key;
  uint32_t id;
};

// Of equal keys the lower id.
__device__ __forceinline__ Best better(Best a, Best b) {
  return b.key > a.key || (b.key == a.key && b.id < a.id) ? b : a;
}

__device__ __forceinline__ Best of_warp(Best best) {
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) {
    const Best other = {shfl_bfly(best.key, mask), __float_as_uint(shfl_bfly(__uint_as_float(best.id), mask))};
    best = better(best, other);
  }
  return best;
}

__device__ __forceinline__ void philox(uint32_t key0, uint32_t key1, uint32_t block, uint32_t (&words)[4]) {
  uint32_t c0 = block, c1 = 0, c2 = 0, c3 = 0;
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint32_t high0 = __umulhi(0xd2511f53u, c0), low0 = 0xd2511f53u * c0;
    const uint32_t high2 = __umulhi(0xcd9e8d57u, c2), low2 = 0xcd9e8d57u * c2;
    c0 = high2 ^ c1 ^ key0, c1 = low2, c2 = high0 ^ c3 ^ key1, c3 = low0;
    key0 += 0x9e3779b9u, key1 += 0xbb67ae85u;
  }
  words[0] = c0, words[1] = c1, words[2] = c2, words[3] = c3;
}

__device__ __forceinline__ float gumbel(uint32_t word) {
  constexpr float STEP = 1.0f / (1 << 25);
  const uint32_t odd = 2 * (word >> 8) + 1;
  const float surprise = odd < 1u << 24 ? -logf(static_cast<float>(odd) * STEP)
                                        : -log1pf(-(static_cast<float>((1u << 25) - odd) * STEP));
  return -logf(surprise);
}

extern "C" __global__ __launch_bounds__(THREADS)
void SM120_ENTRY(sample)(const __grid_constant__ Sm120SampleParams p) {
  declare_shared<0>();
  __shared__ Best of_warps[WARPS];
  const int64_t row = blockIdx.x;
  const float* logits = p.logits + row * p.vocab;
  const float temperature = p.temperature[row];
  const bool noisy = temperature > COLD;
  const uint32_t key0 = p.seeds[2 * row], key1 = p.seeds[2 * row + 1];

  Best best = {__int_as_float(0xff800000), 0};
  for (int first = threadIdx.x * 4; first < p.vocab; first += THREADS * 4) {
    const uint4 packed = ld_global_nc_v4(logits + first);
    float x[4] = {__uint_as_float(packed.x), __uint_as_float(packed.y), __uint_as_float(packed.z),
                  __uint_as_float(packed.w)};
    if (noisy) {
      bool within = false;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        x[i] = __fdiv_rn(x[i], temperature);
        within = within || x[i] + MOST_NOISE > best.key;
      }
      if (!within) continue;
      uint32_t words[4];
      philox(key0, key1, first / 4, words);
#pragma unroll
      for (int i = 0; i < 4; ++i) x[i] += gumbel(words[i]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (x[i] > best.key) best = {x[i], static_cast<uint32_t>(first + i)};
    }
  }
  best = of_warp(best);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = best;
  __syncthreads();
  if (threadIdx.x < 32) {
    best = of_warp(of_warps[threadIdx.x % WARPS]);
    if (threadIdx.x == 0) p.out[row] = static_cast<int32_t>(best.id);
  }
}
