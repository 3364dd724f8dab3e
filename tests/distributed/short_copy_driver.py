"""Broken on purpose: large copies to the device lose their last byte."""

from __future__ import annotations

import ctypes

from tests.device.chip_driver import Driver as Chip


class Driver(Chip):
    name = "short"

    def copy(self, device, dst, src, nbytes, kind, stream, placement=None) -> None:  # type: ignore[no-untyped-def]
        ctypes.memmove(dst, src, nbytes - (nbytes > 4096))
