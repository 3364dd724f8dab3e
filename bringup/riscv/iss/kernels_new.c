/* Kernels for x86 processors with AVX2 and fused multiply-add, whose fma() is one instruction and not a call. */
#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC target("avx2,fma")
#endif
#define KERNELS iss_kernels_new
#include "kernels.inc"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#else
typedef int nothing_for_this_processor;
#endif
