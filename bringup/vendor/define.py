"""New ops registered with PyTorch: schemas of all forms, meta kernels with argument checks, gradient, autocast."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from bringup.vendor.custom import CustomOp, Function, gradients
from bringup.vendor.formula import FormulaError

#: Keeps the registrations alive, by the name of the op.
_defined: dict[str, torch.library.Library] = {}


def define(op: CustomOp) -> None:
    """Defines the op and its forms; once, also if several drivers list it."""
    if op.bound.op in _defined:
        return
    namespace = op.bound.op.partition("::")[0]
    library = _defined[op.bound.op] = torch.library.Library(namespace, "FRAGMENT")
    forms = op.forms()
    for name, schema in forms.items():
        if not torch._C._dispatch_has_kernel(f"{namespace}::{name}"):
            library.define(schema)
    base = next(iter(forms))
    functional = getattr(getattr(torch.ops, namespace), base).default
    meta = _meta(op)
    _implement(library, op, base, meta, "Meta", forms)
    if op.reference is not None:
        _implement(library, op, base, op.reference, "CompositeExplicitAutograd", forms)
    if op.backward is not None:
        _register_backward(library, op, functional)
        if f"{base}_" in forms:
            in_place = getattr(getattr(torch.ops, namespace), f"{base}_").default
            library.impl(f"{base}_", _in_place_gradient(functional, in_place), "Autograd", with_keyset=True)
    if op.bound.entry.autocast:
        library.impl(base, _autocast(op, functional), "AutocastPrivateUse1")


def _implement(
    library: torch.library.Library, op: CustomOp, base: str, function: Function, key: str, forms: Mapping[str, str]
) -> None:
    """One function behind all forms: into a new tensor, into ``out``, over the first argument."""
    names = op.bound.outs

    def into_out(*args: Any, **kwargs: Any) -> Any:
        outs = [kwargs.pop(name) for name in names]
        found = function(*args, **kwargs)
        for out, result in zip(outs, [found] if len(outs) == 1 else found):
            _write(op.bound.op, out, result)
        return outs[0] if len(outs) == 1 else tuple(outs)

    def over_first(first: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return _write(op.bound.op, first, function(first, *args, **kwargs))

    library.impl(base, function, key)
    library.impl(f"{base}.out", into_out, key)
    if f"{base}_" in forms:
        library.impl(f"{base}_", over_first, key)


def _write(op: str, target: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    if target.dtype != result.dtype:
        raise RuntimeError(f"{op}: out is {target.dtype}, the result is {result.dtype}")
    if target.shape != result.shape:
        from torch._prims_common.wrappers import _maybe_resize_out

        _maybe_resize_out(target, result.shape)
    return target if target.is_meta else target.copy_(result)


def _meta(op: CustomOp) -> Function:
    """Argument checks, then the outputs by the rule."""
    order = [argument.name for argument in op.bound.arguments]

    def meta(*args: Any, **kwargs: Any) -> Any:
        values = {a.name: a.default for a in op.bound.arguments} | dict(zip(order, args)) | kwargs
        check_arguments(op, values)
        if op.meta is not None:
            return op.meta(*args, **kwargs)
        try:
            made = [rule.make(values, torch.device("meta")) for rule in op.outputs]
        except FormulaError as error:
            raise RuntimeError(f"{op.bound.op}: {error}{_shapes(op, values)}") from None
        return made[0] if len(made) == 1 else tuple(made)

    return meta


def check_arguments(op: CustomOp, values: Mapping[str, Any]) -> None:
    """PyTorch's checks come from its meta kernels; those of a new op come from its entry."""
    free = {}
    for argument in op.bound.arguments:
        tensor, name = values[argument.name], argument.name
        if argument.kind != "tensor" or tensor is None:
            continue
        dtype = str(tensor.dtype).removeprefix("torch.")
        wanted = op.bound.entry.argument_dtypes.get(name)
        if wanted is None:
            free[name] = dtype
        elif wanted != dtype:
            raise RuntimeError(f"{op.bound.op}: {name} must be {wanted}, it is {dtype}")
    if len(set(free.values())) > 1:
        found = ", ".join(f"{name} is {dtype}" for name, dtype in free.items())
        raise RuntimeError(f"{op.bound.op}: tensors of one dtype are needed, but {found}")
    served = {dtype for bound in op.entries for dtype in bound.entry.dtypes}
    if op.reference is None and not set(free.values()) <= served:
        listed = ", ".join(sorted(served))
        raise NotImplementedError(
            f"{op.bound.op} is not implemented for {next(iter(free.values()))}, only for {listed}"
        )
    for condition in op.bound.require:
        try:
            holds = condition(values)
        except FormulaError as error:
            raise RuntimeError(f"{op.bound.op}: {error}{_shapes(op, values)}") from None
        if not holds:
            raise RuntimeError(f"{op.bound.op} requires {condition.text}{_shapes(op, values)}")


