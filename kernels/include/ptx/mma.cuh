// Warp matrix instructions, one function each: d = a * b + c for a row-major (m x k), b column-major (k x n), f32 sums.
//
// Lane l holds, with g = l / 4 and t = l % 4 (bytes or bf16 pairs of a register ascend in k):
//   c, d: [0] row g, column 2t   [1] row g, column 2t + 1   [2], [3] the same of row g + 8
//   m16n8k32 e4m3: a[0] row g, k 4t..4t+3   a[1] row g + 8, same k   a[2] row g, k 16+4t..   a[3] row g + 8, k 16+4t..
//                  b[0] column g, k 4t..4t+3   b[1] column g, k 16+4t..
//   m16n8k16 bf16: a[0] row g, k 2t, 2t+1   a[1] row g + 8   a[2] row g, k 8+2t..   a[3] row g + 8
//                  b[0] column g, k 2t, 2t+1   b[1] column g, k 8+2t..
//   m16n8k64 e2m1: a[0] row g, k 8t..8t+7   a[1] row g + 8, same k   a[2] row g, k 32+8t..   a[3] row g + 8, k 32+8t..
//                  b[0] column g, k 8t..8t+7   b[1] column g, k 32+8t..
#pragma once
#include <stdint.h>

// mma.m16n8k16 bf16, any target.
__device__ __forceinline__ void mma_bf16_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                                                  const float (&c)[4]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%10, %11, %12, %13};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
}

// mma.m16n8k32 e4m3, sm_89 and later. On Hopper it is emulated with half-precision instructions; on GeForce Blackwell it
// runs at half the rate of the block-scaled form below.
__device__ __forceinline__ void mma_e4m3_m16n8k32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                                                  const float (&c)[4]) {
  asm("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%10, %11, %12, %13};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
}

// mma.m16n8k32 e4m3 x e4m3 with one ue8m0 scale per row of a and per column of b, sm_120a. Byte 0 of scale_a (in the two
// lanes t = 0, 1 of row g and g + 8) and of scale_b (lane t = 0 of column g) is taken; 127 in every byte of every lane is
// the plain product.
__device__ __forceinline__ void mma_e4m3_m16n8k32_block_scaled(float (&d)[4], const uint32_t (&a)[4],
                                                               const uint32_t (&b)[2], const float (&c)[4],
                                                               uint32_t scale_a, uint32_t scale_b) {
  asm("mma.sync.aligned.m16n8k32.row.col.kind::mxf8f6f4.block_scale.scale_vec::1X.f32.e4m3.e4m3.f32.ue8m0 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13}, %14, {0, 0}, %15, {0, 0};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]),
        "r"(scale_a), "r"(scale_b));
}

// The same with selectors. Row g of a takes byte BYTE_A of lane 4g + 2 * THREAD_A, row g + 8 that of the lane after it;
// column g of b takes byte BYTE_B of lane 4g + THREAD_B. THREAD_A 0..1, the others 0..3.
template <int BYTE_A, int THREAD_A, int BYTE_B, int THREAD_B>
__device__ __forceinline__ void mma_e4m3_m16n8k32_block_scaled(float (&d)[4], const uint32_t (&a)[4],
                                                               const uint32_t (&b)[2], const float (&c)[4],
                                                               uint32_t scale_a, uint32_t scale_b) {
  asm("mma.sync.aligned.m16n8k32.row.col.kind::mxf8f6f4.block_scale.scale_vec::1X.f32.e4m3.e4m3.f32.ue8m0 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13}, %14, {%16, %17}, %15, {%18, %19};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]),
        "r"(scale_a), "r"(scale_b), "n"(BYTE_A), "n"(THREAD_A), "n"(BYTE_B), "n"(THREAD_B));
}

// mma.m16n8k64 e2m1 x e2m1 with two ue8m0 scales per row of a and per column of b, one per 32 of k; sm_120a. Row g of a takes
// bytes BYTE_A and BYTE_A + 1 of lane 4g + 2 * THREAD_A, row g + 8 those of the lane after it; column g of b takes bytes BYTE_B
// and BYTE_B + 1 of lane 4g + THREAD_B. Bytes 0 or 2, THREAD_A 0..1, THREAD_B 0..3. Scale byte 255 is NaN.
template <int BYTE_A, int THREAD_A, int BYTE_B, int THREAD_B>
__device__ __forceinline__ void mma_e2m1_m16n8k64_block_scaled(float (&d)[4], const uint32_t (&a)[4],
                                                               const uint32_t (&b)[2], const float (&c)[4],
                                                               uint32_t scale_a, uint32_t scale_b) {
  asm("mma.sync.aligned.m16n8k64.row.col.kind::mxf4.block_scale.scale_vec::2X.f32.e2m1.e2m1.f32.ue8m0 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13}, %14, {%16, %17}, %15, {%18, %19};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]),
        "r"(scale_a), "r"(scale_b), "n"(BYTE_A), "n"(THREAD_A), "n"(BYTE_B), "n"(THREAD_B));
}
