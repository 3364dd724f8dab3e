"""From one call to a launch plan: structures known before answer in microseconds, new ones are lowered and compiled.

The core calls ``Resolver.resolve`` when its signature cache misses. Two calls have the same structure when they agree
in op, dtypes, dimensions and plain arguments, and their sizes and strides answer all guards of the lowering alike.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from bringup import debug
from bringup.ir.index import FloorDiv, Index, Int, Max, Min, Mod, Size, Sum, substitute
from bringup.lowering.call import Call, NoKernel, Number, Tensor, dense_strides
from bringup.lowering.loader import Compiled
from bringup.lowering.registry import OUTPUTS, Lowering
from bringup.lowering.scalar_types import BY_CODE, CODE_OF
from bringup.lowering.symbolic import Trace, index_of

#: (arguments, outputs) as the core describes a call: see bringup/_C.pyi.
Described: TypeAlias = tuple[Sequence[Any], "Sequence[Any] | None"]


@dataclass(frozen=True)
class Flat:
    """A call taken apart: what decides the structure, and the numbers that only fill it in."""

    key: tuple[Any, ...]
    numbers: list[int]
    scalars: list[Any]


def flatten(arguments: Sequence[Any], outputs: Sequence[Any] | None) -> Flat:
    """Separates structure from numbers.

    >>> flatten([("t", 0, 6, (2, 3), (3, 1), 2), 5], [("new", 6, (2,), (1,))]).numbers
    [2, 3, 3, 1, 2, 1]
    """
    key: list[Any] = []
    numbers: list[int] = []
    scalars: list[Any] = []

    def visit(argument: Any) -> None:
        if type(argument) is tuple and argument and type(argument[0]) is str:
            tag = argument[0]
            if tag == "t":
                _, _, code, sizes, strides, flags = argument
                key.append((code, len(sizes), flags))
                numbers.extend(sizes)
                numbers.extend(strides)
            else:
                key.append((tag, argument[2], type(argument[3]), argument[4]))
                scalars.append(argument[3])
        elif type(argument) is list:
            key.append(len(argument))
            for part in argument:
                visit(part)
        else:
            key.append(argument if argument.__hash__ is not None else repr(argument))

    for argument in arguments:
        visit(argument)
    for output in outputs or ():
        if output is None:
            key.append(None)
        elif output[0] == "new":
            key.append((output[1], len(output[2]), is_dense(output[2], output[3])))
            numbers.extend(output[2])
            numbers.extend(output[3])
        else:
            key.append(output[1])
    return Flat(tuple(key), numbers, scalars)


def trace_call(
    op: str, arguments: Sequence[Any], outputs: Sequence[Any] | None, trace: Trace
) -> tuple[Call, list[Any]]:
    """The call with symbolic sizes, and the arguments for its lowering. Symbols come in the order of ``flatten``."""
    by_slot: dict[int, Tensor] = {}

    def layout(
        name: str, sizes: Sequence[int], strides: Sequence[int], contiguous: bool
    ) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        shape = tuple(trace.symbol(f"{name}_n{d}", size) for d, size in enumerate(sizes))
        steps = tuple(trace.symbol(f"{name}_s{d}", stride) for d, stride in enumerate(strides))
        # The strides of a contiguous tensor follow from its shape: most questions about them need no guard.
        return shape, dense_strides(shape) if contiguous else steps

    def dtype_of(code: int) -> Any:
        if code not in BY_CODE:
            raise NoKernel(f"{op}: scalar type {code} is not a type of kernels")
        return BY_CODE[code]

    def visit(argument: Any) -> Any:
        if type(argument) is list:
            return [visit(part) for part in argument]
        if type(argument) is not tuple or not argument or type(argument[0]) is not str:
            return argument
        if argument[0] == "t":
            _, slot, code, sizes, strides, flags = argument
            shape, steps = layout(f"t{slot}", sizes, strides, bool(flags & 2))
            by_slot[slot] = tensor = Tensor(
                ("tensor", slot), dtype_of(code), shape, steps, contiguous=bool(flags & 2), wrapped=bool(flags & 1)
            )
            return tensor
        _, slot, code, value, flags = argument
        if isinstance(value, complex):
            raise NoKernel(f"{op}: complex numbers are not a type of kernels")
        return Number(slot, value, None if code is None else dtype_of(code), bool(flags & 1), trace)

    values = [visit(argument) for argument in arguments]
    outs: list[Tensor] = []
    for n, output in enumerate(outputs or ()):
        if output is None:
            # Stays undefined (a gradient that is not asked for): empty, so that places keep their numbers.
            outs.append(Tensor(("output", n), BY_CODE[0], (0,), (1,), contiguous=True))
        elif output[0] == "new":
            dense = is_dense(output[2], output[3])
            shape, steps = layout(f"o{n}", output[2], output[3], dense)
            outs.append(Tensor(("output", n), dtype_of(output[1]), shape, steps, contiguous=dense))
        else:
            outs.append(by_slot[output[1]])
    return Call(op, trace, tuple(outs)), values


def is_dense(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """PyTorch's is_contiguous.

    >>> is_dense((2, 1, 3), (3, 7, 1))
    True
    """
    step = 1
    for size, stride in zip(reversed(sizes), reversed(strides)):
        if size != 1 and stride != step:
            return 0 in sizes
        step *= size
    return True


def code_of(index: Index, places: Mapping[str, str]) -> str:
    """An index as Python source over the numbers of a call.

    >>> code_of(Size("n") * 2 + 1, {"n": "v[0]"})
    '(1 + 2*v[0])'
    """
    if isinstance(index, Int):
        return str(index.value)
    if isinstance(index, Size):
        return places[index.name]
    if isinstance(index, Sum):
        terms = []
        for factors, value in index.terms:
            parts = [code_of(factor, places) for factor in factors]
            terms.append("*".join(parts if value == 1 and parts else [str(value), *parts]))
        return f"({' + '.join(terms)})"
    if isinstance(index, (FloorDiv, Mod)):
        sign = "//" if isinstance(index, FloorDiv) else "%"
        return f"({code_of(index.a, places)} {sign} {code_of(index.b, places)})"
    assert isinstance(index, (Min, Max)), f"{index} is no formula over sizes"
    word = "min" if isinstance(index, Min) else "max"
    return f"{word}({code_of(index.a, places)}, {code_of(index.b, places)})"


@dataclass(frozen=True)
class Structure:
    """A lowered call whose numbers are still open; ``holds`` are its guards, ``fill`` makes a plan's parts."""

    call: Call
    holds: Callable[[Sequence[int], Sequence[Any]], bool]
    fill: Callable[[Sequence[int]], tuple[list[Any], list[int]]]


