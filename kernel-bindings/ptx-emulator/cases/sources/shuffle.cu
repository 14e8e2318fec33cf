// The lower half of a warp rotates its numbers; the bug reads from a lane that does not take part.
extern "C" __global__ void rotate(const int *x, int *y)
{
    int v = x[threadIdx.x];
    if (threadIdx.x < 16) {
#ifdef BUG
        int from = (threadIdx.x + 1) % 32;
#else
        int from = (threadIdx.x + 1) % 16;
#endif
        asm volatile("shfl.sync.idx.b32 %0, %0, %1, 0x1f, 0xffff;" : "+r"(v) : "r"(from));
    }
    y[threadIdx.x] = v;
}
