// A barrier inside a branch that only part of each warp takes.
extern "C" __global__ void half_barrier(const int *x, int *y)
{
    __shared__ int s[64];
    s[threadIdx.x] = x[threadIdx.x];
#ifdef BUG
    if (threadIdx.x % 32 < 20)
        asm volatile("bar.sync 0;" ::: "memory");
    y[threadIdx.x] = s[threadIdx.x] + 1;
#else
    __syncthreads();
    y[threadIdx.x] = s[threadIdx.x ^ 32] + 1;
#endif
}
