"""``bringup decompositions``: which ops of a traced graph are decomposed before it is lowered, by whom, and why."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated

import typer

from bringup.kit.terminal import fail, markdown_table, print_table


@dataclass(frozen=True)
class Decomposed:
    """An overload that is decomposed in graphs."""

    op: str
    by: str
    why: str


def decomposition_rows() -> list[Decomposed]:
    """ATen's part of the table of ``bringup.graph.decompositions``, sorted by op."""
    from torch._decomp import decomposition_table

    from bringup.graph.decompositions import OWN, decompositions
    from bringup.graph.graph_ops import GRAPH_LOWERINGS
    from bringup.graph.lowered import op_name
    from bringup.lowering.registry import LOWERINGS

    rows = []
    for overload in decompositions():
        name = op_name(overload)
        if not name.startswith("aten::"):
            continue
        why = ["has a lowering for single calls" if name in LOWERINGS or name in GRAPH_LOWERINGS else "no lowering"]
        if name in OWN:
            theirs = "computes it differently" if overload in decomposition_table else "has no decomposition"
            why.append(f"PyTorch {theirs}")
        elif overload._can_decompose():
            why.append("made of other ops in eager PyTorch, too")
        rows.append(Decomposed(name, "bringup" if name in OWN else "PyTorch", ", ".join(why)))
    return sorted(rows, key=lambda row: (row.op.lower(), row.op))


def matching(rows: Sequence[Decomposed], patterns: str) -> list[Decomposed]:
    """The rows whose op, with or without namespace and overload, matches one of some patterns.

    >>> rows = [Decomposed("aten::addr", "", ""), Decomposed("aten::std.correction", "", "")]
    >>> [row.op for row in matching(rows, "std,aten::nosuch")], len(matching(rows, "a*"))
    (['aten::std.correction'], 1)
    """
    wanted = [pattern.strip() for pattern in patterns.split(",") if pattern.strip()]

    def matches(row: Decomposed, pattern: str) -> bool:
        short = row.op.partition("::")[2]
        names = [row.op] if "::" in pattern else [short, short.partition(".")[0]]
        return any(fnmatchcase(name, pattern) for name in names)

    return [row for row in rows if any(matches(row, pattern) for pattern in wanted)]


def summary(rows: Sequence[Decomposed]) -> str:
    """How many there are, and by whom.

    >>> summary([Decomposed("aten::addr", "PyTorch", "")])
    '1 overload of 1 op: 1 by PyTorch'
    """
    counted = Counter(row.by for row in rows)
    parts = ", ".join(f"{count} by {by}" for by, count in sorted(counted.items()))
    ops = len({row.op.partition(".")[0] for row in rows})
    return f"{len(rows)} overload{'s' * (len(rows) != 1)} of {ops} op{'s' * (ops != 1)}: {parts}"


def markdown(rows: Sequence[Decomposed], torch_version: str) -> str:
    """The page docs/decompositions.md."""
    lines = [
        "# Decompositions",
        "",
        f"Written by `make docs` (`bringup decompositions`, torch {torch_version}): do not edit.",
        "",
        "A traced graph may hold any op of ATen. Those with a lowering become kernels as they are; the ones below are",
        "taken apart first, and what they are made of is lowered. An op that is neither runs as an ordinary op.",
        "",
        f"{summary(rows)}.",
        "",
        markdown_table(("op", "by", "why"), [(f"`{row.op.removeprefix('aten::')}`", row.by, row.why) for row in rows]),
    ]
    return "\n".join(lines) + "\n"


def decompositions(
    op: Annotated[str | None, typer.Option("--op", metavar="PATTERN", help="Only these: std*,addr")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
    page: Annotated[Path | None, typer.Option("--markdown", metavar="FILE", help="Write the page there.")] = None,
) -> None:
    """Show the ops that are decomposed in torch.compile's graphs before these are lowered: by whom, and why."""
    import torch

    rows = decomposition_rows()
    if op is not None:
        rows = matching(rows, op)
        if not rows:
            fail("decompositions", f"no op that is taken apart matches {op!r}")
    if as_json:
        print(json.dumps({"count": len(rows), "ops": [asdict(row) for row in rows]}, indent=1))
        return
    if page is not None:
        page.write_text(markdown(rows, torch.__version__.split("+")[0]), encoding="utf-8")
        print(f"written: {page}")
    else:
        print_table(("op", "by", "why"), [(row.op.removeprefix("aten::"), row.by, row.why) for row in rows])
    print(summary(rows))
