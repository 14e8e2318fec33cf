// Two warps meet at barrier 1; the bug lets them disagree on how many threads it has.
extern "C" __global__ void meet(const int *x, int *y)
{
    __shared__ int s[64];
    s[threadIdx.x] = x[threadIdx.x];
#ifdef BUG
    if (threadIdx.x < 32)
        asm volatile("bar.sync 1, 64;" ::: "memory");
    else
        asm volatile("bar.sync 1, 96;" ::: "memory");
#else
    asm volatile("bar.sync 1, 64;" ::: "memory");
#endif
    y[threadIdx.x] = s[63 - threadIdx.x];
}
