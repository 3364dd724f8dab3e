"""Retired instructions of single layers on a RISC-V core, with vectors and without: no layer may need more with them.

    python benchmarks/riscv_layers.py --json results/riscv_layers.json
    python benchmarks/riscv_layers.py softmax norm               # layers whose names hold one of these words
    python benchmarks/riscv_layers.py --compare old.json new.json

Each layer of riscv_layer_models.py runs through ``torch.compile`` on a scalar core and with vectors of 128 and of 256
bits, in our interpreter, whose counts are exact. Results must be near eager PyTorch's. The table begins with the layer
that gains least; exit status 1 if one needs more instructions with vectors than without.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import bringup
from benchmarks.recording import record
from benchmarks.riscv_layer_models import LAYERS, built

CORES = (0, 128, 256)
#: Compilers that are told of vectors move an instruction or two of the same loops (1,290 for 1,289): no layer is slower
#: by that.
SAME = 1.005
#: Differences from eager PyTorch that sums in another order explain; sorting and indices have none.
_TOLERANCE = {torch.float16: 1e-2, torch.bfloat16: 5e-2, torch.float64: 1e-10}


@dataclass(frozen=True)
class LayerCounts:
    """The instructions of a layer on a core without vectors, and on those with them."""

    layer: str
    scalar: int
    vector128: int
    vector256: int
    how: str
    """What its kernels are with vectors."""

    @property
    def ratio(self) -> float:
        """Those with the shorter vectors by those without."""
        return self.vector128 / self.scalar

    @property
    def slower(self) -> bool:
        """Whether vectors need more."""
        return max(self.vector128, self.vector256) > SAME * self.scalar


def counted(name: str) -> LayerCounts:
    """Runs a layer on each core; raises AssertionError where a result is wrong."""
    instructions, how = [], ""
    for vector in CORES:
        torch._dynamo.reset()
        model, inputs = built(name)
        backend = bringup.Backend(target="riscv", vector=vector)
        with torch._dynamo.config.patch(allow_rnn=True), torch.no_grad():
            results = torch.compile(model, backend=backend, dynamic=False)(*inputs)
            expected = model(*inputs)
        for result, eager in zip(_tensors(results), _tensors(expected), strict=True):
            near = _TOLERANCE.get(eager.dtype, 1e-4)
            torch.testing.assert_close(result, eager, rtol=near, atol=near)
        reports = backend.reports()
        instructions.append(sum(report.instructions for report in reports))
        how = ", ".join(dict.fromkeys(layer.how for report in reports for layer in report.layers))
    return LayerCounts(name, *instructions, how)


def _tensors(results: Any) -> list[torch.Tensor]:
    return [results] if isinstance(results, torch.Tensor) else [one for part in results for one in _tensors(part)]


def mean_ratio(rows: Iterable[LayerCounts]) -> float:
    """The geometric mean of instructions with vectors of 128 bits by those without."""
    return statistics.geometric_mean(row.ratio for row in rows)


def show(rows: list[LayerCounts], console: Console) -> None:
    table = Table(title="retired instructions of one call")
    table.add_column("layer")
    for head in ("scalar", "VLEN 128", "VLEN 256", "ratio 128", "ratio 256"):
        table.add_column(head, justify="right")
    table.add_column("kernels with vectors", max_width=50, no_wrap=True)
    for row in sorted(rows, key=lambda row: -row.ratio):
        counts = [f"{count:,}" for count in (row.scalar, row.vector128, row.vector256)]
        ratios = [f"{row.ratio:.2f}", f"{row.vector256 / row.scalar:.2f}"]
        table.add_row(row.layer, *counts, *ratios, row.how, style="red" if row.slower else None)
    console.print(table)
    slower = [row.layer for row in rows if row.slower]
    console.print(f"{len(rows)} layers, geometric mean of the ratio {mean_ratio(rows):.3f}; slower: {slower or 'none'}")


def compare(old: Path, new: Path, console: Console) -> None:
    """Prints the layers whose counts differ between two recorded runs, the largest change first."""
    before, after = ({row["layer"]: row for row in json.loads(p.read_text())["data"]["rows"]} for p in (old, new))
    table = Table(title="instructions, new ÷ old")
    for head in ("layer", "scalar", "VLEN 128", "VLEN 256"):
        table.add_column(head, justify="left" if head == "layer" else "right")
    fields = ("scalar", "vector128", "vector256")
    found = [(name, [after[name][one] / before[name][one] for one in fields]) for name in before if name in after]
    for name, ratios in sorted(found, key=lambda pair: -max(abs(math.log(one)) for one in pair[1])):
        if any(abs(one - 1) >= 0.005 for one in ratios):
            table.add_row(name, *(f"{one:.2f}" for one in ratios))
    console.print(table)


def recorded_data(rows: list[LayerCounts]) -> dict[str, Any]:
    """The rows, and what docs say of them."""
    worst = max(rows, key=lambda row: row.ratio)
    return {
        "rows": [{**asdict(row), "ratio": round(row.ratio, 3)} for row in rows],
        "layers": len(rows),
        "slower": [row.layer for row in rows if row.slower],
        "mean": mean_ratio(rows),
        "worst": {"layer": worst.layer, "ratio": worst.ratio},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("layers", nargs="*", help="parts of names; all by default")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument("--compare", nargs=2, type=Path, metavar=("OLD", "NEW"), help="two recorded runs instead")
    chosen = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 150)
    if chosen.compare:
        compare(*chosen.compare, console)
        return 0
    names = [name for name in LAYERS if not chosen.layers or any(part in name for part in chosen.layers)]
    if not names:
        parser.error(f"no layer's name holds one of: {', '.join(chosen.layers)}")
    rows = [counted(name) for name in track(names, "layers", console=Console(stderr=True))]
    show(rows, console)
    if chosen.json is not None:
        record(chosen.json, recorded_data(rows))
    return 1 if any(row.slower for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
