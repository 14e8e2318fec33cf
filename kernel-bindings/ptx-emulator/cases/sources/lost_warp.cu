// Barrier 2 counts 64 threads, one warp never comes.
extern "C" __global__ void lost(int *y)
{
#ifdef BUG
    if (threadIdx.x < 32)
#endif
        asm volatile("bar.sync 2, 64;" ::: "memory");
    y[threadIdx.x] = threadIdx.x;
}
