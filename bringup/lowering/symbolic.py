"""Numbers of one call that remember what was asked of them: a lowering is plain Python, and its ifs become guards.

>>> trace = Trace()
>>> n = trace.symbol("n", 8)
>>> "many" if n > 4 else "few"
'many'
>>> trace.guards
[('gt', Sum(terms=(((), -4), ((Size(name='n'),), 1))))]

The kernels that follow hold for every call whose numbers answer all guards alike.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias, Union

from bringup.ir.index import Index, Int, Size, as_index, floor_divide, maximum, minimum, modulo

IntLike: TypeAlias = Union["Dim", int]

_COMPARE: dict[str, Callable[[int, int], bool]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
_OPPOSITE = {"eq": "ne", "ne": "eq", "lt": "ge", "ge": "lt", "gt": "le", "le": "gt"}
#: Relation → what Python writes.
RELATIONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


class Trace:
    """The symbols of one lowering and the guards that its decisions left behind, in order."""

    def __init__(self, generic: bool = False) -> None:
        #: Kernels should serve as many sizes as they can, though some would be simpler for this one: see ``single``.
        self.generic = generic
        self.symbols: dict[str, int] = {}
        self._guards: dict[tuple[str, Index], None] = {}
        #: (scalar slot, relation, number): the scalar compares with the number that way.
        self.scalar_guards: dict[tuple[int, str, bool | int | float], None] = {}

    @property
    def guards(self) -> list[tuple[str, Index]]:
        """(relation, index): the index compares with 0 that way."""
        return list(self._guards)

    def symbol(self, name: str, hint: int) -> Dim:
        """A number of the call; its place in the call's vector of numbers is the order of these calls."""
        self.symbols[name] = hint
        return Dim(self, Size(name), hint)

    def compare(self, relation: str, index: Index, hint: int) -> bool:
        """Answers for this call and notes the answer, unless it is the same for every call."""
        answer = _COMPARE[relation](hint, 0)
        if not isinstance(index, Int):
            self._guards[(relation if answer else _OPPOSITE[relation], index)] = None
        return answer

    def compare_scalar(self, slot: int, relation: str, value: float, number: float) -> bool:
        """The same for a scalar of the call; a slot below 0 is a number that is the same in every call."""
        answer = bool(_COMPARE[relation](value, number))  # type: ignore[arg-type]
        if slot >= 0:
            self.scalar_guards[(slot, relation if answer else _OPPOSITE[relation], number)] = None
        return answer


def guard_code(
    guards: Iterable[tuple[str, Index]],
    scalar_guards: Iterable[tuple[int, str, bool | int | float]],
    place: Callable[[Index], str],
) -> str:
    """Guards as a Python expression over ``v`` and, for scalars, ``s``.

    >>> guard_code([("gt", Size("n"))], [(0, "eq", 1.5)], lambda index: "v[0]")
    'v[0] > 0 and s[0] == 1.5'
    """
    parts = [f"{place(index)} {RELATIONS[relation]} 0" for relation, index in guards]
    for slot, relation, number in scalar_guards:
        # repr of an infinity is not a Python expression.
        known = repr(number) if abs(number) != float("inf") else f"float({str(number)!r})"
        parts.append(f"s[{slot}] {RELATIONS[relation]} {known}")
    return " and ".join(parts) or "True"


