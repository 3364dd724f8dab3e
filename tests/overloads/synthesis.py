"""Arguments from a schema alone, for overloads that nothing recorded reaches: drawn until the CPU accepts a call."""

from __future__ import annotations

import random
import warnings
from typing import Any

import torch

from tests.overloads.calls import OverloadCall, out_arguments, overload_named

TRIES = 150
SHAPES = [(3, 3), (4,), (2, 3, 4), (2, 3, 4, 4), (1, 2, 3, 4, 4), (), (2, 3)]
DTYPES = [torch.float32, torch.float32, torch.int64, torch.float64, torch.int32, torch.bool, torch.uint8]


class Draw:
    """One draw of arguments: most tensors have one shape and dtype, as most ops want them."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._shape = self._random.choice(SHAPES)
        self._dtype = self._random.choice(DTYPES)
        self._calm = self._random.random() < 0.5

    def tensor(self, name: str) -> torch.Tensor:
        shape, dtype = self._shape, self._dtype
        if not self._calm and self._random.random() < 0.4:
            shape, dtype = self._random.choice(SHAPES), self._random.choice(DTYPES)
        if any(word in name for word in ("ind", "offset", "length", "target", "crow", "col", "row")):
            dtype = torch.int64
        elif "mask" in name:
            dtype = torch.bool
        generator = torch.Generator().manual_seed(self._random.randrange(1 << 30))
        if dtype.is_floating_point:
            return torch.rand(shape, generator=generator, dtype=dtype)
        return torch.randint(0, 2, shape, generator=generator).to(dtype)

    def argument(self, name: str, kind: str) -> Any:
        pick = self._random.choice
        if kind.startswith("Optional[") and name.startswith("scale"):
            return None  # one that contradicts the sizes is not valid: CPU kernels write outside their memory then
        if kind.startswith("Optional["):
            inner = kind.removeprefix("Optional[").removesuffix("]")
            return (
                None
                if inner in ("Generator", "Device", "Layout") or pick([True, False])
                else self.argument(name, inner)
            )
        if kind.startswith("List["):
            inner = kind.removeprefix("List[").removesuffix("]")
            return [self.argument(name, inner) for _ in range(pick([1, 2, 3]))]
        simple: dict[str, Any] = {
            "int": lambda: pick([0, 1, 1, 2, 3]),
            "SymInt": lambda: pick([0, 1, 1, 2, 3]),
            "float": lambda: pick([0.5, 1.0, 0.1]),
            "bool": lambda: pick([False, True]),
            "number": lambda: pick([1, 2, 0.5]),
            "str": lambda: pick(["sum", "none", "ij", "linear"]),
            "Device": lambda: torch.device("cpu"),
            "Generator": lambda: None,
            "Layout": lambda: torch.strided,
            "ScalarType": lambda: pick([torch.float32, torch.int64]),
            "MemoryFormat": lambda: torch.contiguous_format,
        }
        if kind == "Tensor":
            return self.tensor(name)
        if kind in simple:
            return simple[kind]()
        raise NotImplementedError(f"an argument of type {kind}")


def synthesised(overload: str, count: int) -> list[OverloadCall]:
    """Returns up to ``count`` calls that the CPU accepts.

    Raises ``NotImplementedError`` for a type of argument that is not drawn, ``LookupError`` with the CPU's last refusal
    where no draw is accepted.
    """
    schema = overload_named(overload)._schema
    outs = out_arguments(overload_named(overload))
    accepted: list[OverloadCall] = []
    refusal = "nothing was tried"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in range(TRIES):
            draw = Draw(seed)
            arguments = {
                a.name: draw.argument(a.name, str(a.type))
                for a in schema.arguments
                if not a.has_default_value() or (a.name not in outs and seed % 3 == 2)
            }
            call = OverloadCall(overload, arguments, "from the schema")
            try:
                call.run("cpu")
            except Exception as error:  # anything: it is a draw
                refusal = f"{type(error).__name__}: {str(error).splitlines()[0][:160] if str(error) else ''}"
                continue
            accepted.append(call)
            if len(accepted) == count or not schema.arguments:
                return accepted
    if not accepted:
        raise LookupError(refusal)
    return accepted
