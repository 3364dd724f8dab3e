"""The documentation table of an op table: one row per entry, in Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from bringup.vendor.bound import Bound
from bringup.vendor.custom import CustomOp


def rows(entries: Sequence[Bound], ops: Sequence[CustomOp]) -> list[tuple[str, ...]]:
    """(op, served by, dtypes, layouts, when, forms, gradient, autocast) per entry."""
    forms = {op.bound.op: list(op.forms())[1:] for op in ops}
    found: list[tuple[str, ...]] = []
    for bound in entries:
        entry = bound.entry
        symbols = dict.fromkeys(symbol for call in bound.calls.values() for symbol in call.text.symbols)
        layouts = entry.layouts if isinstance(entry.layouts, str) else ""
        if isinstance(entry.layouts, dict):
            layouts = ", ".join(f"{name} {layout}" for name, layout in entry.layouts.items())
        new = bound.op in forms
        found.append(
            (
                str(bound.schema) if entry.is_full else bound.op,
                ", ".join(symbols) or entry.function,
                ", ".join(entry.dtypes),
                layouts,
                entry.when or "always",
                ", ".join(forms[bound.op]) if new else "PyTorch's",
                ("of the entry" if entry.backward else "none") if new else "PyTorch's",
                (entry.autocast or "none") if new else "PyTorch's",
            )
        )
    return found


COLUMNS = ("op", "served by", "dtypes", "layouts", "when", "other forms", "gradient", "autocast")


def markdown(driver: str, entries: Sequence[Bound], ops: Sequence[CustomOp]) -> str:
    """The page ops.md that `bringup generate` writes."""
    lines = [f"# Tuned ops of {driver}", "", "Entries are tried from top to bottom; a call that none is for runs on"]
    lines += ["a compiled kernel, or the way the op goes without the table.", ""]
    lines += [f"| {' | '.join(COLUMNS)} |", "|" + "---|" * len(COLUMNS)]
    for op, served, *rest in rows(entries, ops):
        lines.append(f"| `{op}` | `{served}` | {' | '.join(cell.replace('|', '/') for cell in rest)} |")
    return "\n".join(lines) + "\n"
