"""The simulated accelerator: host threads and memory behind the driver contract, no hardware needed.

    BRINGUP_SIM="devices=4,memory=2G" BRINGUP_DRIVERS=sim python train.py

Options (environment variable ``BRINGUP_SIM``, comma-separated, the later of two equal keys counts):

===============  =====================================================================================================
devices          1 to 64 (default 2)
memory           per device, with K, M or G (default 4G); partitions share it evenly
mode             ``kernels`` (default: bringup's, compiled for this CPU) or ``library`` (ATen's, on device memory)
threads          cores that share the work of one large kernel (default: all this process may use)
trap             1: host code that touches device memory by its device address gets a ``HostAccessError``
partitions       memory partitions (default 1: flat); ``placement`` single, shard (``shard_block`` bytes), replicate,
                 or auto: in one piece per partition, small storages replicated
fail             injected faults: ``fail=alloc:0.01,copy:0.01,launch:0.01,event:0.01``, repeatable by ``seed``
jitter           a seed: queued work is delayed at random, and short work queued too; finds missing waits
profile          a chip description (TOML file, or a name in ``profiles/``): device time becomes that chip's time
===============  =====================================================================================================

The work is done by a C library of about 2,500 lines beside this file; ``sim.h`` is the place to start reading.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bringup import user_code
from bringup.driver.abi import CDriver, DriverError

if TYPE_CHECKING:
    from bringup.driver import DeviceSpec
    from bringup.driver.c_functions import DriverStruct

_FROM_THE_HOST = ("target", "compile")
_PROFILES = Path(__file__).parent / "profiles"


class HostAccessError(RuntimeError):
    """Host code read or wrote device memory by its device address (raised with ``trap=1``, on the main thread)."""


class Driver(CDriver):
    """The sim driver; ``options`` stands in for the environment variable ``BRINGUP_SIM``.

    >>> Driver("devices=1,memory=64M").device_count()  # doctest: +SKIP
    1
    """

    name = "sim"
    library = Path(__file__).with_name("_sim.so")
    how_to_build = ": it is not built; run make build, or install bringup again"
    compiles_together = True

    #: Why there are no kernels although no other mode was requested; empty if there are.
    _no_compiler = ""

    def __init__(self, options: str | None = None) -> None:
        self._given = os.environ.get("BRINGUP_SIM", "") if options is None else options

    def options(self) -> str:
        """What the C library receives: a profile is replaced by its numbers, which come first and can be overridden.

        Without a C compiler the default mode is ``library``.
        """
        items = [item.strip() for item in self._given.split(",")]
        keys = [item.partition("=")[0].strip() for item in items]
        profiles = [item.partition("=")[2].strip() for key, item in zip(keys, items) if key == "profile"]
        chosen = _profile_options(profiles[-1]) if profiles else []
        chosen += [item for key, item in zip(keys, items) if key != "profile"]
        if "mode" not in keys:
            self._no_compiler = _why_no_compiler()
            chosen += ["mode=library"] if self._no_compiler else []
        return ",".join(chosen)

    def open(self, device: int) -> DeviceSpec:
        """Also warns if there is no compiler: only now, as ``import torch`` alone is not a reason to warn."""
        if self._no_compiler:
            user_code.warn(
                f"sim runs ATen's CPU kernels (mode=library), because there is {self._no_compiler}. "
                "BRINGUP_SIM=mode=library says that this is meant."
            )
            self._no_compiler = ""
        return super().open(device)

    # ---- kernels: written in C for the host's compiler, loaded and run by the library ----
    def target(self) -> str:
        """C for the CPU of this machine."""
        from bringup.targets.toolchain import host_target

        return host_target().describe()

    def compile(self, source: str) -> bytes:
        """A shared object, made by the host's C compiler."""
        from bringup.targets.toolchain import compile_c, host_target

        return compile_c(source, host_target())

    def compiler_identity(self) -> str:
        """The compiler, its version and its flags."""
        from bringup.targets.toolchain import host_target, identity

        return identity(host_target())

    def offers(self, method: str) -> bool:
        """``target`` and ``compile`` belong to mode=kernels, as ``load`` and ``launch`` in the library do."""
        return super().offers("launch" if method in _FROM_THE_HOST else method)

    def _written_in_python(self, method: str) -> bool:
        # The core calls neither, so its struct stays the library's own: no call of an eager op goes through Python.
        if method in _FROM_THE_HOST or (method == "open" and type(self).open is Driver.open and not self._no_compiler):
            return False
        return super()._written_in_python(method)

    def _load_library(self) -> DriverStruct:
        struct = super()._load_library()
        if [item for item in self._given.replace(" ", "").split(",") if item.startswith("trap=")][-1:] == ["trap=1"]:
            _raise_on_host_access(self.library_path)
        return struct


