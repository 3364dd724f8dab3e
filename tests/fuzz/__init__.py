"""Random programs, each through every route that bringup has, compared with PyTorch on the CPU: docs/fuzzing.md."""
