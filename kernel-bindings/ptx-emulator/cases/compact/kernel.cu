// Keeps the even numbers in any order, then launch two adds one to each.
extern "C" __global__ void keep_even(const int *x, int *y, int *count)
{
    int v = x[blockIdx.x * blockDim.x + threadIdx.x];
    if ((v & 1) == 0)
        y[atomicAdd(count, 1)] = v;
}
extern "C" __global__ void increment(int *y, const int *count)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < *count)
        y[i] += 1;
}
