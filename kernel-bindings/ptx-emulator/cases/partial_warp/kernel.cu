#define BUG
// Identity times b with mma.sync; the bug lets only half of the warp reach the instruction.
extern "C" __global__ void identity(const unsigned *b, float *y)
{
    int lane = threadIdx.x;
    float d[4] = {0, 0, 0, 0};
    unsigned one = 0x3f80u, a[4];
    // a[r][r] = 1: row g holds column 2t and 2t + 1.
    int g = lane / 4, t = lane % 4;
    a[0] = g / 2 == t ? one << (16 * (g & 1)) : 0;
    a[1] = 0;
    a[2] = 0;
    a[3] = g / 2 == t ? one << (16 * (g & 1)) : 0;
#ifdef BUG
    if (lane < 16)
#endif
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[lane]), "r"(b[32 + lane]));
    y[g * 8 + 2 * t] = d[0];
    y[g * 8 + 2 * t + 1] = d[1];
    y[(g + 8) * 8 + 2 * t] = d[2];
    y[(g + 8) * 8 + 2 * t + 1] = d[3];
}
