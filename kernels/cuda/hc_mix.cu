// Hyper-connections before a sub-layer or the head: mixing parameters of every token, the mixed and normed input.
//
// In:    streams [t, 4, d] bf16; weight [m, 4 d] f32, m = 24 (4 for the head); base [m], scale [3] ([1]), norm_weight [d] f32.
// Out:   out [t, d] bf16; post [t, 4], comb [t, 4, 4] f32 (not for the head).  Scratch: products [num_splits, t, 32] f32.
// Launch, in this order:
//   hc_mix[_head]_products_<T>  grid (ceil(t / T), num_splits), block 128, T = 1 or 4 tokens
//   hc_mix[_head]_finish        grid t, block 256 for the channels, and a warp for post and the Sinkhorn matrix (head: none)
//
//   f = flatten(streams)   m = (weight f) / sqrt(mean f^2 + norm_eps)      pre = sigmoid(m[0..4] scale0 + base) + hc_eps
//   post = 2 sigmoid(m[4..8] scale1 + base)                                comb = sinkhorn(m[8..24] scale2 + base)
//   h = bf16(sum_j pre_j streams_j)                                        out = norm_weight h / sqrt(mean h^2 + norm_eps)
//
// Numerics: f32; ex2, rcp and rsqrt approximate (2^-22). The order of every sum depends on d alone, so a token's result
//   does not depend on its neighbours, on t or on T.
// Invalid: nothing; a NaN or an infinity in a token's streams makes everything of that token NaN.
// Caller: a layer, twice; the head.
//
// The weight is 1.5 MB for d = 4096 and stays in L2. Splitting the 4 d inputs over blocks lets one token use 16 SMs instead
// of one; four tokens per block divide the traffic by four. A thread holds the products of its channels with all rows;
// lanes exchange halves until lane l has the sum of product l (31 shuffles for 24 products and the sum of squares).
#include "bf16.cuh"
#include "entry.cuh"
#include "logistic.cuh"
#include "ptx/barrier.cuh"
#include "ptx/global.cuh"
#include "ptx/warp.cuh"

constexpr int STREAMS = 4;
constexpr int ROWS = 2 * STREAMS + STREAMS * STREAMS;
constexpr int PRODUCTS = 32;                       // of a token in the scratch; the sum of squares follows the products
constexpr int PRODUCT_WARPS = 4;
constexpr int PRODUCT_THREADS = PRODUCT_WARPS * 32;
constexpr int LANE_CHANNELS = 4;                   // 16 bytes of weights
constexpr int STEP = PRODUCT_THREADS * LANE_CHANNELS;
static_assert(STEP == 512, "the host divides 4 d into steps of 512");

// Lanes a distance of HALF apart keep HALF of 2 HALF values each and add what the other gives up.
template <int HALF, int N>
__device__ __forceinline__ void exchange(float (&v)[N], int lane) {
  const bool upper = (lane & HALF) != 0;
#pragma unroll
  for (int i = 0; i < HALF; ++i) {
    const float sent = upper ? v[i] : v[i + HALF];
    const float kept = upper ? v[i + HALF] : v[i];
    v[i] = kept + shfl_bfly(sent, HALF);
  }
  if constexpr (HALF > 1) exchange<HALF / 2>(v, lane);
}

// Sums of N values over the warp; lane l is left with that of value l mod N.
template <int N>
__device__ __forceinline__ float sums_of_warp(float (&v)[N], int lane) {
#pragma unroll
  for (int mask = 16; mask >= N; mask /= 2) {
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] += shfl_bfly(v[i], mask);
  }
  exchange<N / 2>(v, lane);
  return v[0];
}

