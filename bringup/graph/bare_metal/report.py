"""What a bare-metal program did, layer by layer: as text, as JSON, and as a page with a chart."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path

from bringup.graph.bare_metal.guest import Call, RunningModel
from bringup.graph.bare_metal.sources import Model
from bringup.riscv.machine import FunctionCounts


@dataclass(frozen=True)
class Layer:
    """One step: what it is, and what it retired. None where the emulator does not tell."""

    name: str
    how: str
    macs: int
    instructions: int | None
    loads: int | None
    stores: int | None
    lane_beats: int | None
    arena: int
    """Bytes of the arena that are alive while it runs."""
    source: str = ""
    """Ops, shapes and lines of the model that it comes from."""

    @property
    def per_mac(self) -> float | None:
        """Instructions for each multiply-add."""
        return self.instructions / self.macs if self.macs and self.instructions is not None else None


@dataclass(frozen=True)
class Report:
    """A run of a program."""

    name: str
    machine: str
    isa: str
    vector: int
    instructions: int
    lane_beats: int | None
    error: float | None
    sizes: dict[str, int]
    layers: tuple[Layer, ...]
    folded_norms: int = 0
    """How many batch norms are part of the weights before them."""

    def text(self) -> str:
        """A table."""
        core = self.isa + (f", vectors of {self.vector} bits" if self.vector else "")
        lines = [f"{self.name} on {self.machine} ({core}): {self.instructions:,} instructions"]
        if self.lane_beats:
            lines[0] += f", {self.lane_beats:,} lane-beats"
        if self.error is not None:
            lines[0] += f"; largest difference from eager {self.error:.2g}"
        lines.append("  " + ", ".join(f"{what} {size:,}" for what, size in self.sizes.items()) + " bytes")
        if self.folded_norms:
            lines.append(f"  batch norms that are part of the weights before them: {self.folded_norms}")
        rows = [_HEADS, *(_row(layer) for layer in self.layers)]
        widths = [max(len(row[n]) for row in rows) for n in range(len(_HEADS))]
        for row in rows:
            first, *numbers, last = row
            cells = [cell.rjust(width) for cell, width in zip(numbers, widths[1:])]
            lines.append("  ".join(["", first.ljust(widths[0]), *cells, last]).rstrip())
        return "\n".join(lines)

    def json(self) -> str:
        """The same for programs."""
        return json.dumps(asdict(self), indent=1)

    def html(self) -> str:
        """A page: each layer as wide as its share of the instructions."""
        total = max(sum(layer.instructions or 0 for layer in self.layers), 1)
        bars = []
        for number, layer in enumerate(self.layers):
            share = (layer.instructions or 0) / total
            cells = [f"{head} {cell}" for head, cell in zip((*_HEADS, "from"), (*_row(layer), layer.source)) if cell]
            tip = escape(", ".join(cells))
            style = f"flex:{share:.6f} 0 0;background:hsl({(number * 47) % 360} 60% 72%)"
            shown = escape(layer.name) if share > 0.04 else ""
            bars.append(f'<div class="bar" style="{style}" title="{tip}">{shown}<br>{share:.0%}</div>')
        table = "".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in _row(layer)) + "</tr>" for layer in self.layers
        )
        heads = "".join(f"<th>{head}</th>" for head in _HEADS)
        return _PAGE.format(
            title=escape(f"{self.name}: {self.instructions:,} instructions"),
            about=escape(self.text().splitlines()[0]),
            sizes=escape(self.text().splitlines()[1].strip()),
            bars="".join(bars),
            heads=heads,
            rows=table,
        )

    def save(self, path: str | Path) -> Path:
        """Writes it, as what the name ends in: .html, .json, or text."""
        path = Path(path)
        text = {".html": self.html, ".json": self.json}.get(path.suffix, self.text)()
        path.write_text(text, encoding="utf-8")
        return path


_HEADS = ("layer", "instructions", "MACs", "per MAC", "lane-beats", "loads", "stores", "arena", "how")
_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>
<style>body{{font:15px/1.5 system-ui,sans-serif;margin:2rem;max-width:70rem}}
.flame{{display:flex;width:100%;height:6rem;gap:1px}}.bar{{overflow:hidden;padding:.3rem;font-size:12px;min-width:2px}}
table{{border-collapse:collapse;margin-top:1.5rem}}
td,th{{padding:.2rem .7rem;text-align:right;border-bottom:1px solid #ddd}}
td:first-child,th:first-child,td:last-child,th:last-child{{text-align:left}}</style>
<h1>{title}</h1><p>{about}<br>{sizes}</p><div class="flame">{bars}</div>
<table><tr>{heads}</tr>{rows}</table></html>
"""


def report_of(guest: RunningModel, call: Call, error: float | None = None) -> Report:
    """The report of a call."""
    model, counts = guest.model, call.counts
    by_function = counts.by_function
    layers = []
    for number, step in enumerate(model.program.steps):
        found: FunctionCounts | None = None
        if by_function is not None:
            found = counts_of(by_function, step.name, f"{model.name}_{step.name}_vector")
        layers.append(
            Layer(
                step.name,
                model.kernels.rendered[number].how,
                step.macs,
                found.instructions if found else None,
                found.loads if found else None,
                found.stores if found else None,
                found.lane_beats if found else None,
                alive_bytes(model, number),
                step.note,
            )
        )
    sizes = {
        "code": guest.sizes.code or 0,
        "weights": guest.sizes.weights,
        "arena": guest.sizes.arena,
        "tensors": guest.sizes.tensors,
        "stack": guest.measure_stack(),
    }
    spec = guest.machine.spec
    machine, beats = guest.machine.name, counts.lane_beats
    return Report(
        *(model.name, machine, spec.isa, spec.vlen, call.instructions, beats, error, sizes, tuple(layers)),
        folded_norms=model.program.folded_norms,
    )


def counts_of(by_function: Mapping[str, FunctionCounts], *names: str) -> FunctionCounts:
    """What a step's functions retired: its own, its assembly, and the copies that gcc makes (name.constprop.0).

    >>> retired = {"a.isra.0": FunctionCounts(3), "m_a_vector": FunctionCounts(4), "ab": FunctionCounts(5)}
    >>> counts_of(retired, "a", "m_a_vector").instructions
    7
    """
    parts = [one for function, one in by_function.items() if function.partition(".")[0] in names]

    def total(field: str) -> int | None:
        numbers = [getattr(part, field) for part in parts]
        return None if None in numbers else sum(numbers)

    retired = sum(part.instructions for part in parts)
    return FunctionCounts(retired, total("loads"), total("stores"), total("vector"), total("lane_beats"))


def alive_bytes(model: Model, step: int) -> int:
    """Bytes of temporaries that some step needs, or that pass over it."""
    total = 0
    for number, size in enumerate(model.program.temporaries):
        used = [at for at, one in enumerate(model.program.steps) if one.touches(("temporary", number))]
        total += size if used and used[0] <= step <= used[-1] else 0
    return total


def _row(layer: Layer) -> tuple[str, ...]:
    def number(value: int | None) -> str:
        return "" if value is None else f"{value:,}"

    per = "" if layer.per_mac is None else f"{layer.per_mac:.2f}" if layer.per_mac >= 0.1 else f"{layer.per_mac:.3f}"
    return (
        layer.name,
        number(layer.instructions),
        number(layer.macs) if layer.macs else "",
        per,
        number(layer.lane_beats) if layer.lane_beats else "",
        number(layer.loads),
        number(layer.stores),
        number(layer.arena),
        layer.how,
    )
