"""How a contraction is cut: blocks of k, of rows and of columns, as formulas over the kernel's sizes.

The same steps give the number of work units (an Index) and the C code of the entry point.
"""

from __future__ import annotations

from collections.abc import Callable

from bringup.ir.contraction_form import Form
from bringup.ir.index import Index, Int, maximum, minimum
from bringup.ir.kernel import extent_of
from bringup.targets.c.contract_micro import Tile

#: Bytes of packed rows, and of the sums of a unit where k is cut. With a panel of columns (96 KB) and the tables one
#: call stays within 512 KB of stack, half of a second-level cache. 128 × 768 floats just fit.
BLOCK_BYTES = 384 << 10
_UNIT_COLUMNS = 128
#: One row that meets columns in place: 8 rows of memory are read together, and the longer they are the better
#: (4096×4096: 3.6 ms, with 128 columns 4.5 ms).
ROW_COLUMNS = 512


def longest_k(form: Form) -> int:
    """The longest block of k: 768 steps of 32 columns are 96 KB; less where tables over k take stack, too."""
    affines = (form.rows.affine, form.columns.affine)
    return 768 if all(affine is None or affine.plain for affine in affines) else 640


def _ceiling(a: Index, b: Index) -> Index:
    return (a + b - 1) // b


def units(form: Form, tile: Tile, let: Callable[[str, Index], Index] = lambda _, index: index) -> Index:
    """The number of work units. ``let`` sees each step with its name: C code declares it, and uses the name from there.

    A sum that is cut has shorter blocks, so that a block has more rows. Its rows are packed anew for each unit then, so
    a thread does up to ``span`` neighbours as one: on one core 4 % less time for 128 x 1024 x 1024 than unit by unit.
    Wide units instead were as good there, but three of them on two cores took 1.65 ms where eight take 1.39.
    """
    capacity = BLOCK_BYTES // form.dtype.size
    longest = longest_k(form)
    k = let("k", extent_of(form.k))
    cuts = let("cuts", _ceiling(k, Int(longest)))
    cut = let("cut", minimum(cuts, 2) - minimum(cuts, 1))  # 1 if k is cut, else 0
    k_blocks = let("k_blocks", Int(1) + cut * (_ceiling(k, Int(longest // 2)) - 1))
    k_block = let("k_block", _ceiling(k, k_blocks))
    rows = let("rows", extent_of(form.rows.axes))
    span = let("span", minimum(k_blocks, 3))
    column_block: Index = Int(_UNIT_COLUMNS)
    if form.columns_in_place:
        single = let("single", Int(2) - minimum(maximum(rows, 1), 2))  # 1 if there is one row, else 0
        column_block = maximum(column_block, Int(ROW_COLUMNS) * single)
    column_block = let("column_block", column_block)
    used = let("used", maximum(k_block + cut * column_block * span, 1))
    most = let("most", maximum(Int(capacity) // used // tile.row_step * tile.row_step, tile.row_step))
    row_blocks = let("row_blocks", _ceiling(rows, most))
    even = let("even", _ceiling(rows, let("divisor", maximum(row_blocks, 1))))
    let("row_block", _ceiling(even, Int(tile.row_step)) * tile.row_step)
    columns = let("columns", extent_of(form.columns.axes))
    column_blocks = let("column_blocks", _ceiling(columns, column_block))
    return extent_of(form.batch) * row_blocks * column_blocks
