"""A pointwise op as PyTorch sees it: schema, shapes and types, value, in-place and ``out=`` forms, autograd."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as PROMOTION
from torch._prims_common import compute_elementwise_output_strides, elementwise_dtypes
from torch._prims_common.wrappers import _maybe_resize_out

from bringup.lowering.formula_in_torch import evaluated

Formula: TypeAlias = Callable[..., Any]
To: TypeAlias = Literal["float", "same"]


@dataclass(frozen=True)
class PointwiseOp:
    """A functional op; ``results``: the positions of the tensors whose gradients it gives, None for the op itself."""

    library: torch.library.Library
    name: str
    arguments: str
    types: Sequence[str]
    defaults: Sequence[Any]
    formula: Formula
    to: To
    results: Sequence[int] | None = None

    @property
    def base(self) -> str:
        """The name without its namespace."""
        return self.name.split("::")[1]

    @property
    def packet(self) -> Any:
        """What ``torch.ops`` has under the name."""
        return getattr(getattr(torch.ops, self.library.ns), self.base)

    @property
    def tensors(self) -> list[int]:
        """Which arguments are tensors."""
        return [n for n, kind in enumerate(self.types) if kind == "Tensor"]

    def define(self) -> None:
        """The schema, the outputs, and the value in torch's ops."""
        several = len(self.results or [0]) > 1
        returns = f"({', '.join(['Tensor'] * len(self.results or []))})" if several else "Tensor"
        self.library.define(f"{self.base}({self.arguments}) -> {returns}")

        def meta(*values: Any) -> Any:
            return tuple(self.empty(values) for _ in self.results or []) if several else self.empty(values)

        def composite(*values: Any) -> Any:
            found = self.values(values)
            return tuple(found) if several else found[0]

        self.library.impl(self.base, meta, "Meta")
        self.library.impl(self.base, composite, "CompositeExplicitAutograd")

    def dtypes(self, values: Sequence[Any]) -> tuple[torch.dtype, torch.dtype]:
        """(compute type, result type)."""
        kind = PROMOTION.INT_TO_FLOAT if self.to == "float" else PROMOTION.DEFAULT
        return elementwise_dtypes(*(v for v in values if isinstance(v, Tensor)), type_promotion_kind=kind)

    def empty(self, values: Sequence[Any]) -> Tensor:
        """The result without data: broadcast, promoted, in the memory format of the inputs."""
        tensors = torch.broadcast_tensors(*(value for value in values if isinstance(value, Tensor)))
        device = max((tensor.device for tensor in tensors), key=lambda device: device.type != "cpu")
        strides = compute_elementwise_output_strides(*tensors)
        return torch.empty_strided(tensors[0].shape, strides, dtype=self.dtypes(values)[1], device=device)

    def values(self, arguments: Sequence[Any]) -> list[Tensor]:
        """The results in torch's ops."""
        compute, _ = self.dtypes(arguments)
        arguments = [*arguments, *self.defaults[len(arguments) :]]  # PyTorch leaves out those that have their default
        operands = [
            torch.tensor(value, dtype=compute) if kind in ("float", "number") and value is not None else value
            for kind, value in zip(self.types, arguments)
        ]
        return [self.empty(arguments).copy_(value) for value in evaluated(self.formula, operands, compute)]


# ---- in-place, out= and autograd ----
def _check_cast(made: Tensor, target: Tensor) -> None:
    if not torch.can_cast(made.dtype, target.dtype):
        names = [
            torch.empty(0, dtype=t.dtype).type().removeprefix("torch.").removesuffix("Tensor") for t in (made, target)
        ]
        raise RuntimeError(f"result type {names[0]} can't be cast to the desired output type {names[1]}")


def _needs_gradient(*values: Any) -> bool:
    return torch.is_grad_enabled() and any(isinstance(value, Tensor) and value.requires_grad for value in values)


def define_forms(op: PointwiseOp) -> None:
    """``name_`` and ``name.out``, checked as ATen's are; the op's kernel serves them."""
    first, comma, rest = op.arguments.partition(",")
    op.library.define(f"{op.base}_({first.replace('Tensor', 'Tensor(a!)', 1)}{comma}{rest}) -> Tensor(a!)")
    op.library.define(f"{op.base}.out({op.arguments}, *, Tensor(a!) out) -> Tensor(a!)")
    functional, in_place = op.packet.default, getattr(getattr(torch.ops, op.library.ns), f"{op.base}_").default

    def meta_in_place(self: Tensor, *values: Any) -> Tensor:
        made = op.empty((self, *values))
        _check_cast(made, self)
        if made.shape != self.shape:
            shapes = f"{list(self.shape)} doesn't match the broadcast shape {list(made.shape)}"
            raise RuntimeError(f"output with shape {shapes}")
        return self

    def meta_out(*values: Any, out: Tensor) -> Tensor:
        made = op.empty(values)
        _check_cast(made, out)
        _maybe_resize_out(out, made.shape)  # type: ignore[arg-type]
        return out

    def composite_in_place(self: Tensor, *values: Any) -> Tensor:
        return meta_in_place(self, *values).copy_(functional(self, *values))

    def composite_out(*values: Any, out: Tensor) -> Tensor:
        return meta_out(*values, out=out).copy_(functional(*values))

    def written(target: Tensor, call: Any, *values: Any, **named: Any) -> Tensor:
        """The same below autograd, which has nothing to record but that the tensor has changed."""
        with torch._C._AutoDispatchBelowAutograd():
            call(*values, **named)
        torch.autograd.graph.increment_version(target)
        return target

    def autograd_in_place(self: Tensor, *values: Any) -> Tensor:
        if _needs_gradient(self, *values):
            return self.copy_(functional(self.clone(), *values))  # backward wants it as it was
        return written(self, in_place, self, *values)

    def autograd_out(*values: Any, out: Tensor) -> Tensor:
        if _needs_gradient(*values, out):
            words = "functions with out=... arguments don't support automatic differentiation"
            raise RuntimeError(f"{op.base}(): {words}, but one of the arguments requires grad.")
        return written(out, op.packet.out, *values, out=out)

    forms = {
        f"{op.base}_": (meta_in_place, composite_in_place, autograd_in_place),
        f"{op.base}.out": (meta_out, composite_out, autograd_out),
    }
    for form, functions in forms.items():
        for function, key in zip(functions, ("Meta", "CompositeExplicitAutograd", "Autograd")):
            op.library.impl(form, function, key)


def define_autograd(op: PointwiseOp, derivative: Any) -> None:
    """The gradient is what another op gives; an error without one."""

    def remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*(inputs[n] for n in op.tensors))
        ctx.others = [None if n in op.tensors else value for n, value in enumerate(inputs)]

    def gradient(ctx: Any, grad: Tensor) -> Any:
        if derivative is None:
            raise RuntimeError(f"{op.name} has no gradient: give bringup.pointwise a backward formula")
        values, results = list(ctx.others), [None] * len(ctx.others)
        for n, tensor in zip(op.tensors, ctx.saved_tensors):
            values[n] = tensor
        found = derivative(grad, *values)
        for n, result in zip(op.tensors, found if isinstance(found, tuple) else (found,)):
            results[n] = result if values[n] is not None else None  # autograd sums what was broadcast
        return tuple(results)

    torch.library.register_autograd(op.name, gradient, setup_context=remember, lib=op.library)
