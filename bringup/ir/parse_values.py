"""Text to indices and values: the half of the parser below statements."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal, NoReturn, TypeVar, cast

from bringup.ir.dtypes import DTYPES, DType
from bringup.ir.expr import (
    AsIndex,
    AsIndexMode,
    Binary,
    Bits,
    Cast,
    Const,
    Expr,
    Fma,
    IndexValue,
    Load,
    Philox,
    Unary,
    Where,
    const,
)
from bringup.ir.index import AxisVar, Index, Int, Size, maximum, minimum
from bringup.ir.ops import BINARY, INFIX, UNARY

_TOKEN = re.compile(r"\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|\w+|\.\.|->|//|<=|>=|==|!=|[-+*/%<>=&|^()\[\]{},:]|(\S)")
_BY_SIGN = {sign: op for op, sign in INFIX.items()}
END = "the end"
_Item = TypeVar("_Item")


class ParseError(ValueError):
    """Text that is not a kernel; the message shows the line."""


class ValueParser:
    """A position in a text, and what names mean there."""

    def __init__(self, text: str):
        self.text = text
        matches = list(_TOKEN.finditer(text))
        self.tokens = [match.group() for match in matches] + [END]
        self.starts = [match.start() for match in matches] + [len(text)]
        self.at = 0
        self.axes: set[str] = set()
        self.values: dict[str, Expr] = {}
        self.buffers: dict[str, DType] = {}

    # tokens

    def fail(self, wanted: str) -> NoReturn:
        """Raises ParseError at this place."""
        number = self.text.count("\n", 0, self.starts[self.at]) + 1
        lines = self.text.splitlines() or [""]
        line = lines[min(number, len(lines)) - 1].strip()
        raise ParseError(f"line {number}: wanted {wanted}, found {self.tokens[self.at]!r} in: {line}")

    @property
    def token(self) -> str:
        """The token at this place."""
        return self.tokens[self.at]

    def next(self) -> str:
        """The token at this place, which is passed."""
        self.at += 1
        return self.tokens[self.at - 1]

    def accept(self, *tokens: str) -> bool:
        """Passes one of some tokens if it stands here."""
        if self.token in tokens:
            self.at += 1
            return True
        return False

    def expect(self, token: str) -> None:
        """Passes a token that must stand here."""
        if not self.accept(token):
            self.fail(repr(token))

    def name(self) -> str:
        """Passes a name."""
        if not re.fullmatch(r"[A-Za-z_]\w*", self.token):
            self.fail("a name")
        return self.next()

    def integer(self) -> int:
        """Passes an integer."""
        sign = -1 if self.accept("-") else 1
        if not self.token.isdigit():
            self.fail("an integer")
        return sign * int(self.next())

    def dtype(self) -> DType:
        """Passes the name of a type."""
        if self.token not in DTYPES:
            self.fail("a type")
        return DTYPES[self.next()]

    def names(self) -> tuple[str, ...]:
        """Passes names in parentheses."""
        return self.listed("(", self.name, ")")

    def listed(self, first: str, item: Callable[[], _Item], last: str) -> tuple[_Item, ...]:
        """Passes items with commas between them, and what stands around them."""
        self.expect(first)
        found = []
        while not self.accept(last):
            found.append(item())
            if self.token != last:
                self.expect(",")
        return tuple(found)

    # indices

    def index(self) -> Index:
        """Passes an index."""
        total = self.product()
        while self.token in ("+", "-"):
            total = total + self.product() if self.next() == "+" else total - self.product()
        return total

    def product(self) -> Index:
        """Passes a product of factors."""
        total = self.factor()
        while self.accept("*"):
            total = total * self.factor()
        return total

    def factor(self) -> Index:
        """Passes a number, a name, a division, min, max or asindex."""
        if self.accept("-"):
            return -self.factor()
        if self.token.isdigit():
            return Int(self.integer())
        if self.accept("("):
            index = self.index()
            if self.accept("//"):
                index = index // self.index()
            elif self.accept("%"):
                index = index % self.index()
            self.expect(")")
            return index
        name = self.name()
        if self.token != "(":
            return AxisVar(name) if name in self.axes else Size(name)
        self.expect("(")
        if name == "asindex":
            value = self.expr()
            self.expect(",")
            extent = self.index()
            self.expect(",")
            mode = self.name()
            if mode not in ("check", "wrap", "skip"):
                self.fail("check, wrap or skip")
            self.expect(")")
            return AsIndex(value, extent, cast(AsIndexMode, mode))
        if name not in ("min", "max"):
            self.fail("min, max or asindex")
        a = self.index()
        self.expect(",")
        b = self.index()
        self.expect(")")
        return minimum(a, b) if name == "min" else maximum(a, b)

    def indices(self) -> tuple[Index, ...]:
        """Passes indices in brackets."""
        return self.listed("[", self.index, "]")

    # values

    def exprs(self) -> tuple[Expr, ...]:
        """Passes values in parentheses."""
        return self.listed("(", self.expr, ")")

    def expr(self) -> Expr:
        """Passes a value."""
        if self.accept("("):
            return self.inside()
        start = self.at
        name = self.name()
        if self.token == "[":
            if name not in self.buffers:
                self.at = start
                self.fail("a declared buffer")
            return Load(name, self.indices(), self.buffers[name])
        if self.token != "(":
            if name not in self.values:
                self.at = start
                self.fail("a bound name")
            return self.values[name]
        if name in DTYPES:
            return self.typed(DTYPES[name])
        if name == "index":
            self.expect("(")
            index = self.index()
            self.expect(")")
            return IndexValue(index)
        parts = self.exprs()
        if name.startswith("bits_") and name[5:] in DTYPES and len(parts) == 1:
            return Bits(parts[0], DTYPES[name[5:]])
        if name in UNARY and len(parts) == 1:
            return Unary(name, *parts)
        if name in BINARY and len(parts) == 2:
            return Binary(name, *parts)
        if name == "fma" and len(parts) == 3:
            return Fma(*parts)
        if name == "where" and len(parts) == 3:
            return Where(*parts)
        if name in ("philox32", "philox64") and len(parts) == 3:
            bits: Literal[32, 64] = 32 if name == "philox32" else 64
            return Philox(*parts, bits=bits)
        self.at = start
        self.fail(f"an op of {len(parts)} values")

    def inside(self) -> Expr:
        """What follows "(": an infix op, or a guarded load."""
        first = self.expr()
        if isinstance(first, Load) and self.token in ("if", "else"):
            guard = self.expr() if self.accept("if") else None
            other = self.expr() if self.accept("else") else None
            self.expect(")")
            return Load(first.buffer, first.indices, first.type, guard, other)
        if self.token not in _BY_SIGN:
            self.fail("an operator")
        op = _BY_SIGN[self.next()]
        second = self.expr()
        self.expect(")")
        return Binary(op, first, second)

    def typed(self, dtype: DType) -> Expr:
        """``float32(…)``: a constant if a number stands inside, else a cast."""
        self.expect("(")
        result: Const | Cast
        sign = "-" if self.accept("-") else ""
        if self.token in ("true", "false"):
            result = const(self.next() == "true", dtype)
        elif self.token[0].isdigit() or (self.token in ("inf", "nan") and self.token not in self.values):
            digits = sign + self.next()
            result = const(float(digits) if dtype.is_float else int(digits), dtype)
        else:
            result = Cast(self.expr(), dtype)
        self.expect(")")
        return result
