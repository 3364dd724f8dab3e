"""A program: statements over named inputs, as Python source that can be pasted into a file and run."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

#: What statements call dtypes; the run that judges has float64 for every float.
FLOATS = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64}
INTEGERS = ("torch.bool", "torch.uint8", "torch.int8", "torch.int16", "torch.int32", "torch.int64")
#: The sizes that shapes of inputs name, in the first call and in the second one of routes with dynamic sizes.
SIZES: tuple[dict[str, int], ...] = ({"n": 4, "m": 6}, {"n": 5, "m": 9})
_WORD = re.compile(r"\b[a-z]\d+\b")


@dataclass(frozen=True)
class Input:
    """An argument: ``shape`` has numbers and names of sizes; ``order`` says how it lies in memory."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    order: str = "rows"
    special: bool = False

    def sizes(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Returns the shape as numbers."""
        return tuple(sizes[one] if isinstance(one, str) else one for one in self.shape)

    def numbers(self, seed: int, sizes: Mapping[str, int]) -> list[float | int | bool]:
        """Returns its numbers in the order of its indices: eighths between -3 and 3, small integers, bools.

        Eighths have so few bits that sums and products of them are exact in every order.
        """
        count = 1
        for size in self.sizes(sizes):
            count *= size
        choose = random.Random(f"{seed} {self.name} {count}")
        if self.name.startswith("p"):
            return [choose.randrange(2) for _ in range(count)]
        if self.dtype == "torch.bool":
            return [choose.random() < 0.5 for _ in range(count)]
        if self.dtype in FLOATS:
            found = [choose.randrange(-24, 25) / 8 for _ in range(count)]
            if self.special:
                for _ in range(1 + count // 8):
                    found[choose.randrange(count)] = choose.choice((float("inf"), float("-inf"), float("nan"), -0.0))
            return list(found)
        low = 0 if self.dtype == "torch.uint8" else -5
        return [choose.randrange(low, 7) for _ in range(count)]

    def tensor(self, seed: int, sizes: Mapping[str, int], exact: bool = False) -> torch.Tensor:
        """Returns the argument; ``exact``: floats as float64."""
        dtype = torch.float64 if exact and self.dtype in FLOATS else dtype_of(self.dtype)
        shape = self.sizes(sizes)
        rows = torch.tensor(self.numbers(seed, sizes), dtype=dtype).reshape(shape)
        if self.order == "columns":
            return rows.permute(*reversed(range(rows.dim()))).contiguous().permute(*reversed(range(rows.dim())))
        if self.order == "every other":
            wide = torch.zeros((*shape[:-1], 2 * shape[-1]), dtype=dtype)
            wide[..., ::2] = rows
            return wide[..., ::2]
        return rows


def dtype_of(name: str) -> torch.dtype:
    """Returns the dtype that a program calls by this name."""
    found = FLOATS[name] if name in FLOATS else getattr(torch, name.partition(".")[2])
    assert isinstance(found, torch.dtype)
    return found


@dataclass(frozen=True)
class Program:
    """Statements over inputs; ``returned`` are expressions, the outputs."""

    seed: int
    inputs: tuple[Input, ...]
    statements: tuple[str, ...]
    #: Of each statement, a name of templates.KINDS.
    kinds: tuple[str, ...]
    returned: tuple[str, ...]

    @property
    def changed(self) -> tuple[str, ...]:
        """Names of inputs that may be changed in place, by themselves or by a view."""
        views: dict[str, set[str]] = {}
        changed: set[str] = set()
        for line in self.statements:
            target, _, value = line.partition(" = ")
            if re.fullmatch(r"t\d+", target):
                views[target] = {one for word in _WORD.findall(value) for one in views.get(word, {word})}
            words = {one for word in _WORD.findall(line) for one in views.get(word, {word})}
            if not re.fullmatch(r"t\d+", target) or re.search(r"_\(", value):
                changed |= words
        return tuple(one.name for one in self.inputs if one.name in changed)

    def source(self, name: str = "program", copies: bool = False) -> str:
        """Returns the function's text; ``copies``: of inputs that are changed, for routes that refuse such programs."""
        lines = [f"{one} = {one}.clone()" for one in self.changed] if copies else []
        body = [f"    {line}" for line in (*lines, *self.statements, f"return ({', '.join(self.returned)},)")]
        return "\n".join([f"def {name}({', '.join(one.name for one in self.inputs)}):", *body])

    def text(self) -> str:
        """Returns a whole Python program: dtypes, the function, and its inputs with their numbers."""
        source = self.source()
        used = [f"{name} = {dtype}" for name, dtype in FLOATS.items() if re.search(rf"\b{name}\b", source)]
        lines = [
            "import torch",
            *(["import torch.nn.functional as F"] if "F." in source else []),
            *used,
            "",
            source,
            "",
        ]
        for one in self.inputs:
            if re.search(rf"\b{one.name}\b", source.partition("\n")[2]):
                numbers = one.tensor(self.seed, SIZES[0]).tolist()
                said = f"torch.tensor({numbers}, dtype={dtype_of(one.dtype)})"
                lines.append(f"{one.name} = {said}".replace("nan", "float('nan')").replace("inf", "float('inf')"))
            else:
                lines.append(f"{one.name} = torch.zeros(1)")
            if one.order != "rows":
                lines[-1] += f"  # {one.order}, strides {one.tensor(self.seed, SIZES[0]).stride()}"
        return "\n".join([*lines, f"print(program({', '.join(one.name for one in self.inputs)}))"])

    def function(self, space: dict[str, Any] | None = None, copies: bool = False) -> Callable[..., tuple[Any, ...]]:
        """Returns the program as a function."""
        space = namespace() if space is None else space
        name = f"program_{self.seed}"
        exec(compile(self.source(name, copies), f"<program {self.seed}>", "exec"), space)
        made: Callable[..., tuple[Any, ...]] = space[name]
        return made

    def arguments(self, sizes: Mapping[str, int], exact: bool = False) -> list[torch.Tensor]:
        """Returns fresh inputs on the CPU."""
        return [one.tensor(self.seed, sizes, exact) for one in self.inputs]


def namespace(exact: bool = False) -> dict[str, Any]:
    """Returns what a program's statements may name."""
    floats = dict.fromkeys(FLOATS, torch.float64) if exact else FLOATS
    return {"__name__": __name__, "torch": torch, "F": torch.nn.functional, **floats}
