"""Text to kernel: the inverse of printer.py. Names get their types from what was declared or bound before them."""

from __future__ import annotations

from typing import cast

from bringup.ir.dtypes import DType
from bringup.ir.expr import Expr, Name, Param
from bringup.ir.index import Int
from bringup.ir.kernel import (
    Axis,
    AxisKind,
    Block,
    Buffer,
    Combine,
    Contract,
    Kernel,
    Let,
    Local,
    Loop,
    Mode,
    Reduce,
    Role,
    ScalarParam,
    Scan,
    SizeRange,
    Stmt,
    Store,
)
from bringup.ir.ops import COMBINES
from bringup.ir.parse_values import END, ParseError, ValueParser

__all__ = ["ParseError", "parse"]


class _Parser(ValueParser):
    def axis_list(self, kind: AxisKind) -> tuple[Axis, ...]:
        found = []
        while True:
            name = self.name()
            self.expect("<")
            found.append(Axis(name, self.index(), kind))
            self.axes.add(name)
            if not self.accept(","):
                return tuple(found)

    def bind(self, names: tuple[str, ...], exprs: tuple[Expr, ...]) -> None:
        for name, expr in zip(names, exprs):
            self.values[name] = Name(name, expr.dtype)

    def block(self) -> Block:
        """Statements up to one of the closing words."""
        found: list[Stmt] = []
        while self.token in ("let", "store", "reduce", "scan", "loop", "contract"):
            found.append(getattr(self, f"parse_{self.next()}")())
        return tuple(found)

    def parse_let(self) -> Let:
        name = self.name()
        self.expect("=")
        value = self.expr()
        self.bind((name,), (value,))
        return Let(name, value)

    def parse_store(self) -> Store:
        mode: Mode = "unique"
        if self.token in ("ordered", "atomic") and self.tokens[self.at + 1] != "[":
            mode = cast(Mode, self.next())
        combine = self.next() if self.token in COMBINES and self.tokens[self.at + 1] != "[" else None
        buffer = self.name()
        indices = self.indices()
        self.expect("=")
        value = self.expr()
        guard = self.expr() if self.accept("if") else None
        return Store(buffer, indices, value, mode, combine, guard)

    def lanes(self) -> int:
        self.expect("lanes")
        return self.integer()

    def parse_contract(self) -> Contract:
        name = self.name()
        self.expect("over")
        axes = self.axis_list("reduce")
        lanes, fused = self.lanes(), not self.accept("unfused")
        self.expect("=")
        a = self.expr()
        self.expect("by")
        b = self.expr()
        init = self.expr() if self.accept("from") else None
        contract = Contract(name, axes, a, b, init, lanes, fused)
        self.values[name] = Name(name, contract.dtype)
        return contract

    def parse_loop(self) -> Loop:
        (axis,) = self.axis_list("sequential")
        if self.accept("parallel"):
            axis = Axis(axis.name, axis.extent, "parallel")
        count = self.expr() if self.accept("until") else None
        carried: tuple[str, ...] = ()
        inits: tuple[Expr, ...] = ()
        updates: tuple[Expr, ...] = ()
        if self.accept("carry"):
            carried = self.names()
            self.expect("from")
            inits = self.exprs()
        self.bind(carried, inits)
        self.expect("{")
        body = self.block()
        if self.accept("next"):
            updates = self.exprs()
        self.expect("}")
        return Loop(axis, body, carried, inits, updates, count)

    def fold(self) -> tuple[Block, tuple[Expr, ...], tuple[Expr, ...], Combine]:
        """What Reduce and Scan share: body, inits, values, combine."""
        self.expect("{")
        body = self.block()
        self.expect("init")
        inits = self.exprs()
        self.expect("value")
        values = self.exprs()
        self.expect("combine")
        left = self.names()
        self.expect(",")
        right = self.names()
        self.expect("->")
        self.bind(left, inits)
        self.bind(right, inits)
        return body, inits, values, Combine(left, right, self.exprs())

    def parse_reduce(self) -> Reduce:
        names = self.names()
        self.expect("over")
        axes = self.axis_list("reduce")
        lanes = self.lanes()
        body, inits, values, combine = self.fold()
        self.expect("}")
        self.bind(names, inits)
        return Reduce(names, axes, body, values, inits, combine, lanes)

    def parse_scan(self) -> Scan:
        names = self.names()
        self.expect("along")
        (axis,) = self.axis_list("sequential")
        exclusive = self.accept("exclusive")
        body, inits, values, combine = self.fold()
        self.bind(names, inits)
        self.expect("then")
        self.expect("{")
        then = self.block()
        self.expect("}")
        self.expect("}")
        return Scan(names, axis, body, values, inits, combine, then, exclusive)

    # the kernel

    def size(self) -> SizeRange:
        name = self.name()
        if not self.accept(":"):
            return SizeRange(name)
        low = None if self.token == ".." else self.integer()
        self.expect("..")
        high = self.integer() if self.token.isdigit() or self.token == "-" else None
        return SizeRange(name, low, high)

    def declared(self) -> tuple[str, DType]:
        name = self.name()
        self.expect(":")
        dtype = self.dtype()
        self.buffers[name] = dtype
        return name, dtype

    def kernel(self) -> Kernel:
        self.expect("kernel")
        name = self.name()
        sizes: list[SizeRange] = []
        params: list[ScalarParam] = []
        buffers: list[Buffer] = []
        scratch: list[Local] = []
        axes: tuple[Axis, ...] = ()
        while not self.accept("{"):
            word = self.next()
            if word == "size":
                sizes.append(self.size())
            elif word == "param":
                param = ScalarParam(self.name(), self.dtype() if self.accept(":") else self.fail("':'"))
                self.values[param.name] = Param(param.name, param.dtype)
                params.append(param)
            elif word in ("in", "out", "inout"):
                buffer, dtype = self.declared()
                shape = self.indices()
                self.expect("strides")
                buffers.append(Buffer(buffer, dtype, shape, self.indices(), cast(Role, word)))
            elif word == "local":
                local, dtype = self.declared()
                shape = self.indices()
                scratch.append(Local(local, dtype, tuple(i.value if isinstance(i, Int) else -1 for i in shape)))
            elif word == "grid":
                axes = self.axis_list("parallel")
            else:
                self.at -= 1
                self.fail("a declaration or '{'")
        body = self.block()
        self.expect("}")
        if self.token != END:
            self.fail(END)
        return Kernel(name, tuple(sizes), tuple(params), tuple(buffers), tuple(scratch), axes, body)


def parse(text: str) -> Kernel:
    """The kernel of a text; raises ParseError, which shows the line.

    >>> parse("kernel nothing { }")
    Kernel(name='nothing', sizes=(), params=(), buffers=(), locals=(), axes=(), body=())
    """
    return _Parser(text).kernel()
