// Sample kernels for tests/cuda_samples.rs: what nvcc emits for common idioms. The committed PTX is made by
//   nvcc -arch=compute_89 -ptx -O3 samples.cu -o samples_sm89.ptx
//   nvcc -arch=compute_120a -code=compute_120a -DBULK -ptx -O3 samples.cu -o samples_sm120a.ptx
#include <cuda_pipeline.h>
#include <cuda_bf16.h>
#include <cstdint>
// reductions by shuffle, shared memory and atomics
extern "C" __global__ void reduce(const float* x, float* out, unsigned* count, int n) {
    float sum = 0.f;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) sum += x[i];
    for (int d = 16; d > 0; d >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, d);
    __shared__ float part[32];
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x < 32) {
        float v = threadIdx.x < blockDim.x / 32 ? part[threadIdx.x] : 0.f;
        for (int d = 16; d > 0; d >>= 1) v += __shfl_down_sync(0xffffffffu, v, d);
        if (threadIdx.x == 0) { atomicAdd(out, v); atomicAdd(count, 1u); }
    }
}
// last block finishes
extern "C" __global__ void last_block(const int* x, int* partial, int* out, unsigned* ticket, int n) {
    __shared__ int s[8];
    __shared__ bool last;
    int v = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) v += x[i];
    v = __reduce_add_sync(0xffffffffu, v);
    if (threadIdx.x % 32 == 0) s[threadIdx.x / 32] = v;
    __syncthreads();
    if (threadIdx.x == 0) {
        int t = 0;
        for (int i = 0; i < blockDim.x / 32; i++) t += s[i];
        partial[blockIdx.x] = t;
        __threadfence();
        last = atomicAdd(ticket, 1u) == gridDim.x - 1;
    }
    __syncthreads();
    if (last) {
        __threadfence();
        int t = 0;
        for (int i = threadIdx.x; i < gridDim.x; i += blockDim.x) t += ((volatile int*)partial)[i];
        t = __reduce_add_sync(0xffffffffu, t);
        if (threadIdx.x % 32 == 0) s[threadIdx.x / 32] = t;
        __syncthreads();
        if (threadIdx.x == 0) {
            int u = 0;
            for (int i = 0; i < blockDim.x / 32; i++) u += s[i];
            *out = u;
        }
    }
}
// bf16 matmul C[m,n] = A[m,k] B[n,k]^T, 64x64 tile, 4 warps, cp.async double buffer, ldmatrix, mma
static __device__ uint32_t smem_addr(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }
extern "C" __global__ void __launch_bounds__(128) matmul(const __nv_bfloat16* A, const __nv_bfloat16* B, float* C, int M, int N, int K) {
    __shared__ __align__(16) __nv_bfloat16 sa[2][64][32 + 8], sb[2][64][32 + 8];
    int m0 = blockIdx.y * 64, n0 = blockIdx.x * 64;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    auto load = [&](int stage, int k0) {
        for (int i = threadIdx.x; i < 64 * 4; i += 128) {
            int r = i / 4, c = (i % 4) * 8;
            __pipeline_memcpy_async(&sa[stage][r][c], &A[(size_t)(m0 + r) * K + k0 + c], 16);
            __pipeline_memcpy_async(&sb[stage][r][c], &B[(size_t)(n0 + r) * K + k0 + c], 16);
        }
        __pipeline_commit();
    };
    float acc[8][4] = {};
    load(0, 0);
    int tiles = K / 32;
    for (int t = 0; t < tiles; t++) {
        if (t + 1 < tiles) { load((t + 1) & 1, (t + 1) * 32); __pipeline_wait_prior(1); } else __pipeline_wait_prior(0);
        __syncthreads();
        int s = t & 1;
        for (int kk = 0; kk < 32; kk += 16) {
            uint32_t a[4];
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3]) : "r"(smem_addr(&sa[s][warp * 16 + lane % 16][kk + (lane / 16) * 8])));
            for (int j = 0; j < 8; j++) {
                uint32_t b[2];
                asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];" : "=r"(b[0]), "=r"(b[1]) : "r"(smem_addr(&sb[s][j * 8 + lane % 8][kk + ((lane / 8) & 1) * 8])));
                asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" : "+f"(acc[j][0]), "+f"(acc[j][1]), "+f"(acc[j][2]), "+f"(acc[j][3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
            }
        }
        __syncthreads();
    }
    for (int j = 0; j < 8; j++) {
        int r = m0 + warp * 16 + lane / 4, c = n0 + j * 8 + (lane % 4) * 2;
        *(float2*)&C[(size_t)r * N + c] = make_float2(acc[j][0], acc[j][1]);
        *(float2*)&C[(size_t)(r + 8) * N + c] = make_float2(acc[j][2], acc[j][3]);
    }
}
// producer warp with bulk copies and mbarriers, consumers sum, bulk store of the result
#ifdef BULK
static __device__ void mbar_init(uint32_t b, uint32_t n) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(b), "r"(n) : "memory"); }
static __device__ void mbar_wait(uint32_t b, uint32_t parity) {
    asm volatile("{\n.reg .pred p;\nL1: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra L2;\nbra L1;\nL2:\n}" :: "r"(b), "r"(parity) : "memory");
}
extern "C" __global__ void __launch_bounds__(160) bulk_sum(const int* x, int* out, int tiles) {
    constexpr int TILE = 512, STAGES = 3;
    __shared__ __align__(128) int buf[STAGES][TILE];
    __shared__ __align__(128) int res[128];
    __shared__ __align__(8) uint64_t full[STAGES], empty[STAGES];
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) { mbar_init(smem_addr(&full[i]), 1); mbar_init(smem_addr(&empty[i]), 128); }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    int warp = threadIdx.x / 32;
    const int* src = x + (size_t)blockIdx.x * tiles * TILE;
    if (warp == 4) {
        if (threadIdx.x % 32 == 0) {
            for (int t = 0; t < tiles; t++) {
                int s = t % STAGES, ph = (t / STAGES) & 1;
                mbar_wait(smem_addr(&empty[s]), ph ^ 1);
                asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(smem_addr(&full[s])), "r"(TILE * 4) : "memory");
                asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" :: "r"(smem_addr(buf[s])), "l"(src + (size_t)t * TILE), "r"(TILE * 4), "r"(smem_addr(&full[s])) : "memory");
            }
        }
    } else {
        int sum = 0;
        for (int t = 0; t < tiles; t++) {
            int s = t % STAGES, ph = (t / STAGES) & 1;
            mbar_wait(smem_addr(&full[s]), ph);
            for (int i = threadIdx.x; i < TILE; i += 128) sum += buf[s][i];
            asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(smem_addr(&empty[s])) : "memory");
        }
        res[threadIdx.x] = sum;
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        asm volatile("bar.sync 1, 128;" ::: "memory");
        if (threadIdx.x == 0) {
            asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" :: "l"(out + blockIdx.x * 128), "r"(smem_addr(res)), "r"(512) : "memory");
            asm volatile("cp.async.bulk.commit_group;" ::: "memory");
            asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
        }
    }
}
#endif
// divergence: nested loops with different trip counts, early returns
extern "C" __global__ void collatz(const int* x, int* steps, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    long long v = x[i];
    int c = 0;
    while (v != 1) {
        if (v % 2 == 0) v /= 2; else { v = 3 * v + 1; }
        c++;
        if (c > 500) { steps[i] = -1; return; }
    }
    steps[i] = c;
}
// histogram with shared and global atomics
extern "C" __global__ void histogram(const unsigned char* x, unsigned* hist, int n) {
    __shared__ unsigned h[256];
    for (int i = threadIdx.x; i < 256; i += blockDim.x) h[i] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&h[x[i]], 1u);
    __syncthreads();
    for (int i = threadIdx.x; i < 256; i += blockDim.x) if (h[i]) atomicAdd(&hist[i], h[i]);
}
// local arrays, double, integer division, math
extern "C" __global__ void mixed(const float* x, double* y, int n, int m) {
    int i = threadIdx.x;
    if (i >= n) return;
    float t[8];
    for (int k = 0; k < 8; k++) t[k] = x[i] * k;
    int idx = (i * 7 + 3) % m;
    t[idx & 7] += 1.0f;
    double s = 0;
    for (int k = 0; k < 8; k++) s += t[(k + i) & 7] / (k + 1.0);
    y[i] = s + sqrt((double)i) + (double)(i / m) - (double)((long long)i * 1000003LL % m);
}
