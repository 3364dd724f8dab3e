"""A variant on a device, for dynamic sizes: kernels loaded, and every formula in two generated functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from bringup.compile.index_code import code_of
from bringup.compile.kernels import FilledLaunch, ForeignKernel, Launch
from bringup.compile.loader import Compiled
from bringup.graph.lowered import LoweredGraph
from bringup.graph.memory_plan import Life
from bringup.graph.program import EagerCall, KernelCall, Memory, TensorSpec, Variant
from bringup.graph.symbols import SYMBOLIC, evaluated
from bringup.graph.variants import bits_of
from bringup.ir.dtypes import DType
from bringup.ir.index import Index, Int, evaluate_sizes
from bringup.ir.kernel import Kernel
from bringup.lowering.install import partitions_of
from bringup.lowering.launch_code import OFFSET, SEED, immediate, launch_code, scalar
from bringup.lowering.spreading import opened
from bringup.lowering.symbolic import guard_code

#: (device, kernels) → the kernels on the device, None for None.
LoadAll = Callable[[int, "Sequence[Kernel | ForeignKernel | None]"], "list[Compiled | None]"]
_KINDS = {"seed": SEED, "offset": OFFSET}


@dataclass(frozen=True)
class Filled:
    """A variant for known sizes: launches by call (None for ordinary ops), bytes of temporaries, layouts of tensors."""

    launches: Sequence[FilledLaunch | None]
    nbytes: Sequence[int]
    #: For every tensor that is seen outside of kernels: (shape, strides, offset).
    layouts: Sequence[tuple[tuple[int, ...], tuple[int, ...], int]]


class GraphStructure:
    """A variant with its kernels on a device: ``holds(v, s)`` are its guards, ``fill(v, s)`` makes all else of sizes.

    ``sizes`` are the names of what calls decide, in the order of v; s are the numbers (``values``). ``lowered`` is the
    graph that it comes from, if not from a file.
    """

    holds: Callable[[Sequence[int], Sequence[Any]], bool]
    fill: Callable[[Sequence[int], Sequence[Any]], Filled]

    def __init__(
        self,
        variant: Variant,
        sizes: Sequence[str],
        device: int,
        load_all: LoadAll,
        lowered: LoweredGraph | None = None,
    ) -> None:
        #: Of a device whose memory is in partitions, which share kernels out: the extents of grids are sizes.
        self.partitioned = partitions_of(device) > 1
        if self.partitioned:
            variant = replace(variant, calls=tuple(map(_with_open_grid, variant.calls)))
        self.variant, self.device, self.lowered = variant, device, lowered
        self.sizes = sizes
        #: The kernel of each call on the device; None for an ordinary op.
        self.compiled = load_all(device, [getattr(call, "kernel", None) for call in variant.calls])
        eager = [call for call in variant.calls if isinstance(call, EagerCall)]
        outside = _tensors([variant.results, variant.numbers, eager])
        #: Every tensor that is seen outside of kernels: results, and arguments and results of ordinary ops.
        self.tensors = list({id(tensor): tensor for tensor in outside}.values())
        #: Temporaries of the arena and when they live, in calls.
        self.lives = lives_of(variant, {tensor.memory for tensor in self.tensors})
        guarded = {slot for slot, _, _ in variant.number_guards}
        held = [number for slot, number in enumerate(variant.numbers) if slot in guarded]
        #: Arguments of the graph that are 0-dim tensors on the CPU and whose value decided something.
        self.guarded = [number.memory[1] for number in held if isinstance(number, TensorSpec)]
        self.holds, self.fill = self._functions()

    def values(self, sizes: Sequence[int], arguments: Mapping[int, Any]) -> list[Any]:
        """The value of every number: formulas, and those arguments of the graph that are known; else None."""
        if not self.variant.numbers:
            return []
        symbols = dict(zip(self.sizes, sizes))
        return [
            arguments.get(number.memory[1])
            if isinstance(number, TensorSpec)
            else evaluated(number, symbols)
            if isinstance(number, SYMBOLIC)
            else evaluate_sizes(number, symbols)
            for number in self.variant.numbers
        ]

    def _functions(self) -> tuple[Any, Any]:
        variant = self.variant
        places = {name: f"v[{n}]" for n, name in enumerate(self.sizes)}
        space: dict[str, Any] = {"bits_of": bits_of, "FilledLaunch": FilledLaunch, "Filled": Filled}

        def code(index: Index) -> str:
            return code_of(index, places)

        def part(indices: Sequence[Index]) -> str:
            return "(" + "".join(f"{code(index)}, " for index in indices) + ")"

        lines = []
        for call, loaded in zip(variant.calls, self.compiled):
            if not isinstance(call, Launch) or loaded is None:
                lines.append("None")
                continue
            kernel, offsets = call.kernel, [offset for _, offset in call.buffers]
            if isinstance(kernel, Kernel):
                offsets = [offset * buffer.dtype.size for buffer, offset in zip(kernel.buffers, offsets)]
            addresses = [f"(*{memory!r}, {code(offset)})" for (memory, _), offset in zip(call.buffers, offsets)]
            numbers = [self._number(param.dtype, *given, space) for param, given in zip(kernel.params, call.params)]
            lines.append(launch_code(call, loaded, addresses, list(map(code, call.sizes)), numbers, code, space))
        nbytes = ", ".join(f"max(0, {code(formula)})" for formula in variant.temporaries)
        layouts = [f"({part(t.shape)}, {part(t.strides)}, {code(t.offset)})" for t in self.tensors]
        body = ",\n        ".join(lines)
        source = (
            f"def holds(v, s):\n    return {guard_code(variant.guards, variant.number_guards, code)}\n"
            f"def fill(v, s):\n    return Filled([{body}], [{nbytes}], [{', '.join(layouts)}])\n"
        )
        exec(compile(source, "<plan of a graph>", "exec"), space)
        return space["holds"], space["fill"]

    def _number(self, dtype: DType, kind: str, value: int, space: dict[str, Any]) -> str:
        if kind in _KINDS:
            return f"({_KINDS[kind]}, {value}, 0)"
        if kind == "bits":
            return immediate(str(value))
        if isinstance(self.variant.numbers[value], TensorSpec):
            return scalar(value, dtype)
        name = f"type{len(space)}"
        space[name] = dtype
        return immediate(f"bits_of(s[{value}], {name})")


def serving(
    structures: Iterable[GraphStructure], sizes: Sequence[int], arguments: Mapping[int, Any] = MappingProxyType({})
) -> tuple[GraphStructure, list[Any]] | None:
    """The structure whose guards some sizes, and numbers among the arguments, answer, and what its numbers are."""
    for structure in structures:
        values = structure.values(sizes, arguments)
        if structure.holds(sizes, values):
            return structure, values
    return None


def _with_open_grid(call: KernelCall | EagerCall) -> KernelCall | EagerCall:
    if isinstance(call, EagerCall) or isinstance(call.kernel, ForeignKernel):
        return call
    kernel, extents = opened(call.kernel)
    return replace(call, kernel=kernel, sizes=(*call.sizes, *map(Int, extents)))


def lives_of(variant: Variant, apart: set[Memory]) -> dict[int, Life]:
    """When each temporary is needed; those that are tensors of their own are not part of the arena."""
    lives: dict[int, Life] = {}
    for n, call in enumerate(variant.calls):
        for memory, _ in call.buffers if isinstance(call, Launch) else ():
            if memory[0] == "temporary" and memory not in apart:
                lives[memory[1]] = Life(lives[memory[1]].first if memory[1] in lives else n, n)
    return lives


def _tensors(tree: Any) -> Iterator[TensorSpec]:
    if isinstance(tree, TensorSpec):
        yield tree
    elif isinstance(tree, EagerCall):
        yield from _tensors([tree.args, tree.kwargs, tree.results])
    elif isinstance(tree, (list, tuple, dict)):
        for part in tree.values() if isinstance(tree, dict) else tree:
            yield from _tensors(part)
