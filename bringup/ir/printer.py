"""Kernels as text, one statement per line; parser.py reads it back to the same kernel."""

from __future__ import annotations

from bringup.ir.expr import AsIndex, Binary, Bits, Cast, Const, Expr, IndexValue, Load, Name, Param, Philox, Unary
from bringup.ir.index import AxisVar, FloorDiv, Index, Int, Max, Min, Mod, Size, Sum
from bringup.ir.kernel import Axis, Block, Combine, Contract, Kernel, Let, Loop, Reduce, Scan, SizeRange, Stmt, Store
from bringup.ir.ops import INFIX
from bringup.ir.walk import operands


def index_text(index: Index) -> str:
    """An index as text.

    >>> index_text(AxisVar("i") * Size("m") + AxisVar("j") - 1)
    'i*m + j - 1'
    """
    if isinstance(index, Int):
        return str(index.value)
    if isinstance(index, (AxisVar, Size)):
        return index.name
    if isinstance(index, FloorDiv):
        return f"({index_text(index.a)} // {index_text(index.b)})"
    if isinstance(index, Mod):
        return f"({index_text(index.a)} % {index_text(index.b)})"
    if isinstance(index, (Min, Max)):
        return f"{'min' if isinstance(index, Min) else 'max'}({index_text(index.a)}, {index_text(index.b)})"
    if isinstance(index, AsIndex):
        return f"asindex({expr_text(index.value)}, {index_text(index.extent)}, {index.mode})"
    assert isinstance(index, Sum)
    text = ""
    for factors, value in sorted(index.terms, key=lambda term: not term[0]):  # the constant last
        parts = [index_text(factor) for factor in factors]
        if abs(value) != 1 or not parts:
            parts.insert(0, str(abs(value)))
        sign = ("-" if value < 0 else "") if not text else (" - " if value < 0 else " + ")
        text += sign + "*".join(parts)
    return text


def _list(exprs: tuple[Expr, ...]) -> str:
    return ", ".join(expr_text(expr) for expr in exprs)


def _place(buffer: str, indices: tuple[Index, ...]) -> str:
    return f"{buffer}[{', '.join(index_text(index) for index in indices)}]"


def expr_text(expr: Expr) -> str:
    """A value as text.

    >>> from bringup.ir.dtypes import float32
    >>> expr_text(Param("a", float32) * 2.0)
    '(a * float32(2.0))'
    """
    if isinstance(expr, Const):
        return f"{expr.type.name}({str(expr.value).lower() if expr.type.name == 'bool' else repr(expr.value)})"
    if isinstance(expr, (Name, Param)):
        return expr.name
    if isinstance(expr, IndexValue):
        return f"index({index_text(expr.index)})"
    if isinstance(expr, Load):
        place = _place(expr.buffer, expr.indices)
        if expr.guard is None and expr.other is None:
            return place
        guard = "" if expr.guard is None else f" if {expr_text(expr.guard)}"
        return f"({place}{guard}{'' if expr.other is None else f' else {expr_text(expr.other)}'})"
    if isinstance(expr, Binary) and expr.op in INFIX:
        return f"({expr_text(expr.a)} {INFIX[expr.op]} {expr_text(expr.b)})"
    return f"{_function(expr)}({_list(operands(expr))})"


def _function(expr: Expr) -> str:
    if isinstance(expr, (Unary, Binary)):
        return expr.op
    if isinstance(expr, (Cast, Bits)):
        return f"{'bits_' if isinstance(expr, Bits) else ''}{expr.type.name}"
    return f"philox{expr.bits}" if isinstance(expr, Philox) else type(expr).__name__.lower()


def _axes(axes: tuple[Axis, ...]) -> str:
    return ", ".join(f"{axis.name} < {index_text(axis.extent)}" for axis in axes)


def _combine(combine: Combine) -> str:
    return f"combine ({', '.join(combine.left)}), ({', '.join(combine.right)}) -> ({_list(combine.results)})"


Lines = list[tuple[str, "Stmt | None"]]


