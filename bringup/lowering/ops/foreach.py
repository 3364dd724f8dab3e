"""foreach ops: the op of one tensor for each tensor of the lists, as launches of one call.

They share the kernels of the plain ops; in-place forms, which return nothing, write to the first list.
"""

from __future__ import annotations

from typing import Any

from bringup.lowering.call import Call, NoKernel, Number, Tensor
from bringup.lowering.ops.movement import copy
from bringup.lowering.registry import LOWERINGS, lowering

_UNARY = """abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2 neg reciprocal
round rsqrt sigmoid sign sin sinh sqrt tan tanh trunc zero max"""

#: foreach overload → the plain op it repeats. A list argument gives one element to each call.
_REPEATED: dict[str, str] = {name: name for name in _UNARY.split()}
for _name in ("add", "sub", "mul", "div"):
    _REPEATED[f"{_name}.List"] = f"{_name}.Tensor"
    _REPEATED[f"{_name}.Scalar"] = _REPEATED[f"{_name}.ScalarList"] = f"{_name}.Scalar"
for _name in ("add", "mul", "div"):
    _REPEATED[f"{_name}.Tensor"] = f"{_name}.Tensor"
for _name in ("clamp_min", "clamp_max"):
    _REPEATED[f"{_name}.List"] = f"{_name}.Tensor"
    _REPEATED[f"{_name}.Scalar"] = _REPEATED[f"{_name}.ScalarList"] = _name
for _name, _bound in (("maximum", "clamp_min"), ("minimum", "clamp_max")):
    _REPEATED[f"{_name}.List"] = _name
    _REPEATED[f"{_name}.Scalar"] = _REPEATED[f"{_name}.ScalarList"] = _bound
for _name in ("addcmul", "addcdiv"):
    _REPEATED[f"{_name}.Scalar"] = _REPEATED[f"{_name}.ScalarList"] = _name
_REPEATED |= {
    "lerp.List": "lerp.Tensor",
    "lerp.Scalar": "lerp.Scalar",
    "lerp.ScalarList": "lerp.Scalar",
    "pow.List": "pow.Tensor_Tensor",
    "pow.Scalar": "pow.Tensor_Scalar",
    "pow.ScalarList": "pow.Tensor_Scalar",
    "pow.ScalarAndTensor": "pow.Scalar",
    "mm": "mm",
}


def _repeat(plain: str) -> Any:
    def lower(call: Call, *arguments: Any) -> None:
        definition = LOWERINGS.get(f"aten::{plain}")
        if definition is None:
            raise NoKernel(f"aten::{plain} has no kernel")
        lists = [argument for argument in arguments if isinstance(argument, list)]
        outs = call.outs or lists[0]
        call.pointwise = True
        for n, out in enumerate(outs):
            given = [argument[n] if isinstance(argument, list) else argument for argument in arguments]
            if plain in ("add.Scalar", "sub.Scalar"):
                given.append(_one_like(given[1]))
            definition(call.part(f"aten::{plain}", [out]), *given)

    return lower


def _one_like(number: Number) -> Number:
    """The alpha of a form that has none."""
    return Number(-1, 1, None, False, number.trace)


for _name, _plain in _REPEATED.items():
    lowering(f"aten::_foreach_{_name}")(_repeat(_plain))


@lowering("aten::_foreach_norm.Scalar")
def foreach_norm(call: Call, self: list[Tensor], ord: Number, dtype: int | None) -> None:
    """A norm of each tensor."""
    definition = LOWERINGS["aten::linalg_vector_norm"]
    for x, out in zip(self, call.outs):
        definition(call.part("aten::linalg_vector_norm", [out]), x, ord, None, False, dtype)


@lowering("aten::_foreach_copy", "aten::_foreach_clone")
def foreach_copy(call: Call, self: list[Tensor], src: Any = None, non_blocking: bool = False) -> None:
    """Each tensor from the other list, or of itself."""
    sources = src if isinstance(src, list) else self
    for out, source in zip(call.outs or self, sources):
        copy(call, out, source)
