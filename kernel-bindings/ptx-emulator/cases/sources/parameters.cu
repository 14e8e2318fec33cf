// Every kind of scalar, and a struct by value with pointers inside.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
struct Job {
    int scale;
    const short *x;
    double *y;
    unsigned long long none;
};
extern "C" __global__ void parameters(signed char a, unsigned char b, short c, unsigned short d, int e, unsigned f, long long g, unsigned long long h, __half i, __nv_bfloat16 j,
                                      float k, double l, const void *null, Job job)
{
    int t = threadIdx.x;
    double sum = (double)a + b + c + d + e + f + (double)g + (double)h + (double)__half2float(i) + (double)__bfloat162float(j) + k + l;
    if (null == nullptr && job.none == 0)
        job.y[t] = sum + (double)job.scale * job.x[t];
}
