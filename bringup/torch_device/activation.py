"""Activation: which drivers this process uses, and how they become PyTorch's one out-of-tree device type.

The choice is made once: ``bringup.activate("name")`` before torch is imported, or ``BRINGUP_DRIVERS=name[,name]``, or
the one installed driver that has a device, or ``sim``. ``import torch`` then calls ``autoload``, which registers
everything with PyTorch and opens no device. Nothing in this file imports torch before it has to.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bringup import debug, user_code
from bringup.driver import Driver
from bringup.driver.in_use import SHARED_TYPE, ActiveDriver, driver_of
from bringup.driver.in_use import state as _state

if TYPE_CHECKING:
    import torch

    from bringup.lowering.registry import Lowering
    from bringup.vendor.install import Tables

    DriverLike = str | Driver | type[Driver]

_ENVIRONMENT = "BRINGUP_DRIVERS"
#: How our entry point in the group ``torch.backends`` begins.
ENTRY_POINT = "bringup.runtime:"
#: A driver may be named by its file.
_FILES = (".py", ".so", ".dylib")


# ---- what users call ----
def activate(*drivers: DriverLike) -> torch.device | None:
    """Chooses the drivers of this process: names, files, or Driver classes and instances.

    >>> import bringup
    >>> bringup.activate("sim")  # doctest: +SKIP

    Before torch is imported it only records the choice and returns None; ``import torch`` does the rest. Otherwise it
    activates at once and returns the first device. The same choice again is fine; another one is a RuntimeError,
    because PyTorch's device type can be named once per process. Call it before the first ``backward()``: autograd
    counts the devices there.
    """
    if not drivers:
        raise TypeError('bringup.activate needs a driver: bringup.activate("sim")')
    with _state.lock:
        if _state.error is not None and not _state.unusable:
            _state.chosen = None  # a choice that failed does not bind
        try:
            _refuse_another_choice(drivers)
        except RuntimeError as error:
            if not _torch_is_being_imported():
                raise
            # The entry point of a package that `import torch` calls: an exception would take torch down with it.
            _warn(f"bringup.activate was ignored: {error}")
            return None
        if not _state.active:
            found = _state.found or _find(drivers)  # a wrong name fails here, not at `import torch`
            _state.chosen, _state.found, _state.error = drivers, found, None
            _tell_child_processes(drivers)
            if "torch" not in sys.modules and _torch_will_call_us():
                return None
            _activate_now(drivers)
    first = _state.active[0]
    return device(first.name) if first.count else None


def device(name: str | None = None, index: int = 0) -> torch.device:
    """The torch.device of one of a driver's devices, whatever PyTorch's device type is called in this process.

    >>> import bringup
    >>> bringup.device("sim", index=1)  # doctest: +SKIP
    device(type='sim', index=1)
    """
    import torch  # may activate: autoload

    _require_active(name)
    found = _state.active[0] if name is None else _active_driver(name)
    if found.count == 0:
        raise RuntimeError(found.absence()) from found.count_error
    if not 0 <= index < found.count:
        raise ValueError(f"{found.name} has {found.count} device(s): there is no index {index}")
    return torch.device(_state.device_type, found.first + index)


# ---- the choice ----
def _name_of(driver: DriverLike) -> str:
    if isinstance(driver, str):
        if not driver:
            raise ValueError("the name of a driver is empty")
        return os.path.abspath(driver) if driver.endswith(_FILES) else driver
    if isinstance(driver, Driver) or (isinstance(driver, type) and issubclass(driver, Driver)):
        if not driver.name:
            cls = driver if isinstance(driver, type) else type(driver)
            raise ValueError(f'{cls.__name__} has no name: write name = "mychip" in the class')
        return driver.name
    raise TypeError(f"a driver is a name, a bringup.Driver class or an instance of one, not {driver!r}")


def _from_environment() -> tuple[str, ...] | None:
    text = os.environ.get(_ENVIRONMENT)
    if text is None:
        return None
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise ValueError(f"{_ENVIRONMENT}={text!r} names no driver; unset it for the default (sim)")
    return names


def _choice() -> tuple[DriverLike, ...]:
    if _state.chosen:
        _state.reason = "bringup.activate was called"
        return _state.chosen
    named = _from_environment()
    if named is None:
        return _default()
    _state.reason = _state.reason or f"{_ENVIRONMENT} says so"
    return named


def _default() -> tuple[DriverLike, ...]:
    """The driver of a process that chose none; child processes get the same one, as they may find the chip in use."""
    from bringup.driver import choice as driver_choice

    choice = driver_choice.default_choice()
    _state.reason = choice.reason
    for probe in driver_choice.failed_probes():
        _warn(
            f"the installed driver '{probe.name}' ({probe.distribution}) is not used, as it could not be asked for its "
            f"devices: {probe.answer()}. {_ENVIRONMENT}={choice.name} silences this"
        )
    if choice.driver is not None:
        _state.found = [choice.driver]
    if choice.probes:  # also where none has a device: a child would ask, and warn, again
        _tell_child_processes([choice.name])
    return (choice.name,)


def _refuse_another_choice(drivers: Sequence[DriverLike]) -> None:
    if _state.unusable:
        raise RuntimeError(f"bringup failed earlier in this process: {_state.error}") from _state.error
    wanted = [_name_of(driver) for driver in drivers]
    if _state.active:
        asked = [_name_of(driver) for driver in _state.asked]
        names = [driver.name for driver in _state.active]
        if len(wanted) != len(names) or any(w not in pair for w, *pair in zip(wanted, asked, names, strict=True)):
            raise RuntimeError(
                f"bringup is active with {', '.join(names)} (device type '{_state.device_type}'), and PyTorch's device "
                f"type can be named only once per process: cannot change to {', '.join(wanted)}. Set "
                f"{_ENVIRONMENT}={','.join(wanted)}, or call bringup.activate before torch is imported"
            )
        return
    earlier = _state.chosen or _from_environment()
    if earlier is not None and [_name_of(driver) for driver in earlier] != wanted:
        source = "bringup.activate chose" if _state.chosen else f"{_ENVIRONMENT} says"
        raise RuntimeError(
            f"{source} {','.join(map(_name_of, earlier))} already: cannot choose {','.join(wanted)} as well. Make "
            f"{_ENVIRONMENT} and bringup.activate agree, or use one of them"
        )


def _tell_child_processes(drivers: Sequence[DriverLike]) -> None:
    """Processes that multiprocessing spawns make the same choice; a class has to be activated there by its module."""
    names = [driver for driver in drivers if isinstance(driver, str)]
    if len(names) == len(drivers):
        os.environ[_ENVIRONMENT] = ",".join(map(_name_of, names))


def _torch_will_call_us() -> bool:
    if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") != "1":
        return False
    from importlib.metadata import entry_points

    return any(entry.value.startswith(ENTRY_POINT) for entry in entry_points(group="torch.backends"))


# ---- activation ----
def autoload() -> None:
    """What ``import torch`` calls (entry point group ``torch.backends``). Never raises: it would break torch itself."""
    from bringup.driver.choice import SeveralDrivers

    try:
        with _state.lock:
            if _state.active:
                return
            explicit = _state.chosen is not None or _ENVIRONMENT in os.environ
            if explicit or not _other_accelerator():
                with _half_imported_aside():
                    if not explicit:
                        _let_dependents_choose()
                    _activate_now(_choice())
    except (Exception, SystemExit) as error:
        _state.error = error
        asked = _state.chosen is not None or any(name.startswith("BRINGUP_") for name in os.environ)
        if asked or isinstance(error, SeveralDrivers):
            _warn(f"bringup is not active: {error}")
        if _state.chosen is None:  # a call of bringup.activate can be repeated, a variable cannot
            _register_failure(error)


def _let_dependents_choose() -> None:
    """Calls the ``torch.backends`` entry points of packages that build on bringup before the default is chosen.

    Such a package may call ``bringup.activate`` there. PyTorch calls entry points in no order of meaning, and its
    device type can be named once: with ours first the package would find ``sim`` active. PyTorch calls them once more
    afterwards, and ``activate`` accepts the same choice again.
    """
    from importlib.metadata import entry_points

    for entry in entry_points(group="torch.backends"):
        if entry.dist is None or entry.value.startswith(ENTRY_POINT):
            continue
        needs = entry.dist.requires or []
        if _state.active or not any(re.match(r"bringup\b", need) for need in needs):
            continue
        try:
            entry.load()()
        except Exception as error:  # PyTorch calls it again and reports it, with the package's name
            debug.say(1, f"the torch.backends entry point {entry.name} failed: {error}")


def _torch_is_being_imported() -> bool:
    spec = getattr(sys.modules.get("torch"), "__spec__", None)
    return bool(getattr(spec, "_initializing", False))


def _register_failure(error: BaseException) -> None:
    """Names the device that was asked for and could not be had: its first use raises, with ``error`` as the cause."""
    import torch

    from bringup.driver.choice import FailedDriver, SeveralDrivers
    from bringup.torch_device import core_binary

    if _state.unusable or _state.active:
        return
    _state.error = None  # what is registered asks whether bringup is active
    kind = ""
    try:
        names = error.names[:1] if isinstance(error, SeveralDrivers) else _state.refused
        if known := getattr(error, "device_name", ""):
            names = (known,)
        if not names:  # no class was found: its file may be called as it is
            names = tuple(os.path.basename(_name_of(driver)).split(".")[0] for driver in _choice())
        kind = names[0] if len(names) == 1 else SHARED_TYPE
        _register(torch, [FailedDriver(kind, error)])
    except Exception as second:  # no name PyTorch could use, no core for this torch
        _state.active, _state.device_type = (), ""
        debug.say(1, f"the device cannot be registered: {second}")
        with contextlib.suppress(ValueError):  # such a name: bringup.device reports `error`
            core_binary.name_without_core(torch, kind, error)
    _state.unusable, _state.error = True, error


@contextlib.contextmanager
def _half_imported_aside() -> Iterator[None]:
    """A module of ours imported before torch waits, half way, for the ``import torch`` we are in: import it whole."""
    aside = {
        name: module
        for name, module in sys.modules.items()
        if name.startswith("bringup.") and getattr(getattr(module, "__spec__", None), "_initializing", False)
    }
    for name in aside:
        del sys.modules[name]
    try:
        yield
    finally:
        for name, module in aside.items():
            sys.modules.setdefault(name, module)


def _warn(message: str) -> None:
    try:
        user_code.warn(message)
    except RuntimeWarning:  # python -W error: `import torch` still succeeds
        print(message, file=sys.stderr)


def _other_accelerator() -> bool:
    """Whether PyTorch has an accelerator of its own here. Asks NVML and the like: no context is made."""
    import torch

    if torch._C._get_privateuse1_backend_name() != "privateuseone":
        return True  # another out-of-tree backend was first
    if torch.backends.cuda.is_built() and torch.cuda.device_count() > 0:
        return True
    if torch.xpu._is_compiled() and torch.xpu.device_count() > 0:
        return True
    return torch.backends.mps.is_built() and torch.backends.mps.is_available()


def _require_active(name: str | None = None) -> None:
    with _state.lock:
        if _state.error is not None:
            raise RuntimeError(f"bringup is not active: {_state.error}") from _state.error
        if _state.active:
            return
        asked = _state.chosen or _from_environment() or name is None
        _activate_now(_choice() if asked else (str(name),))


def _active_driver(name: str) -> ActiveDriver:
    for driver in _state.active:
        if name in (driver.name, driver.device_name):
            return driver
    names = ",".join(driver.name for driver in _state.active)
    raise ValueError(f"driver '{name}' is not active ({names} is): set {_ENVIRONMENT}={names},{name} to have both")


def _find(drivers: Sequence[DriverLike]) -> list[Driver]:
    from bringup.driver.lookup import driver_origin, find_driver

    found: list[Driver] = []
    for driver in drivers:
        if isinstance(driver, str):
            found.append(find_driver(driver))
        else:
            found.append(driver() if isinstance(driver, type) else driver)
    for driver in found:
        same = [other for other in found if other.name == driver.name]
        if len(same) > 1:
            origins = [driver_origin(other) for other in same]
            where = f"each from {origins[0]}" if len(set(origins)) == 1 else f"from {' and from '.join(origins)}"
            raise ValueError(f"driver '{driver.name}' is chosen twice, {where}: name it once, or rename one of them")
    return found


def _activate_now(drivers: Sequence[DriverLike]) -> None:
    """Registers the drivers with PyTorch, completely (rule: complete registration); opens none of them."""
    if _state.active:
        return
    import torch

    if _state.active:  # by the autoload of that import
        _refuse_another_choice(drivers)
        return
    try:
        found = _state.found or _find(drivers)
        _state.refused = tuple(driver.device_name or driver.name for driver in found)
        _register(torch, found)
    except BaseException as error:
        _state.error, _state.found = error, None
        _state.active, _state.device_type = (), ""
        raise
    _state.asked, _state.found, _state.error, _state.refused = tuple(drivers), None, None, ()


def _op_tables(drivers: Sequence[Driver]) -> Tables | None:
    """The drivers' tables of tuned ops, checked: a bad one must fail before anything is registered."""
    if all(driver.op_table is None for driver in drivers):
        return None
    from bringup.vendor.install import read_tables

    return read_tables(drivers)


