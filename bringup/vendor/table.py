"""Reads ``ops.toml``: which keys an entry may have, and errors that name the file, the entry and the field."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from bringup.driver import DTYPES


class TableError(ValueError):
    """Something is wrong with an op table; the message names the file, the entry and the field."""


@dataclass(frozen=True)
class Entry:
    """One ``[[op]]`` as written; docs/vendor_ops.md says what the keys mean."""

    path: Path
    number: int
    schema: str
    call: str = ""
    calls: dict[str, str] = field(default_factory=dict)
    function: str = ""
    library: str = ""
    declare: str = ""
    dtypes: dict[str, str] = field(default_factory=dict)  # dtype → what {dtype} stands for
    argument_dtypes: dict[str, str] = field(default_factory=dict)
    layouts: str | dict[str, str] = "contiguous"
    when: str = ""
    require: tuple[str, ...] = ()
    initial: str = ""
    elementwise: bool = False
    units: str = ""
    flops: str = "0"
    ignore: tuple[str, ...] = ()
    output: str | dict[str, Any] | list[Any] = ""
    meta: str = ""
    backward: str | dict[str, str] = ""
    autocast: str = ""
    reference: str = ""
    examples: tuple[dict[str, Any], ...] = ()

    @property
    def name(self) -> str:
        """The op, without its arguments: aten::mm, blas::axpy.

        >>> Entry(Path("ops.toml"), 1, "blas::axpy(Tensor y) -> Tensor").name
        'blas::axpy'
        """
        return self.schema.partition("(")[0].strip()

    @property
    def is_full(self) -> bool:
        """True if the entry gives the op's whole schema."""
        return "(" in self.schema

    @property
    def is_aten(self) -> bool:
        """True for an op of PyTorch."""
        return self.name.startswith(("aten::", "prims::"))

    def error(self, key: str, message: object) -> TableError:
        """What to raise about one of its fields."""
        return TableError(f"{self.path}: entry {self.number} ({self.name}): {key}: {message}")


@dataclass(frozen=True)
class Table:
    """An op table: its entries, in the order in which they are tried."""

    path: Path
    entries: tuple[Entry, ...]


LAYOUTS = ("contiguous", "row-major", "blas", "any")
AUTOCAST = ("lower", "float32", "promote")
_TEXTS = {"schema", "call", "function", "library", "declare", "when", "initial", "units", "flops", "meta"}
_TEXTS |= {"autocast", "reference"}
_TEXT_TABLES = {"calls", "argument_dtypes"}
_LISTS = {"require", "ignore", "examples"}
_CUSTOM_ONLY = ("output", "meta", "backward", "autocast", "reference", "require")
KEYS = tuple(one.name for one in fields(Entry) if one.name not in ("path", "number"))


def read_table(path: Path | str) -> Table:
    """Reads a file; raises TableError.

    >>> read_table("no/such/ops.toml")
    Traceback (most recent call last):
    bringup.vendor.table.TableError: no/such/ops.toml: there is no such file
    """
    path = Path(path)
    whole = _toml(path)
    shared: dict[str, Any] = {key: whole.pop(key) for key in ("library", "declare") if key in whole}
    listed = whole.pop("op", [])
    if whole:
        raise TableError(f"{path}: unknown key {next(iter(whole))!r}; known: library, declare, [[op]]")
    if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
        raise TableError(f"{path}: op: write each op as a table [[op]]")
    return Table(path, tuple(_entry(path, n, {**shared, **one}) for n, one in enumerate(listed, 1)))


