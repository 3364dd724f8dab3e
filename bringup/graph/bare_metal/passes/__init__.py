"""What a small core wants done differently: each pass rewrites the steps of a StaticProgram and keeps its results.

units          axes and dimensions of one element left out
in_order       sums one after the other, as tiles of registers take them
products       depthwise convolutions as contractions
value_folds    pooling without the positions that nobody reads
padding        a padded copy of an input, so that convolutions have no conditions
pooling        a convolution and the pooling after it as one kernel (scalar code)
flattening     rows of an image as one long row (vector code)
offloading     matrix products for a matrix engine
joining        neighbouring axes as one
"""

from __future__ import annotations

from bringup.graph.bare_metal.passes.flattening import flatten
from bringup.graph.bare_metal.passes.in_order import few_partials, in_order
from bringup.graph.bare_metal.passes.joining import join
from bringup.graph.bare_metal.passes.offloading import apart, offload
from bringup.graph.bare_metal.passes.padding import pad
from bringup.graph.bare_metal.passes.pooling import fuse_pooling
from bringup.graph.bare_metal.passes.products import products
from bringup.graph.bare_metal.passes.units import without_units
from bringup.graph.bare_metal.passes.value_folds import value_folds
from bringup.graph.bare_metal.static_program import StaticProgram


def arranged(program: StaticProgram, vectors: bool, engine: bool = False) -> StaticProgram:
    """The program as a core with or without vectors runs it best; ``engine``: there is a matrix engine."""
    program = pad(value_folds(in_order(products(without_units(program)))))
    if engine:
        program = offload(program)
    elif vectors:
        program = apart(program)
    return join(flatten(program) if vectors else fuse_pooling(few_partials(program)))
