"""The options text "dpus=64,tasklets=16": every mistake names key, value and what is allowed."""

from __future__ import annotations

from dataclasses import dataclass

#: What a server has, and what a DPU has.
MOST_DPUS, MOST_TASKLETS = 2556, 24


@dataclass(frozen=True)
class Options:
    """How many DPUs are one device, and what runs them.

    >>> parse_options("dpus=64,tasklets=11")
    Options(dpus=64, tasklets=11, devices=1, hardware='auto', timing=0)
    """

    dpus: int = 64
    tasklets: int = 16
    devices: int = 1
    hardware: str = "auto"
    timing: int = 0


_MOST = {"dpus": MOST_DPUS, "tasklets": MOST_TASKLETS, "devices": 16}
_WHY = {"dpus": "usable in a server with 20 DIMMs", "tasklets": "which is what a DPU has"}


def parse_options(text: str) -> Options:
    """Returns the options of a text as in BRINGUP_UPMEM; the later of two equal keys counts.

    >>> parse_options("tasklets=25")
    Traceback (most recent call last):
    ValueError: BRINGUP_UPMEM: tasklets=25: allowed is 1 to 24, which is what a DPU has
    """
    values: dict[str, int | str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = (word.strip() for word in part.partition("="))
        where = f"BRINGUP_UPMEM: {key}={value}"
        if not equals or key not in Options.__dataclass_fields__:
            raise ValueError(f"BRINGUP_UPMEM: {part!r}: known are {', '.join(Options.__dataclass_fields__)}")
        if key == "hardware":
            if value not in ("auto", "never", "always") and not value.startswith("/"):
                raise ValueError(f"{where}: allowed are auto, never (simulate), always, and the path of a libdpu.so")
            values[key] = value
            continue
        if key == "timing":
            if value not in ("0", "1"):
                raise ValueError(f"{where}: allowed are 0 and 1 (counts instructions, for estimates of time)")
            values[key] = int(value)
            continue
        most = _MOST[key]
        if not value.isdecimal() or not 1 <= int(value) <= most:
            why = f", {_WHY[key]}" if key in _WHY else ""
            raise ValueError(f"{where}: allowed is 1 to {most:,}{why}")
        values[key] = int(value)
    return Options(**values)  # type: ignore[arg-type]
