"""Timelines of programs: ``bringup trace`` writes them, and traces of several ranks become one.

torch.profiler itself shows devices by what csrc/profiler gives it; here is what stands around it.
"""
