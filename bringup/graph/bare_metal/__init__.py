"""A model as a bare-metal program: every size known, every address decided, no runtime underneath.

Read static_program (a GraphProgram with its sizes written in), passes (what is rearranged for a small core), kernels
(steps as C and assembly), project (the files), run (in an emulator).
"""
