"""Nested scopes of generated C: a value is declared once, in the outermost scope where everything it needs is known.

That is how loop-invariant work leaves loops. A Scope collects lines; when it closes they go into its parent, so a line
added to an outer scope while an inner one is open lands before the inner one.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from bringup.ir.index_proof import Facts
from bringup.targets.c.math_library import function_name
from bringup.targets.c.options import COptions
from bringup.targets.c.value import Value, ctype


@dataclass
class Scope:
    """One block of C: its lines, the values known in it, and the names and axes that it binds."""

    lines: list[str] = field(default_factory=list)
    memo: dict[Hashable, Value] = field(default_factory=dict)
    names: dict[str, Value] = field(default_factory=dict)
    axes: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Vector:
    """The axis whose steps run side by side. ``count`` is the C name of how many lanes count; None: all of them."""

    axis: str
    lanes: int
    count: str | None = None

    @property
    def live(self) -> str:
        """The number of lanes that count, in C."""
        return str(self.lanes) if self.count is None else self.count


class Scopes:
    """The writer of one function: open scopes, fresh names, and which library functions the text needs."""

    def __init__(self, target: COptions) -> None:
        self.target = target
        self.stack = [Scope()]
        self.vector: Vector | None = None
        self.lane: str | None = None  # inside a loop over lanes: its C variable
        self.pin = 0  # loads do not leave this scope: outside it a loop may have no step at all
        self.facts = Facts()
        self.needs: set[tuple[str, str, int]] = set()
        self.snippets: dict[str, str] = {}
        self._count = 0

    # names and lines

    @property
    def depth(self) -> int:
        """The place of the innermost scope."""
        return len(self.stack) - 1

    def fresh(self, stem: str = "v") -> str:
        """A C name not used before."""
        self._count += 1
        return f"{stem}{self._count}"

    def line(self, text: str, depth: int | None = None) -> None:
        """Adds a line to a scope (default: the innermost)."""
        self.stack[self.depth if depth is None else depth].lines.append(text)

    def declare(self, text: str, kind: str, lanes: int, depth: int, mask_bits: int = 32) -> Value:
        """Gives a C expression a name in a scope."""
        name = self.fresh()
        self.line(f"const {ctype(kind, lanes, mask_bits)} {name} = {text};", depth)
        return Value(name, kind, lanes, depth, mask_bits)

    def variable(self, kind: str, lanes: int, start: str) -> str:
        """Declares a C variable that will change; returns its name."""
        name = self.fresh("s")
        self.line(f"{ctype(kind, lanes)} {name} = {start};")
        return name

    # scopes

    @contextmanager
    def scope(self, header: str = "{", footer: str = "}") -> Iterator[Scope]:
        """A block; its lines go into the enclosing scope when it closes."""
        inner = Scope()
        self.stack.append(inner)
        try:
            yield inner
        finally:
            self.stack.pop()
        self.line(header)
        self.stack[-1].lines.extend("  " + text for text in inner.lines)
        self.line(footer)

    @contextmanager
    def at_least_one(self, extent: str) -> Iterator[None]:
        """The code around a loop that runs only if the loop does; what leaves the loop stays in here."""
        before = self.pin
        with self.scope(f"if ({extent} > 0) {{"):
            self.pin = self.depth
            try:
                yield
            finally:
                self.pin = before

    @contextmanager
    def along(self, vector: Vector | None, lane: str | None = None) -> Iterator[None]:
        """Code in which the steps of an axis run side by side (or, in a loop over lanes, one after the other)."""
        before = self.vector, self.lane
        self.vector, self.lane = vector, lane
        try:
            yield
        finally:
            self.vector, self.lane = before

    # what is known

    def find(self, key: Hashable) -> Value | None:
        """A value computed before in an open scope."""
        for scope in reversed(self.stack):
            if key in scope.memo:
                return scope.memo[key]
        return None

    def name(self, name: str) -> Value:
        """What a name is bound to."""
        return next(scope.names[name] for scope in reversed(self.stack) if name in scope.names)

    def axis(self, name: str) -> tuple[str, int]:
        """The C text of the position on an axis, and its scope."""
        for depth in range(self.depth, -1, -1):
            if name in self.stack[depth].axes:
                return self.stack[depth].axes[name], depth
        raise KeyError(f"axis {name} is not open")

    # the library

    def call(self, op: str, kind: str, lanes: int, *arguments: str) -> str:
        """A call of the math library."""
        self.needs.add((op, kind, lanes))
        return f"{function_name(op, kind, lanes)}({', '.join(arguments)})"

    def snippet(self, name: str, text: str) -> None:
        """A function that the unit needs, written once."""
        self.snippets.setdefault(name, text)
