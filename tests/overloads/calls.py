"""A call of an ATen overload: its arguments by name, how to run it on a device, how to write it down."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from bringup.kit.op_samples import WIDE, copy_to, tensors_in

_SHORT = {
    "float32": "f32",
    "float64": "f64",
    "float16": "f16",
    "bfloat16": "bf16",
    "complex64": "c64",
    "complex128": "c128",
    "int64": "i64",
    "int32": "i32",
    "int16": "i16",
    "int8": "i8",
    "uint8": "u8",
}


@cache
def overload_named(name: str) -> Any:
    """Returns the overload, None if Python cannot name it.

    >>> overload_named("aten::add.Tensor")
    <OpOverload(op='aten.add', overload='Tensor')>
    """
    base, _, overload = name.removeprefix("aten::").partition(".")
    packet = getattr(torch.ops.aten, base, None)
    return getattr(packet, overload or "default", None)


def name_of(overload: Any) -> str:
    """Returns ``aten::add.Tensor``, and ``aten::relu`` for a default overload."""
    return str(overload._schema.name) + (f".{overload._schema.overload_name}" if overload._schema.overload_name else "")


def out_arguments(overload: Any) -> list[str]:
    """Returns the names of out= arguments: written to, by keyword only."""
    arguments = overload._schema.arguments
    return [a.name for a in arguments if a.is_out or (a.kwarg_only and a.alias_info and a.alias_info.is_write)]


@dataclass(frozen=True)
class OverloadCall:
    """Arguments of one call by name; what is absent takes its default. ``form`` says how they were made."""

    overload: str
    arguments: dict[str, Any]
    form: str = "recorded"
    #: What the functional form returned, for a form that should return the same.
    truth: Any = None
    #: The same call with other memory under it, which must give the same.
    like: OverloadCall | None = None
    #: Names of arguments that stay on the CPU.
    on_cpu: frozenset[str] = field(default_factory=frozenset)

    @classmethod
    def of(cls, overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> OverloadCall:
        """Binds positional and keyword arguments to the schema."""
        names = [argument.name for argument in overload._schema.arguments]
        return cls(name_of(overload), {**dict(zip(names, args)), **kwargs})

    @property
    def drawn(self) -> bool:
        """Whether it was made from the schema alone."""
        return self.form.startswith("from the schema")

    @property
    def in_half(self) -> bool:
        """Whether its tensors were made half types, which the CPU may not have."""
        return "float16" in self.form

    def run(self, device: str) -> tuple[Any, dict[str, Any]]:
        """Calls the overload with copies on ``device``; returns the result and the arguments as they are afterwards."""
        overload = overload_named(self.overload)
        mine = copy_to({k: v for k, v in self.arguments.items() if k not in self.on_cpu}, device)
        mine |= copy_to({k: v for k, v in self.arguments.items() if k in self.on_cpu}, "cpu")
        factory = not list(tensors_in(mine)) or self.overload.startswith(("aten::linspace", "aten::logspace"))
        if factory and any(a.name == "device" for a in overload._schema.arguments):
            mine["device"] = "cpu" if device == WIDE else device  # not where its tensors are
        positional, keyword = [], {}
        for argument in overload._schema.arguments:
            if argument.name not in mine:
                if not argument.kwarg_only and argument.has_default_value():
                    positional.append(argument.default_value)
            elif argument.kwarg_only:
                keyword[argument.name] = mine[argument.name]
            else:
                positional.append(mine[argument.name])
        return overload(*positional, **keyword), mine

    def __str__(self) -> str:
        said = ", ".join(f"{name}={written(value)}" for name, value in self.arguments.items())
        return f"{self.overload}({said}) [{self.form}]"


def written(value: Any) -> str:
    """Returns an argument in a few characters: dtype, shape, and strides where they are not the contiguous ones.

    >>> written(torch.ones(2, 3).t())
    'f32[3, 2] strides (1, 3)'
    """
    if isinstance(value, torch.Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        text = f"{_SHORT.get(dtype, dtype)}{list(value.shape)}"
        if value.layout != torch.strided:
            return f"{text} {value.layout}"
        return text if value.is_contiguous() else f"{text} strides {tuple(value.stride())}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(written(part) for part in value[:6])}{', …' if len(value) > 6 else ''}]"
    return repr(value)[:40]
