/* The loop for 32-bit registers. */
#define XLEN 32
#define ISS_RUN iss_run_32
#include "hart.inc"
