// Every block counts its odd numbers into one word.
extern "C" __global__ void count_odd(const int *x, int *counter)
{
    int odd = __syncthreads_count(x[blockIdx.x * blockDim.x + threadIdx.x] & 1);
    if (threadIdx.x == 0) {
#ifdef BUG
        *counter += odd;
#else
        atomicAdd(counter, odd);
#endif
    }
}
