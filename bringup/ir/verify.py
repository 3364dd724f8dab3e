"""The verifier: types, names, scopes, bounds and write conflicts, proved before anything runs.

>>> from bringup.ir.parser import parse
>>> verify(parse("kernel k size n in x: float32[n] strides [1] out y: float32[n] strides [1] grid i < n "
...              "{ store y[i] = x[i + 1] }"))
Traceback (most recent call last):
bringup.ir.verify_error.VerifyError: k: bounds: x[i + 1]: i + 1 is not proved to be in 0 … n - 1
...
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from bringup.ir.dtypes import DType
from bringup.ir.expr import Name
from bringup.ir.index import Index, Size, atoms
from bringup.ir.index_proof import Facts
from bringup.ir.kernel import Axis, AxisKind, Block, Contract, Kernel, Let, Local, Loop, Reduce, Scan, Stmt, Store
from bringup.ir.ops import BINARY, COMBINES, UNARY
from bringup.ir.printer import index_text
from bringup.ir.verify_conflicts import check_conflicts
from bringup.ir.verify_error import VerifyError
from bringup.ir.verify_values import Scope, check_access, check_expr, fail_unless
from bringup.ir.walk import subexpressions

__all__ = ["DEFAULT_LOCAL_LIMIT", "VerifyError", "verify"]

#: Bytes of Locals one grid point may have, where a target says nothing else.
DEFAULT_LOCAL_LIMIT = 1 << 20
_WORDS = """if else by from over lanes along until carry next init value combine then grid in out inout local size param
kernel let store reduce scan loop contract parallel exclusive unfused ordered atomic where fma index asindex true false
inf nan strides philox32 philox64"""
_RESERVED = frozenset(_WORDS.split()) | frozenset(UNARY) | frozenset(BINARY)


class _Verifier:
    def __init__(self, kernel: Kernel, local_limit: int):
        self.kernel = kernel
        self.local_limit = local_limit
        self.seen: set[str] = set()
        self.written: set[str] = set()

    def run(self) -> None:
        kernel = self.kernel
        self.declare([declared.name for declared in (*kernel.sizes, *kernel.params, *kernel.memories)], None)
        sizes = {size.name: (size.low, size.high) for size in kernel.sizes}
        scope = Scope(kernel, Facts(sizes=sizes))
        for buffer in kernel.buffers:
            if len(buffer.shape) != len(buffer.strides):
                raise VerifyError(kernel, None, "shape", f"{buffer.name} has not as many strides as dimensions")
            for index in (*buffer.shape, *buffer.strides):
                self.only_sizes(index, None, f"the shape of {buffer.name}")
        self.check_locals()
        self.block(kernel.body, self.open(kernel.axes, scope, None, ("parallel",)))
        check_conflicts(kernel)
        silent = [b.name for b in kernel.buffers if b.role == "out" and b.name not in self.written]
        if silent:
            raise VerifyError(kernel, None, "role", f"{', '.join(silent)} is an output that nothing is stored to")

    def declare(self, names: Iterable[str], stmt: Stmt | None) -> None:
        """Names of the whole kernel: each is bound once."""
        for name in names:
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) or name in _RESERVED:
                raise VerifyError(self.kernel, stmt, "name", f"{name!r} is not a name (or a word of the language)")
            if name in self.seen:
                raise VerifyError(self.kernel, stmt, "name", f"{name} is bound twice")
            self.seen.add(name)

    def check_locals(self) -> None:
        for local in self.kernel.locals:
            if any(extent < 1 for extent in local.shape):
                raise VerifyError(self.kernel, None, "local", f"{local.name} needs constant extents of at least 1")
        total = sum(local.nbytes for local in self.kernel.locals)
        if total > self.local_limit:
            text = f"Locals take {total} bytes, {self.local_limit} are allowed"
            raise VerifyError(self.kernel, None, "local", text)

    def only_sizes(self, index: Index, stmt: Stmt | None, what: str) -> None:
        declared = {size.name for size in self.kernel.sizes}
        for atom in atoms(index):
            if not isinstance(atom, Size) or atom.name not in declared:
                text = f"{what}: {index_text(index)} must be made of declared sizes"
                raise VerifyError(self.kernel, stmt, "scope", text)

    def open(self, axes: tuple[Axis, ...], scope: Scope, stmt: Stmt | None, kinds: tuple[AxisKind, ...]) -> Scope:
        """The scope inside axes."""
        self.declare([axis.name for axis in axes], stmt)
        for axis in axes:
            if axis.kind not in kinds:
                text = f"axis {axis.name} is {axis.kind}, here it must be {' or '.join(kinds)}"
                raise VerifyError(self.kernel, stmt, "axis", text)
            self.only_sizes(axis.extent, stmt, f"the extent of {axis.name}")
        facts = scope.facts.with_axes({axis.name: axis.extent for axis in axes})
        return replace(scope, facts=facts, names=dict(scope.names))

    def block(self, block: Block, scope: Scope) -> None:
        for stmt in block:
            self.stmt(stmt, replace(scope, stmt=stmt, written=self.written))

    def stmt(self, stmt: Stmt, scope: Scope) -> None:
        if isinstance(stmt, Let):
            check_expr(stmt.value, scope)
            self.bind((stmt.name,), (stmt.value.dtype,), scope)
        elif isinstance(stmt, Store):
            self.store(stmt, scope)
        elif isinstance(stmt, Contract):
            self.contract(stmt, scope)
        elif isinstance(stmt, Loop):
            self.loop(stmt, scope)
        else:
            self.fold(stmt, scope)

    def bind(self, names: tuple[str, ...], dtypes: Iterable[DType], scope: Scope) -> None:
        self.declare(names, scope.stmt)
        scope.names.update(zip(names, dtypes))

    def store(self, stmt: Store, scope: Scope) -> None:
        memory = self.kernel.buffer(stmt.buffer)
        fail_unless(memory is not None, scope, "scope", f"{stmt.buffer} is not declared")
        assert memory is not None
        fail_unless(not scope.in_fold, scope, "role", "a Store inside a Reduce, or in a Scan's values")
        writable = isinstance(memory, Local) or memory.role != "in"
        fail_unless(writable, scope, "role", f"{stmt.buffer} is an input and is stored to")
        if stmt.guard is not None:
            check_expr(stmt.guard, scope)
            fail_unless(stmt.guard.dtype.name == "bool", scope, "type", "a guard must be bool")
        check_access(stmt.buffer, stmt.indices, stmt.guard, scope)
        check_expr(stmt.value, scope)
        same = stmt.value.dtype == memory.dtype
        fail_unless(same, scope, "type", f"a {stmt.value.dtype} is stored to {stmt.buffer}, which is {memory.dtype}")
        fail_unless(stmt.combine is None or stmt.combine in COMBINES, scope, "mode", f"combine {stmt.combine!r}")
        fail_unless(stmt.mode in ("unique", "ordered", "atomic"), scope, "mode", f"no mode {stmt.mode!r}")
        fail_unless(stmt.mode != "atomic" or stmt.combine is not None, scope, "mode", "atomic needs a combine")
        if stmt.combine is not None and not isinstance(memory, Local):
            fail_unless(memory.role == "inout", scope, "role", f"{stmt.buffer} is combined into, so it must be inout")
        self.written.add(stmt.buffer)

    def lanes(self, lanes: int, scope: Scope) -> None:
        good = 1 <= lanes <= 64 and lanes & (lanes - 1) == 0
        fail_unless(good, scope, "lanes", f"lanes must be a power of two up to 64, not {lanes}")

    def contract(self, stmt: Contract, scope: Scope) -> None:
        if stmt.init is not None:
            check_expr(stmt.init, scope)
            fail_unless(stmt.init.dtype == stmt.dtype, scope, "type", f"the init must be {stmt.dtype}")
        self.lanes(stmt.lanes, scope)
        fail_unless(bool(stmt.axes), scope, "axis", "no axis to sum over")
        inner = self.open(stmt.axes, scope, stmt, ("reduce",))
        check_expr(stmt.a, inner)
        check_expr(stmt.b, inner)
        text = f"factors of {stmt.a.dtype} and {stmt.b.dtype}"
        fail_unless(stmt.a.dtype == stmt.b.dtype, scope, "type", text)
        self.bind((stmt.name,), (stmt.dtype,), scope)

    def loop(self, stmt: Loop, scope: Scope) -> None:
        count = len(stmt.carried)
        fail_unless(len(stmt.inits) == len(stmt.updates) == count, scope, "carry", "carried names, inits and updates")
        fail_unless(count == 0 or stmt.axis.kind == "sequential", scope, "carry", "a parallel loop carries nothing")
        fail_unless(not scope.in_fold, scope, "axis", "a Loop inside a Reduce, or in a Scan's values")
        for init in stmt.inits:
            check_expr(init, scope)
        if stmt.count is not None:
            fail_unless(stmt.axis.kind == "sequential", scope, "count", "a parallel loop runs all its steps")
            check_expr(stmt.count, scope)
            fail_unless(stmt.count.dtype.name == "int64", scope, "type", f"a count of {stmt.count.dtype}, not int64")
        inner = self.open((stmt.axis,), scope, stmt, ("parallel", "sequential"))
        self.bind(stmt.carried, [init.dtype for init in stmt.inits], replace(scope, names=inner.names))
        self.block(stmt.body, inner)
        for init, update in zip(stmt.inits, stmt.updates):
            check_expr(update, replace(inner, stmt=stmt))
            fail_unless(update.dtype == init.dtype, scope, "type", "an update has another type than its init")
        scope.names.update({name: inner.names[name] for name in stmt.carried})

    def fold(self, stmt: Reduce | Scan, scope: Scope) -> None:
        combine, dtypes = stmt.combine, [init.dtype for init in stmt.inits]
        counts = {len(t) for t in (stmt.names, stmt.values, stmt.inits, combine.left, combine.right, combine.results)}
        fail_unless(len(counts) == 1 and counts != {0}, scope, "combine", "names, values, inits and combine must agree")
        for init in stmt.inits:
            check_expr(init, scope)
        kinds: tuple[AxisKind, ...]
        if isinstance(stmt, Reduce):
            fail_unless(bool(stmt.axes), scope, "axis", "no axis to reduce over")
            self.lanes(stmt.lanes, scope)
            axes, kinds = stmt.axes, ("reduce",)
        else:
            fail_unless(not scope.in_fold, scope, "axis", "a Scan inside a Reduce")
            axes, kinds = (stmt.axis,), ("sequential",)
        inner = self.open(axes, scope, stmt, kinds)
        pure = replace(inner, in_fold=True)
        self.block(stmt.body, pure)
        for value, dtype in zip(stmt.values, dtypes):
            check_expr(value, replace(pure, stmt=stmt))
            fail_unless(value.dtype == dtype, scope, "type", f"a value of {value.dtype}, its init is {dtype}")
        state = Scope(self.kernel, Facts(sizes=scope.facts.sizes), stmt=stmt)
        self.bind(combine.left + combine.right, dtypes + dtypes, state)
        for result, dtype in zip(combine.results, dtypes):
            for part in subexpressions(result):
                foreign = isinstance(part, Name) and part.name not in state.names
                fail_unless(not foreign, state, "combine", "a combine uses only its own two states")
            check_expr(result, replace(state, closed=True))
            fail_unless(result.dtype == dtype, scope, "combine", f"a combine gives {result.dtype}, its init is {dtype}")
        if isinstance(stmt, Scan):
            then = replace(inner, names=dict(inner.names))
            self.bind(stmt.names, dtypes, replace(then, stmt=stmt))
            self.block(stmt.then, then)
        else:
            self.bind(stmt.names, dtypes, scope)


def verify(kernel: Kernel, local_limit: int = DEFAULT_LOCAL_LIMIT) -> None:
    """Raises VerifyError, which shows the kernel and marks the line, unless every rule is proved to hold."""
    _Verifier(kernel, local_limit).run()
