// Rows of a buffer by number.
//
// In:    src [num_rows, row_bytes]; rows [n] s32.  Out: out [n, row_bytes]. row_bytes is a multiple of 16.
// Launch: grid (n, parts of a row), block 256 threads, no shared memory, no barrier. A part is 16 KiB, then strided.
//
//   out[i] = src[rows[i]]
//
// Invalid: a row outside 0..num_rows gives zeros.
// Caller: the model, which picks the positions whose logits are wanted.
#include "entry.cuh"
#include "ptx/global.cuh"

constexpr int THREADS = 256;

extern "C" __global__ __launch_bounds__(THREADS)
void SM120_ENTRY(gather_rows)(const __grid_constant__ Sm120GatherRowsParams p) {
  declare_shared<0>();
  const int32_t row = p.rows[blockIdx.x];
  const bool valid = row >= 0 && row < p.num_rows;
  const uint8_t* src = static_cast<const uint8_t*>(p.src) + static_cast<int64_t>(row) * p.row_bytes;
  uint8_t* out = static_cast<uint8_t*>(p.out) + static_cast<int64_t>(blockIdx.x) * p.row_bytes;
  const int64_t step = static_cast<int64_t>(gridDim.y) * THREADS * 16;
  for (int64_t at = (static_cast<int64_t>(blockIdx.y) * THREADS + threadIdx.x) * 16; at < p.row_bytes; at += step) {
    st_global_v4(out + at, valid ? ld_global_nc_v4(src + at) : make_uint4(0, 0, 0, 0));
  }
}
