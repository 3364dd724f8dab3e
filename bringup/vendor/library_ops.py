"""Library ops of a Python driver: ``ops = {"aten::mm": fn}`` puts a chip's tuned function behind a PyTorch op.

``fn(out, *args, **kwargs)`` gets every argument of the op's schema, defaults included; tensors arrive as
``bringup.driver.Tensor`` (address, shape, strides, dtype, stream), 0-dim CPU tensors as numbers, and it writes into
``out`` (a tuple where the op has several outputs). Returning NotImplemented declines: the op takes its usual route.
The driver writes one function; the functional, in-place and ``out=`` forms of the op all use it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from bringup import _C
from bringup.driver import Tensor, in_use
from bringup.driver.c_struct import DeviceSpecStruct
from bringup.vendor.op_lookup import find_overload, in_place_form, out_form

Function = Callable[..., Any]

#: Keeps the registrations alive.
_libraries: list[torch.library.Library] = []


#: Op → by the name of a driver, its function.
Functions = Mapping[torch._ops.OpOverload, Mapping[str, Function]]


def functions_of(
    drivers: Iterable[in_use.ActiveDriver], tables: Mapping[str, Mapping[str, Function]] | None = None
) -> Functions:
    """Returns the functions of all drivers by op, for ``register``; raises where a name is not an op, or a value not
    callable.

    ``tables``: by the name of a driver, the functions of its op table, which stand behind those of ``Driver.ops``.

    >>> class Driver(bringup.Driver):  # doctest: +SKIP
    ...     ops = {"aten::mm": lambda out, a, b: chip.matmul(out.address, a.address, b.address, *a.shape, b.shape[1])}
    """
    by_op: dict[torch._ops.OpOverload, dict[str, Function]] = {}
    for driver in drivers:
        for name, function in {**(tables or {}).get(driver.name, {}), **driver.driver.ops}.items():
            if not callable(function):
                raise TypeError(f"driver '{driver.name}': ops[{name!r}] is not callable")
            by_op.setdefault(find_op(name, driver.name), {})[driver.name] = function
    return by_op


def register(by_op: Functions) -> None:
    """Puts drivers' functions before PyTorch's ops; a device whose driver lacks an op takes the op's usual route."""
    for op, functions in by_op.items():
        for form, kernel in _forms(op, functions):
            library = torch.library.Library(form.namespace, "IMPL")
            with warnings.catch_warnings():  # that it takes the place of the kernel behind it is what we want
                warnings.filterwarnings("ignore", message="Warning only once for all operators")
                library.impl(form._name.split("::")[1], kernel, "PrivateUse1", with_keyset=True)
            _libraries.append(library)


def find_op(name: str, driver: str) -> torch._ops.OpOverload:
    """The functional op a driver names: ``aten::mm``, ``aten::add.Tensor``.

    >>> find_op("aten::mm", "sim")
    <OpOverload(op='aten.mm', overload='default')>
    """
    try:
        return find_overload(name)
    except ValueError as error:
        raise ValueError(f"driver '{driver}': ops[{name!r}]: {error}") from None


# ---- the forms of an op ----
def _forms(
    op: torch._ops.OpOverload, functions: Mapping[str, Function]
) -> list[tuple[torch._ops.OpOverload, Function]]:
    """The op itself, and its out= and in-place forms where PyTorch has them, each with a kernel."""
    forms = [(op, _functional(op, functions))]
    out = out_form(op)
    if out is not None:
        forms.append((out, _into_out(op, out, functions)))
    in_place = in_place_form(op)
    if in_place is not None:
        forms.append((in_place, _in_place(op, in_place, functions)))
    return forms