template <int M, int TOKENS>
__device__ __forceinline__ void products(const Sm120HcMixParams& p) {
  constexpr int VALUES = M == ROWS ? 32 : 8;       // products, squares, zeros
  static_assert(M < VALUES, "a place for the squares");
  __shared__ float of_warps[PRODUCT_WARPS][TOKENS][PRODUCTS];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int width = STREAMS * p.d;
  const int64_t first_token = static_cast<int64_t>(blockIdx.x) * TOKENS;
  const uint16_t* streams = static_cast<const uint16_t*>(p.streams) + first_token * width;

  float v[TOKENS][VALUES] = {};
  for (int step = 0; step < p.steps; ++step) {
    const int channel = (static_cast<int>(blockIdx.y) * p.steps + step) * STEP + threadIdx.x * LANE_CHANNELS;
    if (channel >= width) break;                   // 4 d is a multiple of 32: four channels or none
    float x[TOKENS][LANE_CHANNELS];
#pragma unroll
    for (int token = 0; token < TOKENS; ++token) {
      uint2 packed = make_uint2(0, 0);
      if (first_token + token < p.t) {
        packed = __ldg(reinterpret_cast<const uint2*>(streams + static_cast<int64_t>(token) * width + channel));
      }
      x[token][0] = __uint_as_float(packed.x << 16);
      x[token][1] = __uint_as_float(packed.x & 0xffff0000u);
      x[token][2] = __uint_as_float(packed.y << 16);
      x[token][3] = __uint_as_float(packed.y & 0xffff0000u);
#pragma unroll
      for (int c = 0; c < LANE_CHANNELS; ++c) v[token][M] = __fmaf_rn(x[token][c], x[token][c], v[token][M]);
    }
    const float* weight = p.weight + channel;
#pragma unroll
    for (int row = 0; row < M; ++row) {
      const float4 w = __ldg(reinterpret_cast<const float4*>(weight + static_cast<int64_t>(row) * width));
#pragma unroll
      for (int token = 0; token < TOKENS; ++token) {
        v[token][row] = __fmaf_rn(w.x, x[token][0], v[token][row]);
        v[token][row] = __fmaf_rn(w.y, x[token][1], v[token][row]);
        v[token][row] = __fmaf_rn(w.z, x[token][2], v[token][row]);
        v[token][row] = __fmaf_rn(w.w, x[token][3], v[token][row]);
      }
    }
  }
#pragma unroll
  for (int token = 0; token < TOKENS; ++token) {
    const float sum = sums_of_warp<VALUES>(v[token], lane);
    if (lane < VALUES) of_warps[warp][token][lane] = sum;
  }
  __syncthreads();
  const int64_t token = first_token + warp;
  if (warp < TOKENS && token < p.t && lane < VALUES) {
    float sum = of_warps[0][warp][lane];
#pragma unroll
    for (int other = 1; other < PRODUCT_WARPS; ++other) sum += of_warps[other][warp][lane];
    p.products[(static_cast<int64_t>(blockIdx.y) * p.t + token) * PRODUCTS + lane] = sum;
  }
}

constexpr int CHANNEL_WARPS = 8;
constexpr int CHANNEL_THREADS = CHANNEL_WARPS * 32;
constexpr int FINISH_THREADS = CHANNEL_THREADS + 32;
constexpr int MAX_D = 8192;
constexpr int VECTORS = MAX_D / (CHANNEL_THREADS * BF16_VECTOR);

// Lane l: product l of the token times 1 / rms (lanes from M on: nothing of use).
template <int M>
__device__ __forceinline__ float normed_product(const Sm120HcMixParams& p, int64_t token, int lane) {
  const float* products = p.products + token * PRODUCTS + lane;
  float sum = 0.0f;
  if (lane <= M) {
    for (int split = 0; split < p.num_splits; ++split) sum += products[static_cast<int64_t>(split) * p.t * PRODUCTS];
  }
  const float squares = __uint_as_float(shfl_idx(__float_as_uint(sum), M));
  return sum * rsqrtf(squares / static_cast<float>(STREAMS * p.d) + p.norm_eps);
}

// Lane 4 j + k holds entry (j, k): the lanes of a row differ in bits 0 and 1, those of a column in bits 2 and 3. Lanes 16 to
// 31 compute the same matrix again, since all lanes take part in an exchange.
__device__ __forceinline__ float sum_of_row(float x) {
  x += shfl_bfly(x, 1);
  return x + shfl_bfly(x, 2);
}

__device__ __forceinline__ float sum_of_column(float x) {
  x += shfl_bfly(x, 4);
  return x + shfl_bfly(x, 8);
}

__device__ __forceinline__ float sinkhorn(float logit, float eps, int iters) {
  float most = fmaxf(logit, shfl_bfly(logit, 1));
  most = fmaxf(most, shfl_bfly(most, 2));
  float m = exp_approx(logit - most);
  m = m * rcp_approx(sum_of_row(m)) + eps;
  m *= rcp_approx(sum_of_column(m) + eps);
  for (int iter = 1; iter < iters; ++iter) {
    m *= rcp_approx(sum_of_row(m) + eps);
    m *= rcp_approx(sum_of_column(m) + eps);
  }
  return m;
}

// post and comb of a token, by one warp.
__device__ __forceinline__ void mixing(const Sm120HcMixParams& p, int64_t token, int lane) {
  const float product = normed_product<ROWS>(p, token, lane);
  const int group = lane < STREAMS ? 0 : lane < 2 * STREAMS ? 1 : 2;
  const float argument = lane < ROWS ? product * __ldg(p.scale + group) + __ldg(p.base + lane) : 0.0f;
  if (group == 1) p.post[token * STREAMS + lane - STREAMS] = 2.0f * sigmoid_approx(argument);
  // The 16 logits to lanes 0..15.
  const float logit = __uint_as_float(shfl_idx(__float_as_uint(argument), 2 * STREAMS + lane % 16));
  const float entry = sinkhorn(logit, p.hc_eps, p.sinkhorn_iters);
  if (lane < 16) p.comb[token * STREAMS * STREAMS + lane] = entry;
}

