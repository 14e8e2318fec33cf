#define BUG
// Lanes of one warp exchange numbers through shared memory: __syncwarp orders them, being in one warp does not.
extern "C" __global__ void exchange(const int *x, int *y)
{
    __shared__ int s[32];
    s[threadIdx.x] = x[threadIdx.x];
#ifdef BUG
    asm volatile("" ::: "memory");
#else
    __syncwarp();
#endif
    y[threadIdx.x] = s[threadIdx.x ^ 1];
}
