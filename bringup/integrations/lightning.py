"""Lightning: an accelerator and a strategy under the device's name, in its registries; defaults by its variables.

Lightning's ``accelerator="auto"`` asks for XLA, MPS and CUDA and then takes the CPU, and its ``strategy="auto"`` puts
an accelerator it does not know on the CPU. So the device needs both names. ``PL_TRAINER_ACCELERATOR`` and
``PL_TRAINER_STRATEGY`` are Lightning's own way to give a Trainer other defaults; arguments of a Trainer win over them.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

import torch

from bringup.integrations import import_whole

#: The modules of Fabric and of the Trainer, with what they call the strategy's precision plugin.
_PARTS = {
    "lightning": (("lightning.fabric", "precision"), ("lightning.pytorch", "precision_plugin")),
    "pytorch_lightning": (("lightning_fabric", "precision"), ("pytorch_lightning", "precision_plugin")),
}


def set_up(package: str, device_type: str) -> None:
    """Registers the device with the Trainer's and Fabric's registries, and makes it the Trainer's default."""
    import_whole(package)
    for module, precision in _PARTS[package]:
        accelerators, strategies = import_module(f"{module}.accelerators"), import_module(f"{module}.strategies")
        accelerator = _accelerator(accelerators.Accelerator, device_type)
        plugins = import_module(f"{module}.plugins.precision")
        strategy = _strategy(strategies.SingleDeviceStrategy, accelerator, plugins.MixedPrecision, precision)
        known = getattr(accelerators, "AcceleratorRegistry", None) or accelerators.ACCELERATOR_REGISTRY
        known.register(device_type, accelerator, description="a device of bringup", override=True)
        known = getattr(strategies, "StrategyRegistry", None) or strategies.STRATEGY_REGISTRY
        known.register(device_type, strategy, description="one device of bringup", override=True)
    if "PL_TRAINER_ACCELERATOR" not in os.environ:
        os.environ["PL_TRAINER_ACCELERATOR"] = device_type
        os.environ.setdefault("PL_TRAINER_STRATEGY", device_type)


def _accelerator(base: type[Any], device_type: str) -> type[Any]:
    module = getattr(torch, device_type)

    class DeviceAccelerator(base):  # type: ignore[misc]
        """A device of bringup, as Lightning sees an accelerator."""

        def setup_device(self, device: torch.device) -> None:
            if device.type != device_type:
                raise RuntimeError(
                    f"Lightning's strategy would train on {device}, not on {device_type}: say "
                    f"strategy='{device_type}' beside accelerator='{device_type}'"
                )
            module.set_device(device)

        def get_device_stats(self, device: Any) -> dict[str, Any]:
            stats: dict[str, Any] = module.memory_stats(device)
            return stats

        def teardown(self) -> None:
            module.empty_cache()

        @staticmethod
        def parse_devices(devices: int | str | list[int]) -> list[int]:
            """Returns the index to use: ``1`` and ``"1"`` are a number of devices, ``[1]`` and ``"1,"`` an index."""
            count = module.device_count()
            if isinstance(devices, str) and "," in devices:
                devices = [int(part) for part in devices.split(",") if part.strip()]
            elif not isinstance(devices, list):
                devices = list(range(count if int(devices) == -1 else int(devices)))
            if len(devices) != 1:
                raise ValueError(
                    f"devices={devices}: bringup's strategy runs one {device_type} device in a process. Take "
                    f"devices=1, or devices=[{count - 1}] for that index"
                )
            if not 0 <= devices[0] < count:
                raise ValueError(f"devices={devices}: there are {count} {device_type} devices, from 0")
            return devices

        @staticmethod
        def get_parallel_devices(devices: list[int]) -> list[torch.device]:
            return [torch.device(device_type, index) for index in devices]

        @staticmethod
        def auto_device_count() -> int:
            return 1

        @staticmethod
        def is_available() -> bool:
            return bool(module.is_available())

        @staticmethod
        def name() -> str:
            return device_type

    return DeviceAccelerator


def _strategy(base: type[Any], accelerator: type[Any], mixed: type[Any], precision: str) -> type[Any]:
    """Makes the strategy: one device, which is the accelerator's. With another accelerator it is that one's."""

    class DeviceStrategy(base):  # type: ignore[misc]
        """Trains on the one device that the accelerator names."""

        _parallel_devices: list[torch.device] | None = None

        @property
        def parallel_devices(self) -> list[torch.device] | None:
            return self._parallel_devices

        @parallel_devices.setter
        def parallel_devices(self, devices: list[torch.device]) -> None:  # Lightning's connector calls it
            if len(devices) != 1:
                kind, name = devices[0].type, accelerator.name()
                raise ValueError(
                    f"strategy='{name}' trains on one device, not {len(devices)}: say strategy='ddp' for {kind}"
                )
            self._parallel_devices = devices

        @property
        def root_device(self) -> torch.device:
            return self.parallel_devices[0] if self.parallel_devices else super().root_device

    def read(self: Any) -> Any:
        return getattr(base, precision).__get__(self)

    def write(self: Any, plugin: Any) -> None:
        # Lightning makes autocast and gradient scaler for CUDA where it does not know the device.
        name = accelerator.name()
        if isinstance(plugin, mixed) and isinstance(self.accelerator, accelerator) and plugin.device != name:
            plugin.device = name
            if plugin.scaler is not None:
                plugin.scaler = torch.amp.GradScaler(name)
        getattr(base, precision).__set__(self, plugin)

    setattr(DeviceStrategy, precision, property(read, write))
    return DeviceStrategy
