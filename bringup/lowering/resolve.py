"""From one call to a launch plan: structures known before answer in microseconds, new ones are lowered and compiled.

The core calls ``KernelCompiler.resolve`` when its signature cache misses. Two calls have the same structure when they
agree in op, dtypes, dimensions and plain arguments, and their sizes and strides answer all guards alike.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, TypeAlias, cast

from bringup.compile.failure import NotCompiled
from bringup.compile.index_code import code_of
from bringup.compile.kernels import FilledLaunch, ForeignKernel, KernelRecord
from bringup.compile.loader import Compiled, Loader
from bringup.driver import PlacementKind
from bringup.ir.dtypes import DType, NoSuchNumber
from bringup.ir.index import Index
from bringup.ir.kernel import Kernel
from bringup.ir.verify_error import VerifyError
from bringup.lowering import launch_code as codes
from bringup.lowering.call import Call, GivenNumber, NoKernel, Number, Tensor, dense_strides
from bringup.lowering.launch_code import immediate, launch_code, scalar
from bringup.lowering.observation import CallRecord
from bringup.lowering.output_layout import check_in_place
from bringup.lowering.registry import OUTPUTS, REPEATED, Lowering
from bringup.lowering.scalar_types import BY_CODE, OTHERS
from bringup.lowering.spreading import with_spread
from bringup.lowering.symbolic import Trace, guard_code, index_of

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


def without_repeated(arguments: Sequence[Any], positions: Sequence[int]) -> Sequence[Any]:
    """The arguments, those that only repeat shapes without their numbers.

    >>> without_repeated([[5, 6], 7, 8], (0, 1))
    [2, None, 8]
    """
    if not positions:
        return arguments
    shown = list(arguments)
    for n in positions:
        shown[n] = len(shown[n]) if isinstance(shown[n], list) else None
    return shown


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
            raise NoKernel(f"{op}: {OTHERS.get(code, f'scalar type {code}')} is not a type of kernels")
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
                ("tensor", slot),
                dtype_of(code),
                shape,
                steps,
                contiguous=bool(flags & 2),
                wrapped=bool(flags & 1),
                placement=PlacementKind(flags >> 8),
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


@dataclass(frozen=True)
class Structure:
    """A lowered call for any numbers; ``holds`` are its guards, ``fill`` makes a plan's parts."""

    call: Call
    holds: Callable[[Sequence[int], Sequence[Any]], bool]
    fill: Callable[[Sequence[int]], tuple[list[FilledLaunch], list[int]]]
    compiled: Sequence[Compiled] = ()


def structure_of(call: Call, compiled: Sequence[Compiled]) -> Structure:
    """Turns the formulas of a lowered call into two Python functions (about 10 µs a call, where walking the formulas
    took 150)."""
    places = {name: f"v[{n}]" for n, name in enumerate(call.trace.symbols)}

    def code(index: Index) -> str:
        return code_of(index, places)

    def number(given: GivenNumber, dtype: DType) -> str:
        if isinstance(given, Number):
            return scalar(given.slot, dtype, given.wraps)
        return immediate(str(given)) if isinstance(given, int) else f"({codes.SOURCE[given]}, 0, 0)"

    launches = []
    space: dict[str, Any] = {"FilledLaunch": FilledLaunch}
    for launch, loaded in zip(call.launches, compiled):
        addresses = []
        for tensor in launch.buffers:
            where, slot = tensor.memory
            addresses.append(f"({codes.SOURCE[where]}, {slot}, {code(index_of(tensor.offset) * tensor.dtype.size)})")
        sizes = [code(index_of(size)) for size in launch.sizes]
        numbers = [number(given, param.dtype) for param, given in zip(launch.kernel.params, launch.params)]
        launches.append(launch_code(launch, loaded, addresses, sizes, numbers, code, space))
    temporaries = [code(index_of(t.numel) * t.dtype.size) for t in call.temporaries]
    source = (
        f"def holds(v, s):\n    return {guard_code(call.trace.guards, call.trace.scalar_guards, code)}\n"
        f"def fill(v):\n    return [{', '.join(launches)}], [{', '.join(temporaries)}]\n"
    )
    exec(compile(source, f"<guards of {call.op}>", "exec"), space)
    return Structure(call, space["holds"], space["fill"], compiled)


def scalar_guards(trace: Trace) -> list[tuple[int, int, bool | int | float]]:
    """The guards on scalars as the core takes them."""
    return [(slot, codes.RELATION[relation], number) for slot, relation, number in trace.scalar_guards]


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Lowering makes thousands of small objects, and a full collection in the middle of it takes 5 to 14 ms."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


