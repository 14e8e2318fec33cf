// A store of one value by all lanes is tolerated, the missing barrier behind the read of it is not.
extern "C" __global__ void rounds(const int *x, int *y)
{
    __shared__ int s;
    int sum = 0;
    for (int i = 0; i < 4; i++) {
        s = x[i];
        __syncthreads();
        sum += s;
#ifndef BUG
        __syncthreads();
#endif
    }
    y[threadIdx.x] = sum + threadIdx.x;
}
