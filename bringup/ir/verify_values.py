"""The verifier's rules for values and indices: types, names in scope, and every access inside its buffer."""

from __future__ import annotations

from dataclasses import dataclass, field

from bringup.ir.dtypes import DType, boolean, float32, float64, uint64
from bringup.ir.expr import (
    AsIndex,
    Binary,
    Bits,
    Cast,
    Const,
    Expr,
    Fma,
    IndexValue,
    Load,
    Name,
    Param,
    Philox,
    Unary,
    Where,
)
from bringup.ir.guards import guard_facts
from bringup.ir.index import AxisVar, FloorDiv, Index, Int, Mod, OfTwo, Size, Sum, atoms, axes_in
from bringup.ir.index_proof import Facts
from bringup.ir.kernel import Buffer, Kernel, Stmt
from bringup.ir.ops import BINARY, UNARY
from bringup.ir.printer import expr_text, index_text
from bringup.ir.verify_error import VerifyError
from bringup.ir.walk import bridges, operands


@dataclass(frozen=True)
class Scope:
    """What is visible at a statement, and what is known there."""

    kernel: Kernel
    facts: Facts
    names: dict[str, DType] = field(default_factory=dict)
    written: set[str] = field(default_factory=set)
    stmt: Stmt | None = None
    in_fold: bool = False
    closed: bool = False


def fail_unless(good: bool, scope: Scope, rule: str, reason: str) -> None:
    """Raises VerifyError at the scope's statement unless ``good``."""
    if not good:
        raise VerifyError(scope.kernel, scope.stmt, rule, reason)


def check_index(index: Index, scope: Scope, facts: Facts, skip_allowed: bool) -> None:
    """Names in scope, divisors positive, bridges of integers with an extent of sizes."""
    if isinstance(index, OfTwo):
        check_index(index.a, scope, facts, skip_allowed)
        check_index(index.b, scope, facts, skip_allowed)
        if isinstance(index, (FloorDiv, Mod)):
            text = f"{index_text(index)}: the divisor is not proved to be positive"
            fail_unless(facts.non_negative(index.b - 1), scope, "bounds", text)
    elif isinstance(index, Sum):
        for factors, _ in index.terms:
            for factor in factors:
                check_index(factor, scope, facts, skip_allowed)
    elif isinstance(index, AxisVar):
        fail_unless(index.name in scope.facts.axes, scope, "scope", f"axis {index.name} is not open here")
    elif isinstance(index, Size):
        declared = any(size.name == index.name for size in scope.kernel.sizes)
        fail_unless(declared, scope, "scope", f"size {index.name} is not declared")
    elif isinstance(index, AsIndex):
        check_expr(index.value, scope)
        fail_unless(index.value.dtype.is_integer, scope, "type", f"asindex of a {index.value.dtype}")
        fail_unless(index.mode in ("check", "wrap", "skip"), scope, "mode", f"no mode {index.mode!r}")
        fail_unless(index.mode != "skip" or skip_allowed, scope, "mode", "skip needs a Load or Store to skip")
        fail_unless(not axes_in(index.extent) and not bridges(index.extent), scope, "scope", "an extent of sizes only")
        check_index(index.extent, scope, facts, False)


def check_access(buffer: str, indices: tuple[Index, ...], guard: Expr | None, scope: Scope) -> None:
    """Every index of an access is proved to lie inside the buffer, where the guard holds."""
    memory = scope.kernel.buffer(buffer)
    fail_unless(memory is not None, scope, "scope", f"{buffer} is not declared")
    assert memory is not None
    shape = tuple(extent if isinstance(extent, Index) else Int(extent) for extent in memory.shape)
    text = f"{buffer}[{', '.join(index_text(index) for index in indices)}]"
    fail_unless(len(shape) == len(indices), scope, "shape", f"{text}: {buffer} has {len(shape)} dimensions")
    facts = scope.facts.with_inequalities(guard_facts(guard)) if guard is not None else scope.facts
    for index, extent in zip(indices, shape):
        check_index(index, scope, facts, True)
        why = f"{text}: {index_text(index)} is not proved to be in 0 … {index_text(extent - 1)}"
        fail_unless(facts.in_range(facts.simplify(index), extent), scope, "bounds", why)


