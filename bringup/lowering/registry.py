"""The definitions of ops: one table, in which an overload has at most one entry of each kind.

@lowering("aten::tril")
def tril(call, self, diagonal): ...

pointwise("aten::exp", exp, to="float")

@define("decomposition", "aten::zero")
def zero(x): ...
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from bringup.ir.dtypes import DType, boolean
from bringup.ir.expr import Expr
from bringup.lowering.call import Call, NoKernel, Number, Tensor, dense_strides
from bringup.lowering.definition_check import check_names, check_overload
from bringup.lowering.elementwise import elementwise
from bringup.lowering.scalar_types import number_type, opmath, result_type
from bringup.lowering.untraced import untraced

if TYPE_CHECKING:
    import torch

Lowering: TypeAlias = Callable[..., None]
_F = TypeVar("_F", bound=Callable[..., Any])

#: What a definition is for:
#: lowering              loops, for single calls and in graphs; serves the in-place and out= overloads too
#: graph lowering        loops of an op that only graphs hold: eager PyTorch makes it of others first
#: file lowering         loops for exported files; with a device at hand the op runs as an ordinary one
#: composed              Python over other ops of the device: the data say how many elements there are
#: composed everywhere   the same for devices without kernels too: PyTorch has no CPU kernel to fall back on
#: on CPU                what an op of bringup's own, which composed ones are made of, does with CPU tensors
#: decomposition         how a graph takes the op apart before it is lowered
#: export decomposition  the same for an exported model, where that differs
Kind: TypeAlias = Literal[
    "lowering",
    "graph lowering",
    "file lowering",
    "composed",
    "composed everywhere",
    "on CPU",
    "decomposition",
    "export decomposition",
]

#: Outputs of an op whose meta kernel in PyTorch is missing or differs from the CPU: a function of the arguments as the
#: core describes them (bringup/_C.pyi), which gives ("new", scalar_type, sizes, strides) per output, None for one that
#: stays undefined.
Outputs: TypeAlias = Callable[..., Sequence["tuple[str, int, tuple[int, ...], tuple[int, ...]] | None"]]


@dataclass(frozen=True)
class Definition:
    """What one overload ("aten::add.Tensor", or "aten::exp" where the overload has no name) is, of one kind."""

    overload: str
    kind: Kind
    function: Callable[..., Any]
    #: File and line, from the package on where it is in there.
    place: str
    outputs: Outputs | None = None


DEFINITIONS: dict[tuple[str, Kind], Definition] = {}


class Defined(Mapping[str, Any]):
    """Overload → function of the definitions of one kind, or another field of them where it is set; follows the table.

    >>> Defined("lowering").get("test::no_such_op")
    """

    def __init__(self, kind: Kind, field: str = "function") -> None:
        self._kind, self._field = kind, field

    def __getitem__(self, overload: str) -> Any:
        found = getattr(DEFINITIONS[overload, self._kind], self._field)
        if found is None:
            raise KeyError(overload)
        return found

    def __iter__(self) -> Iterator[str]:
        for (overload, kind), definition in DEFINITIONS.items():
            if kind == self._kind and getattr(definition, self._field) is not None:
                yield overload

    def __len__(self) -> int:
        return sum(1 for _ in self)


LOWERINGS: Mapping[str, Lowering] = Defined("lowering")
OUTPUTS: Mapping[str, Outputs] = Defined("lowering", "outputs")

#: Arguments that repeat what the tensors' shapes say (normalized_shape): a lowering, whichever overload it serves, does
#: not look at their numbers.
REPEATED: dict[Lowering, tuple[int, ...]] = {}

#: Called with overloads whose lowering is defined after the first device was opened, whose kernels are registered then.
LATE: list[Callable[[Sequence[str]], None]] = []

#: Keeps alive what was registered with PyTorch.
_libraries: list[torch.library.Library] = []

#: The folder that the package is in.
ROOT = __file__.removesuffix("bringup/lowering/registry.py")


def new_output(code: int, sizes: Sequence[int]) -> tuple[str, int, tuple[int, ...], tuple[int, ...]]:
    """A contiguous output, for functions of OUTPUTS.

    >>> new_output(6, (2, 3))
    ('new', 6, (2, 3), (3, 1))
    """
    steps = dense_strides([max(size, 1) for size in sizes])  # PyTorch's strides, also of an empty tensor
    return ("new", code, tuple(sizes), tuple(int(step) for step in steps))


def caller() -> str:
    """Returns file and line of whoever calls into this module."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return f"{frame.f_code.co_filename.removeprefix(ROOT)}:{frame.f_lineno}"


def is_ours(function: Callable[..., Any]) -> bool:
    """True for a function of this package; what others define is checked first."""
    code = getattr(function, "__code__", None)
    return code is not None and code.co_filename.startswith(f"{ROOT}bringup/")


