"""The loop IR: kernels as loops over typed expressions, with a verifier, a reference interpreter, cost and fusion."""
