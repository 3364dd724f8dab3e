"""What a small core wants done differently: each pass rewrites the steps of a StaticProgram and keeps its results.

``PASSES`` is their order; ``bringup passes`` prints it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bringup.graph.bare_metal.passes.filling import fill_in_words
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


@dataclass(frozen=True)
class Core:
    """What decides which passes run: a core with or without vectors, with or without a matrix engine."""

    vectors: bool
    engine: bool = False


@dataclass(frozen=True)
class StepPass:
    """One entry of the list, and the cores that it is for."""

    name: str
    function: Callable[[StaticProgram], StaticProgram]
    cores: str = "all"
    wanted: Callable[[Core], bool] = lambda core: True


PASSES = (
    StepPass("units", without_units),
    StepPass("products", products),
    StepPass("in_order", in_order),
    StepPass("value_folds", value_folds),
    StepPass("padding", pad),
    StepPass("offloading", offload, "with a matrix engine", lambda core: core.engine),
    StepPass("apart", apart, "with vectors, without an engine", lambda core: core.vectors and not core.engine),
    StepPass("few_partials", few_partials, "scalar", lambda core: not core.vectors),
    StepPass("pooling", fuse_pooling, "scalar", lambda core: not core.vectors),
    StepPass("filling", fill_in_words, "scalar", lambda core: not core.vectors),
    StepPass("flattening", flatten, "with vectors", lambda core: core.vectors),
    StepPass("joining", join),
)


def arranged(program: StaticProgram, vectors: bool, engine: bool = False) -> StaticProgram:
    """The program as a core with or without vectors runs it best; ``engine``: there is a matrix engine."""
    core = Core(vectors, engine)
    for one in PASSES:
        if one.wanted(core):
            program = one.function(program)
    return program
