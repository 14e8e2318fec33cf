// Four blocks of a cluster add their partial sums into the first one's shared memory with remote atomics; a cluster has
// 2 x 2 blocks of a grid of 4 x 2.
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
extern "C" __global__ void __cluster_dims__(2, 2, 1) cluster_sum(const int *x, int *y)
{
    __shared__ int total;
    cg::cluster_group cluster = cg::this_cluster();
    unsigned rank = cluster.block_rank();
    unsigned block = blockIdx.y * gridDim.x + blockIdx.x;
    if (threadIdx.x == 0)
        total = 0;
#ifdef BUG
    __syncthreads();
#else
    cluster.sync();
#endif
    atomicAdd(cluster.map_shared_rank(&total, 0), x[block * 32 + threadIdx.x]);
    cluster.sync();
    if (rank == 0 && threadIdx.x == 0)
        y[blockIdx.y / 2 * (gridDim.x / 2) + blockIdx.x / 2] = total;
    if (threadIdx.x == 1)
        y[2 + block] = (int)(rank * 100 + cluster.block_index().x * 10 + cluster.block_index().y);
}
