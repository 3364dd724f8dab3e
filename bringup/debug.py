"""BRINGUP_DEBUG=1…5: what bringup does, told on standard error while it does it; each step includes those before.

1  kernels that are compiled, and calls that get no kernel, with the time it took and the reason
2  where plans come from: guards, and whether the disk, this process or the compiler had the kernel
3  the kernels' loop IR
4  their generated source
5  every launch, also of calls that are known by their signature
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bringup.lowering.observation import CallRecord, KernelRecord


def _from_environment() -> int:
    text = os.environ.get("BRINGUP_DEBUG", "") or "0"
    if text not in ("0", "1", "2", "3", "4", "5"):
        print(f"bringup: BRINGUP_DEBUG={text!r} is no number from 0 to 5: nothing is told", file=sys.stderr)
        return 0
    return int(text)


#: The step of the ladder; tests set it.
level = _from_environment()


def say(step: int, text: str) -> None:
    """Prints a text if BRINGUP_DEBUG is at least ``step``.

    >>> say(6, "nobody hears this")
    """
    if level >= step:
        print(f"bringup: {text}", file=sys.stderr, flush=True)


def tell(record: CallRecord) -> None:
    """Tells of a call that the signature cache did not know; the resolver calls it."""
    from bringup.lowering.call_text import guard_lines, signature_text

    name = signature_text(record)
    if record.refusal:
        say(1, f"no kernel for {name}: {record.refusal}")
        return
    if record.known:
        say(2, f"{name}: known structure, plan in {record.seconds['plan'] * 1e6:.0f} µs")
        return
    say(2, f"{name}: lowered in {record.seconds['lowering'] * 1e3:.2f} ms")
    for line in guard_lines(record.trace):
        say(2, f"  guard {line}")
    for kernel in record.kernels:
        _tell_kernel(kernel, record.device)


def _tell_kernel(record: KernelRecord, device: int) -> None:
    if record.origin == "compiled":
        total = sum(record.seconds.values())
        compiler = record.seconds["compile"]
        say(
            1,
            f"kernel {record.source.entry} compiled for device {device} in {total * 1e3:.1f} ms, "
            f"{compiler * 1e3:.1f} of them in the compiler",
        )
    elif record.origin == "disk cache":
        say(2, f"kernel {record.source.entry} from the disk cache in {record.seconds['cache'] * 1e3:.2f} ms")
    else:
        say(2, f"kernel {record.source.entry} is loaded already")
        return
    if level >= 3 and record.cost is not None:
        from bringup.ir.kernel import Kernel
        from bringup.ir.printer import kernel_text

        assert isinstance(record.kernel, Kernel)
        say(3, f"loop IR of {record.source.entry}\n{kernel_text(record.kernel)}")
    say(4, f"source of {record.source.entry}\n{record.source.text}")
