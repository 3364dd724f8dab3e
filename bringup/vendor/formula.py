"""Formulas over the arguments of an op: ``max(1, self.stride[0])``, ``x.shape[0] == y.shape[0]``, ``2 * m.numel``.

A formula is a small part of Python: integers, arguments, ``shape``, ``stride``, ``numel``, ``ndim``, ``transposed`` and
``ld`` of tensors, ``+ - * // %``, comparisons, ``and or not``, ``if else``, ``min`` and ``max``. It is evaluated over
tensors of a traced call (where a comparison becomes a guard), of PyTorch or of a driver, and written out as C++.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bringup.lowering.call import Number, dense_strides
from bringup.lowering.symbolic import Dim, larger, smaller


class FormulaError(ValueError):
    """A formula that cannot be read, or that does not fit its arguments."""


@dataclass(frozen=True)
class Extent:
    """The shape and strides of a tensor of any kind; strides of a contiguous one follow from its shape."""

    shape: Sequence[Any]
    strides: Sequence[Any]

    @staticmethod
    def of(tensor: Any) -> Extent:
        """What a traced, a driver's or PyTorch's own tensor looks like.

        >>> from bringup.driver import Tensor
        >>> Extent.of(Tensor(0, 64, (2, 3), (3, 1), "float32", 0)).strides
        (3, 1)
        """
        strides = tensor.stride() if callable(getattr(tensor, "stride", None)) else tensor.strides
        contiguous = getattr(tensor, "contiguous", False)
        return Extent(tensor.shape, dense_strides(tensor.shape) if contiguous is True else strides)

    @property
    def numel(self) -> Any:
        """How many elements it has."""
        total: Any = 1
        for size in self.shape:
            total = total * size
        return total

    def is_row_major(self) -> bool:
        """True where the elements of a row lie side by side, and rows, planes … do not overlap."""
        inner: Any = 1
        for n, (size, stride) in enumerate(zip(reversed(self.shape), reversed(self.strides))):
            if not ((stride == 1 if n == 0 else stride >= inner) or size == 1):
                return False
            inner = inner * size if n == 0 else stride * size
        return True

    def is_matrix(self) -> bool:
        """True for what BLAS takes: vectors with a positive step; matrices, dense along rows or along columns."""
        if len(self.shape) < 2:
            return len(self.shape) == 1 and bool(self.strides[0] > 0 or self.shape[0] == 1)
        return self._dense_along(-1) or self._dense_along(-2)

    def _dense_along(self, along: int) -> bool:
        # The stride is asked first: of a contiguous tensor it is known, and leaves no guard behind.
        across = -3 - along
        unit = self.strides[along] == 1 or self.shape[along] == 1
        return bool(unit and (self.strides[across] >= self.shape[along] or self.shape[across] == 1))

    @property
    def transposed(self) -> int:
        """1 for a matrix that is dense along its columns, 0 for one that is dense along its rows."""
        return 0 if len(self.shape) < 2 or self._dense_along(-1) else 1

    @property
    def ld(self) -> Any:
        """BLAS's leading dimension of a matrix, never too small; the step between the elements of a vector."""
        if len(self.shape) < 2:
            return self.strides[0] if self.strides[0] > 0 else 1
        across, along = (-1, -2) if self.transposed else (-2, -1)
        # PyTorch lets the stride of a single row be anything.
        wide = self.strides[across] >= self.shape[along]
        return _extreme("max", self.strides[across] if wide else self.shape[along], 1)


_ATTRIBUTES = ("shape", "stride", "numel", "ndim", "transposed", "ld")
#: What an operator does, and how C++ writes it.
_OPERATORS: dict[type, tuple[Callable[[Any, Any], Any], str]] = {
    ast.Add: (operator.add, "+"),
    ast.Sub: (operator.sub, "-"),
    ast.Mult: (operator.mul, "*"),
    ast.FloorDiv: (operator.floordiv, "/"),
    ast.Mod: (operator.mod, "%"),
    ast.Eq: (operator.eq, "=="),
    ast.NotEq: (operator.ne, "!="),
    ast.Lt: (operator.lt, "<"),
    ast.LtE: (operator.le, "<="),
    ast.Gt: (operator.gt, ">"),
    ast.GtE: (operator.ge, ">="),
}