def _block(block: Block, depth: int, out: Lines) -> None:
    for stmt in block:
        _stmt(stmt, depth, out)


def _stmt(stmt: Stmt, depth: int, out: Lines) -> None:
    def line(text: str, more: int = 0) -> None:
        out.append(("  " * (depth + more) + text, stmt))

    if isinstance(stmt, Let):
        line(f"let {stmt.name} = {expr_text(stmt.value)}")
    elif isinstance(stmt, Store):
        words = ["store"] + ([stmt.mode] if stmt.mode != "unique" else []) + ([stmt.combine] if stmt.combine else [])
        guard = "" if stmt.guard is None else f" if {expr_text(stmt.guard)}"
        line(f"{' '.join(words)} {_place(stmt.buffer, stmt.indices)} = {expr_text(stmt.value)}{guard}")
    elif isinstance(stmt, Contract):
        init = "" if stmt.init is None else f" from {expr_text(stmt.init)}"
        how = f"lanes {stmt.lanes}{'' if stmt.fused else ' unfused'}"
        head = f"contract {stmt.name} over {_axes(stmt.axes)} {how}"
        line(f"{head} = {expr_text(stmt.a)} by {expr_text(stmt.b)}{init}")
    elif isinstance(stmt, Loop):
        if stmt.axis.kind == "parallel":
            line(f"loop {_axes((stmt.axis,))} parallel {{")
        else:
            carry = f" carry ({', '.join(stmt.carried)}) from ({_list(stmt.inits)})" if stmt.carried else ""
            count = "" if stmt.count is None else f" until {expr_text(stmt.count)}"
            line(f"loop {_axes((stmt.axis,))}{count}{carry} {{")
        _block(stmt.body, depth + 1, out)
        if stmt.carried:
            line(f"next ({_list(stmt.updates)})", 1)
        line("}")
    else:
        names = ", ".join(stmt.names)
        if isinstance(stmt, Reduce):
            line(f"reduce ({names}) over {_axes(stmt.axes)} lanes {stmt.lanes} {{")
        else:
            line(f"scan ({names}) along {_axes((stmt.axis,))}{' exclusive' if stmt.exclusive else ''} {{")
        _block(stmt.body, depth + 1, out)
        line(f"init ({_list(stmt.inits)})", 1)
        line(f"value ({_list(stmt.values)})", 1)
        line(_combine(stmt.combine), 1)
        if isinstance(stmt, Scan):
            line("then {", 1)
            _block(stmt.then, depth + 2, out)
            line("}", 1)
        line("}")


def _size(size: SizeRange) -> str:
    if size.low == 0 and size.high is None:
        return f"size {size.name}"
    low, high = ("" if end is None else str(end) for end in (size.low, size.high))
    return f"size {size.name}: {low}..{high}"


def kernel_lines(kernel: Kernel) -> Lines:
    """The lines of a kernel, each with the statement it belongs to."""
    head = [_size(size) for size in kernel.sizes]
    head += [f"param {param.name}: {param.dtype.name}" for param in kernel.params]
    for buffer in kernel.buffers:
        shape, strides = (", ".join(index_text(i) for i in part) for part in (buffer.shape, buffer.strides))
        head.append(f"{buffer.role} {buffer.name}: {buffer.dtype.name}[{shape}] strides [{strides}]")
    head += [f"local {x.name}: {x.dtype.name}[{', '.join(map(str, x.shape))}]" for x in kernel.locals]
    head += [f"grid {_axes(kernel.axes)}"] if kernel.axes else []
    out: Lines = [(text, None) for text in (f"kernel {kernel.name}", *(f"  {text}" for text in head), "  {")]
    _block(kernel.body, 2, out)
    return [*out, ("  }", None)]


def kernel_text(kernel: Kernel) -> str:
    """A kernel as text.

    >>> print(kernel_text(Kernel("nothing")))
    kernel nothing
      {
      }
    """
    return "\n".join(text for text, _ in kernel_lines(kernel))