def _ops_at_first_use(core: Any, active: Sequence[ActiveDriver], tables: Tables | None) -> Callable[[], None]:
    """Returns what puts the lowered ops behind the dispatcher, and the drivers' own functions before them.

    Importing the compiler takes 0.3 s, and most processes that import torch use no device. A driver's functions are
    looked at now: a name that is not an op must fail here.
    """
    functions = tables.functions() if tables is not None else {}
    library = None
    if functions or any(driver.driver.ops for driver in active):
        from bringup.vendor import library_ops

        library = library_ops.functions_of(active, functions)

    def driver_at(index: int) -> Driver:
        return driver_of(index).driver

    def choose(lowerings: Mapping[str, Lowering]) -> Mapping[str, Lowering]:
        if any(driver.driver.library_ops for driver in active):
            from bringup.vendor.library_functions import with_library_ops

            lowerings = with_library_ops(lowerings, [driver.driver for driver in active], driver_at)
        if tables is None:
            return lowerings
        from bringup.vendor.routing import with_tables

        return with_tables(lowerings, tables.entries, driver_at)

    def register_ops() -> None:
        from bringup.lowering import every_device

        every_device.register(core)
        if any(all(map(driver.driver.offers, ("compile", "load", "launch"))) for driver in active):
            from bringup.lowering import install
            from bringup.torch_device import ledger

            install.install(core, driver_at, ledger.kernel_failed, choose)
        if library is not None:  # after the kernels, which are their second choice
            library_ops.register(library)

    return register_ops