@dataclass(frozen=True)
class Formula:
    """A formula that has been read; ``names`` are the arguments it uses."""

    text: str
    tree: ast.expr
    names: frozenset[str]

    def __call__(self, values: Mapping[str, Any]) -> Any:
        """Its value for some arguments.

        >>> read("2 * n + 1", {"n"})({"n": 3})
        7
        """
        return _evaluate(self.tree, values)

    @property
    def bare(self) -> str:
        """The name of an argument if the formula is nothing else."""
        return self.tree.id if isinstance(self.tree, ast.Name) else ""

    def cpp(self) -> str:
        """The formula in C++, over at::Tensor and numbers (the generated file has ``ld`` and ``transposed``).

        >>> read("max(1, x.stride[0])", {"x"}).cpp()
        'std::max<int64_t>(1, x.stride(0))'
        """
        return _cpp(self.tree)

    def python(self) -> str:
        """The formula in Python over torch.Tensor (the generated file has ``ld`` and ``transposed``)."""
        return _python(self.tree)


def read(text: str, names: Sequence[str] | set[str]) -> Formula:
    """Reads a formula over some arguments; FormulaError says what is wrong with it.

    >>> sorted(read("x.shape[0] >= 9 and n > 1", {"x", "n"}).names)
    ['n', 'x']
    """
    if not isinstance(text, str):
        raise FormulaError(f"{text!r} is not a formula: write it as text")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError) as error:
        raise FormulaError(f"{text!r} cannot be read: {getattr(error, 'msg', error)}") from None
    used: set[str] = set()
    _check(tree, text, set(names), used)
    return Formula(text, tree, frozenset(used))


def _check(node: ast.expr, text: str, names: set[str], used: set[str]) -> None:
    def inner(*parts: ast.expr) -> None:
        for part in parts:
            _check(part, text, names, used)

    if isinstance(node, ast.Constant) and type(node.value) in (int, float, bool):
        return
    if isinstance(node, ast.Name):
        if node.id not in names:
            raise FormulaError(f"{text!r}: there is no {node.id!r} here, only {', '.join(sorted(names))}")
        used.add(node.id)
    elif isinstance(node, ast.Attribute):
        if node.attr not in _ATTRIBUTES or not isinstance(node.value, ast.Name):
            raise FormulaError(f"{text!r}: .{node.attr} is not known; a tensor has {', '.join(_ATTRIBUTES)}")
        inner(node.value)
    elif isinstance(node, ast.Subscript):
        if not isinstance(_number(node.slice), int):
            raise FormulaError(f"{text!r}: the number of a dimension is an integer, such as 0 or -1")
        inner(node.value)
    elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        inner(node.left, node.right)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.Not)):
        inner(node.operand)
    elif isinstance(node, ast.BoolOp):
        inner(*node.values)
    elif isinstance(node, ast.Compare) and all(type(op) in _OPERATORS for op in node.ops):
        inner(node.left, *node.comparators)
    elif isinstance(node, ast.IfExp):
        inner(node.test, node.body, node.orelse)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("min", "max"):
        if len(node.args) != 2 or node.keywords:
            raise FormulaError(f"{text!r}: {node.func.id} takes two numbers")
        inner(*node.args)
    else:
        raise FormulaError(f"{text!r}: {ast.unparse(node)!r} is not part of the language of formulas")


def _number(node: ast.expr) -> Any:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
        return -node.operand.value  # type: ignore[operator]
    return node.value if isinstance(node, ast.Constant) else None


