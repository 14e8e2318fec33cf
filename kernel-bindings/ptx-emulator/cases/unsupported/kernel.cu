// A call into the driver's runtime, which no PTX text contains.
#include <cstdio>
extern "C" __global__ void hello(int *y)
{
    printf("%d\n", y[0]);
}