def define(
    kind: Kind, *overloads: str, outputs: Outputs | None = None, repeated: tuple[int, ...] = ()
) -> Callable[[_F], _F]:
    """Registers a function as the definition of some overloads; the second one of a kind is an error.

    >>> @define("composed", "test::nothing")
    ... def nothing(x): ...
    >>> DEFINITIONS.pop(("test::nothing", "composed")).function is nothing
    True
    """
    place = caller()

    def register(function: _F) -> _F:
        if not is_ours(function):
            check_names(function)
            for overload in overloads if kind == "lowering" else ():
                check_overload(overload, now=bool(LATE))
        for overload in overloads:
            if known := DEFINITIONS.get((overload, kind)):
                raise ValueError(f"{overload} has two definitions ({kind}): {known.place} and {place}")
        for overload in overloads:
            DEFINITIONS[overload, kind] = Definition(overload, kind, function, place, outputs)
        if repeated:
            REPEATED[function] = repeated
        if kind == "lowering":
            for serve in LATE:
                serve(overloads)
        return function

    return register


def lowering(
    *overloads: str, outputs: Outputs | None = None, repeated: tuple[int, ...] = ()
) -> Callable[[Lowering], Lowering]:
    """Registers ``function(call, *arguments)`` as the loops of some functional overloads.

    >>> @lowering("test::nothing")
    ... def nothing(call, self): ...
    >>> DEFINITIONS.pop(("test::nothing", "lowering")).function is nothing
    True
    """
    return define("lowering", *overloads, outputs=outputs, repeated=repeated)


def composed(*overloads: str) -> Callable[[_F], _F]:
    """Registers a function over tensors of the device as the kernel of some overloads; a function of a program serves
    all devices from now on, one of this package (``composed.py``) those that run kernels.

    @composed("mychip::run_starts")
    def run_starts(x): ...
    """
    note = define("composed", *overloads)

    def register(function: _F) -> _F:
        note(function)
        if not is_ours(function):
            import torch

            for overload in overloads:
                namespace, _, name = overload.partition("::")
                _libraries.append(torch.library.Library(namespace, "IMPL"))
                _libraries[-1].impl(name, untraced(function), "PrivateUse1")
        return function

    return register


#: same: the operands' common type. float: that, or the default float type for integers. bool: truth values.
#: own: each operand in its own type. Halves widen to float32 for "same" and "float"; "common" is the common type as it
#: is, numbers rounded to it: for comparisons and other formulas of a single op.
To: TypeAlias = Literal["same", "float", "bool", "own", "common"]


def pointwise(
    overloads: str,
    formula: Callable[..., Expr | tuple[Expr, ...]],
    to: To = "same",
    promote: Sequence[int] | None = None,
    accept: Callable[[DType], bool] | None = None,
    builder: bool = False,
    outputs: Outputs | None = None,
    wraps: bool = True,
) -> None:
    """Registers an elementwise op by its formula; ``overloads`` may name several, separated by spaces.

    The formula gets tensors and numbers as values of the compute type and other arguments as they are, in the order
    of the schema. ``promote``: which arguments decide the type (all tensors by default; numbers only if named here).
    ``accept``: compute types that the op has. ``builder``: the formula gets the KernelBuilder first (let, loops).
    ``outputs``: as in ``lowering``. ``wraps``: a promoting number becomes a tensor, in which 300 is 44 for uint8; else
    it must fit the type.

    >>> pointwise("test::double", lambda x: x + x)
    >>> DEFINITIONS.pop(("test::double", "lowering")).function.__name__
    'lower'
    """

    def lower(call: Call, *arguments: Any) -> None:
        compute = compute_type(arguments, promote)
        if to == "float" and not call.outs[0].dtype.is_float:  # in place, of an op whose meta kernel does not look
            raise NoKernel("a float does not fit into the type that is written")
        if to == "float" and not compute.is_float:
            compute = call.outs[0].dtype
        if accept is not None and not accept(compute):
            raise NoKernel(f"{call.op} has no kernel for {compute}")
        call.pointwise = True
        if promote is not None:  # PyTorch computes with a tensor of such a number
            arguments = tuple(
                replace(argument, wraps=wraps) if isinstance(argument, Number) and n in promote else argument
                for n, argument in enumerate(arguments)
            )
        kinds: DType | list[None] = boolean if to == "bool" else compute if to == "common" else opmath(compute)
        if to == "own":
            kinds = [None] * len(arguments)
        elementwise(call, call.outs, arguments, formula, kinds, builder=builder)

    lowering(*overloads.split(), outputs=outputs)(lower)


def compute_type(arguments: Sequence[Any], promote: Sequence[int] | None = None) -> DType:
    """PyTorch's common type of the promoting arguments."""
    dimensioned: list[DType] = []
    zero_dim: list[DType] = []
    wrapped: list[DType] = []
    for n, argument in enumerate(arguments):
        if isinstance(argument, Tensor) and (promote is None or n in promote):
            (wrapped if argument.wrapped else dimensioned if argument.ndim else zero_dim).append(argument.dtype)
        elif isinstance(argument, Number) and (argument.tensor_dtype is not None if promote is None else n in promote):
            number = argument.tensor_dtype is None or argument.wrapped
            # PyTorch wraps a Python float as float64, but it promotes as the default float type.
            (wrapped if number else zero_dim).append(number_type(argument.value) if number else argument.dtype)
    return result_type(dimensioned, zero_dim, wrapped)