def _why_no_compiler() -> str:
    from bringup.targets.toolchain import CompilerMissing, find_compiler

    try:
        find_compiler()
    except CompilerMissing as reason:
        return str(reason)
    return ""


def _profile_options(name: str) -> list[str]:
    """A chip description as options of the C library."""
    path = Path(name).expanduser()
    if not path.is_file() and not path.suffix and len(path.parts) == 1:
        path = _PROFILES / f"{name}.toml"
    if not path.is_file():
        shipped = ", ".join(sorted(file.stem for file in _PROFILES.glob("*.toml")))
        raise DriverError(f"sim: profile={name}: no such file; profiles that come with sim: {shipped}")
    chip = _read_toml(path)
    options: list[str] = []

    def take(table: Mapping[str, Any], known: Mapping[str, tuple[str, tuple[type, ...]]], where: str) -> None:
        for key, value in table.items():
            option, types = known.get(key, ("", ()))
            if not option:
                raise DriverError(f"sim: profile {path}: unknown key {where}{key}; known: {', '.join(known)}")
            if not isinstance(value, types) or isinstance(value, bool) or "," in str(value):
                raise DriverError(f"sim: profile {path}: {where}{key} = {value!r} is not a {types[0].__name__}")
            options.append(f"{option}={value}")

    number = (float, int)
    peak, link = chip.pop("peak_flops", {}), chip.pop("link", {})
    for table, where in ((peak, "peak_flops"), (link, "link")):
        if not isinstance(table, dict):
            raise DriverError(f"sim: profile {path}: {where} must be a table, as in [{where}]")
    single = {
        "name": ("name", (str,)),
        "memory": ("memory", (str, int)),
        "bandwidth": ("bandwidth", number),
        "launch_ns": ("launch_ns", number),
    }
    take(chip, single, "")
    take(peak, {dtype: (f"peak_flops.{dtype}", number) for dtype in peak}, "peak_flops.")
    take(link, {"bandwidth": ("link_bandwidth", number), "latency_ns": ("link_latency_ns", number)}, "link.")
    return options


def _read_toml(path: Path) -> dict[str, Any]:
    from importlib import import_module

    try:
        toml = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    except ModuleNotFoundError:
        raise DriverError("sim: profile= on Python 3.10 needs the package tomli: pip install tomli") from None
    try:
        return dict(toml.loads(path.read_text(encoding="utf-8")))
    except (toml.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DriverError(f"sim: profile {path}: not valid TOML: {error}") from None


def _raise_on_host_access(library_path: Path) -> None:
    """Turns a trapped access into HostAccessError at the main thread's next bytecode.

    The library's SIGSEGV handler calls PyErr_SetInterruptEx, which is async-signal-safe and only marks a signal as
    arrived: no signal is sent. SIGRTMAX-1 carries the mark, because nothing else uses it; SIGSEGV itself must not have
    a Python handler, as a real crash would then run for ever.
    """
    import ctypes
    import signal
    import threading

    library = ctypes.CDLL(str(library_path))
    library.sim_trap_count.restype = library.sim_trap_address.restype = ctypes.c_uint64
    library.sim_trap_address.argtypes = [ctypes.c_uint64]
    library.sim_set_trap_interrupt.argtypes = [ctypes.c_void_p, ctypes.c_int]
    if threading.current_thread() is not threading.main_thread():
        user_code.warn(
            "sim: trap=1 was set up outside the main thread: host accesses are counted, not raised", UserWarning
        )
        return
    number = signal.SIGRTMAX - 1
    reported = library.sim_trap_count()

    def report(signum: int, frame: object) -> None:
        nonlocal reported
        first, count = reported, library.sim_trap_count()
        reported = count
        address = library.sim_trap_address(first) or library.sim_trap_address(count - 1)
        pages = f"{count - first} page{'s' if count - first != 1 else ''}"
        raise HostAccessError(
            f"host code touched device memory at {address:#x} ({pages}): copy the tensor to the CPU first (x.cpu())"
        )

    signal.signal(number, report)
    library.sim_set_trap_interrupt(ctypes.cast(ctypes.pythonapi.PyErr_SetInterruptEx, ctypes.c_void_p), number)
