"""Loops over axes in C: what is computed once around them, plain steps, and positions of vectors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass

from bringup.ir.index import Int
from bringup.ir.kernel import Axis
from bringup.targets.c.scope import Scopes


@dataclass
class Loops:
    """Opens loops."""

    w: Scopes

    def extent(self, axis: Axis) -> str:
        """The extent of an axis in C, computed once."""
        if isinstance(axis.extent, Int):
            return str(axis.extent.value)
        key = ("extent", axis.extent)
        found = self.w.find(key)
        if found is None:
            found = self.w.remember(key, self.w.declare(self.w.index(axis.extent)[0], "i64", 1, 0))
        return found.text

    def knowing(self, *axes: Axis) -> AbstractContextManager[None]:
        """Code inside axes, for proofs about indices."""
        return self.w.having(facts=self.w.facts.with_axes({axis.name: axis.extent for axis in axes}))

    @contextmanager
    def around(self, axis: Axis) -> Iterator[str]:
        """The scope around a loop over an axis: it runs only if the axis has a step. Gives the extent."""
        extent = self.extent(axis)
        with self.knowing(axis):
            if isinstance(axis.extent, Int) and axis.extent.value > 0:
                yield extent
            else:
                with self.w.scope(f"if ({extent} > 0) {{"), self.w.pinned():  # what leaves the loop stays in here
                    yield extent

    @contextmanager
    def nest(self, axes: Sequence[Axis], count: str | None = None) -> Iterator[str]:
        """Plain loops over axes, the first one outermost. Gives the C variable of the innermost position.

        ``count``, a value in C, ends them earlier.
        """
        at = ""
        with ExitStack() as opened:
            for axis in axes:
                extent, at = opened.enter_context(self.around(axis)), self.w.fresh("a")
                if count is not None:
                    stop = self.w.fresh("c")
                    self.w.line(f"const int64_t {stop} = {count} < {extent} ? {count} : {extent};")
                    extent = stop
                header = f"for (int64_t {at} = 0; {at} < {extent}; {at}++) {{"
                opened.enter_context(self.w.scope(header)).axes[axis.name] = at
            yield at

    def shifted(self, at: str, by: int) -> str:
        """A position some steps further, as a C name."""
        if by == 0:
            return at
        name = self.w.fresh("a")
        self.w.line(f"const int64_t {name} = {at} + {by};")
        return name

    def counted(self, stop: str, at: str, lanes: int) -> str:
        """How many lanes are left, at most all."""
        count = self.w.fresh("c")
        self.w.line(f"const int64_t {count} = {stop} - {at} < {lanes} ? {stop} - {at} : {lanes};")
        return count
