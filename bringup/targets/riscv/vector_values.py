"""Values in vector registers: a few float32 expressions over one axis, as RVV 1.0 instructions of any vector length.

A register group of LMUL registers holds one value; group 0 is left to masks. Values that do not change along the axis
are in floating-point registers. What is not known here (a transcendental, an integer) raises NotInVectors, and the
kernel becomes C.
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bringup.ir.dtypes import boolean, float32
from bringup.ir.expr import Binary, Cast, Const, Expr, Fma, Load, Name, Unary, Where, const
from bringup.ir.kernel import Store
from bringup.ir.walk import operands, subexpressions
from bringup.targets.riscv.asm import Asm, OutOfRegisters


class NotInVectors(Exception):
    """An expression that these instructions do not make."""


@dataclass(frozen=True)
class Access:
    """Where an element lies: register + displacement (bytes), and how many elements the next one is away."""

    register: str
    displacement: int
    step: int


@dataclass(frozen=True)
class Group:
    """A value in the vector registers from this number on."""

    number: int


@dataclass(frozen=True)
class Scalar:
    """A value in a floating-point register."""

    register: str
    kept: bool
    """Belongs to someone else: not given back."""


Value = Group | Scalar
_VV = {"add": "vfadd", "sub": "vfsub", "mul": "vfmul", "div": "vfdiv"}
_REVERSED = {"add": "vfadd", "sub": "vfrsub", "mul": "vfmul", "div": "vfrdiv"}
_SCALAR = {"add": "fadd.s", "sub": "fsub.s", "mul": "fmul.s", "div": "fdiv.s"}
_SCALAR_UNARY = {"neg": "fneg.s", "abs": "fabs.s", "sqrt": "fsqrt.s"}
#: Comparison → (instruction on vectors, operands swapped), instruction with a scalar on the right.
_COMPARE = {
    "lt": ("vmflt", False, "vmflt"),
    "le": ("vmfle", False, "vmfle"),
    "gt": ("vmflt", True, "vmfgt"),
    "ge": ("vmfle", True, "vmfge"),
    "eq": ("vmfeq", False, "vmfeq"),
    "ne": ("vmfne", False, "vmfne"),
}
_ONE = const(1.0, float32)
_MIRRORED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq", "ne": "ne"}


class VectorValues:
    """Evaluates expressions of one strip; each shared value is computed once and its group freed after its last use."""

    def __init__(self, asm: Asm, lmul: int, access: Callable[[str, Load | Store], Access]) -> None:
        self.asm, self.lmul, self.access = asm, lmul, access
        self.free = list(range(lmul, 32, lmul))
        self.constants: dict[int, str] = {}
        self.strides: dict[int, str] = {}
        #: In the order in which registers were taken: one that is free again may belong to a later line.
        self.prologue: list[str] = []
        self._spread: list[int] = []
        self._values: dict[Expr, Value] = {}
        self._uses: Counter[Expr] = Counter()
        self._masks = list(range(1, lmul))

    # groups

    def take(self) -> int:
        """A free group."""
        if not self.free:
            raise OutOfRegisters(f"{self.asm.name}: vector registers")
        return self.free.pop(0)

    def give(self, group: int) -> None:
        """Gives a group back."""
        self.free.insert(0, group)

    # what is set once, before all loops

    def constant(self, value: Const) -> str:
        """A constant in a floating-point register."""
        if value.bits not in self.constants:
            self.constants[value.bits] = register = self.asm.take_float()
            if value.bits == 0:
                self.prologue.append(f"  fmv.w.x {register}, zero")
            else:
                with self.asm.temporary() as bits:
                    signed = struct.unpack("<i", struct.pack("<I", value.bits))[0]
                    self.prologue += [f"  li {bits}, {signed}", f"  fmv.w.x {register}, {bits}"]
        return self.constants[value.bits]

    def stride(self, elements: int, size: int = 4) -> str:
        """A distance between elements of some bytes in a register."""
        nbytes = elements * size
        if nbytes not in self.strides:
            self.strides[nbytes] = register = self.asm.take()
            self.prologue.append(f"  li {register}, {nbytes}")
        return self.strides[nbytes]

    def prepare(self, stores: Sequence[Store]) -> None:
        """Takes the registers of everything that is set once: before any other register is used and given back."""
        for store in stores:
            for part in subexpressions(store.value):
                if isinstance(part, Const) and part.dtype is float32:
                    self.constant(part)
                elif isinstance(part, Unary) and part.op == "reciprocal":
                    self.constant(_ONE)
                elif isinstance(part, Load):
                    self._prepare_stride(self.access(part.buffer, part))
            self._prepare_stride(self.access(store.buffer, store))

    def _prepare_stride(self, place: Access) -> None:
        if place.step not in (0, 1):
            self.stride(place.step)

    # a block

    def run(self, stores: Sequence[Store], given: Mapping[Expr, Value] | None = None) -> None:
        """Computes and stores; names other than those ``given`` were resolved before. Groups that were given are free
        after their last use."""
        self._values = dict(given or {})
        self._uses.clear()
        for store in stores:
            self._count(store.value)
        for store in stores:
            if store.value.dtype is not float32:
                raise NotInVectors(f"a store of {store.value.dtype}")
            value = self._vector(self.value(store.value))
            self.store(value, self.access(store.buffer, store))
            self._finish(store.value)

    def store(self, value: Group, place: Access) -> None:
        """A group to memory."""
        if place.step == 0:
            raise NotInVectors("a store that does not move")
        self._memory("vse32.v" if place.step == 1 else "vsse32.v", value, place)

    def _count(self, expr: Expr) -> None:
        self._uses[expr] += 1
        if self._uses[expr] == 1 or expr.dtype is boolean:  # a mask is made for each of its uses
            for operand in operands(expr):
                self._count(operand)

    def _done(self, expr: Expr) -> None:
        """One use of a value is over."""
        self._uses[expr] -= 1
        if self._uses[expr] == 0 and expr in self._values:
            value = self._values.pop(expr)
            if isinstance(value, Group):
                self.give(value.number)
            elif not value.kept:
                self.asm.give_float(value.register)

    def uniform(self, expr: Expr) -> bool:
        """True if a value is the same along the axis, and scalar instructions make it."""
        if isinstance(expr, Const):
            return expr.dtype is float32
        if isinstance(expr, Load):
            return expr.guard is None and self.access(expr.buffer, expr).step == 0
        known = expr.op in _SCALAR if isinstance(expr, Binary) else False
        known = expr.op in _SCALAR_UNARY if isinstance(expr, Unary) else known
        return known and all(self.uniform(operand) for operand in operands(expr))

    def value(self, expr: Expr) -> Value:
        """The value, computed now or before."""
        if isinstance(expr, Const) and expr.dtype is float32:
            return Scalar(self.constant(expr), True)
        if expr not in self._values:
            if isinstance(expr, Name):
                raise NotInVectors(f"the name {expr.name}")
            self._values[expr] = self._scalar(expr) if self.uniform(expr) else Group(self._computed(expr))
        return self._values[expr]

    # scalars

    def _scalar(self, expr: Expr) -> Scalar:
        if expr.dtype is not float32:
            raise NotInVectors(f"a scalar of {expr.dtype}")
        if isinstance(expr, Load):
            place = self.access(expr.buffer, expr)
            register = self.asm.take_float()
            self._near(place, lambda base, offset: self.asm.line(f"flw {register}, {offset}({base})"))
            return Scalar(register, False)
        assert isinstance(expr, (Binary, Unary))
        name = (_SCALAR if isinstance(expr, Binary) else _SCALAR_UNARY)[expr.op]
        inside = [self.value(operand) for operand in operands(expr)]
        register = self.asm.take_float()
        named = [value.register for value in inside if isinstance(value, Scalar)]
        assert len(named) == len(inside), "what scalar instructions take is uniform"
        self.asm.line(f"{name} {register}, {', '.join(named)}")
        for operand in operands(expr):
            self._done(operand)
        return Scalar(register, False)

    def _near(self, place: Access, use: Callable[[str, int], None]) -> None:
        if -2048 <= place.displacement < 2048:
            use(place.register, place.displacement)
            return
        with self.asm.temporary() as base:
            self.asm.add(base, place.displacement, place.register)
            use(base, 0)

    # vectors

    def _computed(self, expr: Expr) -> int:
        if expr.dtype is not float32:
            raise NotInVectors(f"{expr.dtype}")
        if isinstance(expr, Load):
            if expr.guard is not None:
                raise NotInVectors("a load under a guard")
            place, group = self.access(expr.buffer, expr), self.take()
            self._memory("vle32.v" if place.step == 1 else "vlse32.v", Group(group), place)
            return group
        if isinstance(expr, Cast):
            return self._into(expr.x, lambda out, x: None if out == x else self._move(out, x))
        if isinstance(expr, Unary):
            return self._unary(expr)
        if isinstance(expr, Fma):
            return self._fma(expr)
        if isinstance(expr, Where):
            return self._where(expr)
        if isinstance(expr, Binary) and expr.op in ("max", "min"):
            return self._extreme(expr)
        if isinstance(expr, Binary) and expr.op in _VV:
            return self._binary(expr)
        raise NotInVectors(getattr(expr, "op", type(expr).__name__))

    def _memory(self, instruction: str, value: Group, place: Access) -> None:
        stride = "" if place.step == 1 else f", {self.stride(place.step)}"
        if place.displacement == 0:
            self.asm.line(f"{instruction} v{value.number}, ({place.register}){stride}")
            return
        with self.asm.temporary() as base:
            self.asm.add(base, place.displacement, place.register)
            self.asm.line(f"{instruction} v{value.number}, ({base}){stride}")

    def _vector(self, value: Value) -> Group:
        """The value in a group; a scalar gets one until `_finish`."""
        if isinstance(value, Group):
            return value
        group = self.take()
        self._spread.append(group)
        self.asm.line(f"vfmv.v.f v{group}, {value.register}")
        return Group(group)

    def _move(self, out: int, source: int) -> None:
        self.asm.line(f"vmv.v.v v{out}, v{source}")

    def _target(self, *exprs: Expr) -> int:
        """A group for a result: that of an operand which is used here for the last time, or a new one."""
        for expr in exprs:
            value = self._values.get(expr)
            if self._uses[expr] == 1 and isinstance(value, Group):
                del self._values[expr]
                self._uses[expr] = 0
                return value.number
        return self.take()

    def _finish(self, *exprs: Expr) -> None:
        for expr in exprs:
            if self._uses[expr] > 0:
                self._done(expr)
        while self._spread:
            self.give(self._spread.pop())

    def _into(self, x: Expr, emit: Callable[[int, int], None]) -> int:
        value = self._vector(self.value(x))
        out = self._target(x)
        emit(out, value.number)
        self._finish(x)
        return out

    def _unary(self, expr: Unary) -> int:
        line = self.asm.line
        if expr.op == "neg":
            return self._into(expr.x, lambda out, x: line(f"vfsgnjn.vv v{out}, v{x}, v{x}"))
        if expr.op == "abs":
            return self._into(expr.x, lambda out, x: line(f"vfsgnjx.vv v{out}, v{x}, v{x}"))
        if expr.op == "sqrt":
            return self._into(expr.x, lambda out, x: line(f"vfsqrt.v v{out}, v{x}"))
        if expr.op == "reciprocal":
            one = self.constant(_ONE)
            return self._into(expr.x, lambda out, x: line(f"vfrdiv.vf v{out}, v{x}, {one}"))
        raise NotInVectors(expr.op)

    def _operands(self, *exprs: Expr) -> list[Value]:
        """The values of operands; loads come last, because their groups are free until then."""
        for expr in sorted(exprs, key=lambda operand: isinstance(operand, Load)):
            self.value(expr)
        return [self.value(expr) for expr in exprs]

    def _binary(self, expr: Binary) -> int:
        a, b = self._operands(expr.a, expr.b)
        out = self._target(expr.a, expr.b) if expr.a != expr.b else self._target(expr.a)
        if isinstance(a, Group) and isinstance(b, Group):
            self.asm.line(f"{_VV[expr.op]}.vv v{out}, v{a.number}, v{b.number}")
        elif isinstance(a, Group):
            assert isinstance(b, Scalar)
            self.asm.line(f"{_VV[expr.op]}.vf v{out}, v{a.number}, {b.register}")
        else:
            assert isinstance(b, Group)
            self.asm.line(f"{_REVERSED[expr.op]}.vf v{out}, v{b.number}, {a.register}")
        self._finish(expr.a, expr.b)
        return out

    def _fma(self, expr: Fma) -> int:
        a, b, c = self._operands(expr.a, expr.b, expr.c)
        if isinstance(b, Scalar):
            a, b = b, a
        vector = self._vector(b)
        if isinstance(c, Group):
            out = self._target(expr.c)
            if out != c.number:
                self._move(out, c.number)
        else:
            out = self._vector(c).number
            self._spread.remove(out)
        other = f"v{a.number}" if isinstance(a, Group) else a.register
        self.asm.line(f"vfmacc.{'vv' if isinstance(a, Group) else 'vf'} v{out}, {other}, v{vector.number}")
        self._finish(expr.a, expr.b, expr.c)
        return out

    # masks

    def _where(self, expr: Where) -> int:
        # Both sides first: one that needs a mask itself would change that of this one.
        self.value(expr.no)
        self.value(expr.yes)
        self._mask(expr.condition, 0)
        return self._merged(expr.no, expr.yes)

    def _merged(self, no: Expr, yes: Expr) -> int:
        """``yes`` where v0 says so, else ``no``; both are known."""
        a, b = self._vector(self.value(no)), self.value(yes)
        out = self._target(no)
        if isinstance(b, Group):
            self.asm.line(f"vmerge.vvm v{out}, v{a.number}, v{b.number}, v0")
        else:
            self.asm.line(f"vfmerge.vfm v{out}, v{a.number}, {b.register}, v0")
        self._finish(no, yes)
        return out

    def _extreme(self, expr: Binary) -> int:
        """a if a > b or a is NaN, else b (min: a < b)."""
        beaten = "le" if expr.op == "max" else "ge"
        self.value(expr.a)
        self.value(expr.b)
        condition: Expr = Binary(beaten, expr.a, expr.b)
        if not isinstance(expr.b, Const) or math.isnan(expr.b.value):
            condition = Binary("or", condition, Binary("ne", expr.b, expr.b))
        # The comparison reads both once more than was counted.
        self._count_again(condition)
        self._mask(condition, 0)
        return self._merged(expr.a, expr.b)

    def _count_again(self, expr: Expr) -> None:
        for operand in operands(expr):
            if operand.dtype is boolean:
                self._count_again(operand)
            else:
                self._uses[operand] += 1

    def _mask(self, expr: Expr, out: int) -> None:
        """A condition into a mask register."""
        if isinstance(expr, Unary) and expr.op == "isnan":
            x = self._vector(self.value(expr.x)).number
            self.asm.line(f"vmfne.vv v{out}, v{x}, v{x}")
            self._finish(expr.x)
        elif isinstance(expr, Unary) and expr.op == "not":
            self._mask(expr.x, out)
            self.asm.line(f"vmnot.m v{out}, v{out}")
        elif isinstance(expr, Binary) and expr.op in ("and", "or") and expr.a.dtype is boolean:
            if not self._masks:
                raise OutOfRegisters(f"{self.asm.name}: masks")
            other = self._masks.pop(0)
            self._mask(expr.a, other)
            self._mask(expr.b, out)
            self.asm.line(f"vm{expr.op}.mm v{out}, v{out}, v{other}")
            self._masks.insert(0, other)
        elif isinstance(expr, Binary) and expr.op in _COMPARE and expr.a.dtype is float32:
            self._compare(expr, out)
        else:
            raise NotInVectors(getattr(expr, "op", type(expr).__name__))

    def _compare(self, expr: Binary, out: int) -> None:
        op, a, b = expr.op, self.value(expr.a), self.value(expr.b)
        if isinstance(a, Scalar):
            op, a, b = _MIRRORED[op], b, a
        left = self._vector(a).number
        whole, swapped, mixed = _COMPARE[op]
        if isinstance(b, Scalar):
            self.asm.line(f"{mixed}.vf v{out}, v{left}, {b.register}")
        else:
            one, two = (b.number, left) if swapped else (left, b.number)
            self.asm.line(f"{whole}.vv v{out}, v{one}, v{two}")
        self._finish(expr.a, expr.b)