def _check_load(expr: Load, scope: Scope) -> None:
    memory = scope.kernel.buffer(expr.buffer)
    if expr.guard is not None:
        check_expr(expr.guard, scope)
        fail_unless(expr.guard.dtype is boolean, scope, "type", "a guard must be bool")
    if expr.other is not None:
        check_expr(expr.other, scope)
        fail_unless(expr.other.dtype == expr.type, scope, "type", "other must have the type of the Load")
        skips = any(bridge.mode == "skip" for index in expr.indices for bridge in bridges(index))
        fail_unless(expr.guard is not None or skips, scope, "mode", "other without a guard or a skip")
    check_access(expr.buffer, expr.indices, expr.guard, scope)
    assert memory is not None
    fail_unless(memory.dtype == expr.type, scope, "type", f"{expr.buffer} is {memory.dtype}, loaded as {expr.type}")
    unwritten = not isinstance(memory, Buffer) or memory.role == "out"
    text = f"{expr.buffer} is read before anything is stored to it"
    fail_unless(not unwritten or expr.buffer in scope.written, scope, "read", text)


def check_expr(expr: Expr, scope: Scope) -> None:
    """The rules for a value and all values inside it."""
    where = expr_text(expr)

    def need(good: bool, rule: str, reason: str) -> None:
        fail_unless(good, scope, rule, f"{where}: {reason}")

    if isinstance(expr, Load):
        need(not scope.closed, "combine", "a combine loads nothing")
        _check_load(expr, scope)
        return
    for operand in operands(expr):
        check_expr(operand, scope)
    if isinstance(expr, Name):
        need(expr.name in scope.names, "undefined", "not bound here")
        need(scope.names[expr.name] == expr.type, "type", f"bound as {scope.names[expr.name]}, used as {expr.type}")
    elif isinstance(expr, Param):
        declared = [param.dtype for param in scope.kernel.params if param.name == expr.name]
        need(bool(declared), "undefined", "no such param")
        need(declared[0] == expr.type, "type", f"declared as {declared[0]}, used as {expr.type}")
    elif isinstance(expr, IndexValue):
        need(not scope.closed or not any(True for _ in atoms(expr.index)), "combine", "a combine knows no axes")
        check_index(expr.index, scope, scope.facts, False)
    elif isinstance(expr, Unary):
        need(UNARY[expr.op].accepts(expr.x.dtype), "type", f"{expr.op} of {expr.x.dtype}")
    elif isinstance(expr, Binary):
        need(expr.a.dtype == expr.b.dtype, "type", f"{expr.op} of {expr.a.dtype} and {expr.b.dtype}")
        need(BINARY[expr.op].accepts(expr.a.dtype), "type", f"{expr.op} of {expr.a.dtype}")
    elif isinstance(expr, Fma):
        same = {expr.a.dtype, expr.b.dtype, expr.c.dtype}
        need(same in ({float32}, {float64}), "type", "fma takes three float32 or three float64")
    elif isinstance(expr, Where):
        need(expr.condition.dtype is boolean, "type", "the condition must be bool")
        need(expr.yes.dtype == expr.no.dtype, "type", f"branches of {expr.yes.dtype} and {expr.no.dtype}")
    elif isinstance(expr, Bits):
        types = (expr.x.dtype, expr.type)
        plain = all(t.is_integer or (t.is_float and not t.is_half) for t in types)
        need(plain and types[0].size == types[1].size, "type", f"the bits of {types[0]} are no {types[1]}")
    elif isinstance(expr, Philox):
        need({e.dtype for e in operands(expr)} == {uint64}, "type", "seed, offset and counter must be uint64")
        need(expr.bits in (32, 64), "type", "32 or 64 bits")
    else:
        assert isinstance(expr, (Cast, Const))
