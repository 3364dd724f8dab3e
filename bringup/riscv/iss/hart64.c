/* The loop for 64-bit registers. */
#define XLEN 64
#define ISS_RUN iss_run_64
#include "hart.inc"
