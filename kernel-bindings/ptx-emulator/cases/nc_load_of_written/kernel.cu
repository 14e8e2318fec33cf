#define BUG
// One step of a relaxation; the bug reads the written buffer through the read-only path.
extern "C" __global__ void step(const float *x, float *y)
{
    int i = threadIdx.x;
    float v = x[i] * 0.5f;
    y[i] = v;
    __syncthreads();
#ifdef BUG
    float neighbour = __ldg(&y[(i + 1) & 63]);
#else
    float neighbour = *(volatile float *)&y[(i + 1) & 63];
#endif
    __syncthreads();
    y[i] = v + neighbour;
}