def _shapes(op: CustomOp, values: Mapping[str, Any]) -> str:
    tensors = [name for name in op.bound.tensors if isinstance(values.get(name), torch.Tensor)]
    return "; " + ", ".join(f"{name} has shape {tuple(values[name].shape)}" for name in tensors)


# ---- gradient ----
def _register_backward(library: torch.library.Library, op: CustomOp, functional: Any) -> None:
    positional = [a.name for a in op.bound.arguments if not a.keyword]
    tensors = [a.name for a in op.bound.arguments if a.kind == "tensor"]
    assert op.backward is not None
    gradient = op.backward

    def remember(ctx: Any, inputs: Sequence[Any], keywords: Mapping[str, Any], output: Any) -> None:
        values = {**dict(zip(positional, inputs)), **keywords}
        values |= dict(zip(op.bound.outs, [output] if isinstance(output, torch.Tensor) else output))
        # Only what the formula looks at: the rest may be overwritten before the gradient is asked for.
        saved = [name for name, value in values.items() if isinstance(value, torch.Tensor) and name in gradient.needs]
        ctx.save_for_backward(*(values[name] for name in saved))
        ctx.saved_names = saved
        ctx.others = {name: value for name, value in values.items() if not isinstance(value, torch.Tensor)}
        ctx.needed = {name: values[name] is not None and values[name].requires_grad for name in tensors}

    if len(positional) < len(op.bound.arguments):

        def setup(ctx: Any, inputs: Any, keyword_only_inputs: Any, output: Any) -> None:
            remember(ctx, inputs, keyword_only_inputs, output)
    else:

        def setup(ctx: Any, inputs: Any, output: Any) -> None:  # type: ignore[misc]
            remember(ctx, inputs, {}, output)

    def backward(ctx: Any, *grads: Any) -> Any:
        values = {**dict(zip(ctx.saved_names, ctx.saved_tensors)), **ctx.others}
        values |= dict(zip(gradients(op.bound), grads))
        values |= {f"needs {name}": needed for name, needed in ctx.needed.items()}
        found = gradient.run(values)
        result = tuple(found.get(name) if ctx.needed.get(name) else None for name in positional)
        return result[0] if len(result) == 1 else result

    torch.library.register_autograd(functional, backward, setup_context=setup, lib=library)


def _in_place_gradient(functional: Any, in_place: Any) -> Function:
    """With a gradient to follow, the in-place form is the functional one and a copy: PyTorch can differentiate that."""

    def run(keys: Any, first: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        tensors = [value for value in (first, *args, *kwargs.values()) if isinstance(value, torch.Tensor)]
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
            return first.copy_(functional(first, *args, **kwargs))
        below: Any = keys & torch._C._after_autograd_keyset
        with torch._C._AutoDispatchBelowAutograd():
            return in_place.redispatch(below, first, *args, **kwargs)  # type: ignore[no-any-return]

    return run


# ---- autocast ----
def _autocast(op: CustomOp, functional: Any) -> Function:
    rule = op.bound.entry.autocast
    key = torch._C.DispatchKeySet(torch._C._dispatch_key_parse("AutocastPrivateUse1"))

    def cast(value: Any, dtype: torch.dtype) -> Any:
        eligible = isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype != torch.float64
        return value.to(dtype) if eligible and value.device.type != "cpu" else value

    def run(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(key):
            floats = [v for v in (*args, *kwargs.values()) if isinstance(v, torch.Tensor) and v.is_floating_point()]
            if rule == "lower":
                dtype = torch.get_autocast_dtype(torch._C._get_privateuse1_backend_name())
            else:
                dtype = torch.float32
            if rule == "promote" and floats:
                dtype = floats[0].dtype
                for value in floats[1:]:
                    dtype = torch.promote_types(dtype, value.dtype)
            cast_args = [cast(value, dtype) for value in args]
            return functional(*cast_args, **{name: cast(value, dtype) for name, value in kwargs.items()})

    return run
