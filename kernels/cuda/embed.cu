// Embedding rows, copied once per stream.
//
// In:    table [vocab, d] bf16; ids [t] s32.  Out: out [t, copies, d] bf16. d is a multiple of 8, all contiguous.
// Launch: a block of 256 threads per token, no shared memory, no barrier.
//
//   out[t, c, :] = table[ids[t], :]
//
// Invalid: an id outside 0..vocab gives zeros.
// Caller: the first operation of a step.
#include "bf16.cuh"
#include "entry.cuh"
#include "ptx/global.cuh"

constexpr int THREADS = 256;

extern "C" __global__ __launch_bounds__(THREADS)
void SM120_ENTRY(embed_bf16)(const __grid_constant__ Sm120EmbedParams p) {
  declare_shared<0>();
  const int32_t id = p.ids[blockIdx.x];
  const bool valid = id >= 0 && id < p.vocab;
  const uint16_t* row = static_cast<const uint16_t*>(p.table) + static_cast<int64_t>(id) * p.d;
  uint16_t* out = static_cast<uint16_t*>(p.out) + static_cast<int64_t>(blockIdx.x) * p.copies * p.d;
  for (int channel = threadIdx.x * BF16_VECTOR; channel < p.d; channel += THREADS * BF16_VECTOR) {
    const uint4 value = valid ? ld_global_nc_v4(row + channel) : make_uint4(0, 0, 0, 0);
    for (int copy = 0; copy < p.copies; ++copy) st_global_v4(out + static_cast<int64_t>(copy) * p.d + channel, value);
  }
}
