/* Kernels for any processor of the host's family, and the choice between the two. */
#define KERNELS iss_kernels_any
#include "kernels.inc"

#if defined(__x86_64__)
extern const struct iss_kernels iss_kernels_new;

const struct iss_kernels *iss_choose_kernels(bool portable) {
  bool new = !portable &&__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return new ? &iss_kernels_new : &iss_kernels_any;
}
#else
const struct iss_kernels *iss_choose_kernels(bool portable) {
  (void)portable;
  return &iss_kernels_any;
}
#endif