# ---- kernels ----
class _Call:
    """One call: the driver's function for its device, or None, and the arguments with defaults filled in."""

    def __init__(self, op: torch._ops.OpOverload, functions: Mapping[str, Function], args: Any, kwargs: Any) -> None:
        self.op = op
        self.positional: list[Any] = []
        self.keywords: dict[str, Any] = {}
        for position, argument in enumerate(op._schema.arguments):
            if position < len(args):
                value = args[position]
            elif argument.name in kwargs:
                value = kwargs[argument.name]
            else:
                value = argument.default_value
            if argument.kwarg_only:
                self.keywords[argument.name] = value
            else:
                self.positional.append(value)
        kind = in_use.device_type()
        tensors = list(_tensors([self.positional, self.keywords]))
        devices = {tensor.device for tensor in tensors if tensor.device.type == kind}
        foreign = [t.device for t in tensors if t.device not in devices and (t.device.type != "cpu" or t.dim() > 0)]
        if len(devices) != 1 or foreign:
            names = ", ".join(sorted({str(tensor.device) for tensor in tensors}))
            raise RuntimeError(f"{op._name}: all tensors must be on one device, found {names}")
        self.device = devices.pop()
        self.driver = in_use.driver_of(self.device.index)
        self.kept: list[torch.Tensor] = []
        # `driver.Tensor` has one address: tensors of partitioned memory take the usual route.
        partitioned = DeviceSpecStruct.from_buffer_copy(_C.device_spec(self.device.index)).partitions > 1
        self.function = None if partitioned else functions.get(self.driver.name)
        self.stream = -1

    def run(self, outs: Sequence[torch.Tensor]) -> bool:
        """Calls the driver's function; False if it declined."""
        assert self.function is not None
        current: Any = torch._C._accelerator_getStream(self.device.index)
        _C.refuse_capture(self.device.index, f"{self.op._name} of the driver's library")
        self.stream = current.native_handle
        targets = [self.plain(out) for out in outs]
        arguments = [self.plain(value) for value in self.positional]
        keywords = {name: self.plain(value) for name, value in self.keywords.items()}
        result = self.function(targets[0] if len(targets) == 1 else tuple(targets), *arguments, **keywords)
        _C.mark_busy(self.device.index, current.stream_id)  # it may have queued its work
        return result is not NotImplemented

    def plain(self, value: Any) -> Any:
        """An argument as the driver sees it."""
        if isinstance(value, torch.Tensor):
            if value.device.type == "cpu":
                return value.item()
            value = self.settled(value)
            return Tensor(
                device=_C.driver_of(self.device.index)[1],
                address=_C.tensor_address(value),
                shape=tuple(value.shape),
                strides=tuple(value.stride()),
                dtype=str(value.dtype).removeprefix("torch."),
                stream=self.stream,
            )
        if isinstance(value, torch.dtype):
            return str(value).removeprefix("torch.")
        return [self.plain(item) for item in value] if isinstance(value, (list, tuple)) else value

    def settled(self, value: torch.Tensor) -> torch.Tensor:
        """The tensor with pending conjugation and negation done: a driver sees bytes, not PyTorch's flags."""
        if value.is_conj() or value.is_neg():
            value = value.resolve_conj().resolve_neg()
            self.kept.append(value)  # until the driver's function has returned
        return value

    def shapes(self) -> list[torch.Tensor]:
        """The outputs as meta tensors: what PyTorch's own shape function says."""
        result = self.op(
            *[_to_meta(value) for value in self.positional],
            **{name: _to_meta(value) for name, value in self.keywords.items()},
        )
        return [result] if isinstance(result, torch.Tensor) else list(result)

    def new_outputs(self) -> list[torch.Tensor]:
        """New device tensors of the right shapes, strides and dtypes."""
        return [torch.empty_strided(s.shape, s.stride(), dtype=s.dtype, device=self.device) for s in self.shapes()]


def _tensors(value: Any) -> Iterable[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


def _to_meta(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if value.device.type == "cpu":
            return value  # a number: its dtype counts less in promotion
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    if isinstance(value, torch.device):
        return torch.device("meta")
    return [_to_meta(item) for item in value] if isinstance(value, (list, tuple)) else value


def _functional(op: torch._ops.OpOverload, functions: Mapping[str, Function]) -> Function:
    usual = torch.library.get_kernel(op, "PrivateUse1")

    def kernel(keys: torch._C.DispatchKeySet, *args: Any, **kwargs: Any) -> Any:
        call = _Call(op, functions, args, kwargs)
        if call.function is not None:
            outs = call.new_outputs()
            if call.run(outs):
                return outs[0] if len(outs) == 1 else tuple(outs)
        return usual.call_boxed(keys, *args, **kwargs)

    return kernel


def _into_out(op: torch._ops.OpOverload, form: torch._ops.OpOverload, functions: Mapping[str, Function]) -> Function:
    usual = torch.library.get_kernel(form, "PrivateUse1")
    names = [argument.name for argument in form._schema.arguments if argument.is_out]

    def kernel(keys: torch._C.DispatchKeySet, *args: Any, **kwargs: Any) -> Any:
        outs = [kwargs[name] for name in names]
        inputs = {name: value for name, value in kwargs.items() if name not in names}
        call = _Call(op, functions, args, inputs)
        if call.function is not None and _run_into(call, outs):
            return outs[0] if len(outs) == 1 else tuple(outs)
        return usual.call_boxed(keys, *args, **kwargs)

    return kernel


def _in_place(op: torch._ops.OpOverload, form: torch._ops.OpOverload, functions: Mapping[str, Function]) -> Function:
    usual = torch.library.get_kernel(form, "PrivateUse1")

    def kernel(keys: torch._C.DispatchKeySet, *args: Any, **kwargs: Any) -> Any:
        call = _Call(op, functions, args, kwargs)
        if call.function is not None:
            shape = call.shapes()[0].shape
            if shape != args[0].shape:
                given, wanted = list(args[0].shape), list(shape)
                raise RuntimeError(f"{form._name}: self has shape {given}, the result needs {wanted}")
            if _run_into(call, [args[0]]):
                return args[0]
        return usual.call_boxed(keys, *args, **kwargs)

    return kernel


def _run_into(call: _Call, outs: Sequence[torch.Tensor]) -> bool:
    """Runs into tensors the caller gave: through new ones, since inputs may overlap them and dtypes may differ."""
    results = call.new_outputs()
    if not call.run(results):
        return False
    for out, result in zip(outs, results, strict=True):
        if out.device != call.device:
            raise RuntimeError(f"{call.op._name}: out is on {out.device}, the arguments on {call.device}")
        if not torch.can_cast(result.dtype, out.dtype):
            raise RuntimeError(f"result type {result.dtype} can't be cast to the desired output type {out.dtype}")
        if out.shape != result.shape:
            out.resize_(result.shape)
        out.copy_(result)
    return True