def _review(drivers: Sequence[Driver]) -> None:
    """Refuses a driver that cannot work, and warns of names that look like mistakes."""
    from bringup import environment
    from bringup.driver import review as driver_review

    # Tests look at the built-in ones: 10 of 45 ms that `import torch` would take longer.
    written = [driver for driver in drivers if not type(driver).__module__.startswith("bringup.drivers.")]
    for driver in written:
        wrong = driver_review.wrong_parameters(driver)
        if wrong:
            raise TypeError(f"driver '{driver.name}': {'; '.join(wrong)}")
        driver_review.check_target(driver)
    for text in [text for driver in written for text in driver_review.misspelled(driver)]:
        _warn(text)
    for text in environment.unknown_variables(driver.name for driver in drivers):
        _warn(text)


def _register(torch: Any, drivers: Sequence[Driver]) -> None:
    from bringup import environment
    from bringup.distributed import process_group
    from bringup.driver.abi import CDriver, adapted, struct_of
    from bringup.driver.choice import FailedDriver
    from bringup.driver.lookup import check_device_name
    from bringup.driver.visible_devices import visible_devices
    from bringup.graph.compile.after_import import call_after_import
    from bringup.torch_device import core_binary, ledger, op_flops, own_ops
    from bringup.torch_device.special_arguments import SPECIAL_ARGUMENTS

    taken = torch._C._get_privateuse1_backend_name()
    if taken != "privateuseone":
        raise RuntimeError(f"PyTorch has one out-of-tree device type per process, and '{taken}' has taken it")
    kind = (drivers[0].device_name or drivers[0].name) if len(drivers) == 1 else SHARED_TYPE
    check_device_name(kind)
    # A bad value must fail before anything is registered.
    policy, default_backend = ledger.policy_from_environment(), environment.is_on("BRINGUP_DEFAULT_BACKEND")
    _review(drivers)
    core = core_binary.load(torch.__version__)
    structs = [struct_of(driver) for driver in drivers]
    if debug.level >= 5:
        from bringup.driver.launch_log import logged

        structs = [logged(struct, driver.name) for struct, driver in zip(structs, drivers, strict=True)]
    tables = _op_tables(drivers)

    active = []
    for driver, struct in zip(drivers, structs, strict=True):
        in_python = not isinstance(driver, CDriver)
        if in_python:
            adapted(driver).on_entry = core.acknowledge
        visible = None if isinstance(driver, FailedDriver) else visible_devices(driver.name)
        first, count = _add_driver(core, struct, driver.name, in_python, visible)
        _state.unusable = True  # until the end: the core cannot forget a driver, nor torch a name
        failed = adapted(driver).count_error if in_python else None
        active.append(ActiveDriver(driver.name, driver.device_name or driver.name, driver, first, count, failed))

    torch.utils.rename_privateuse1_backend(kind)
    own_ops.define()
    core.attach(kind, SPECIAL_ARGUMENTS)
    core.count_flops_with(op_flops.flops_of)
    _state.active, _state.device_type = tuple(active), kind

    from bringup.torch_device import device_module, serialization, sharing

    torch._register_device_module(kind, device_module)
    for name in device_module.SUBMODULES:
        sys.modules[f"torch.{kind}.{name}"] = getattr(device_module, name)
    torch.utils.generate_methods_for_privateuse1_backend(
        for_tensor=True, for_module=True, for_packed_sequence=True, for_storage=True
    )
    serialization.register()
    sharing.register()
    call_after_import("torch._dynamo", lambda: _register_with_dynamo(default_backend))
    call_after_import("torch._subclasses.fake_impls", _register_traced_layouts)
    process_group.register(kind)
    if tables is not None:
        tables.define()
    core.before_first_use(_ops_at_first_use(core, active, tables))
    ledger.install(policy)
    import atexit

    atexit.register(_shut_down, core)
    _state.unusable = False


