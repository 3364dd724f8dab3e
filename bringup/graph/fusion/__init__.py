"""Fusion of a graph's launches into fewer kernels, by the rules of docs/rules.md.

The order to read: steps (its input and its output), formulas (sizes of the whole graph), piece (a kernel while it is
fused), mixed_radix (where accesses meet), regrid and compose (two kernels on one grid), inline (a producer inside its
reader's loads), forwarding (values that need no memory), emit (back to a launch), recompute_cost, order and greedy
(which pairs are tried).
"""

from bringup.graph.fusion.greedy import fuse_steps
from bringup.graph.fusion.steps import Decision, Fused, Memory, Opaque, Step

__all__ = ["Decision", "Fused", "Memory", "Opaque", "Step", "fuse_steps"]
