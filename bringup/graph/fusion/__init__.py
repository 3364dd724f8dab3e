"""Fusion of a graph's launches into fewer kernels, by the rules of docs/rules.md.

The order to read: steps (its input and its output), formulas (sizes of the whole graph), piece (a kernel on its way),
digits (where accesses meet), regrid and compose (two kernels on one grid), inline (a producer inside its reader's
loads), settle (values out of memory), emit (back to a launch), order and greedy (who is tried with whom).
"""

from bringup.graph.fusion.greedy import fuse_steps
from bringup.graph.fusion.steps import Decision, Fused, Memory, Opaque, Step

__all__ = ["Decision", "Fused", "Memory", "Opaque", "Step", "fuse_steps"]
