"""The loop IR: kernels as loops over typed expressions, with a verifier, a reference interpreter and cost.

Read in this order:

- dtypes, index, ops, expr, kernel, program: what a kernel is made of
- printer, parser: the text form, both ways
- verify (with index_proof, guards, injective): what must be proved before a kernel runs
- interpret (with arithmetic, functions, philox): what a kernel means; interpret_scalar says it again, plainly
- simplify (with fold_values, share), cost: what is done with kernels
- random_kernel, bad_kernels, bits: what targets are tested with
"""
