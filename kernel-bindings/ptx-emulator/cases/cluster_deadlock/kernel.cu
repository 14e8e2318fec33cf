// A block of the cluster waits at the cluster's barrier for one that spins on a flag which is set behind the barrier.
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
extern "C" __global__ void cluster_wait(int *flag, int *y)
{
    cg::cluster_group cluster = cg::this_cluster();
    if (cluster.block_rank() == 0 && threadIdx.x == 0)
        while (atomicAdd(flag, 0) == 0) {
        }
    cluster.sync();
    if (cluster.block_rank() == 1 && threadIdx.x == 0)
        atomicExch(flag, 1);
    y[blockIdx.x] = 1;
}
