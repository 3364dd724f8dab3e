"""The environment variables that bringup reads, each with its meaning; a misspelled one is noticed."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable

#: Variables of bringup itself. A driver may have one of its own: ``BRINGUP_`` and its name in capitals.
VARIABLES: dict[str, str] = {
    "BRINGUP_DRIVERS": "which drivers this process uses: sim, mychip, ./mychip.py, or several: sim,mychip",
    "BRINGUP_FALLBACK": "what an op does that falls back to the CPU: allow (the default), warn once, or error",
    "BRINGUP_DEFAULT_BACKEND": "off: torch.compile without a backend means inductor on every device",
    "BRINGUP_DEBUG": "1 … 5: what bringup does, printed to standard error while it does it",
    "BRINGUP_CACHE": "the folder of compiled kernels",
    "BRINGUP_CACHE_SIZE": "how large that folder may grow, such as 2G",
    "BRINGUP_CC": "the C compiler of sim's kernels",
    "BRINGUP_MARCH": "the instruction set sim's kernels are compiled for, such as x86-64-v3",
    "BRINGUP_SANITIZE": "stream: errors where streams, or the host, touch memory in no order",
    "BRINGUP_EXIT_TIMEOUT": "seconds that the end of a process waits for its devices (60)",
    "BRINGUP_SIM": "options of the driver sim",
    "BRINGUP_UPMEM": "options of the driver upmem",
    "BRINGUP_RISCV": "options of the driver riscv",
    "BRINGUP_RISCV_CC": "the cross compiler for RISC-V",
    "BRINGUP_TEST_DEVICE": "the device that bringup's own tests run on",
}


def is_on(name: str) -> bool:
    """Reads a variable that is ``on``, the default, or ``off``.

    >>> is_on("BRINGUP_DEFAULT_BACKEND")
    True
    """
    text = os.environ.get(name) or "on"
    if text not in ("on", "off"):
        raise ValueError(f"{name} is on or off, not {text!r}")
    return text == "on"


def unknown_variables(driver_names: Iterable[str] = (), variables: Iterable[str] | None = None) -> list[str]:
    """Says which ``BRINGUP_…`` variables are set that nothing reads, each with the name that may have been meant.

    >>> unknown_variables(variables=["BRINGUP_" + "DRIVER"])[0][-29:]
    'did you mean BRINGUP_DRIVERS?'
    """
    known = {*VARIABLES, *(f"BRINGUP_{name.upper()}" for name in driver_names)}
    said = []
    for name in sorted(os.environ if variables is None else variables):
        if name.startswith("BRINGUP_") and name not in known:
            close = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
            if close:  # others may belong to a vendor's own library
                said.append(f"{name} is set, and nothing reads it: did you mean {close[0]}?")
    return said