_FLAG_POINTWISE, _FLAG_RANDOM, _FLAG_REFUSED = 1, 2, 8
_RELATIONS = ("eq", "ne", "lt", "ge", "gt", "le")  # as the core numbers them
_IMMEDIATE, _TENSOR, _OUTPUT, _TEMPORARY, _SCALAR, _SEED, _OFFSET = range(7)
_MEMORY = {"tensor": _TENSOR, "output": _OUTPUT, "temporary": _TEMPORARY}


def structure_of(call: Call, compiled: Sequence[Compiled]) -> Structure:
    """Turns the formulas of a lowered call into two Python functions (about 10 µs a call, where walking the formulas
    took 150)."""
    places = {name: f"v[{n}]" for n, name in enumerate(call.trace.symbols)}

    def code(index: Index) -> str:
        return code_of(index, places)

    launches = []
    for launch, loaded in zip(call.launches, compiled):
        sizes: dict[str, Any] = {size.name: index_of(number) for size, number in zip(launch.kernel.sizes, launch.sizes)}
        arguments = []
        for tensor in launch.buffers:
            where, slot = tensor.memory
            offset = code(index_of(tensor.offset) * tensor.dtype.size)
            arguments.append(f"({_MEMORY[where]}, {slot}, {offset})")
        arguments += [f"({_IMMEDIATE}, {code(index_of(number))}, 0)" for number in launch.sizes]
        for param, given in zip(launch.kernel.params, launch.params):
            if isinstance(given, Number):
                arguments.append(f"({_SCALAR}, {given.slot}, {CODE_OF[param.dtype]})")
            elif isinstance(given, int):
                arguments.append(f"({_IMMEDIATE}, {given}, 0)")
            else:
                arguments.append(f"({_SEED if given == 'seed' else _OFFSET}, 0, 0)")
        formulas = (loaded.units, loaded.flops, loaded.bytes)
        cost = [code(substitute(formula, sizes=sizes)) for formula in formulas]
        launches.append(f"({loaded.handle}, {', '.join(cost)}, [{', '.join(arguments)}])")
    temporaries = [code(index_of(t.numel) * t.dtype.size) for t in call.temporaries]
    source = (
        f"def holds(v, s):\n    return {call.trace.guard_code(code)}\n"
        f"def fill(v):\n    return [{', '.join(launches)}], [{', '.join(temporaries)}]\n"
    )
    space: dict[str, Any] = {}
    exec(compile(source, f"<guards of {call.op}>", "exec"), space)
    return Structure(call, space["holds"], space["fill"])


