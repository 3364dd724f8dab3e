"""Kernels in the C of UPMEM's processors in memory."""
