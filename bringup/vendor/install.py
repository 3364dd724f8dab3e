"""Brings the op tables of the active drivers in: read and checked first, registered only when all of them are good."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bringup.driver import Driver
from bringup.lowering.call import NoKernel
from bringup.vendor import custom
from bringup.vendor.bound import Bound, bind
from bringup.vendor.define import define
from bringup.vendor.formula import FormulaError
from bringup.vendor.routing import chosen, fitting_dtype
from bringup.vendor.table import read_table


@dataclass(frozen=True)
class Tables:
    """The tables of all drivers, by the driver's name, and the new ops among them."""

    entries: Mapping[str, Sequence[Bound]]
    ops: Sequence[custom.CustomOp]

    def define(self) -> None:
        """Defines the new ops with PyTorch."""
        for op in self.ops:
            define(op)
        _active[:] = [self]

    def functions(self) -> dict[str, dict[str, Callable[..., Any]]]:
        """By driver and op: the Python functions, each for the calls that its entry is for."""
        found: dict[str, dict[str, Callable[..., Any]]] = {}
        for driver, entries in self.entries.items():
            for bound in entries:
                if bound.function is not None:
                    by_op = found.setdefault(driver, {})
                    by_op[bound.op] = _guarded(bound, by_op.get(bound.op))
        return found


_active: list[Tables] = []


def active_tables() -> Tables:
    """The tables of the active drivers; empty where there are none."""
    return _active[0] if _active else Tables({}, ())


def read_tables(drivers: Sequence[Driver]) -> Tables:
    """Reads and checks the tables; raises TableError and leaves nothing behind."""
    entries = {
        driver.name: bind(read_table(driver.op_table), driver) for driver in drivers if driver.op_table is not None
    }
    return Tables(entries, [op for bounds in entries.values() for op in custom.prepare(bounds)])


def _guarded(bound: Bound, earlier: Callable[..., Any] | None) -> Callable[..., Any]:
    """The function of an entry, after the functions of earlier entries have declined."""
    order = [argument.name for argument in bound.arguments]
    assert bound.function is not None
    function = bound.function

    def run(out: Any, *args: Any, **kwargs: Any) -> Any:
        if earlier is not None and earlier(out, *args, **kwargs) is not NotImplemented:
            return None
        outs = out if isinstance(out, tuple) else (out,)
        values = {**dict(zip(order, args)), **kwargs, **dict(zip(bound.outs, outs))}
        try:
            dtype = fitting_dtype(bound, values)
        except (NoKernel, FormulaError):
            return NotImplemented
        chosen[str(bound.entry.path), bound.entry.number, dtype] += 1
        return function(out, *args, **kwargs)

    return run
