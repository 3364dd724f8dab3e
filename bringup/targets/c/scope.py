"""Nested scopes of generated C: a value is declared once, in the outermost scope where everything it needs is known.

That is how loop-invariant work leaves loops. A Scope collects lines; when it closes they go into its parent, so a line
added to an outer scope while an inner one is open lands before the inner one.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from bringup.ir.expr import AsIndex
from bringup.ir.index import AxisVar, FloorDiv, Index, Int, Max, Min, OfTwo, Size, Sum
from bringup.ir.index_proof import Facts
from bringup.targets.c.integer import INDEX_DIVISION
from bringup.targets.c.math_template import function_name
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
        self.active: Value | None = None  # where a guard further out holds; None: everywhere
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

    def text(self) -> str:
        """All lines so far, as the inside of a function."""
        return "".join(f"  {line}\n" for line in self.stack[0].lines)

    def declare(self, text: str, kind: str, lanes: int, depth: int, mask_bits: int = 32) -> Value:
        """Gives a C expression a name in a scope."""
        name = self.fresh()
        self.line(f"const {ctype(kind, lanes, mask_bits)} {name} = {text};", depth)
        return Value(name, kind, lanes, depth, mask_bits)

    def read(self, texts: Iterable[str], kinds: Iterable[str], lanes: int) -> list[Value]:
        """Gives what C variables hold now names in the innermost scope."""
        return [self.declare(text, kind, lanes, self.depth) for text, kind in zip(texts, kinds)]

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
    def having(self, **state: Any) -> Iterator[None]:
        """Code for which some attributes are others."""
        before = {name: getattr(self, name) for name in state}
        vars(self).update(state)
        try:
            yield
        finally:
            vars(self).update(before)

    def pinned(self) -> AbstractContextManager[None]:
        """Code whose loads do not leave the innermost scope."""
        return self.having(pin=self.depth)

    def along(self, vector: Vector | None, lane: str | None = None) -> AbstractContextManager[None]:
        """Code in which the steps of an axis run side by side (or, in a loop over lanes, one after the other)."""
        return self.having(vector=vector, lane=lane)

    # what is known

    def remember(self, key: Hashable, value: Value) -> Value:
        """Keeps a value for `find`, as long as its scope is open."""
        self.stack[value.depth].memo[key] = value
        return value

    def find(self, key: Hashable) -> Value | None:
        """A value computed before in an open scope."""
        for scope in reversed(self.stack):
            found = scope.memo.get(key)  # asked once: to hash an expression is to walk through it
            if found is not None:
                return found
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

    def index(self, index: Index, places: Mapping[AsIndex, Value] | None = None) -> tuple[str, int]:
        """An index in C (of lane 0 where it differs between lanes), and its scope."""
        if isinstance(index, Int):
            return f"INT64_C({index.value})" if abs(index.value) >> 31 else str(index.value), 0
        if isinstance(index, Size):
            return f"n_{index.name}", 0
        if isinstance(index, AxisVar):
            return self.axis(index.name)
        if isinstance(index, AsIndex):
            place = (places or {})[index]
            return place.text, place.depth
        if isinstance(index, Sum):
            words, depths = [], [0]
            for factors, value in index.terms:
                parts = [self.index(factor, places) for factor in factors]
                depths += [depth for _, depth in parts]
                texts = [text for text, _ in parts]
                if value != 1 or not texts:
                    texts.insert(0, self.index(Int(value))[0])
                words.append(" * ".join(texts))
            return f"({' + '.join(words)})", max(depths)
        assert isinstance(index, OfTwo)
        (a, depth_a), (b, depth_b) = self.index(index.a, places), self.index(index.b, places)
        depth = max(depth_a, depth_b)
        if isinstance(index, (Min, Max)):
            return f"({a} {'<' if isinstance(index, Min) else '>'} {b} ? {a} : {b})", depth
        divides = isinstance(index, FloorDiv)
        if self.facts.non_negative(index.a):
            return f"({a} {'/' if divides else '%'} {b})", depth
        self.snippet("index_division", INDEX_DIVISION)
        return f"bu_index_{'div' if divides else 'mod'}({a}, {b})", depth

    # the library

    def call(self, op: str, kind: str, lanes: int, *arguments: str) -> str:
        """A call of the math library."""
        self.needs.add((op, kind, lanes))
        return f"{function_name(op, kind, lanes)}({', '.join(arguments)})"

    def snippet(self, name: str, text: str) -> None:
        """A function that the unit needs, written once."""
        self.snippets.setdefault(name, text)
