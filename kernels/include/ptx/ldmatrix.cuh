// Matrix loads from shared memory: every lane gives the address of one 16-byte row, all lanes share what is read.
// With g = lane / 4 and t = lane % 4, register i of a lane holds of matrix i
//   b16:              row g, elements 2t, 2t + 1
//   b16 transposed:   rows 2t, 2t + 1, element g
//   b8 transposed:    (two registers per matrix) rows 4t .. 4t + 3, element g, then element g + 8
#pragma once
#include <stdint.h>

// ldmatrix.m8n8.x4: four 8 x 8 matrices of 16-bit elements; lane l addresses row l % 8 of matrix l / 8.
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&d)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
               : "r"(row)
               : "memory");
}

// ldmatrix.m8n8.x4.trans: the same, transposed.
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&d)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
               : "r"(row)
               : "memory");
}

// ldmatrix.m16n16.x2.trans.b8: two 16 x 16 matrices of bytes, transposed; lane l addresses row l % 16 of matrix l / 16;
// sm_120a.
__device__ __forceinline__ void ldmatrix_b8_x2_trans(uint32_t (&d)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m16n16.x2.trans.shared.b8 {%0, %1, %2, %3}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
               : "r"(row)
               : "memory");
}