class KernelCompiler:
    """Makes plans for the calls, and kernels for the graphs, of devices; ``compiler_for(device)`` finds it."""

    def __init__(
        self,
        lowerings: Mapping[str, tuple[Lowering, int]],
        load: Loader,
        make_plan: Callable[..., Any],
        kernel_failed: Callable[[str, NotCompiled], None],
        partitions: Callable[[int], int] = lambda device: 1,
    ) -> None:
        self._lowerings = lowerings
        self._load = load
        self._make_plan = make_plan
        self._kernel_failed = kernel_failed
        #: How many memory partitions a device has.
        self.partitions = partitions
        self._structures: dict[tuple[Any, ...], list[Structure]] = {}
        self._lock = threading.Lock()
        #: In-place forms, with what says how their functional form's result looks.
        self.in_place: dict[str, Callable[..., Sequence[Any]]] = {}
        #: Called with every call that comes here, when its plan is made.
        self.observers: list[Callable[[CallRecord], None]] = []

    def add(self, lowerings: Mapping[str, tuple[Lowering, int]]) -> None:
        """More ops to answer for."""
        self._lowerings = {**self._lowerings, **lowerings}

    def definition_of(self, op: str) -> tuple[Lowering, int] | None:
        """How an op is lowered, and how many arguments that takes; None for an op without a lowering."""
        return self._lowerings.get(op)

    def load_all(self, device: int, kernels: Sequence[Kernel | ForeignKernel | None]) -> list[Compiled | None]:
        """The kernels of a graph on a device, compiled where that was not done yet; None for None."""
        return self._load.all(device, kernels)

    def resolve(self, op: str, device: int, arguments: Sequence[Any], outputs: Sequence[Any] | None) -> Any:
        """A plan for the call; one that says REFUSED if it has no kernel."""
        start = perf_counter()
        definition, count = self._lowerings[op]
        made = None
        try:
            if op in self.in_place:
                check_in_place(arguments[0], self.in_place[op](*arguments[:count])[0])
            if outputs is None and op in OUTPUTS:
                outputs = made = OUTPUTS[op](*arguments[:count])
        except NoKernel as reason:
            return self._make_plan([], [], [], codes.REFUSED, None, str(reason))
        flat = flatten(without_repeated(arguments, REPEATED.get(definition, ())), outputs)
        key = (op, device, flat.key)
        for structure in self._structures.get(key, ()):
            if structure.holds(flat.numbers, flat.scalars):
                plan = self._plan(structure, flat, made, device)
                if self.observers:
                    seconds = {"plan": perf_counter() - start}
                    call = structure.call
                    self._tell(CallRecord(op, device, arguments, outputs, call.trace, seconds, call, known=True))
                return plan
        with no_garbage_collection():
            trace = Trace()
            kernels: list[KernelRecord] | None = [] if self.observers else None
            seconds = {}
            try:
                call, values = trace_call(op, arguments, outputs, trace)
                call.device = device
                run_lowering(definition, call, values[:count])  # an out= is among the outputs
                seconds["lowering"] = perf_counter() - start
                loaded = [self._load(device, launch.kernel, kernels) for launch in call.launches]
            except (NoKernel, NoSuchNumber, VerifyError, IndexError) as reason:
                # An integer type in a formula of floats (var of uint8), or no outputs, as the meta kernel has none of
                # that type (arange of bool): ATen's own kernel refuses it in its own words.
                if isinstance(reason, VerifyError) and reason.rule != "type":
                    raise
                if isinstance(reason, IndexError) and outputs is not None:
                    raise
                if isinstance(reason, NotCompiled):
                    self._kernel_failed(op, reason)
                said = str(reason).removeprefix(f"{op}: ")
                if self.observers:
                    self._tell(CallRecord(op, device, arguments, outputs, trace, seconds, refusal=said))
                return self._make_plan([], [], scalar_guards(trace), codes.REFUSED, None, said)
            start = perf_counter()
            structure = structure_of(call, loaded)
            with self._lock:
                self._structures.setdefault(key, []).insert(0, structure)
            plan = self._plan(structure, flat, made, device)
            seconds["plan"] = perf_counter() - start
            if kernels is not None:
                self._tell(CallRecord(op, device, arguments, outputs, trace, seconds, call, kernels=kernels))
            return plan

    def _tell(self, record: CallRecord) -> None:
        for observe in self.observers:
            observe(record)

    def _plan(self, structure: Structure, flat: Flat, made: Sequence[Any] | None, device: int) -> Any:
        launches, temporaries = structure.fill(flat.numbers)
        call, described = structure.call, cast("list[tuple[Any, ...]]", launches)
        if self.partitions(device) > 1:
            described = [
                with_spread(filled, launch, loaded)
                for filled, launch, loaded in zip(launches, call.launches, structure.compiled)
            ]
        guards = scalar_guards(call.trace)
        flags = codes.POINTWISE * call.pointwise | codes.RANDOM * call.random | codes.APART * call.apart
        if made is None:
            return self._make_plan(described, temporaries, guards, flags)
        outputs = [None if output is None else output[1:] for output in made]
        return self._make_plan(described, temporaries, guards, flags, outputs)


def lower(op: str, definition: Lowering, arguments: Sequence[Any], outputs: Sequence[Any] | None) -> Call:
    """One call, lowered, without a device."""
    call, values = trace_call(op, arguments, outputs, Trace())
    run_lowering(definition, call, values)
    return call


def run_lowering(definition: Lowering, call: Call, values: Sequence[Any]) -> None:
    """Fills a traced call; no kernels at all where there is nothing to compute."""
    if call.outs and all(out.numel == 0 for out in call.outs):
        if not any(isinstance(value, Tensor) for value in values):
            for number in values:  # they may have decided the sizes: the plan of arange(0) does not serve arange(5)
                if isinstance(number, Number):
                    number.known()
        return
    definition(call, *values)
