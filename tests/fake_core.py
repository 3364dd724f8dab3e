"""A stand-in for the C++ core, so that the Python side is tested without a binary. Import it before torch.

It keeps books instead of working: which drivers were registered, which devices were opened, the fallback policies.
"""

from __future__ import annotations

import ctypes
import sys
from importlib.metadata import version
from types import ModuleType
from typing import Any

from bringup.driver.c_functions import DriverStruct


class FakeCore(ModuleType):
    def __init__(self) -> None:
        super().__init__("bringup._C")
        self.TORCH_VERSION = version("torch")
        self.drivers: list[tuple[str, int]] = []
        self.attached = 0
        self.current = 0
        self.opened: set[int] = set()
        self.rows: list[dict[str, Any]] = []
        self.policy = "allow"
        self.policies: dict[str, str] = {}
        self.generators: dict[int, Any] = {}

    def acknowledge(self) -> None:
        pass

    def register_driver(
        self, struct_address: int, name: str, acknowledges: bool = False, visible: list[int] | None = None
    ) -> tuple[int, int]:
        struct = DriverStruct.from_address(struct_address)
        count = struct.device_count(ctypes.cast(struct.self, ctypes.c_void_p))
        first = self.device_count()
        self.drivers.append((name, count))
        return first, count

    def attach(self, type_name: str, special_arguments: dict[str, int]) -> None:
        self.attached += 1

    def count_flops_with(self, function: Any) -> None:
        pass

    def before_first_use(self, function: Any) -> None:
        pass

    def give_up_late_collectives(self) -> bool:
        return True

    def shut_down(self) -> None:
        pass

    def device_count(self) -> int:
        return sum(count for _, count in self.drivers)

    def driver_of(self, device: int) -> tuple[str, int]:
        for name, count in self.drivers:
            if device < count:
                return name, device
            device -= count
        raise RuntimeError("no such device")

    def current_device(self) -> int:
        return self.current

    def set_device(self, device: int) -> None:
        self.current = device

    def is_open(self, device: int) -> bool:
        return device in self.opened

    def in_bad_fork(self) -> bool:
        return False

    def default_generator(self, device: int) -> Any:
        import torch

        return self.generators.setdefault(device, torch.Generator())

    # ---- ledger ----
    def ledger(self) -> list[dict[str, Any]]:
        return self.rows

    def ledger_reset(self) -> None:
        self.rows.clear()

    def ledger_ask_again(self) -> None:
        pass

    def ask_about_fallbacks(self, function: Any) -> None:
        self.asked = function


core = FakeCore()
sys.modules["bringup._C"] = core
