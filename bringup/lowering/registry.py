"""Which op has which lowering. One definition serves the functional, the in-place and the out= overloads.

@lowering("aten::tril")
def tril(call, self, diagonal): ...

pointwise("aten::exp", exp, to="float")
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

from bringup.ir.dtypes import DType, boolean, float32
from bringup.ir.expr import Expr
from bringup.lowering.call import Call, NoKernel, Number, Tensor
from bringup.lowering.elementwise import elementwise
from bringup.lowering.scalar_types import opmath, result_type

Lowering: TypeAlias = Callable[..., None]

#: Functional overload ("aten::add.Tensor", or "aten::exp" where the overload has no name) → its definition.
LOWERINGS: dict[str, Lowering] = {}


def lowering(*overloads: str) -> Callable[[Lowering], Lowering]:
    """Registers ``function(call, *arguments)`` as the definition of some functional overloads.

    >>> @lowering("test::nothing")
    ... def nothing(call, self): ...
    >>> LOWERINGS.pop("test::nothing") is nothing
    True
    """

    def register(function: Lowering) -> Lowering:
        for overload in overloads:
            if overload in LOWERINGS:
                raise ValueError(f"{overload} has two lowerings")
            LOWERINGS[overload] = function
        return function

    return register


#: same: the operands' common type. float: that, or the default float type for integers. bool: truth values.
#: own: each operand in its own type.
To: TypeAlias = Literal["same", "float", "bool", "own"]


def pointwise(
    overloads: str,
    formula: Callable[..., Expr | tuple[Expr, ...]],
    to: To = "same",
    promote: Sequence[int] | None = None,
    accept: Callable[[DType], bool] | None = None,
) -> None:
    """Registers an elementwise op by its formula; ``overloads`` may name several, separated by spaces.

    The formula gets tensors and numbers as values of the compute type and other arguments as they are, in the order
    of the schema. ``promote``: which arguments decide the type (all tensors by default; numbers only if named here).
    ``accept``: compute types that the op has.

    >>> pointwise("test::double", lambda x: x + x)
    >>> LOWERINGS.pop("test::double").__name__
    'lower'
    """

    def lower(call: Call, *arguments: Any) -> None:
        compute = compute_type(arguments, promote)
        if to == "float" and not compute.is_float:
            compute = call.outs[0].dtype if call.outs[0].dtype.is_float else float32
        if accept is not None and not accept(compute):
            raise NoKernel(f"{call.op} has no kernel for {compute}")
        call.pointwise = True
        kinds = [None] * len(arguments) if to == "own" else opmath(boolean if to == "bool" else compute)
        elementwise(call, call.outs, arguments, formula, kinds)

    lowering(*overloads.split())(lower)


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
            (wrapped if number else zero_dim).append(argument.dtype)
    return result_type(dimensioned, zero_dim, wrapped)