def _register_traced_layouts() -> None:
    from bringup.graph.compile import traced_convolutions

    traced_convolutions.register()


def _register_with_dynamo(default_backend: bool) -> None:
    from bringup.graph.compile import dynamo_registration

    dynamo_registration.register(default_backend)


def _add_driver(core: Any, struct: int, name: str, in_python: bool, visible: list[int] | None) -> tuple[int, int]:
    """Registers the devices of a driver that are visible."""
    from bringup.driver.visible_devices import variable_of

    try:
        first, count = core.register_driver(struct, name, in_python, visible)
    except ValueError as error:
        where = f" ({variable_of(name)}={os.environ.get(variable_of(name))})" if visible is not None else ""
        raise ValueError(f"{error}{where}") from error.__cause__
    return first, count


def _shut_down(core: Any) -> None:
    from torch._C._autograd import _disable_profiler, _profiler_enabled

    # torch 2.13 crashes at exit while a profiler runs, also on the CPU alone; one runs on when the wait at its end has
    # raised the error of queued work.
    if _profiler_enabled():
        _disable_profiler()
    _give_up_stuck_devices(core)
    core.shut_down()


#: Seconds that the end of a process waits for its devices.
_EXIT_TIMEOUT = 60.0


def _give_up_stuck_devices(core: Any) -> None:
    """Waits for the devices, but not for ever: one whose work does not end is left to the operating system."""
    from bringup.torch_device.streams import wait_until_idle

    text = os.environ.get("BRINGUP_EXIT_TIMEOUT") or _EXIT_TIMEOUT
    try:
        end = time.monotonic() + float(text)
    except ValueError:
        print(f"bringup: BRINGUP_EXIT_TIMEOUT is a number of seconds, not {text!r}", file=sys.stderr)
        end = time.monotonic() + _EXIT_TIMEOUT
    for index in range(core.device_count()):
        if not core.is_open(index) or core.in_bad_fork():
            continue
        try:
            wait_until_idle(index, max(0.0, end - time.monotonic()), core.give_up_late_collectives)
        except TimeoutError as error:
            print(f"bringup: the process ends, and {error}", file=sys.stderr)
            core.give_up(index, "its work did not end")
        except Exception:
            continue  # a lost device or an open capture is not waited for; the core reports what failed
