"""What the generated C++ and Python share: which entries can be written out, and the tests before an entry's call."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from bringup.vendor.bound import Bound
from bringup.vendor.custom import CustomOp
from bringup.vendor.formula import Formula


class NoSource(Exception):
    """Something that the generated source cannot say; the file says so in a comment instead."""


@dataclass(frozen=True)
class Sources:
    """The entries to write out, by op: of PyTorch's ops, and of new ones; and a line for each that is left out."""

    aten: dict[str, list[Bound]]
    new: list[tuple[CustomOp, list[Bound]]]
    left_out: list[str]

    @property
    def entries(self) -> list[Bound]:
        """All entries that are written out, op by op."""
        return [bound for bounds in [*self.aten.values(), *(found for _, found in self.new)] for bound in bounds]


def select(entries: Sequence[Bound], ops: Sequence[CustomOp], check: Callable[[Bound], object]) -> Sources:
    """Sorts the entries; ``check`` raises NoSource for one that its language cannot say."""
    by_op: dict[str, list[Bound]] = {}
    left_out = []
    for bound in entries:
        try:
            if bound.function is not None:
                raise NoSource(f"the Python function {bound.entry.function}")
            if len(bound.outs) != 1:
                raise NoSource("several outputs")
            check(bound)
            by_op.setdefault(bound.op, []).append(bound)
        except NoSource as reason:
            left_out.append(f"Not here: entry {bound.entry.number} ({bound.op}): {reason}.")
    custom = {op.bound.op for op in ops}
    aten = {name: found for name, found in by_op.items() if name not in custom}
    new = [(op, by_op[op.bound.op]) for op in ops if op.bound.op in by_op and op.meta is None]
    return Sources(aten, new, left_out)


def function_name(bound: Bound) -> str:
    """What the functions of an op are called."""
    return re.sub(r"\W+", "_", bound.op.removeprefix("aten::"))


def free_tensors(bound: Bound) -> list[str]:
    """The tensors that share the dtype of the call."""
    optional = {a.name for a in bound.arguments if a.optional}
    return [name for name in bound.tensors if name not in bound.entry.argument_dtypes and name not in optional]


def conditions(
    bound: Bound, dtype_of: str, dtypes: Callable[[str], str], formula: Callable[[Formula], str]
) -> Iterator[str]:
    """What must hold of dtypes, layouts and sizes; ``dtype_of`` is ``{}.dtype`` or what the language has for it."""
    free = free_tensors(bound)
    yield from (f"{dtype_of.format(free[0])} == {dtype_of.format(name)}" for name in free[1:])
    for name, dtype in bound.entry.argument_dtypes.items():
        yield f"{dtype_of.format(name)} == {dtypes(dtype)}"
    tests = {"blas": "is_blas({})", "row-major": "is_row_major({})", "contiguous": "{}.is_contiguous()"}
    yield from (tests[layout].format(name) for name, layout in bound.layouts.items() if layout in tests)
    if bound.when is not None:
        yield formula(bound.when)