template <int M>
__device__ __forceinline__ void finish(const Sm120HcMixParams& p) {
  __shared__ float of_warps[CHANNEL_WARPS];
  const int64_t token = blockIdx.x;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (M == ROWS && warp == CHANNEL_WARPS) {
    // Beside the channels, which do not wait for it.
    mixing(p, token, lane);
    return;
  }
  const float product = normed_product<M>(p, token, lane);
  const float weight =
      lane < STREAMS ? sigmoid_approx(product * __ldg(p.scale) + __ldg(p.base + lane)) + p.hc_eps : 0.0f;
  float pre[STREAMS];
#pragma unroll
  for (int j = 0; j < STREAMS; ++j) pre[j] = __uint_as_float(shfl_idx(__float_as_uint(weight), j));

  const uint16_t* streams = static_cast<const uint16_t*>(p.streams) + token * STREAMS * p.d;
  float h[VECTORS][BF16_VECTOR], squares = 0.0f;
#pragma unroll
  for (int i = 0; i < VECTORS; ++i) {
    const int channel = (i * CHANNEL_THREADS + threadIdx.x) * BF16_VECTOR;
    if (channel >= p.d) break;
#pragma unroll
    for (int c = 0; c < BF16_VECTOR; ++c) h[i][c] = 0.0f;
#pragma unroll
    for (int j = 0; j < STREAMS; ++j) {
      float x[BF16_VECTOR];
      bf16x8_to_f32(ld_global_nc_v4(streams + static_cast<int64_t>(j) * p.d + channel), x);
#pragma unroll
      for (int c = 0; c < BF16_VECTOR; ++c) h[i][c] = __fmaf_rn(pre[j], x[c], h[i][c]);
    }
    // The sum as it would be stored.
    bf16x8_to_f32(f32x8_to_bf16(h[i]), h[i]);
#pragma unroll
    for (int c = 0; c < BF16_VECTOR; ++c) squares = __fmaf_rn(h[i][c], h[i][c], squares);
  }
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) squares += shfl_bfly(squares, mask);
  if (lane == 0) of_warps[warp] = squares;
  barrier_of_warps<1, CHANNEL_THREADS>();
  float sum = 0.0f;
#pragma unroll
  for (int other = 0; other < CHANNEL_WARPS; ++other) sum += of_warps[other];
  const float inverse = rsqrtf(sum / static_cast<float>(p.d) + p.norm_eps);

  uint16_t* out = static_cast<uint16_t*>(p.out) + token * p.d;
#pragma unroll
  for (int i = 0; i < VECTORS; ++i) {
    const int channel = (i * CHANNEL_THREADS + threadIdx.x) * BF16_VECTOR;
    if (channel >= p.d) break;
    float w[BF16_VECTOR];
    f32x8(ld_global_nc_v4(p.norm_weight + channel), ld_global_nc_v4(p.norm_weight + channel + 4), w);
#pragma unroll
    for (int c = 0; c < BF16_VECTOR; ++c) h[i][c] = h[i][c] * inverse * w[c];
    st_global_v4(out + channel, f32x8_to_bf16(h[i]));
  }
}

#define HC_MIX_PRODUCTS(name, m, tokens)                                   \
  extern "C" __global__ __launch_bounds__(PRODUCT_THREADS)                 \
  void SM120_ENTRY(name)(const __grid_constant__ Sm120HcMixParams p) {     \
    declare_shared<0>();                                                   \
    products<m, tokens>(p);                                                \
  }

HC_MIX_PRODUCTS(hc_mix_products_1, ROWS, 1)
HC_MIX_PRODUCTS(hc_mix_products_4, ROWS, 4)
HC_MIX_PRODUCTS(hc_mix_head_products_1, STREAMS, 1)
HC_MIX_PRODUCTS(hc_mix_head_products_4, STREAMS, 4)

extern "C" __global__ __launch_bounds__(FINISH_THREADS)
void SM120_ENTRY(hc_mix_finish)(const __grid_constant__ Sm120HcMixParams p) {
  declare_shared<0>();
  finish<ROWS>(p);
}

extern "C" __global__ __launch_bounds__(CHANNEL_THREADS)
void SM120_ENTRY(hc_mix_head_finish)(const __grid_constant__ Sm120HcMixParams p) {
  declare_shared<0>();
  finish<STREAMS>(p);
}
