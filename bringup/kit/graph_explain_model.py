"""Which model is meant by ``model.py:fn``, and what it is called with."""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

_PLACE = re.compile(r"(?P<file>.+\.py):(?P<name>[^\W\d]\w*(?:\.[^\W\d]\w*)*)?")
_INPUT = re.compile(r"(?P<shape>\d+(?:x\d+)*)?(?::(?P<dtype>\w+))?")
_INPUT_NAMES = ("inputs", "example_inputs")


class NoModel(Exception):
    """The model could not be found or called; the message is for its author."""


@dataclass(frozen=True)
class Model:
    """Something to compile and what to call it with."""

    name: str
    function: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]


def parse_input(text: str) -> torch.Tensor:
    """A tensor of random numbers from its shape and type; integers are 0 or 1, so that they can be indices.

    >>> parse_input("4x16:float32").shape, parse_input("8:int64").dtype, parse_input(":float32").shape
    (torch.Size([4, 16]), torch.int64, torch.Size([]))
    """
    found = _INPUT.fullmatch(text.strip())
    name = found["dtype"] or "float32" if found else ""
    dtype = getattr(torch, name, None)
    if not text.strip() or not isinstance(dtype, torch.dtype) or found is None:
        problem = f"{name!r} is not a type of torch" if found and text.strip() else "it is not a shape"
        raise NoModel(f"--input {text!r}: {problem}; write 4x16:float32, or :float32 for a number")
    shape = [int(size) for size in (found["shape"] or "").split("x") if size]
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape).to(dtype)
    return torch.randint(0, 2, shape).to(dtype)


def load_model(place: str, inputs: Sequence[str], device: torch.device, train: bool) -> Model:
    """The model on a device, with its arguments; modules and tensors at the top level of its file move there, too."""
    found = _PLACE.fullmatch(place)
    if found is None or not found["name"]:
        raise NoModel(f"{place}: say what to explain: {place.rstrip(':')}:name")
    given = [parse_input(text) for text in inputs]
    module = _imported(Path(found["file"]))
    value = _looked_up(module, found["name"], place)
    function, arguments = _callable(value, place)
    if arguments is None:
        arguments = given or _inputs_of(module, place)
    elif given:
        raise NoModel(f"{place} brings its own arguments: --input has no place")
    _move_top_level(module, device)
    if isinstance(function, nn.Module):
        function = function.to(device).train(train)
    args, kwargs = _arguments(arguments)
    args, kwargs = tree_map(lambda one: one.to(device) if isinstance(one, torch.Tensor) else one, (args, kwargs))
    return Model(found["name"], function, args, kwargs)


def _imported(path: Path) -> ModuleType:
    if not path.is_file():
        raise NoModel(f"there is no file {path}")
    name = f"explained_{path.stem}"  # not the stem alone: a file called random.py must not be Python's
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look there
    sys.path.insert(0, str(path.resolve().parent))  # as `python model.py` would
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise NoModel(f"{path} cannot be imported: {error_line(error)}") from error
    return module


def _looked_up(module: ModuleType, name: str, place: str) -> Any:
    value: Any = module
    for part in name.split("."):
        if not hasattr(value, part):
            known = [key for key, one in vars(module).items() if callable(one) and not key.startswith("_")]
            own = [key for key in known if getattr(vars(module)[key], "__module__", "") == module.__name__]
            hint = f"; it has {', '.join((own or known)[:8])}" if known else ""
            raise NoModel(f"{place}: there is no {name!r} in the file{hint}")
        value = getattr(value, part)
    return value


def _callable(value: Any, place: str) -> tuple[Callable[..., Any], Any]:
    """(what to compile, its arguments or None)."""
    if isinstance(value, type) and issubclass(value, nn.Module):
        try:
            return value(), None
        except TypeError as error:
            raise NoModel(
                f"{place} cannot be made without arguments ({error_line(error)}): give an instance"
            ) from error
        except Exception as error:
            raise NoModel(f"{place}() raised {error_line(error)}") from error
    if isinstance(value, nn.Module):
        return value, None
    if not callable(value):
        raise NoModel(f"{place} is {type(value).__name__}, which cannot be called")
    if not _takes_nothing(value):
        return value, None
    try:
        made = value()
    except Exception as error:
        raise NoModel(f"{place}() raised {error_line(error)}") from error
    if isinstance(made, nn.Module):
        return made, None
    if isinstance(made, tuple) and len(made) == 2 and callable(made[0]):
        return made
    raise NoModel(f"{place} takes no arguments: it must return (callable, arguments), not {type(made).__name__}")


def _takes_nothing(function: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # of a builtin: torch.relu
        return False
    return not parameters


def _inputs_of(module: ModuleType, place: str) -> Any:
    for name in _INPUT_NAMES:
        if hasattr(module, name):
            value = getattr(module, name)
            try:
                return value() if callable(value) else value
            except Exception as error:
                raise NoModel(f"{name}() of {place} raised {error_line(error)}") from error
    raise NoModel(f"{place}: what is it called with? --input 4x16:float32, or `inputs = …` in the file")


def _arguments(given: Any) -> tuple[Sequence[Any], Mapping[str, Any]]:
    if isinstance(given, Mapping):
        return (), dict(given)
    return (tuple(given), {}) if isinstance(given, (list, tuple)) else ((given,), {})


def _move_top_level(module: ModuleType, device: torch.device) -> None:
    for name, value in list(vars(module).items()):
        if isinstance(value, nn.Module):
            value.to(device)
        elif isinstance(value, torch.Tensor):
            setattr(module, name, value.to(device))


def error_line(error: BaseException) -> str:
    """An error in one line.

    >>> error_line(ValueError("two\\nlines"))
    'ValueError: two'
    """
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__
