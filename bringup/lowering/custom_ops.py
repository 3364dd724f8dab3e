"""New pointwise ops from one formula: a compiled kernel where the device has kernels, PyTorch's own ops elsewhere.

    import bringup, torch
    from bringup import formulas as f

    swish = bringup.pointwise("mychip::swish(Tensor self, float b=1.0) -> Tensor", lambda x, b: x * f.sigmoid(b * x))
    swish(torch.randn(3, device="sim"), 2.0)

Formulas are written in arithmetic, ``<``, ``<=``, ``>``, ``>=``, ``&``, ``|``, ``~`` and the functions of
bringup/lowering/formulas.py; its ``unary`` and ``binary`` reach all ops of bringup/ir/ops.py by name.
"""

from __future__ import annotations

from typing import Any

import torch

from bringup.ir.expr import Expr, const
from bringup.lowering import registry
from bringup.lowering.formula_trial import try_formula
from bringup.lowering.pointwise_op import Formula, PointwiseOp, To, define_autograd, define_forms

#: Keeps definitions alive.
_libraries: list[torch.library.Library] = []


def pointwise(schema: str, formula: Formula, *, backward: Formula | None = None, to: To = "float") -> Any:
    """Defines a pointwise op, its in-place form (``cube_``) and its ``out=`` form; returns ``torch.ops.mychip.cube``.

    >>> cube = pointwise("mychip::cube(Tensor x) -> Tensor", lambda x: x * x * x, backward=lambda g, x: 3 * g * x * x)
    >>> cube(torch.tensor([2.0]))
    tensor([8.])

    ``formula`` gets a value for each argument of the schema: tensors, ``float`` and ``Scalar`` in the compute type
    (halves are computed in float32 and rounded once), ``int``, ``bool`` and ``str`` as they are. ``to="float"``
    computes integers as floats, ``to="same"`` as integers. ``backward`` gets the output's gradient first, and gives the
    gradient of each tensor: one formula, or a tuple with None for a tensor that has none. It is a kernel of its own
    (``mychip::cube_backward``), and has no gradient itself.
    """
    parsed = _checked(schema)
    arguments = schema[schema.index("(") + 1 : schema.rindex(")", 0, schema.rindex("->"))]
    types = [str(argument.type).removeprefix("Optional[").removesuffix("]") for argument in parsed.arguments]
    defaults = [argument.default_value for argument in parsed.arguments]
    names = [argument.name for argument in parsed.arguments]
    try_formula(f"{parsed.name}: the formula", formula, names, types, defaults, None)
    if backward is not None:
        given = (["grad", *names], ["Tensor", *types], [None, *defaults])
        try_formula(f"{parsed.name}: backward", backward, *given, types.count("Tensor"))
    library = torch.library.Library(parsed.name.split("::")[0], "FRAGMENT")
    _libraries.append(library)
    op = PointwiseOp(library, parsed.name, arguments, types, defaults, formula, to)
    op.define()
    define_forms(op)
    made = [op]
    if backward is not None:
        name, operands = f"{parsed.name}_backward", f"Tensor grad, {arguments}"
        rest = (["Tensor", *types], [None, *defaults], _gradients(backward), to, op.tensors)
        made.append(PointwiseOp(library, name, operands, *rest))
        made[1].define()
    define_autograd(op, made[1].packet if backward is not None else None)
    for one in made:
        registry.pointwise(one.name, one.formula, to=to)
    return op.packet


def _checked(schema: str) -> Any:
    parsed = torch._C.parse_schema(schema)
    if "::" not in parsed.name or parsed.overload_name:
        raise ValueError(f"{schema}: an op is named as mychip::name, without an overload")
    if [str(result.type) for result in parsed.returns] != ["Tensor"]:
        raise ValueError(f"{schema}: a pointwise op returns one Tensor")
    if not parsed.arguments or str(parsed.arguments[0].type) != "Tensor":
        raise ValueError(f"{schema}: the first argument of a pointwise op is a Tensor")
    if any(argument.alias_info is not None or argument.kwarg_only for argument in parsed.arguments):
        raise ValueError(f"{schema}: write the functional form, without keywords; the others are made from it")
    return parsed


def _gradients(backward: Formula) -> Formula:
    """The formula with 0 where it gives None."""

    def formula(grad: Expr, *values: Any) -> Any:
        found = backward(grad, *values)
        if not isinstance(found, tuple):
            return found
        return tuple(const(0, grad.dtype) if one is None else one for one in found)

    return formula