def _toml(path: Path) -> dict[str, Any]:
    from importlib import import_module

    try:
        toml = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    except ModuleNotFoundError:
        raise TableError(f"{path}: reading it on Python 3.10 needs the package tomli: pip install tomli") from None
    try:
        return dict(toml.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise TableError(f"{path}: there is no such file") from None
    except OSError as error:
        raise TableError(f"{path}: cannot be read: {error.strerror}") from None
    except (toml.TOMLDecodeError, UnicodeDecodeError) as error:
        raise TableError(f"{path}: not valid TOML: {error}") from None


def _entry(path: Path, number: int, given: dict[str, Any]) -> Entry:
    schema = given.get("schema")
    if not isinstance(schema, str) or "::" not in schema:
        shown = "is missing" if schema is None else f"{schema!r} names no op"
        raise TableError(f"{path}: entry {number}: schema: {shown}; write aten::mm, or a whole schema of a new op")
    entry = Entry(path, number, " ".join(schema.split()))
    for key, value in given.items():
        if key not in KEYS:
            raise entry.error(key, f"unknown key; known: {', '.join(KEYS)}")
        wanted = _wrong_type(key, value)
        if wanted:
            raise entry.error(key, f"{value!r} is not {wanted}")
    made = {**given, "schema": entry.schema, "dtypes": _dtypes(entry, given)}
    made |= {key: tuple(given[key]) for key in _LISTS & given.keys()}
    entry = Entry(path, number, **made)
    _check_choices(entry)
    return entry


def _wrong_type(key: str, value: Any) -> str:
    """What a key's value should have been; empty if it is that."""
    if key in _TEXTS:
        return "" if isinstance(value, str) and value.strip() else "a text"
    if key in _TEXT_TABLES:
        good = isinstance(value, dict) and all(isinstance(one, str) for one in value.values())
        return "" if good else "a table of texts"
    if key in ("layouts", "backward"):
        good = isinstance(value, dict) and all(isinstance(one, str) for one in value.values())
        return "" if good or isinstance(value, str) else "a text, or a table of texts"
    if key == "elementwise":
        return "" if isinstance(value, bool) else "true or false"
    if key in _LISTS:
        kind = dict if key == "examples" else str
        good = isinstance(value, list) and all(isinstance(one, kind) for one in value)
        return "" if good else f"a list of {'tables' if kind is dict else 'texts'}"
    return ""  # dtypes and output are looked at where they are used


def _dtypes(entry: Entry, given: dict[str, Any]) -> dict[str, str]:
    if "calls" in given and ("dtypes" in given or "call" in given):
        raise entry.error("calls", "takes the place of call and dtypes")
    listed = given.get("calls") or given.get("dtypes", [])
    if isinstance(listed, str) or not isinstance(listed, (list, dict)):
        raise entry.error("dtypes", f"{listed!r} is neither a list of dtypes nor a table dtype = text")
    for dtype in [*listed, *given.get("argument_dtypes", {}).values()]:
        if dtype not in DTYPES:
            key = "calls" if "calls" in given else "dtypes" if dtype in listed else "argument_dtypes"
            raise entry.error(key, f"{dtype!r} is not a dtype; there are {', '.join(DTYPES)}")
    return {dtype: str(listed[dtype]) if isinstance(listed, dict) else dtype for dtype in listed}


def _check_choices(entry: Entry) -> None:
    ways = [key for key in ("call", "calls", "function") if getattr(entry, key)]
    if len(ways) != 1:
        raise entry.error("call", "an entry has one of call, calls and function" + (f", not {ways}" if ways else ""))
    if not entry.dtypes:
        raise entry.error("dtypes", "say which dtypes the function is for")
    if entry.function and (entry.units or entry.initial):
        raise entry.error("units" if entry.units else "initial", "belongs to a call, not to a Python function")
    layouts = entry.layouts.values() if isinstance(entry.layouts, dict) else [entry.layouts]
    for layout in layouts:
        if layout not in LAYOUTS:
            raise entry.error("layouts", f"{layout!r} is not known; there are {', '.join(LAYOUTS)}")
    if entry.autocast and entry.autocast not in AUTOCAST:
        raise entry.error("autocast", f"{entry.autocast!r} is not known; there are {', '.join(AUTOCAST)}")
    for key in _CUSTOM_ONLY:
        if getattr(entry, key) and (entry.is_aten or not entry.is_full):
            why = "PyTorch's op has its own" if entry.is_aten else "stands in the entry with the op's whole schema"
            raise entry.error(key, why)
    if entry.is_full and not entry.is_aten and bool(entry.output) == bool(entry.meta):
        raise entry.error("output", "a new op needs one of output and meta, which describe its outputs")
