"""The reference of a driver's author, written from the code: docs/reference.md and ``bringup contract --full``."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
from collections.abc import Callable
from typing import Any

from bringup import driver as contract_module
from bringup.driver import (
    DTYPES,
    CallSpec,
    ClockPair,
    CopyKind,
    DeviceSpec,
    Driver,
    EventFlags,
    HostFlags,
    Launch,
    LibraryOp,
    Placement,
    PlacementKind,
    Tensor,
    TensorSpec,
    TraceKind,
    TraceRecord,
)
from bringup.environment import VARIABLES
from bringup.ir.ops import BINARY, COMBINES, REDUCTIONS, UNARY
from bringup.kit.terminal import markdown_table
from bringup.targets.c.options import COptions
from bringup.targets.c.target import VECTOR_BYTES, CTarget

_OPENING = """\
# Reference for driver authors

Written from the code by `make docs`; `bringup contract --full` prints it. [drivers.md](drivers.md) is the tutorial,
[kernels.md](kernels.md) shows how kernels come about, [vendor_ops.md](vendor_ops.md) how a tuned library is listed.
"""


def signature(method: Callable[..., Any]) -> str:
    """A method as its author writes it, without ``self``.

    >>> signature(Driver.alloc)
    'alloc(device: int, nbytes: int) -> int'
    """
    found = inspect.signature(method)
    parameters = [str(p).replace("'", "") for name, p in found.parameters.items() if name != "self"]
    result = "" if found.return_annotation is found.empty else f" -> {found.return_annotation}"
    text = f"{method.__name__}({', '.join(parameters)}){result}".replace("'", "")
    return re.sub(r"<([\w.]+): \d+>", r"\1", text)  # a default that is an enum's member


def _text(thing: Any) -> str:
    return " ".join((inspect.getdoc(thing) or "").split())


def _remarks(cls: type) -> dict[str, str]:
    """The comments of a class's fields: ``#:`` above, ``#`` behind, or a string below."""
    remarks: dict[str, str] = {}
    above: list[str] = []
    last = ""
    for line in inspect.getsource(cls).splitlines():
        field = re.match(r"    (\w+): [^#]*?(?:# (.*))?$", line)
        if line.strip().startswith("#:"):
            above.append(line.strip()[2:].strip())
        elif field and not line.strip().startswith(("def ", "class ", '"')):
            last = field[1]
            remarks[last] = " ".join(above) or field[2] or ""
            above = []
        elif last and re.fullmatch(r'    """.*"""', line) and not remarks[last]:
            remarks[last] = line.strip().strip('"')
        elif not line.strip():
            last = ""
    return remarks


def _fields(cls: Any) -> str:
    remarks = _remarks(cls)
    rows = []
    for field in dataclasses.fields(cls):
        default = "required"
        if isinstance(field.default, enum.Enum):
            default = f"`{type(field.default).__name__}.{field.default.name}`"
        elif field.default is not dataclasses.MISSING:
            default = f"`{field.default!r}`"
        elif field.default_factory is not dataclasses.MISSING:
            default = f"`{field.type}()`"
        rows.append((f"`{field.name}`", f"`{field.type}`", default, remarks.get(field.name, "")))
    return markdown_table(("field", "type", "default", "meaning"), rows)


def _methods() -> str:
    parts = []
    groups: dict[str, list[str]] = {}
    for name, group, _, _ in contract_module.contract():
        groups.setdefault(group, []).append(name)
    for group, names in groups.items():
        rows = [(f"`{signature(getattr(Driver, name))}`", _text(getattr(Driver, name))) for name in names]
        parts += [f"### {group.capitalize()}", markdown_table(("method", "meaning"), rows)]
    rows = [(f"`{signature(method)}`", _text(method)) for method in (Driver.absent_reason, Driver.compiler_identity)]
    parts += ["### Answers for messages and caches", markdown_table(("method", "meaning"), rows)]
    remarks = _remarks(Driver)
    attributes = [(f"`{name}`", remarks[name]) for name in Driver.__annotations__]
    parts += ["### Attributes of the class", markdown_table(("attribute", "meaning"), attributes)]
    return "\n\n".join(parts)


def _ops(table: dict[str, Any]) -> str:
    kinds = {"bool": "bool", "int": "signed", "uint": "unsigned", "float": "float"}
    rows = [
        (f"`{op.name}`", ", ".join(kinds[k] for k in kinds if any(kind.value == k for kind in op.kinds)), op.meaning)
        for op in table.values()
    ]
    return markdown_table(("name", "types", "meaning"), rows)


