"""An entry joined with its op: schema looked up or parsed, formulas read, symbols found. Nothing is registered yet."""

from __future__ import annotations

import ast
import ctypes
import importlib
import importlib.util
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from bringup.driver import Driver
from bringup.vendor.call_text import C_TYPES, CallText, is_narrow, prototypes, read_call
from bringup.vendor.formula import Formula, FormulaError, read
from bringup.vendor.op_lookup import check_functional, find_overload
from bringup.vendor.table import Entry, Table


@dataclass(frozen=True)
class Argument:
    """An argument of an op: ``kind`` is tensor, tensors, number (data of the call) or plain (part of its structure)."""

    name: str
    kind: str
    type: str
    optional: bool
    keyword: bool
    has_default: bool
    default: Any


@dataclass(frozen=True)
class VendorCall:
    """The C call for one dtype: its text, its prototypes, and which formulas must fit 32 bits."""

    text: CallText
    declare: str
    narrow: frozenset[Formula]


@dataclass(frozen=True)
class Bound:
    """An entry that can be routed to. ``op`` is the functional overload, such as aten::add.Tensor."""

    entry: Entry
    op: str
    schema: Any  # torch's FunctionSchema
    arguments: tuple[Argument, ...]
    outs: tuple[str, ...]
    calls: Mapping[str, VendorCall]
    addresses: Mapping[str, int]
    function: Callable[..., Any] | None
    layouts: Mapping[str, str]
    when: Formula | None
    require: tuple[Formula, ...]
    units: Formula | None
    flops: Formula
    #: Arguments that the call does not use: they must have their default value.
    unused: tuple[Argument, ...]

    @property
    def tensors(self) -> tuple[str, ...]:
        """The names of its tensors, outputs last."""
        return (*(a.name for a in self.arguments if a.kind == "tensor"), *self.outs)


def bind(table: Table, driver: Driver | None = None) -> list[Bound]:
    """Joins every entry with its op; raises TableError before anything is registered.

    ``function = "driver:matmul"`` is the method of the driver, where one is given.
    """
    schemas: dict[str, Any] = {}
    for entry in table.entries:
        if entry.is_full and not entry.is_aten:
            if entry.name in schemas:
                raise entry.error("schema", "the op is defined twice; later entries give its name alone")
            schemas[entry.name] = _parsed(entry)
    return [_bound(entry, schemas, driver) for entry in table.entries]


def _parsed(entry: Entry) -> Any:
    import torch

    try:
        schema = torch._C.parse_schema(entry.schema)
        check_functional(schema)
    except (RuntimeError, ValueError) as error:
        text = " ".join(str(error).split())
        raise entry.error("schema", f"cannot be used: {text}") from None
    if schema.overload_name:
        raise entry.error("schema", f"a new op has no overload name: write {schema.name}(…)")
    existing = torch._C._jit_get_schemas_for_operator(schema.name)
    if existing and not any(str(one) == str(schema) for one in existing):
        raise entry.error("schema", f"PyTorch has another op of this name: {existing[0]}")
    return schema


def _schema(entry: Entry, defined: Mapping[str, Any]) -> Any:
    import torch

    if entry.name in defined:
        return defined[entry.name]
    try:
        found = find_overload(entry.name)._schema
    except (ValueError, AttributeError) as error:
        raise entry.error("schema", error) from None
    full = f"{found.name}.{found.overload_name}" if found.overload_name else found.name
    if torch._C._dispatch_has_kernel_for_dispatch_key(full, "CompositeImplicitAutograd"):
        raise entry.error("schema", "PyTorch composes it of other ops before a device sees it: list those instead")
    if entry.is_full:
        try:
            given = torch._C.parse_schema(entry.schema)
        except RuntimeError as error:
            raise entry.error("schema", " ".join(str(error).split())) from None
        if str(given) != str(found):
            raise entry.error("schema", f"PyTorch's schema is {found}")
    return found


def _kind(text: str) -> str:
    bare = text.removeprefix("Optional[").removesuffix("]") if text.startswith("Optional[") else text
    if bare in ("Tensor", "number", "float"):
        return "tensor" if bare == "Tensor" else "number"
    return "tensors" if "Tensor" in bare else "plain"