def scalar_guards(trace: Trace) -> list[tuple[int, int, bool | int | float]]:
    """The guards on scalars as the core takes them."""
    return [(slot, _RELATIONS.index(relation), number) for slot, relation, number in trace.scalar_guards]


class Resolver:
    """Plans for the calls of all devices; ``compile_kernel(device, kernel)`` puts a kernel there."""

    def __init__(
        self,
        lowerings: Mapping[str, tuple[Lowering, int]],
        compile_kernel: Callable[[int, Any], Compiled],
        make_plan: Callable[..., Any],
    ) -> None:
        self._lowerings = lowerings
        self._compile = compile_kernel
        self._make_plan = make_plan
        self._structures: dict[tuple[Any, ...], list[Structure]] = {}
        self._lock = threading.Lock()
        #: Why a call got no kernel: (op, reason), for `bringup explain` and BRINGUP_DEBUG.
        self.refusals: dict[str, str] = {}

    def resolve(self, op: str, device: int, arguments: Sequence[Any], outputs: Sequence[Any] | None) -> Any:
        """A plan for the call, or None if it has no kernel."""
        definition, count = self._lowerings[op]
        made = None
        if outputs is None and op in OUTPUTS:
            outputs = made = OUTPUTS[op](*arguments[:count])
        flat = flatten(arguments, outputs)
        key = (op, device, flat.key)
        for structure in self._structures.get(key, ()):
            if structure.holds(flat.numbers, flat.scalars):
                return self._plan(structure, flat, made)
        trace = Trace()
        try:
            call, values = trace_call(op, arguments, outputs, trace)
            call.device = device
            structure = self._lower(device, definition, call, values[:count])  # an out= is among the outputs
        except NoKernel as reason:
            self.refusals[op] = str(reason)
            debug.say(1, f"no kernel for {op}: {reason}")
            return self._make_plan([], [], scalar_guards(trace), _FLAG_REFUSED)
        with self._lock:
            self._structures.setdefault(key, []).insert(0, structure)
        return self._plan(structure, flat, made)

    def _lower(self, device: int, definition: Lowering, call: Call, values: Sequence[Any]) -> Structure:
        run_lowering(definition, call, values)
        return structure_of(call, [self._compile(device, launch.kernel) for launch in call.launches])

    def _plan(self, structure: Structure, flat: Flat, made: Sequence[Any] | None) -> Any:
        launches, temporaries = structure.fill(flat.numbers)
        call = structure.call
        guards = scalar_guards(call.trace)
        flags = (_FLAG_POINTWISE if call.pointwise else 0) | (_FLAG_RANDOM if call.random else 0)
        if made is None:
            return self._make_plan(launches, temporaries, guards, flags)
        outputs = [None if output is None else output[1:] for output in made]
        return self._make_plan(launches, temporaries, guards, flags, outputs)


def lower(op: str, definition: Lowering, arguments: Sequence[Any], outputs: Sequence[Any] | None) -> Call:
    """One call, lowered, without a device."""
    call, values = trace_call(op, arguments, outputs, Trace())
    run_lowering(definition, call, values)
    return call


def run_lowering(definition: Lowering, call: Call, values: Sequence[Any]) -> None:
    """Fills a traced call; no kernels at all where there is nothing to compute."""
    if call.outs and all(out.numel == 0 for out in call.outs):
        if not any(isinstance(value, Tensor) for value in values):
            for number in values:  # they may have decided the sizes: arange(0) is no plan for arange(5)
                if isinstance(number, Number):
                    number.known()
        return
    definition(call, *values)
