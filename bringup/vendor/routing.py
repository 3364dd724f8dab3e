"""Entries as lowerings: each is tried before the op's own, and says NoKernel to a call that it is not for.

The questions that an entry asks of sizes become guards, so routing costs nothing once a signature is known. What runs
is a small C kernel around the vendor's call: the core launches it like any other, without Python.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bringup.compile.kernels import ForeignKernel
from bringup.driver import Driver
from bringup.ir.dtypes import float64, uint64
from bringup.ir.kernel import ScalarParam, SizeRange
from bringup.lowering.call import Call, Launch, NoKernel, Number, Tensor
from bringup.lowering.elementwise import elementwise
from bringup.lowering.registry import Lowering
from bringup.lowering.symbolic import Dim, IntLike, index_of
from bringup.vendor.bound import Bound, VendorCall
from bringup.vendor.call_text import C_TYPES
from bringup.vendor.formula import Extent, FormulaError

#: How many structures of calls (calls of a Python function) each entry has served in each dtype, as (file, number,
#: dtype): `bringup check --level table` sees that it is really used.
chosen: Counter[tuple[str, int, str]] = Counter()


def with_tables(
    lowerings: Mapping[str, Lowering], tables: Mapping[str, Sequence[Bound]], driver_of: Callable[[int], Driver]
) -> dict[str, Lowering]:
    """The lowerings, where those of ops in a driver's table ask the table first on that driver's devices."""
    by_op: dict[str, dict[str, list[Bound]]] = {}
    for driver, entries in tables.items():
        for bound in entries:
            if bound.calls:
                by_op.setdefault(bound.op, {}).setdefault(driver, []).append(bound)
    return {**lowerings, **{op: _first(found, lowerings.get(op), driver_of) for op, found in by_op.items()}}


def _first(
    entries: Mapping[str, Sequence[Bound]], second: Lowering | None, driver_of: Callable[[int], Driver]
) -> Lowering:
    def lower(call: Call, *arguments: Any) -> None:
        found = entries.get(driver_of(call.device).name, ())
        reasons = []
        # An op that has no kernel of ours is worth copies into the layout that the vendor's function takes.
        for bound, copies in [*((bound, False) for bound in found), *((bound, True) for bound in found if not second)]:
            before = len(call.launches), len(call.temporaries), call.pointwise
            try:
                return serve(bound, call, arguments, copies)
            except NoKernel as reason:
                reasons.append(str(reason))
                del call.launches[before[0] :], call.temporaries[before[1] :]
                call.pointwise = before[2]
        if second is None:
            raise NoKernel("; ".join(dict.fromkeys(reasons)) or f"{call.op} has no kernel on this device")
        second(call, *arguments)

    return lower


def serve(bound: Bound, call: Call, arguments: Sequence[Any], copies: bool = False) -> None:
    """Adds the launches of an entry with a ``call``, or says NoKernel; ``copies``: of tensors in another layout."""
    names = [argument.name for argument in bound.arguments]
    values = {**dict(zip(names, arguments)), **dict(zip(bound.outs, call.outs))}
    given = dict(values)
    try:
        for name in bound.tensors if copies else ():
            tensor = values[name]
            if isinstance(tensor, Tensor) and not fits_layout(tensor, bound.layouts[name]):
                values[name] = call.temporary(tensor.dtype, tensor.shape)
                if name not in bound.outs:
                    _copy(call, values[name], tensor)
        dtype = fitting_dtype(bound, values)
        _launch(call, bound, bound.calls[dtype], values)
        for name in bound.outs:
            if values[name] is not given[name]:
                _copy(call, given[name], values[name])
    except FormulaError as error:
        raise NoKernel(f"{bound.entry.name}: {error}") from None
    chosen[str(bound.entry.path), bound.entry.number, dtype] += 1


def fitting_dtype(bound: Bound, values: Mapping[str, Any]) -> str:
    """The dtype whose call serves these arguments; NoKernel if the entry is not for them.

    Tensors are traced ones or a driver's: both have dtype, shape and strides.
    """
    found: set[str] = set()
    for argument in bound.arguments:
        value = values[argument.name]
        if argument.kind == "tensor" and not hasattr(value, "shape") and value is not None:
            raise NoKernel(f"{argument.name} is a number")
    for name in bound.tensors:
        tensor = values[name]
        if tensor is None:
            continue
        dtype = str(tensor.dtype)
        if name not in bound.entry.argument_dtypes:
            found.add(dtype)
        elif bound.entry.argument_dtypes[name] != dtype:
            raise NoKernel(f"{name} is {dtype}, not {bound.entry.argument_dtypes[name]}")
        if not fits_layout(tensor, bound.layouts[name]):
            raise NoKernel(f"{name} is not {bound.layouts[name]}")
    if len(found) > 1 or not found <= bound.entry.dtypes.keys():
        raise NoKernel(f"dtypes {', '.join(sorted(found))}: not among {', '.join(bound.entry.dtypes)}")
    for argument in bound.unused:
        if not _is_default(values[argument.name], argument.default):
            raise NoKernel(f"{argument.name} is not {argument.default}")
    if bound.when is not None and not bound.when(values):
        raise NoKernel(f"not {bound.when.text}")
    return found.pop() if found else next(iter(bound.entry.dtypes))


def fits_layout(tensor: Any, layout: str) -> bool:
    """Whether a tensor lies in memory as a layout of the table says.

    >>> from bringup.driver import Tensor
    >>> fits_layout(Tensor(0, 64, (2, 3), (1, 2), "float32", 0), "blas")
    True
    """
    if layout == "any":
        return True
    if layout == "contiguous" and isinstance(tensor, Tensor):
        return tensor.contiguous
    extent = Extent.of(tensor)
    if layout == "blas":
        return extent.is_matrix()
    step: Any = 1
    if layout == "contiguous":
        for size, stride in zip(reversed(extent.shape), reversed(extent.strides)):
            if stride != step and size != 1:
                return False
            step = step * size
        return True
    return extent.is_row_major()


def _is_default(value: Any, default: Any) -> bool:
    if isinstance(value, Number):
        return default is not None and value.equals(default)
    return bool(value == default)


def _launch(call: Call, bound: Bound, vendor: VendorCall, values: Mapping[str, Any]) -> None:
    """Adds the launch of a vendor call, after a copy into the output where the call works on that."""
    words = {"begin": "begin", "end": "end"} if bound.units else {}
    buffers: dict[str, Tensor] = {}
    sizes: list[IntLike] = []
    params: list[tuple[str, ScalarParam, Number | int]] = []
    for formula in vendor.text.formulas:
        if formula.text in words:
            continue
        value = formula(values)
        if value is None:
            raise NoKernel(f"{formula.text} is not given")
        if isinstance(value, Tensor):
            buffers[formula.bare] = value
            words[formula.text] = f"t_{formula.bare}"
        elif isinstance(value, Number):
            words[formula.text] = f"param{len(params)}"
            params.append((words[formula.text], ScalarParam(words[formula.text], float64), value))
        elif isinstance(value, (int, Dim)):
            number = int(value) if isinstance(value, bool) else value
            if formula in vendor.narrow and number >= 1 << 31:
                raise NoKernel(f"{formula.text} does not fit 32 bits")
            words[formula.text] = f"size{len(sizes)}"
            sizes.append(number)
        else:
            raise NoKernel(f"{formula.text} is {value!r}: a call takes tensors and numbers")
    for symbol in vendor.text.symbols:
        if symbol in bound.addresses:
            params.append((symbol, ScalarParam(symbol, uint64), bound.addresses[symbol]))
    if bound.entry.initial:
        first, out = values[bound.entry.initial], values[bound.outs[0]]
        if first.memory != out.memory:
            _copy(call, out, first.expand(out.shape))
    call.pointwise = bound.entry.elementwise
    name = re.sub(r"\W", "_", f"{bound.op.removeprefix('aten::')}_{vendor.text.symbols[0]}")
    memory: IntLike = 0
    for tensor in buffers.values():
        memory = memory + tensor.numel * tensor.dtype.size
    kernel = ForeignKernel(
        name,
        source(name, bound, vendor, buffers, len(sizes), params, words),
        tuple(SizeRange(f"size{n}", None) for n in range(len(sizes))),
        tuple(param for _, param, _ in params),
        index_of(1 if bound.units is None else bound.units(values)),
        index_of(bound.flops(values)),
        index_of(memory),
    )
    given = tuple(number for _, _, number in params)
    call.launches.append(Launch(kernel, tuple(buffers.values()), tuple(sizes), given))


def _copy(call: Call, to: Tensor, source: Tensor) -> None:
    elementwise(call, [to], [source], lambda x: x, [None])


def source(
    name: str,
    bound: Bound,
    vendor: VendorCall,
    buffers: Mapping[str, Tensor],
    size_count: int,
    params: Sequence[tuple[str, ScalarParam, Any]],
    words: dict[str, str],
) -> str:
    """The C kernel around a vendor call. A function of a library comes by its address, so that two libraries may have
    functions of one name, and nothing need be visible to the loader."""
    lines = []
    for n, (buffer, tensor) in enumerate(buffers.items()):
        constant = "" if buffer in bound.outs else "const "
        c_type = C_TYPES[tensor.dtype.name]
        lines.append(f"{constant}{c_type} *const t_{buffer} = ({constant}{c_type} *)args[{n}];")
    at = len(buffers)
    lines += [f"const int64_t size{n} = (int64_t)args[{at + n}];" for n in range(size_count)]
    at += size_count
    for n, (word, param, _) in enumerate(params, at):
        if param.dtype is float64:
            lines.append(f"const double {word} = ((union {{ uint64_t bits; double value; }}){{args[{n}]}}).value;")
        else:
            lines.append(f"__typeof__({word}) *const {word} = (void *)args[{n}];")
    lines.append(f"{vendor.text.fill(words).strip().removesuffix(';')};")
    body = "\n".join(f"  {line}" for line in lines)
    return (
        f"/* {bound.op}, served by {', '.join(vendor.text.symbols)} */\n#include <stdint.h>\n{vendor.declare.strip()}\n"
        f"const uint32_t {name}_args = {at + len(params)};\n"
        f"void {name}(const uint64_t *args, int64_t begin, int64_t end, int64_t *report) {{\n{body}\n}}\n"
    )
