"""What the sanitizer says: two accesses without an order, each with the Python line that asked for it."""

from __future__ import annotations

import linecache
import sys
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType

from bringup.sanitizer.order import Stream
from bringup.sanitizer.span import Span

_FRAMES = 12
#: Frames that say nothing of the user's program.
_INSIDE = tuple(
    str(Path(sys.modules[name].__file__ or "").parent) for name in ("torch", "bringup") if name in sys.modules
)


class StreamRace(RuntimeError):
    """Raised where work is asked for that touches memory in no order with earlier work."""


Stack = tuple[tuple[CodeType, int], ...]


def stack() -> Stack:
    """The Python frames of the caller, the innermost first."""
    frame: FrameType | None = sys._getframe(1)
    found: list[tuple[CodeType, int]] = []
    while frame is not None and len(found) < _FRAMES:
        if not frame.f_code.co_filename.startswith(_INSIDE):
            found.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back
    return tuple(found)


def text_of(frames: Stack) -> str:
    """Frames as tracebacks show them, the innermost last."""
    if not frames:
        return "    (not from Python: a worker of autograd, for example)"
    lines = []
    for code, number in reversed(frames):
        line = linecache.getline(code.co_filename, number).strip()
        lines.append(f'    File "{code.co_filename}", line {number}, in {code.co_name}')
        if line:
            lines.append(f"      {line}")
    return "\n".join(lines)


@dataclass
class Access:
    """One access of memory: by work ``number`` of a stream, or by the host (None)."""

    stream: Stream | None
    number: int
    span: Span
    writes: bool
    op: str
    stack: Stack

    def __str__(self) -> str:
        who = "the host" if self.stream is None else f"stream {self.stream[1]} of device {self.stream[0]}"
        return f"  {self.op} {'writes' if self.writes else 'reads'} on {who}:\n{text_of(self.stack)}"


def race(earlier: Access, later: Access) -> StreamRace:
    """The error for two accesses of the same bytes."""
    what = "memory in flight" if later.stream is None or earlier.stream is None else "the same memory"
    advice = (
        "wait for the stream (stream.synchronize(), event.synchronize()) before the host touches it"
        if later.stream is None
        else "let the second stream wait for the first: stream.wait_stream(other), or stream.wait_event(event)"
    )
    size = f"{later.span.end - later.span.address} bytes at {later.span.address:#x}"
    return StreamRace(f"{what} is touched in no order ({size}): {advice}\n{later}\nagainst\n{earlier}")


def reuse(used: Access, freed: Stack, allocated: Stack) -> StreamRace:
    """The error for memory that is given out again while a stream may still use it."""
    return StreamRace(
        f"memory was freed while a stream still uses it, and is given out again ({used.span.address:#x}): call "
        "tensor.record_stream(stream) before the tensor goes, or let its own stream wait for the other\n"
        f"{used}\nit was freed here:\n{text_of(freed)}\nand given out again here:\n{text_of(allocated)}"
    )
