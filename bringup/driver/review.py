"""Finds mistakes in a driver class before PyTorch depends on it: names, parameters, and the target of its kernels."""

from __future__ import annotations

import difflib
import inspect

from bringup.driver import Driver, contract

#: Attributes a driver may set besides the methods of the contract.
_ATTRIBUTES = (
    "name",
    "device_name",
    "ops",
    "library_ops",
    "op_table",
    "compiles_together",
    "absent_reason",
    "compiler_identity",
)
_KERNELS = ("compile", "load", "launch")


def misspelled(driver: Driver) -> list[str]:
    """Says which methods look like one of the contract's that the driver does not have.

    >>> class Chip(Driver):
    ...     name = "chip"
    ...     def host_aloc(self, nbytes): ...
    >>> misspelled(Chip())
    ['Chip.host_aloc is never called: did you mean host_alloc?']
    """
    absent = [name for name, *_ in contract() if not driver.offers(name)]
    absent += [name for name in _ATTRIBUTES if getattr(type(driver), name, None) is getattr(Driver, name, None)]
    said = []
    for name in sorted(_own_attributes(type(driver))):
        close = difflib.get_close_matches(name, absent, n=1, cutoff=0.85)
        if close:
            said.append(f"{type(driver).__name__}.{name} is never called: did you mean {close[0]}?")
    return said


def _own_attributes(cls: type) -> set[str]:
    names = {name for base in cls.__mro__ if base not in Driver.__mro__ for name in vars(base)}
    return {name for name in names if not name.startswith("_") and not hasattr(Driver, name)}


def wrong_parameters(driver: Driver) -> list[str]:
    """Says which methods cannot be called the way the contract calls them."""
    said = []
    for name, *_ in contract():
        if not driver.offers(name):
            continue
        needed = [
            parameter
            for parameter in inspect.signature(getattr(Driver, name)).parameters.values()
            if parameter.name != "self" and parameter.default is parameter.empty
        ]
        try:
            signature = inspect.signature(getattr(driver, name))
        except (TypeError, ValueError):  # written in C, without a signature
            continue
        try:
            signature.bind(*needed)
        except TypeError:
            call = ", ".join(parameter.name for parameter in needed)
            said.append(f"{type(driver).__name__}.{name} takes {signature}; it is called as {name}({call})")
    return said


def check_target(driver: Driver) -> None:
    """Raises ValueError if the driver compiles kernels and its ``target()`` is not one that can be rendered."""
    if not all(map(driver.offers, _KERNELS)) or not _has_devices(driver):
        return
    if not driver.offers("target"):
        raise ValueError(f"driver '{driver.name}' offers compile, load and launch, and no target: {TARGET_HELP}")
    from bringup.targets.registry import parse_target

    try:
        parse_target(driver.target())
    except ValueError as error:
        raise ValueError(f"driver '{driver.name}': {error}") from error


def _has_devices(driver: Driver) -> bool:
    try:
        return driver.device_count() > 0  # without its hardware or compiler a driver may not know its target
    except Exception:  # the core asks too, and reports it
        return False


TARGET_HELP = 'write target() that returns "c; vector=0" for plain C'