def _bound(entry: Entry, defined: Mapping[str, Any], driver: Driver | None) -> Bound:
    schema = _schema(entry, defined)
    arguments = tuple(
        Argument(a.name, _kind(str(a.type)), str(a.type), str(a.type).startswith("Optional["), a.kwarg_only,
                 a.has_default_value(), a.default_value)
        for a in schema.arguments
    )  # fmt: skip
    many = len(schema.returns) > 1
    outs = tuple(r.name or (f"out{n}" if many else "out") for n, r in enumerate(schema.returns))
    names = {a.name for a in arguments} | set(outs)
    if len(names) != len(arguments) + len(outs):
        raise entry.error("schema", f"an argument has the name of an output: {', '.join(outs)}")

    def formula(key: str, text: str, known: set[str] = names) -> Formula:
        try:
            return read(text, known)
        except FormulaError as error:
            raise entry.error(key, error) from None

    when = formula("when", entry.when) if entry.when else None
    units = formula("units", entry.units) if entry.units else None
    calls = dict(_calls(entry, names | ({"begin", "end"} if units else set())))
    _check_names(entry, arguments, outs)
    used = set(entry.ignore) | {entry.initial} | (when.names if when else set())
    used |= {name for call in calls.values() for name in call.text.names}
    unused = () if entry.function else tuple(a for a in arguments if a.name not in used)
    for argument in unused:
        if argument.kind == "tensors" or not (argument.has_default or argument.optional):
            raise entry.error(
                "call", f"{argument.name} is not used; if that is meant, say ignore = [{argument.name!r}]"
            )
    if calls and units and not any({"begin", "end"} <= call.text.names for call in calls.values()):
        raise entry.error("units", "a call that is split says which part it does: use {begin} and {end}")
    tensors = [a.name for a in arguments if a.kind == "tensor"] + list(outs)
    layouts = entry.layouts if isinstance(entry.layouts, dict) else dict.fromkeys(tensors, entry.layouts)
    return Bound(
        entry,
        f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name,
        schema,
        arguments,
        outs,
        calls,
        _addresses(entry, calls),
        _function(entry, driver) if entry.function else None,
        {name: layouts.get(name, "any") for name in tensors},
        when,
        tuple(formula("require", text) for text in entry.require),
        units,
        formula("flops", entry.flops),
        unused,
    )


def _check_names(entry: Entry, arguments: tuple[Argument, ...], outs: tuple[str, ...]) -> None:
    tensors = {a.name for a in arguments if a.kind == "tensor"}
    named: list[tuple[str, Any, set[str]]] = [
        ("layouts", entry.layouts if isinstance(entry.layouts, dict) else {}, tensors | set(outs)),
        ("argument_dtypes", entry.argument_dtypes, tensors | set(outs)),
        ("ignore", entry.ignore, {a.name for a in arguments}),
        ("initial", [entry.initial] if entry.initial else [], tensors),
        ("backward", entry.backward if isinstance(entry.backward, dict) else {}, tensors),
    ]
    for n, example in enumerate(entry.examples):
        named.append((f"examples[{n}]", example, {a.name for a in arguments}))
    for key, given, known in named:
        for name in given:
            if name not in known:
                raise entry.error(key, f"there is no {name!r} here, only {', '.join(sorted(known))}")


def _calls(entry: Entry, names: set[str]) -> Iterator[tuple[str, VendorCall]]:
    if entry.function:
        return
    for dtype, word in entry.dtypes.items():
        key = "calls" if entry.calls else "call"
        if dtype not in C_TYPES:
            raise entry.error("dtypes", f"C has no type for {dtype}: a call cannot take it")
        text = entry.calls.get(dtype, entry.call)
        declare = entry.declare
        for hole, filled in (("{dtype}", word), ("{type}", C_TYPES[dtype])):
            text, declare = text.replace(hole, filled), declare.replace(hole, filled)
        try:
            call = read_call(text, names)
        except FormulaError as error:
            raise entry.error(key, error) from None
        if not call.symbols:
            raise entry.error(key, f"{text!r} calls no function")
        yield dtype, VendorCall(call, declare, _narrow(entry, call, declare))


