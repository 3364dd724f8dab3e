"""Frameworks that pick a device themselves: makes them pick the device of the active driver.

>>> import bringup.integrations
>>> bringup.integrations.activate()  # doctest: +SKIP
('accelerate', 'lightning')

One file for each framework. Nothing here imports a framework before ``activate`` is called, and nothing is replaced
inside of one: what is used are the framework's own registries and variables (docs/integrations.md).
"""

from __future__ import annotations

import difflib
import importlib
from importlib.util import find_spec

from bringup import user_code

#: Every framework with a file here, and the packages it may be installed as.
FRAMEWORKS = {"accelerate": ("accelerate",), "lightning": ("lightning", "pytorch_lightning")}
_INSTALL = "pip install 'bringup[integrations]'"


def activate(*frameworks: str) -> tuple[str, ...]:
    """Makes frameworks use the active driver's device where they choose one; returns the names of those set up.

    Without names it sets up every framework that is installed, which imports Lightning if that is; with names only
    those. Call it before the framework makes its first object (``Accelerator()``, ``TrainingArguments()``,
    ``Trainer()``). A choice that the user made by the framework's own variables or arguments stays.
    """
    for name in frameworks:
        if name not in FRAMEWORKS:
            close = difflib.get_close_matches(name, FRAMEWORKS, n=1)
            known = f"did you mean '{close[0]}'?" if close else f"there are {', '.join(FRAMEWORKS)}"
            raise ValueError(f"bringup.integrations has nothing for '{name}': {known}")
        if not _installed(name):
            raise ImportError(f"{name} is not installed: {_INSTALL}", name=name)
    done = []
    for name in frameworks or [name for name in FRAMEWORKS if _installed(name)]:
        try:
            _set_up(name)
        except ImportError as error:
            if frameworks:
                raise
            user_code.warn(str(error), UserWarning)  # the others are set up
        else:
            done.append(name)
    return tuple(done)


def _installed(name: str) -> list[str]:
    return [package for package in FRAMEWORKS[name] if find_spec(package) is not None]


def _set_up(name: str) -> None:
    from bringup import device

    chosen = device()  # raises, with the reason, where there is none
    integration = importlib.import_module(f"bringup.integrations.{name}")
    for package in _installed(name):
        integration.set_up(package, chosen.type)


def import_whole(package: str) -> None:
    """Imports a package that is installed; says what to do where its installation is broken."""
    try:
        importlib.import_module(package)
    except (
        ImportError,
        OSError,
        RuntimeError,
    ) as error:  # RuntimeError: a torchvision that was built for another torch
        raise ImportError(
            f"{package} is installed, but it or something it needs cannot be imported ({error}): {_INSTALL} --upgrade",
            name=package,
        ) from error
