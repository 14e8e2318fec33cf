#define BUG
// A cluster of two blocks: each reads the other's shared memory. Without the last barrier a block may have ended.
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
extern "C" __global__ void swap_blocks(const int *x, int *y)
{
    __shared__ int s[64];
    cg::cluster_group cluster = cg::this_cluster();
    unsigned rank = cluster.block_rank();
    s[threadIdx.x] = x[blockIdx.x * 64 + threadIdx.x];
    cluster.sync();
#ifdef BUG
    if (rank == 1)
        return;
    // Long enough for the other block to be gone.
    int wait = 0;
    for (int k = 0; k < 2000; k++)
        wait += *(volatile int *)&s[(threadIdx.x + k) & 63] & 0;
    y[blockIdx.x * 64 + threadIdx.x] = cluster.map_shared_rank(s, rank ^ 1)[threadIdx.x] + wait;
#else
    y[blockIdx.x * 64 + threadIdx.x] = cluster.map_shared_rank(s, rank ^ 1)[threadIdx.x];
    cluster.sync();
#endif
}
