// y = 2 x + 1 over n elements; the grid covers more.
extern "C" __global__ void scale_add(const float *x, float *y, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
#ifndef BUG
    if (i < n)
#endif
        y[i] = 2.0f * x[i] + 1.0f;
}
