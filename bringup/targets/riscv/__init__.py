"""Kernels of known sizes as bare-metal code: C for everything, tiles in registers and vector assembly where it counts.

Read static_function (any kernel as a C function), contraction (what the two emitters for matrix products and
convolutions share), scalar_contract, then asm, vector_values, vector_strip and vector_contract.
"""
