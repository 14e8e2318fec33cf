// Row softmax with exp2, a warp per row.
extern "C" __global__ void softmax(const float *x, float *y, int columns)
{
    const float *row = x + (size_t)blockIdx.x * columns;
    float largest = -INFINITY;
    for (int i = threadIdx.x; i < columns; i += 32)
        largest = fmaxf(largest, row[i]);
    for (int o = 16; o; o >>= 1)
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, o));
    float sum = 0;
    for (int i = threadIdx.x; i < columns; i += 32)
        sum += exp2f((row[i] - largest) * 1.4426950408889634f);
    for (int o = 16; o; o >>= 1)
        sum += __shfl_xor_sync(0xffffffffu, sum, o);
    for (int i = threadIdx.x; i < columns; i += 32)
        y[(size_t)blockIdx.x * columns + i] = exp2f((row[i] - largest) * 1.4426950408889634f) / sum;
}
