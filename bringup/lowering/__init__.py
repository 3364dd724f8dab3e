"""Lowering: each ATen op defined once as loops. ``lower`` turns one call into kernels over symbolic sizes.

The order to read: symbolic (numbers that remember what was asked of them), call (one op call), builder (a kernel,
statement by statement), elementwise and reduction (the two loops most ops are), then the families of ops.
"""
