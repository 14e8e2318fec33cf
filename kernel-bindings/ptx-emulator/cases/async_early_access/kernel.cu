#define EARLY
// Copies through shared memory with cp.async: EARLY reads before the wait, LEAVE ends without one.
#include <cuda_pipeline.h>
extern "C" __global__ void through_shared(const int4 *x, int4 *y)
{
    __shared__ int4 s[64];
    __pipeline_memcpy_async(&s[threadIdx.x], &x[threadIdx.x], 16);
    __pipeline_commit();
#if defined(EARLY)
    __syncthreads();
    int4 v = s[threadIdx.x ^ 1];
    __pipeline_wait_prior(0);
    y[threadIdx.x] = v;
#elif defined(LEAVE)
    y[threadIdx.x] = make_int4(1, 2, 3, 4);
#else
    __pipeline_wait_prior(0);
    __syncthreads();
    y[threadIdx.x] = s[threadIdx.x ^ 1];
#endif
}