def _evaluate(node: ast.expr, values: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return values[node.id]
    if isinstance(node, ast.Attribute):
        assert isinstance(node.value, ast.Name)
        return _attribute(values[node.value.id], node.value.id, node.attr)
    if isinstance(node, ast.Subscript):
        return _element(_evaluate(node.value, values), _number(node.slice), ast.unparse(node.value))
    if isinstance(node, ast.BinOp):
        return _OPERATORS[type(node.op)][0](_evaluate(node.left, values), _evaluate(node.right, values))
    if isinstance(node, ast.UnaryOp):
        value = _evaluate(node.operand, values)
        return -value if isinstance(node.op, ast.USub) else not value
    if isinstance(node, ast.BoolOp):
        conjunction = isinstance(node.op, ast.And)
        return (all if conjunction else any)(_evaluate(part, values) for part in node.values)
    if isinstance(node, ast.Compare):
        left = _evaluate(node.left, values)
        for op, right_node in zip(node.ops, node.comparators):
            right = _evaluate(right_node, values)
            if not _compared(type(op), left, right):
                return False
            left = right
        return True
    if isinstance(node, ast.IfExp):
        return _evaluate(node.body if _evaluate(node.test, values) else node.orelse, values)
    assert isinstance(node, ast.Call)
    assert isinstance(node.func, ast.Name)
    a, b = (_evaluate(part, values) for part in node.args)
    return _extreme(node.func.id, a, b)


def _extreme(which: str, a: Any, b: Any) -> Any:
    """min or max: a formula of sizes of a traced call (no guard), a number of anything else."""
    if isinstance(a, Dim) or isinstance(b, Dim):
        return (smaller if which == "min" else larger)(a, b)
    return (min if which == "min" else max)(a, b)


def _attribute(value: Any, name: str, attribute: str) -> Any:
    if not hasattr(value, "shape"):
        raise FormulaError(f"{name} is not a tensor in this call: it has no {attribute}")
    extent = Extent.of(value)
    if attribute == "stride":
        return extent.strides
    return len(extent.shape) if attribute == "ndim" else getattr(extent, attribute)


def _element(values: Any, place: int, name: str) -> Any:
    try:
        return values[place]
    except (IndexError, TypeError):
        count = len(values) if hasattr(values, "__len__") else 0
        raise FormulaError(f"{name}[{place}]: it has {count} dimensions in this call") from None


def _compared(op: type, left: Any, right: Any) -> bool:
    if isinstance(right, Number) and not isinstance(left, Number):  # a number of the call answers by a guard
        turned: dict[type, type] = {ast.Lt: ast.Gt, ast.Gt: ast.Lt, ast.LtE: ast.GtE, ast.GtE: ast.LtE}
        return _compared(turned.get(op, op), right, left)
    if isinstance(left, Number):
        if op in (ast.Eq, ast.NotEq):
            return left.equals(right) is (op is ast.Eq)
        if op in (ast.Lt, ast.GtE):
            return (left < right) is (op is ast.Lt)
        return (left > right) is (op is ast.Gt)
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):  # two shapes
        same = len(left) == len(right) and all(bool(a == b) for a, b in zip(left, right))
        return same is (op is ast.Eq)
    return bool(_OPERATORS[op][0](left, right))


# ---- as source ----
def _cpp(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value).lower() if isinstance(node.value, bool) else repr(node.value)
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        name = _cpp(node.value)
        forms = {"shape": f"{name}.sizes()", "stride": f"{name}.strides()", "ndim": f"{name}.dim()"}
        forms |= {"numel": f"{name}.numel()", "ld": f"ld({name})", "transposed": f"transposed({name})"}
        return forms[node.attr]
    if isinstance(node, ast.Subscript):
        place = _number(node.slice)
        if isinstance(node.value, ast.Attribute):
            return f"{_cpp(node.value.value)}.{'size' if node.value.attr == 'shape' else 'stride'}({place})"
        return f"{_cpp(node.value)}[{place}]"
    if isinstance(node, ast.BinOp):
        return f"({_cpp(node.left)} {_OPERATORS[type(node.op)][1]} {_cpp(node.right)})"
    if isinstance(node, ast.UnaryOp):
        return f"{'-' if isinstance(node.op, ast.USub) else '!'}({_cpp(node.operand)})"
    if isinstance(node, ast.BoolOp):
        sign = " && " if isinstance(node.op, ast.And) else " || "
        return f"({sign.join(_cpp(part) for part in node.values)})"
    if isinstance(node, ast.Compare):
        sides = [_cpp(part) for part in (node.left, *node.comparators)]
        pairs = [f"{a} {_OPERATORS[type(op)][1]} {b}" for a, op, b in zip(sides, node.ops, sides[1:])]
        return pairs[0] if len(pairs) == 1 else f"({' && '.join(pairs)})"
    if isinstance(node, ast.IfExp):
        return f"({_cpp(node.test)} ? {_cpp(node.body)} : {_cpp(node.orelse)})"
    assert isinstance(node, ast.Call)
    assert isinstance(node.func, ast.Name)
    return f"std::{node.func.id}<int64_t>({_cpp(node.args[0])}, {_cpp(node.args[1])})"


class _TorchNames(ast.NodeTransformer):
    """``x.stride[0]`` as ``x.stride()[0]``, ``x.ld`` as ``ld(x)``."""

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        if node.attr in ("ld", "transposed"):
            return ast.Call(ast.Name(node.attr), [node.value], [])
        return node if node.attr in ("shape", "ndim") else ast.Call(node, [], [])


def _python(node: ast.expr) -> str:
    from copy import deepcopy

    return ast.unparse(_TorchNames().visit(deepcopy(node)))
