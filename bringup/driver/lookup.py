"""Finds a driver by what the user typed: a built-in name, an installed package's entry point, or a file."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from bringup.driver import Driver
from bringup.driver.abi import CDriver, DriverError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint, EntryPoints

_BUILTIN = Path(__file__).parents[1] / "drivers"
_ENTRY_POINTS = "bringup.drivers"

#: PyTorch's own device types, and attributes that break torch.device() when a backend takes their name: checked
#: where torch is not imported yet. With torch at hand its real attributes are checked too.
_TAKEN_WORDS = (
    "cpu cuda ipu xpu mkldnn opengl opencl ideep hip ve fpga maia xla lazy vulkan mps meta hpu mtia privateuseone "
    "accelerator amp autograd backends cat compile compiler data device distributed distributions dtype dynamic empty "
    "export fft float func futures fx grad half hub int jit layout library linalg load long masked monitor "
    "multiprocessing nested nn ones onnx optim overrides package profiler quantization random save serialization set "
    "shape short size sparse special stack storage stride sum tensor testing to torch train type types utils version "
    "view zeros"
)
_TAKEN = frozenset(_TAKEN_WORDS.split())


class UnknownDriver(DriverError):
    """No driver has the name that was asked for; the message lists those that exist."""


def check_device_name(name: str, namespaces: Iterable[object] | None = None) -> str:
    """Returns ``name`` if torch.device() can use it, else raises ValueError that says why.

    ``namespaces`` are objects whose attributes are taken; by default torch's own, as far as torch is imported. Call it
    before the backend is renamed: afterwards the name is an attribute of torch.

    >>> check_device_name("mychip")
    'mychip'
    """
    fix = "choose another `device_name` in the driver class (for a plain .so: rename the file)"
    if not re.fullmatch(r"[a-z_]+", name):
        raise ValueError(
            f"'{name}' cannot be a torch device name: torch.device() reads only lower-case letters and '_'; {fix}"
        )
    if name in _TAKEN:
        raise ValueError(f"'{name}' cannot be a torch device name: PyTorch already uses it; {fix}")
    for namespace in _torch_namespaces() if namespaces is None else namespaces:
        if hasattr(namespace, name):
            where = getattr(namespace, "__name__", repr(namespace))
            raise ValueError(f"'{name}' cannot be a torch device name: {where}.{name} exists already; {fix}")
    return name


def _torch_namespaces() -> list[object]:
    torch = sys.modules.get("torch")
    module = getattr(getattr(torch, "nn", None), "Module", None)
    found = [torch, getattr(torch, "Tensor", None), module, getattr(torch, "UntypedStorage", None)]
    return [namespace for namespace in found if namespace is not None]


def find_driver(name: str) -> Driver:
    """Makes the driver a user asked for: ``sim``, an entry point's name, ``./mychip.py`` or ``./libmychip.so``.

    >>> find_driver("sim").name  # doctest: +SKIP
    'sim'
    """
    if name.endswith((".py", ".so", ".dylib")):
        return _from_file(Path(name).expanduser())
    if name in _builtin_names():
        return _instance(_class_in(_import_builtin(name), name), name)
    found = _from_entry_point(name)
    if found is not None:
        return found
    known = list_drivers()
    close = difflib.get_close_matches(name, known, n=1)
    hint = f" Did you mean '{close[0]}'?" if close else ""
    listing = ", ".join(f"{known_name} ({where})" for known_name, where in known.items()) or "none"
    raise UnknownDriver(
        f"no driver is called '{name}'.{hint} Found: {listing}. A file works too: ./{name or 'mychip'}.py with a class "
        f"Driver, or ./lib{name or 'mychip'}.so"
    )


def list_drivers() -> dict[str, str]:
    """Every driver that can be asked for by name, and where it comes from; imports none of them."""
    known = dict.fromkeys(_builtin_names(), "built in")
    for entry in _entry_points():
        known.setdefault(entry.name, entry.value)
    return known


def _builtin_names() -> list[str]:
    folders = [path.parent.name for path in _BUILTIN.glob("*/__init__.py")]
    files = [path.stem for path in _BUILTIN.glob("*.py")]
    return sorted(name for name in {*folders, *files} if not name.startswith("_"))


def _entry_points() -> EntryPoints:
    from importlib.metadata import entry_points  # costs time: only where a name is not built in

    return entry_points(group=_ENTRY_POINTS)


def _import_builtin(name: str) -> ModuleType:
    try:
        return importlib.import_module(f"bringup.drivers.{name}")
    except Exception as error:
        raise DriverError(f"driver '{name}' cannot be imported: {type(error).__name__}: {error}") from error


def installed_entries() -> list[EntryPoint]:
    """The entry points that other distributions bring, by name; imports none of them."""
    own = set(_builtin_names())
    return sorted((entry for entry in _entry_points() if entry.name not in own), key=lambda entry: entry.name)


def driver_of_entry(entry: EntryPoint) -> Driver:
    """Makes the driver that an entry point names."""
    try:
        found = entry.load()
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise DriverError(f"driver '{entry.name}' ({entry.value}) cannot be imported: {reason}") from error
    return _instance(_class_in(found, entry.name) if isinstance(found, ModuleType) else found, entry.name)


def _from_entry_point(name: str) -> Driver | None:
    for entry in _entry_points():
        if entry.name == name:
            return driver_of_entry(entry)
    return None


def _from_file(path: Path) -> Driver:
    if not path.is_file():
        raise UnknownDriver(f"no driver file {path} (looked in {Path.cwd()})")
    path = path.resolve()
    name = path.name.split(".")[0].removeprefix("lib") if path.suffix != ".py" else path.stem
    if path.suffix != ".py":
        return _instance(type("Driver", (CDriver,), {"name": name, "library": path}), name)
    module_name = f"bringup_driver_file_{re.sub(r'[^0-9A-Za-z]', '_', str(path))}"
    module = sys.modules.get(module_name)
    if module is None:
        # A package of its own folder: `from . import registers` finds registers.py beside the file.
        spec = importlib.util.spec_from_file_location(module_name, path, submodule_search_locations=[str(path.parent)])
        if spec is None or spec.loader is None:
            raise DriverError(f"driver file {path} cannot be read as Python")
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module
        # `import registers` as well, as in a script. Afterwards the folder is the last that is looked in, for imports
        # inside methods: it must hide no installed module from other code.
        folder = str(path.parent)
        sys.path.insert(0, folder)
        try:
            spec.loader.exec_module(module)
            if folder not in sys.path[1:]:
                sys.path.append(folder)
        except BaseException as error:
            del sys.modules[module_name]
            if not isinstance(error, Exception):
                raise
            raise DriverError(f"driver file {path} cannot be imported: {type(error).__name__}: {error}") from error
        finally:
            sys.path.remove(folder)
    return _instance(_class_in(module, str(path)), name)


def driver_origin(driver: Driver) -> str:
    """Where a driver's code is: a file and, where it belongs to one, the installed distribution.

    >>> driver_origin(find_driver("sim")).endswith("__init__.py")  # doctest: +SKIP
    True
    """
    if isinstance(driver, CDriver):
        return str(driver.library)
    module = sys.modules.get(type(driver).__module__)
    path = str(getattr(module, "__file__", None) or type(driver).__module__)
    for entry in installed_entries():
        if entry.value.partition(":")[0] == type(driver).__module__ and entry.dist is not None:
            return f"{path} ({entry.dist.name} {entry.dist.version})"
    return path


def _class_in(module: ModuleType, where: str) -> type[Driver]:
    named = getattr(module, "Driver", None)
    if isinstance(named, type) and issubclass(named, Driver) and named not in (Driver, CDriver):
        return named
    own = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Driver) and value.__module__ == module.__name__
    ]
    if len(own) == 1:
        return own[0]
    what = "several drivers, none of them called Driver" if own else "no class Driver that derives from bringup.Driver"
    raise DriverError(f"driver '{where}' has {what}")


def _instance(driver_class: object, name: str) -> Driver:
    if not (isinstance(driver_class, type) and issubclass(driver_class, Driver)):
        raise DriverError(f"driver '{name}': {driver_class!r} is not a subclass of bringup.Driver")
    if not driver_class.name:
        driver_class.name = name
    try:
        return driver_class()
    except Exception as error:
        refusal = DriverError(f"driver '{name}' cannot be made: {type(error).__name__}: {error}")
        refusal.device_name = driver_class.device_name or driver_class.name
        raise refusal from error