def _targets() -> str:
    remarks = _remarks(COptions)
    meanings = {"vector": remarks["vector_bytes"], "fma": remarks["fma"], "isa": remarks["isa"]}
    rows = [(f"`{written}`", meanings[key]) for key, written in CTarget.words.items()]
    return (
        f"A text such as `{CTarget(vector_bytes=64, isa='x86-64-v4').describe()}`: the language, a semicolon, and its "
        f"words; these are C's. Lengths of vectors: {', '.join(map(str, VECTOR_BYTES))} bytes. A chip that takes "
        f"another language gets a target ([targets.md](targets.md)), or its driver leaves the kernel methods out and "
        f"lists functions of its library in an op table.\n\n" + markdown_table(("key", "meaning"), rows)
    )


def _formulas() -> str:
    from bringup.lowering import formulas  # imports no torch

    return ", ".join(f"`{name}`" for name in formulas.names())


def _variables() -> str:
    rows = [(f"`{name}`", meaning) for name, meaning in VARIABLES.items()]
    rows += [
        ("`BRINGUP_NAME`", "what a driver of your own reads: `BRINGUP_` and the driver's name in capitals"),
        (
            "`NAME_VISIBLE_DEVICES`",
            "which devices of the driver, in which order: `MYCHIP_VISIBLE_DEVICES=2,0`; empty: none",
        ),
    ]
    return markdown_table(("variable", "meaning"), rows)


def reference() -> str:
    """The page.

    >>> reference().splitlines()[0]
    '# Reference for driver authors'
    """
    rules = (contract_module.__doc__ or "").partition("Rules: ")[2].strip()
    rows = contract_module.contract()
    required = sum(needed for _, _, needed, _ in rows)
    placements, copies, traced, of_hosts, of_events = (
        ", ".join(f"`{kind.name}`" for kind in kinds)
        for kinds in (PlacementKind, CopyKind, TraceKind, HostFlags, EventFlags)
    )
    sections = {
        "## Methods of `bringup.Driver`": f"{required} required, {len(rows) - required} optional. "
        f"{rules[:1].upper()}{rules[1:]}\n\n{_methods()}",
        "## `DeviceSpec`, which `open` returns": f"{_fields(DeviceSpec)}\n\nNames of dtypes: "
        f"{', '.join(f'`{name}`' for name in DTYPES)}.",
        "## `Launch`, which `launch` gets": f"{_text(Launch)}\n\n{_fields(Launch)}",
        "## `Tensor`, which a function of `ops` gets": f"{_text(Tensor)}\n\n{_fields(Tensor)}",
        "## `CallSpec`, which `library_op` gets, and `LibraryOp`": "\n\n".join(
            f"{_text(cls)}\n\n{_fields(cls)}" for cls in (CallSpec, TensorSpec, LibraryOp)
        ),
        "## `TraceRecord` and `ClockPair`": f"{_text(TraceRecord)}\n\n{_fields(TraceRecord)}\n\n"
        f"Kinds: {traced}. {_text(ClockPair)}\n\n{_fields(ClockPair)}",
        "## Flags": f"`HostFlags`: {of_hosts}. `EventFlags`: {of_events}.",
        "## `Placement` and `CopyKind`": f"{_text(Placement)}\n\n{_fields(Placement)}\n\n"
        f"Kinds of a placement: {placements}. Kinds of a copy: {copies}.",
        "## What `target()` returns": _targets(),
        "## Names of reductions": f"`k.reduce(extent, body, NAME)` and `k.scan` fold with "
        f"{', '.join(f'`{name}`' for name in REDUCTIONS)}, or with a function of two states; "
        f"`k.store(…, combine=NAME)` with {', '.join(f'`{name}`' for name in COMBINES)}.",
        "## Names of formulas": f"Functions of `bringup.formulas`: {_formulas()}. `unary(NAME, x)` and "
        f"`binary(NAME, x, y)` reach all that follows.\n\n### Unary\n\n{_ops(UNARY)}\n\n### Binary\n\n{_ops(BINARY)}",
        "## Environment variables": f"{_variables()}\n\nThe values of each are in [environment.md](environment.md).",
    }
    parts = [_OPENING.strip(), *(f"{title}\n\n{text}" for title, text in sections.items())]
    return "\n\n".join(parts).replace("``", "`") + "\n"


if __name__ == "__main__":
    print(reference(), end="")
