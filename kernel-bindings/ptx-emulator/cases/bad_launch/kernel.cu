// Writes the thread number; launched with more threads than a block may have.
extern "C" __global__ void fill(int *y)
{
    y[threadIdx.x] = threadIdx.x;
}