def _narrow(entry: Entry, call: CallText, declare: str) -> frozenset[Formula]:
    """Formulas that go into a parameter of 32 bits; a prototype that does not fit the call is an error."""
    declared = prototypes(declare)
    narrow: set[Formula] = set()
    for symbol in call.symbols:
        if symbol not in declared:
            if "#include" in declare:
                continue
            raise entry.error("declare", f"there is no prototype of {symbol}: write it, as in C")
        given = call.arguments(symbol)
        if len(given) != len(declared[symbol]):
            raise entry.error("call", f"{symbol} takes {len(declared[symbol])} arguments, the call has {len(given)}")
        for parameter, argument in zip(declared[symbol], given):
            if is_narrow(parameter):
                narrow.update(part for part in argument if isinstance(part, Formula))
    return frozenset(narrow)


# ---- what the entry names outside the file ----
def library_path(entry: Entry) -> str:
    """Where its library is: beside the table, in a Python package (``package:NAME/PATH``), or known to the loader."""
    if entry.library.startswith("package:"):
        package, _, inside = entry.library.removeprefix("package:").partition("/")
        found = importlib.util.find_spec(package)
        if found is None or not found.submodule_search_locations:
            raise entry.error("library", f"the Python package {package} is not installed (pip install {package})")
        return str(Path(found.submodule_search_locations[0]) / inside)
    beside = entry.path.parent / entry.library
    return str(beside.resolve()) if beside.exists() else entry.library


def _addresses(entry: Entry, calls: Mapping[str, VendorCall]) -> dict[str, int]:
    """Where the functions of its library are; none if the driver's own linker is to find them."""
    if not entry.library or not calls:
        return {}
    path = library_path(entry)
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise entry.error("library", f"{entry.library} cannot be loaded: {error}") from None
    found = {}
    for symbol in dict.fromkeys(symbol for call in calls.values() for symbol in call.text.symbols):
        try:
            found[symbol] = ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value or 0
        except AttributeError:
            raise entry.error("calls" if entry.calls else "call", f"{path} has no symbol {symbol}") from None
    return found


def _function(entry: Entry, driver: Driver | None) -> Callable[..., Any]:
    """The entry's Python function, or the driver's method where it says ``driver:method``."""
    where, _, name = entry.function.partition(":")
    if where != "driver" or driver is None or (entry.path.parent / "driver.py").exists():
        return imported(entry, "function", entry.function)
    method = getattr(driver, name, None)
    if not callable(method):
        close = get_close_matches(name, dir(driver), n=1)
        hint = f": did you mean driver:{close[0]}?" if close else ""
        raise entry.error("function", f"{type(driver).__name__} of driver '{driver.name}' has no method {name!r}{hint}")
    return method  # type: ignore[no-any-return]


def imported(entry: Entry, key: str, name: str) -> Callable[..., Any]:
    """The Python function ``module:function``; the module may lie beside the table."""
    module_name, colon, function_name = name.partition(":")
    if not colon or not function_name:
        raise entry.error(key, f"{name!r} is not of the form module:function")
    beside = entry.path.parent / f"{module_name}.py"
    try:
        module = _from_file(module_name, beside) if beside.exists() else importlib.import_module(module_name)
        function = getattr(module, function_name)
    except Exception as error:  # whatever the module does when it is imported
        raise entry.error(key, f"{name}: {type(error).__name__}: {error}") from error
    if not callable(function):
        raise entry.error(key, f"{name} is not callable")
    return function  # type: ignore[no-any-return]


def _from_file(name: str, path: Path) -> Any:
    import sys

    full = f"bringup_op_table_{abs(hash(str(path.resolve()))):x}_{name}"
    if full not in sys.modules:
        spec = importlib.util.spec_from_file_location(full, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules[full] = module
    return sys.modules[full]


def parsed_expression(entry: Entry, key: str, text: str, names: set[str]) -> ast.expr:
    """A formula over ops, such as ``grad * a`` or ``ops.blas.ger(x, y)``: its names are checked, nothing is run."""
    try:
        tree = ast.parse(text, mode="eval").body
    except SyntaxError as error:
        raise entry.error(key, f"{text!r} cannot be read: {error.msg}") from None
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id not in names | {"torch", "ops"}:
            raise entry.error(
                key, f"{text!r}: there is no {node.id!r} here, only {', '.join(sorted(names))}, torch, ops"
            )
        if isinstance(node, (ast.Lambda, ast.NamedExpr, ast.Await, ast.Yield)):
            raise entry.error(key, f"{text!r}: {ast.unparse(node)!r} is not a formula")
    return tree
