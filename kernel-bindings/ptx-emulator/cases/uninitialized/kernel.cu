#define BUG
// Reverses 64 numbers through shared memory; the bug fills only half of it.
extern "C" __global__ void reverse(const int *x, int *y)
{
    __shared__ int s[64];
#ifdef BUG
    if (threadIdx.x < 32)
#endif
        s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = s[63 - threadIdx.x];
}
