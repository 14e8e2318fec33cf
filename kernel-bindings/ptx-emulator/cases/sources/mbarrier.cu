// 64 threads arrive on an mbarrier and wait for its phase; the bug initialises it for 63.
extern "C" __global__ void phase(const int *x, int *y)
{
    __shared__ alignas(8) unsigned long long bar;
    __shared__ int s[64];
    unsigned at = (unsigned)__cvta_generic_to_shared(&bar);
    if (threadIdx.x == 0) {
#ifdef BUG
        asm volatile("mbarrier.init.shared.b64 [%0], 63;" ::"r"(at) : "memory");
#else
        asm volatile("mbarrier.init.shared.b64 [%0], 64;" ::"r"(at) : "memory");
#endif
    }
    __syncthreads();
    s[threadIdx.x] = x[threadIdx.x];
    asm volatile("{ .reg .b64 s; mbarrier.arrive.shared.b64 s, [%0]; }" ::"r"(at) : "memory");
    unsigned done = 0;
    while (!done)
        asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done)
                     : "r"(at)
                     : "memory");
    y[threadIdx.x] = s[63 - threadIdx.x];
}
