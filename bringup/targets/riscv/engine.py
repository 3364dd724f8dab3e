"""Matrix products by a matrix engine: a C function that fills in its registers and waits.

The engine (bringup/riscv/gemm.py) sums along k in order with fused multiply-adds, so the bits are those of the IR.
"""

from __future__ import annotations

from bringup.ir.dtypes import float32
from bringup.ir.expr import Name
from bringup.ir.index import Int
from bringup.ir.kernel import Buffer, Kernel, Store
from bringup.targets.c.unit import Part
from bringup.targets.riscv.contraction import Contraction, contraction_of, known_steps
from bringup.targets.riscv.rendered import Rendered
from bringup.targets.riscv.static_function import FUNCTION, parameters

#: The file with the engine's driver.
ENGINE_HEADER = "gemm.h"


def is_product(c: Contraction) -> bool:
    """True for a matrix product: at most one axis each way, and each factor with its rows in one piece."""
    if c.contract.dtype is not float32 or len(c.rows) > 1 or len(c.columns) != 1 or len(c.k) > 1:
        return False
    return _layout(c) is not None


def _layout(c: Contraction) -> tuple[int, int, str] | None:
    """(distance of A's rows, of B's rows, flags)."""
    row = c.rows[0].row_step if c.rows else 0
    column = c.columns[0].column_step
    along_a, along_b = (c.k[0].row_step, c.k[0].column_step) if c.k else (1, 1)
    height, width, depth = c.row_count, c.column_count, c.depth
    flags = []
    if along_a == 1:
        a = row if height > 1 else depth
    elif row == 1 or height == 1:
        a = along_a
        flags.append("GEMM_TRANSPOSE_A")
    else:
        return None
    if column == 1:
        b = along_b if depth > 1 else width
    elif along_b == 1:
        b = column
        flags.append("GEMM_TRANSPOSE_B")
    else:
        return None
    least_a = height if "GEMM_TRANSPOSE_A" in flags else depth
    least_b = depth if "GEMM_TRANSPOSE_B" in flags else width
    if a < least_a or b < least_b:  # rows that overlap
        return None
    return a, b, " | ".join(flags) or "0"


def engine_call(kernel: Kernel, name: str, base: int) -> Rendered | None:
    """The function that has the engine do a matrix product; None for other kernels."""
    c = contraction_of(kernel)
    if c is None or c.macs == 0 or not is_product(c) or len(c.after) != 1:
        return None
    store, layout = c.after[0], _layout(c)
    if not isinstance(store, Store) or store.value != Name(c.contract.name, float32) or layout is None:
        return None
    result = kernel.buffer(store.buffer)
    assert isinstance(result, Buffer)
    spans = (*c.batch, *c.rows, *c.columns)
    found = known_steps(result, store.indices, [span.axis for span in spans])
    if found is None or found[0][-1] != 1:
        return None
    steps, first = found
    row = steps[len(c.batch)] if c.rows else c.column_count
    if row < c.column_count:
        return None
    loops = ""
    places = {"a": str(c.row_base), "b": str(c.column_base), "c": str(first)}
    for number, (span, step) in enumerate(zip(c.batch, steps)):
        loops += f"  for (int64_t i{number} = 0; i{number} < {span.extent}; i{number}++)\n"
        places["a"] += f" + {span.row_step} * i{number}"
        places["b"] += f" + {span.column_step} * i{number}"
        places["c"] += f" + {step} * i{number}"
    sizes = f"{c.row_count}, {c.column_count}, {c.depth}, {layout[0]}, {layout[1]}, {row}, {layout[2]}"
    a, b, to = c.row_buffer.name, c.column_buffer.name, result.name
    operands = f"b_{a} + {places['a']}, b_{b} + {places['b']}, b_{to} + {places['c']}"
    call = f"bringup_gemm({base:#x}, {operands}, {sizes})"
    head = f"{FUNCTION} {name}({parameters(kernel)}) {{\n"
    text = f"{head}{loops}    if ({call}) report[0] = 1;\n}}\n"
    part = Part(name, Int(1), f'#include "{ENGINE_HEADER}"\n{text}', frozenset(), {})
    return Rendered(part, how="matrix engine", surely_best=True)
