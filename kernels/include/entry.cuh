// What every kernel file starts with: parameter structs, their layout checks, the target, the form of an entry.
//
//   SM120_ENTRY(kv_write_v4_fp8)         symbol with the target: kv_write_v4_fp8_sm89 | kv_write_v4_fp8_sm120a
//   SM120_TARGET_SM89, SM120_TARGET_SM120A   1 | 0, set by the toolchain command
//   declare_shared<sizeof(SharedPlan)>() first statement of every entry: states the dynamic shared bytes of a launch
//
// Device functions are `__device__ __forceinline__` without `static`, so that their names do not depend on the folder
// that the compiler ran in.
#pragma once
#include "params.h"
#include "params_check.h"

#if defined(SM120_TARGET) && SM120_TARGET == 89
#define SM120_TARGET_SM89 1
#define SM120_TARGET_SM120A 0
#define SM120_ENTRY(name) name##_sm89
#elif defined(SM120_TARGET) && SM120_TARGET == 120
#define SM120_TARGET_SM89 0
#define SM120_TARGET_SM120A 1
#define SM120_ENTRY(name) name##_sm120a
#else
#error "SM120_TARGET must be 89 or 120: compile with the command compile-ptx"
#endif

// A comment in the PTX, no instruction. The toolchain command reads it into the manifest; whoever launches passes it.
template <int BYTES>
__device__ __forceinline__ void declare_shared() {
  static_assert(BYTES >= 0 && BYTES <= SM120_MAX_SHARED_BYTES, "the shared-memory plan does not fit an SM120 block");
  asm volatile("// dynamic_shared %0" ::"n"(BYTES));
}
