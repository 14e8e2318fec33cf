#define BUG
// Block 0 waits for block 1; the bug leaves the flag unset.
extern "C" __global__ void handshake(volatile int *flag, volatile int *data, int *y)
{
    if (threadIdx.x != 0)
        return;
    if (blockIdx.x == 1) {
        data[0] = 42;
        __threadfence();
#ifndef BUG
        atomicExch((int *)flag, 1);
#endif
    } else {
        while (atomicAdd((int *)flag, 0) == 0) {
        }
        __threadfence();
        y[0] = data[0];
    }
}
