"""Which op has which lowering. One definition serves the functional, the in-place and the out= overloads.

@lowering("aten::tril")
def tril(call, self, diagonal): ...

pointwise("aten::exp", exp, to="float")
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeAlias

from bringup.ir.dtypes import DType, boolean
from bringup.ir.expr import Expr
from bringup.lowering.call import Call, NoKernel, Number, Tensor, dense_strides
from bringup.lowering.elementwise import elementwise
from bringup.lowering.scalar_types import number_type, opmath, result_type

Lowering: TypeAlias = Callable[..., None]

#: The folder that the package is in.
ROOT = __file__.removesuffix("bringup/lowering/registry.py")

#: Functional overload ("aten::add.Tensor", or "aten::exp" where the overload has no name) → its definition.
LOWERINGS: dict[str, Lowering] = {}
#: Overload → file and line that define it, from the package on: ``bringup ops`` prints them.
DEFINED_AT: dict[str, str] = {}

#: Told of overloads that are defined after the first device was opened, whose kernels are registered then.
LATE: list[Callable[[Sequence[str]], None]] = []

#: Outputs of an op whose meta kernel in PyTorch is missing or differs from the CPU: a function of the arguments as the
#: core describes them (bringup/_C.pyi), which gives ("new", scalar_type, sizes, strides) per output, None for one that
#: stays undefined.
Outputs: TypeAlias = Callable[..., Sequence["tuple[str, int, tuple[int, ...], tuple[int, ...]] | None"]]
OUTPUTS: dict[str, Outputs] = {}


def new_output(code: int, sizes: Sequence[int]) -> tuple[str, int, tuple[int, ...], tuple[int, ...]]:
    """A contiguous output, for functions of OUTPUTS.

    >>> new_output(6, (2, 3))
    ('new', 6, (2, 3), (3, 1))
    """
    steps = dense_strides([max(size, 1) for size in sizes])  # PyTorch's strides, also of an empty tensor
    return ("new", code, tuple(sizes), tuple(int(step) for step in steps))


#: Arguments that repeat what the tensors' shapes say (normalized_shape): a definition does not look at their numbers.
REPEATED: dict[Lowering, tuple[int, ...]] = {}


def caller() -> str:
    """Returns file and line of whoever calls into this module."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return f"{frame.f_code.co_filename.removeprefix(ROOT)}:{frame.f_lineno}"


def lowering(
    *overloads: str, outputs: Outputs | None = None, repeated: tuple[int, ...] = ()
) -> Callable[[Lowering], Lowering]:
    """Registers ``function(call, *arguments)`` as the definition of some functional overloads.

    >>> @lowering("test::nothing")
    ... def nothing(call, self): ...
    >>> LOWERINGS.pop("test::nothing") is nothing
    True
    """

    where = caller()

    def register(function: Lowering) -> Lowering:
        for overload in overloads:
            if overload in LOWERINGS:
                raise ValueError(f"{overload} has two lowerings")
            LOWERINGS[overload] = function
            DEFINED_AT[overload] = where
            if outputs is not None:
                OUTPUTS[overload] = outputs
        if repeated:
            REPEATED[function] = repeated
        for serve in LATE:
            serve(overloads)
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
    >>> LOWERINGS.pop("test::double").__name__
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
