"""What was offloaded: each unit with its calls, flops and bytes, and why it ran where it did."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class UnitReport:
    """The account of one unit."""

    name: str  # of the module, or of the graph's nodes
    ops: tuple[str, ...]
    device_calls: int
    cpu_calls: int
    flops: float | None  # of the last call
    bytes_to: int  # activations to the device
    bytes_from: int
    reason: str


@dataclass(frozen=True)
class OffloadReport:
    """The account of an offloaded model; its text is a table."""

    device: str
    mode: str
    units: tuple[UnitReport, ...]
    weight_bytes_moved: int  # to the device, again where a weight has changed
    weight_bytes_resident: int  # on the device now

    def __str__(self) -> str:
        head = ("unit", "ops", "on device", "on CPU", "to device", "from device", "why")
        rows = [
            (
                unit.name,
                ", ".join(unit.ops),
                f"{unit.device_calls:,}",
                f"{unit.cpu_calls:,}",
                f"{unit.bytes_to:,} B",
                f"{unit.bytes_from:,} B",
                unit.reason,
            )
            for unit in self.units
        ]
        widths = [max(map(len, column)) for column in zip(head, *rows)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in (head, *rows)]
        if not rows:
            lines = ["nothing of this model is among the chosen ops"]
        weights = f"weights: {self.weight_bytes_moved:,} B moved, {self.weight_bytes_resident:,} B on {self.device}"
        return "\n".join([f'offloaded to {self.device}, mode="{self.mode}"', *lines, weights])