class Dim:
    """A size or stride of the call: an integer with a formula. Comparing it makes a guard; ``int()`` pins it down."""

    __slots__ = ("hint", "index", "trace")

    def __init__(self, trace: Trace, index: Index, hint: int) -> None:
        self.trace, self.index, self.hint = trace, index, hint

    def _make(self, index: Index, hint: int) -> IntLike:
        return index.value if isinstance(index, Int) else Dim(self.trace, index, hint)

    def __add__(self, other: IntLike) -> IntLike:
        return self._make(self.index + index_of(other), self.hint + hint_of(other))

    def __sub__(self, other: IntLike) -> IntLike:
        return self._make(self.index - index_of(other), self.hint - hint_of(other))

    def __rsub__(self, other: int) -> IntLike:
        return self._make(other - self.index, other - self.hint)

    def __mul__(self, other: IntLike) -> IntLike:
        return self._make(self.index * index_of(other), self.hint * hint_of(other))

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> IntLike:
        return self._make(-self.index, -self.hint)

    def __floordiv__(self, other: IntLike) -> IntLike:
        return self._make(floor_divide(self.index, index_of(other)), self.hint // hint_of(other))

    def __mod__(self, other: IntLike) -> IntLike:
        return self._make(modulo(self.index, index_of(other)), self.hint % hint_of(other))

    def __rfloordiv__(self, other: int) -> IntLike:
        return self._make(floor_divide(as_index(other), self.index), other // self.hint)

    def __rmod__(self, other: int) -> IntLike:
        return self._make(modulo(as_index(other), self.index), other % self.hint)

    def _compare(self, relation: str, other: object) -> bool:
        if not isinstance(other, (Dim, int)):
            raise TypeError(f"a size is compared with {other!r}")
        return self.trace.compare(relation, self.index - index_of(other), self.hint - hint_of(other))

    def __eq__(self, other: object) -> bool:
        return self._compare("eq", other)

    def __ne__(self, other: object) -> bool:
        return self._compare("ne", other)

    def __lt__(self, other: IntLike) -> bool:
        return self._compare("lt", other)

    def __le__(self, other: IntLike) -> bool:
        return self._compare("le", other)

    def __gt__(self, other: IntLike) -> bool:
        return self._compare("gt", other)

    def __ge__(self, other: IntLike) -> bool:
        return self._compare("ge", other)

    def __bool__(self) -> bool:
        return self._compare("ne", 0)

    def __int__(self) -> int:
        """The number itself: the kernels that follow hold for this number only."""
        self._compare("eq", self.hint)
        return self.hint

    __index__ = __int__
    __hash__ = None  # type: ignore[assignment]

    @property
    def is_stride(self) -> bool:
        """True for a stride that the call brought, which may be 1 by chance; formulas are not asked."""
        return isinstance(self.index, Size) and "_s" in self.index.name

    def __repr__(self) -> str:
        return f"Dim({self.index!r} = {self.hint})"


def index_of(number: IntLike) -> Index:
    """The formula of a number.

    >>> index_of(3)
    Int(value=3)
    """
    return number.index if isinstance(number, Dim) else as_index(number)


def hint_of(number: IntLike) -> int:
    """The number in the call that is being lowered, without a guard: for choices that do not change the meaning.

    >>> hint_of(3)
    3
    """
    return number.hint if isinstance(number, Dim) else number


def single(extent: IntLike) -> bool:
    """True if an extent is 1, asked where that saves a loop and changes no meaning; no guard in a generic trace.

    >>> single(1), single(Trace(generic=True).symbol("n", 1))
    (True, False)
    """
    return False if isinstance(extent, Dim) and extent.trace.generic else extent == 1


def smaller(a: IntLike, b: IntLike) -> IntLike:
    """The smaller of two, as a formula: no guard.

    >>> smaller(3, 5)
    3
    """
    return _either(minimum, min, a, b)


def larger(a: IntLike, b: IntLike) -> IntLike:
    """The larger of two, as a formula: no guard.

    >>> larger(3, 5)
    5
    """
    return _either(maximum, max, a, b)


def _either(formula: Callable[..., Index], pick: Callable[..., int], a: IntLike, b: IntLike) -> IntLike:
    index, hint = formula(index_of(a), index_of(b)), pick(hint_of(a), hint_of(b))
    if isinstance(index, Int):
        return index.value
    trace = a.trace if isinstance(a, Dim) else b.trace  # type: ignore[union-attr]
    return Dim(trace, index, hint)


def product(numbers: Any) -> IntLike:
    """The product of some numbers; 1 of none.

    >>> product([2, 3])
    6
    """
    total: IntLike = 1
    for number in numbers:
        total = total * number
    return total
