"""Operations on C values: scalar or vector as the operands are, with the rules of ir/arithmetic.py.

Halves are rounded after each operation, small integers are brought back into range, integers wrap in unsigned types.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bringup.ir.dtypes import DType, Kind, boolean
from bringup.ir.ops import BINARY, INFIX, UNARY
from bringup.targets.c import integer as c_integer
from bringup.targets.c.scope import Scopes
from bringup.targets.c.value import Value, bits_of, ctype, kind_of

_EXACT_IN_HALF = frozenset("neg abs sign floor ceil trunc round min max copysign".split())
#: Ops on bools in C; {not} is the operator that inverts one.
_OF_BOOLS = {
    **dict.fromkeys(("and", "mul", "min"), "({x} & {y})"),
    **dict.fromkeys(("or", "add", "max"), "({x} | {y})"),
    **dict.fromkeys(("xor", "ne"), "({x} ^ {y})"),
    "eq": "({not}({x} ^ {y}))",
    "lt": "(({not}{x}) & {y})",
    "le": "(({not}{x}) | {y})",
    "gt": "({x} & ({not}{y}))",
    "ge": "({x} | ({not}{y}))",
}


@dataclass
class Operations:
    """Emits operations on values."""

    w: Scopes
    before_narrowing: dict[str, str] = field(default_factory=dict)
    """A rounded half, and the float32 it came from: stores round that."""

    # fitting operands together

    def spread(self, value: Value, lanes: int, mask_bits: int = 32) -> Value:
        """A value in every lane; a mask in the wanted width."""
        if lanes == 1:
            return value
        vector = ctype(value.kind, lanes, mask_bits)
        if value.lanes == lanes and (value.kind != "bool" or value.mask_bits == mask_bits):
            return value
        key = ("spread", value.kind, value.text, vector)
        found = self.w.find(key)
        if found is None:
            if value.lanes == lanes:
                text = f"__builtin_convertvector({value.text}, {vector})"
            elif value.kind == "bool":
                text = f"({vector}){{0}} - ({value.text})"
            else:
                text = f"{value.text} - ({vector}){{0}}"  # not +: 0.0 + -0.0 is 0.0
            found = self.w.remember(key, self.w.declare(text, value.kind, lanes, value.depth, mask_bits))
        return found

    def together(self, *values: Value, mask_bits: int = 32) -> tuple[list[str], int, int]:
        """Operands of one operation in C, all scalar or all vectors, the lanes, and the scope of the result."""
        lanes = max(value.lanes for value in values)
        depth = max(value.depth for value in values)
        return [self.spread(value, lanes, mask_bits).text for value in values], lanes, depth

    # operations

    def narrowed(self, value: Value, dtype: DType, text: str, lanes: int, depth: int) -> Value:
        """Declares the result of an operation, brought into the range and precision of its type."""
        kind = value.kind
        if dtype.is_half:
            whole = self.w.declare(text, kind, lanes, depth)
            text = self.w.call("narrow", "f16" if dtype.name == "float16" else "bf16", lanes, whole.text)
            made = self.w.declare(text, kind, lanes, depth)
            self.before_narrowing[made.text] = whole.text
            return made
        if dtype.is_integer and dtype.bits < 32:
            text = small(text, dtype, lanes)
        return self.w.declare(text, kind, lanes, depth, value.mask_bits)

    def unary(self, op: str, x: Value, dtype: DType) -> Value:
        """One of ops.UNARY."""
        kind, lanes = x.kind, x.lanes
        unsigned, signed = ctype(f"u{bits_of(kind)}", lanes), ctype(f"i{bits_of(kind)}", lanes)
        if UNARY[op].returns_bool:
            text = self.w.call(op, kind, lanes, x.text) if dtype.is_float else f"({x.text} < 0)"
            return self.w.declare(text, "bool", lanes, x.depth, bits_of(kind))
        if dtype is boolean:  # not
            return self.w.declare(f"(!{x.text})" if lanes == 1 else f"~{x.text}", "bool", lanes, x.depth, x.mask_bits)
        if dtype.is_float:
            text = f"(-{x.text})" if op == "neg" else self.w.call(op, kind, lanes, x.text)
            if dtype.is_half and op in _EXACT_IN_HALF:
                return self.w.declare(text, kind, lanes, x.depth)
            return self.narrowed(x, dtype, text, lanes, x.depth)
        zero = "0" if lanes == 1 else f"({x.ctype}){{0}}"
        negative = f"({x.ctype})({'0' if lanes == 1 else f'({unsigned}){{0}}'} - ({unsigned}){x.text})"
        if op == "neg":
            text = negative
        elif op == "not":
            text = f"(~{x.text})"
        elif op == "abs":
            text = x.text if kind[0] == "u" else self.chosen(f"({x.text} < {zero})", negative, x.text, kind, lanes)
        elif lanes == 1:
            text = f"(({x.text} > 0) - ({x.text} < 0))"
        else:
            text = f"({x.ctype})(({signed})({x.text} < {zero}) - ({signed})({x.text} > {zero}))"
        return self.narrowed(x, dtype, text, lanes, x.depth)

    def chosen(self, condition: str, yes: str, no: str, kind: str, lanes: int) -> str:
        """A selection in C; the condition is a mask as wide as the values."""
        return f"({condition} ? {yes} : {no})" if lanes == 1 else self.w.call("select", kind, lanes, condition, yes, no)

    def where(self, condition: Value, yes: Value, no: Value) -> Value:
        """Where."""
        kind = yes.kind
        bits = bits_of(kind)
        if condition.lanes == 1:
            texts, lanes, depth = self.together(yes, no)
            text = f"({condition.text} ? {texts[0]} : {texts[1]})"
            return self.w.declare(text, kind, lanes, max(depth, condition.depth))
        (c, a, b), lanes, depth = self.together(condition, yes, no, mask_bits=bits)
        text = f"(({c} & {a}) | (~{c} & {b}))" if kind == "bool" else self.chosen(c, a, b, kind, lanes)
        return self.w.declare(text, kind, lanes, depth)

    def both(self, a: Value | None, b: Value | None) -> Value | None:
        """Where two conditions hold; None stands for everywhere."""
        return a or b if a is None or b is None else self.binary("and", a, b, boolean)

    def binary(self, op: str, a: Value, b: Value, dtype: DType) -> Value:
        """One of ops.BINARY."""
        (x, y), lanes, depth = self.together(a, b)
        kind = a.kind
        if dtype is boolean:
            text = _OF_BOOLS[op].format(x=x, y=y, **{"not": "!" if lanes == 1 else "~"})
            return self.w.declare(text, "bool", lanes, depth)
        if BINARY[op].returns_bool:
            return self.w.declare(f"({x} {INFIX[op]} {y})", "bool", lanes, depth, bits_of(kind))
        if dtype.is_float:
            return self._floating(op, x, y, a, dtype, lanes, depth)
        return self.narrowed(a, dtype, self._integer(op, x, y, kind, dtype, lanes), lanes, depth)

    def _floating(self, op: str, x: str, y: str, a: Value, dtype: DType, lanes: int, depth: int) -> Value:
        infix, kind = INFIX.get(op), a.kind
        if dtype.is_half and op == "nextafter":
            text = self.w.call(op, "f16" if dtype.name == "float16" else "bf16", lanes, x, y)
            return self.w.declare(text, kind, lanes, depth)
        text = f"({x} {infix} {y})" if infix else self.w.call(op, kind, lanes, x, y)
        if dtype.is_half and op in _EXACT_IN_HALF:
            return self.w.declare(text, kind, lanes, depth)
        return self.narrowed(a, dtype, text, lanes, depth)

    def _integer(self, op: str, x: str, y: str, kind: str, dtype: DType, lanes: int) -> str:
        unsigned, own = ctype(f"u{bits_of(kind)}", lanes), ctype(kind, lanes)
        if op in ("add", "sub", "mul"):
            return f"(({own})(({unsigned}){x} {INFIX[op]} ({unsigned}){y}))"
        if op in INFIX:
            return f"({x} {INFIX[op]} {y})"
        if op in ("min", "max"):
            return self.chosen(f"({x} {'<' if op == 'min' else '>'} {y})", x, y, kind, lanes)
        if op in ("shl", "shr"):
            return self._shift(op, x, y, kind, dtype, lanes)
        self.w.snippet(f"{op}_{kind}", c_integer.power(kind) if op == "pow" else c_integer.division(op, kind))
        if lanes > 1:
            self.w.snippet(f"{op}_{own}", c_integer.lane_wise(op, kind, lanes))
        return f"bu_{op}_{kind if lanes == 1 else own}({x}, {y})"

    def _shift(self, op: str, x: str, y: str, kind: str, dtype: DType, lanes: int) -> str:
        """A shift; the amount is taken modulo the width first, so that none is undefined."""
        width = bits_of(kind)
        unsigned, own = ctype(f"u{width}", lanes), ctype(kind, lanes)
        suffix = "ULL" if width == 64 else "u"
        amount = f"(({unsigned}){y} & {width - 1}{suffix})"
        fits = f"(({unsigned}){y} < {dtype.bits}{suffix})"
        zero = "0" if lanes == 1 else f"({own}){{0}}"
        if op == "shl":
            return self.chosen(fits, f"(({own})(({unsigned}){x} << {amount}))", zero, kind, lanes)
        moved = f"({x} >> {amount if lanes == 1 else f'({own}){amount}'})"
        if kind[0] == "u":
            return self.chosen(fits, moved, zero, kind, lanes)
        sign = f"({x} >> {width - 1})"
        return self.chosen(fits, moved, sign, kind, lanes)

    # conversions

    def cast(self, x: Value, source: DType, target: DType) -> Value:
        """Cast."""
        kind, lanes = kind_of(target), x.lanes
        if source == target:
            return x
        if target is boolean:
            zero = "0" if lanes == 1 else f"({x.ctype}){{0}}"
            return self.w.declare(f"({x.text} != {zero})", "bool", lanes, x.depth, bits_of(x.kind))
        if source is boolean:
            return self._from_bool(x, kind)
        if target.is_float:
            if x.kind == kind and not target.is_half:
                return x
            text = x.text if x.kind == kind else self.w.call(f"from_{x.kind}", kind, lanes, x.text)
            return self.narrowed(Value("", kind, lanes), target, text, lanes, x.depth)
        if source.is_float:
            wide = "i32" if target.bits < 32 else kind
            text = self.w.call(f"from_{x.kind}", wide, lanes, x.text)
            if wide != kind:
                text = f"(({ctype(kind, lanes)}){text})"
            return self.narrowed(Value("", kind, lanes), target, text, lanes, x.depth)
        if x.kind == kind and target.bits >= 32:
            return x
        if lanes == 1 or bits_of(kind) == bits_of(x.kind):
            text = f"(({ctype(kind, lanes)}){x.text})"
        else:
            text = f"__builtin_convertvector({x.text}, {ctype(kind, lanes)})"
        return self.narrowed(Value("", kind, lanes), target, text, lanes, x.depth)

    def reinterpreted(self, x: Value, source: DType, target: DType) -> Value:
        """Bits: a cast between vectors of one size, a union between scalars; every NaN is the same."""
        kind, text, lanes = kind_of(target), x.text, x.lanes
        if not source.is_float and not target.is_float:
            return self.cast(x, source, target)
        if source.is_float and target.is_float:
            return x
        if source.is_float:
            nan = self.spread(Value(f'__builtin_nan{"f" if x.kind == "f32" else ""}("")', x.kind), lanes).text
            text = self.chosen(f"({text} != {text})", nan, text, x.kind, lanes)
        if lanes > 1:
            text = f"(({ctype(kind, lanes)}){text})"
        else:
            text = f"((union {{ {ctype(x.kind)} from; {ctype(kind)} to; }}){{{text}}}.to)"
        return self.w.declare(text, kind, lanes, x.depth)

    def _from_bool(self, x: Value, kind: str) -> Value:
        lanes = x.lanes
        if lanes == 1:
            return self.w.declare(f"(({ctype(kind)}){x.text})", kind, 1, x.depth)
        mask = self.spread(x, lanes, bits_of(kind))
        one = f"({mask.text} & 1)"
        if kind[0] == "f":
            one = f"__builtin_convertvector({one}, {ctype(kind, lanes)})"
        return self.w.declare(f"(({ctype(kind, lanes)}){one})", kind, lanes, x.depth)


def small(text: str, dtype: DType, lanes: int) -> str:
    """A 32-bit integer brought into the range of a smaller type.

    >>> from bringup.ir.dtypes import uint8
    >>> small("v1", uint8, 1)
    '(v1 & 255u)'
    """
    if dtype.kind is Kind.UINT:
        return f"({text} & {dtype.high}u)"
    shift = 32 - dtype.bits
    return f"(({ctype('i32', lanes)})(({ctype('u32', lanes)}){text} << {shift}) >> {shift})"
