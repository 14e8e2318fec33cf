// Squares into shared memory, one bulk copy out: the async proxy sees generic writes only behind a proxy fence.
extern "C" __global__ void square_out(const int *x, int *y)
{
    __shared__ alignas(128) int s[128];
    s[threadIdx.x] = x[threadIdx.x] * x[threadIdx.x];
#ifndef BUG
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
    __syncthreads();
    if (threadIdx.x == 0) {
        unsigned from = (unsigned)__cvta_generic_to_shared(s);
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 512;" ::"l"(y), "r"(from) : "memory");
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    }
}
