"""The fallback ledger: which ops ran on the CPU instead of the device, how often, at what cost, from where.

The core counts; this file shows the table and has the policy (allow, warn once per op, error), for all ops or one.
"""

from __future__ import annotations

import itertools
import json
import linecache
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any, overload

from bringup import user_code
from bringup.driver import in_use

if TYPE_CHECKING:
    from bringup.compile.failure import NotCompiled

_ENVIRONMENT = "BRINGUP_FALLBACK"
POLICIES = ("allow", "warn", "error")
_STACK_DEPTH = 6


@dataclass(frozen=True)
class Fallback:
    """One op that fell back to the CPU."""

    op: str
    calls: int
    bytes: int  # moved between device and host
    ms: float
    device: str
    stack: str  # where the first call came from


class FallbackTable(Sequence[Fallback]):
    """Rows of the ledger, the most expensive first. Prints as a table; ``to_json`` gives it to a program.

    >>> table = FallbackTable([Fallback("aten::sort", 2, 4096, 1.5, "sim:0", "")])
    >>> table.calls, table["aten::sort"].bytes
    (2, 4096)
    """

    def __init__(self, rows: Iterable[Fallback]) -> None:
        self._rows = sorted(rows, key=lambda row: (-row.ms, row.op))

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, key: int | str) -> Fallback: ...
    @overload
    def __getitem__(self, key: slice) -> FallbackTable: ...
    def __getitem__(self, key: int | str | slice) -> Fallback | FallbackTable:
        if isinstance(key, slice):
            return FallbackTable(self._rows[key])
        if isinstance(key, int):
            return self._rows[key]
        for row in self._rows:
            if row.op == key:
                return row
        raise KeyError(f"{key} did not fall back (these did: {', '.join(row.op for row in self._rows) or 'none'})")

    @property
    def calls(self) -> int:
        """All calls that fell back."""
        return sum(row.calls for row in self._rows)

    def _cells(self) -> list[tuple[str, ...]]:
        return [
            (row.op, row.device, f"{row.calls:,}", f"{row.bytes:,}", f"{row.ms:.3f}", row.stack.strip().split("\n")[0])
            for row in self._rows
        ]

    def __str__(self) -> str:
        if not self._rows:
            return "no op fell back to the CPU"
        lines = [("op", "device", "calls", "bytes", "ms", "first called from"), *self._cells()]
        widths = [max(len(line[column]) for line in lines) for column in range(6)]
        numbers = (2, 3, 4)
        return "\n".join(
            "  ".join(
                cell.rjust(width) if column in numbers else cell.ljust(width)
                for column, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        )

    __repr__ = __str__

    def __rich__(self) -> Any:
        from rich.table import Table

        table = Table("op", "device", title=f"{self.calls:,} calls fell back to the CPU")
        for heading in ("calls", "bytes", "ms"):
            table.add_column(heading, justify="right")
        table.add_column("first called from")
        for cells in self._cells():
            table.add_row(*cells)
        return table

    def to_json(self) -> str:
        """The rows as a JSON list."""
        return json.dumps([asdict(row) for row in self._rows])


def fallbacks(device: str | None = None) -> FallbackTable:
    """Every op that fell back to the CPU since the start or the last ``reset_fallbacks``, a row for each device.

    ``device`` ("sim:1") leaves out the others.

    >>> print(bringup.fallbacks())  # doctest: +SKIP
    op          device  calls  bytes     ms  first called from
    aten::sort  sim:0       2  4,096  1.500  train.py:12 in step: y = x.sort()
    """
    core = _core()
    if core is None:
        return FallbackTable([])
    rows = FallbackTable(
        Fallback(op, calls, nbytes, ms, f"{in_use.device_type()}:{index}", _stacks.get((op, index), ""))
        for op, index, calls, nbytes, ms in core.ledger()
    )
    return rows if device is None else FallbackTable(row for row in rows if row.device == str(device))


def reset_fallbacks() -> None:
    """Empties the ledger; ops that warned will warn again."""
    core = _core()
    _stacks.clear()
    _warned.clear()
    if core is not None:
        core.ledger_reset()


class fallback_policy:
    """Says what happens when an op falls back to the CPU: ``allow``, ``warn`` once per op, or ``error``.

    >>> bringup.fallback_policy("warn", ops={"aten::sort": "error"})  # doctest: +SKIP
    >>> with bringup.fallback_policy("error"):  # doctest: +SKIP
    ...     model(x)

    It takes effect at once; at the end of a ``with`` block what was before comes back. None keeps the global policy,
    and as the policy of an op removes its override. ``BRINGUP_FALLBACK=warn,aten::sort=error`` does the same.
    """

    def __init__(self, policy: str | None = None, *, ops: Mapping[str, str | None] | None = None) -> None:
        if policy is not None:
            check_policy(policy)
        for op, op_policy in (ops or {}).items():
            _check_op(op)
            if op_policy is not None:
                check_policy(op_policy)
        self._before = _current()
        self.policy = policy or self._before[0]
        overrides = {**self._before[1], **(ops or {})}
        self.ops = {op: op_policy for op, op_policy in overrides.items() if op_policy is not None}
        _set(self.policy, self.ops)

    def __enter__(self) -> fallback_policy:
        return self

    def __exit__(self, *exc_info: object) -> None:
        _set(*self._before)

    def __repr__(self) -> str:
        return f"fallback_policy({self.policy!r}, ops={self.ops!r})"


# ---- the policy ----
#: The global policy and those of single ops; None until one is set.
_policies: tuple[str, dict[str, str]] | None = None
#: (op, device) → where the first call came from.
_stacks: dict[tuple[str, int], str] = {}
_warned: set[str] = set()


def check_policy(policy: str, where: str = "a fallback policy") -> None:
    """Raises ValueError unless ``policy`` is one."""
    if policy not in POLICIES:
        raise ValueError(f"{where} is one of {', '.join(POLICIES)}, not {policy!r}")


def _check_op(op: str) -> None:
    if "::" not in op:
        raise ValueError(f"an op is named with its namespace, such as aten::sort, not {op!r}")


def policy_from_environment() -> tuple[str, dict[str, str]]:
    """What BRINGUP_FALLBACK asks for: the global policy and the overrides per op.

    >>> os.environ["BRINGUP_FALLBACK"] = "warn,aten::sort=error"  # doctest: +SKIP
    >>> policy_from_environment()  # doctest: +SKIP
    ('warn', {'aten::sort': 'error'})
    """
    policy, ops = "allow", {}
    for part in filter(None, (part.strip() for part in os.environ.get(_ENVIRONMENT, "").split(","))):
        op, equals, op_policy = part.partition("=")
        if equals:
            _check_op(op.strip())
            check_policy(op_policy.strip(), f"{_ENVIRONMENT}: the policy of {op.strip()}")
            ops[op.strip()] = op_policy.strip()
        else:
            check_policy(part, _ENVIRONMENT)
            policy = part
    return policy, ops


def install(policy: tuple[str, dict[str, str]]) -> None:
    """Called by activation: the core asks before the first fallback of an op."""
    _core().ask_about_fallbacks(first_fallback)
    _set(*(_policies or policy))


def first_fallback(op: str, device: int, why: str) -> None:
    """Refuses a fallback or warns of it, as the policy says, and notes where it came from."""
    policy = policy_of(op)
    if policy == "error":
        raise NotImplementedError(
            f"{op}{why} and the fallback policy is 'error' (BRINGUP_FALLBACK, bringup.fallback_policy): it would have "
            "run on the CPU"
        )
    if policy == "warn" and op not in _warned:
        _warned.add(op)
        user_code.warn(f"{op}{why} and runs on the CPU; bringup.fallbacks() counts such calls", UserWarning)
    if (op, device) not in _stacks:
        _stacks[op, device] = capture_stack()


def _core() -> Any:
    """The C++ core; None before activation. Raises what went wrong if activation failed."""
    error = in_use.activation_error()
    if error is not None:
        raise RuntimeError(f"bringup is not active: {error}") from error
    return sys.modules.get("bringup._C")


def _current() -> tuple[str, dict[str, str]]:
    _core()  # raises what went wrong
    return _policies or policy_from_environment()


def policy_of(op: str) -> str:
    """The policy of one op, by the name of its overload or of all its overloads.

    >>> policy_of("aten::add.Tensor")  # doctest: +SKIP
    'allow'
    """
    policy, ops = _current()
    return ops.get(op) or ops.get(op.partition(".")[0]) or policy


def _set(policy: str, ops: Mapping[str, str]) -> None:
    global _policies
    core = _core()
    _policies = (policy, dict(ops))
    _warned.clear()  # whoever asks for warnings again wants to see them
    if core is not None:
        core.ledger_ask_again()


_failures_reported: set[str] = set()


def kernel_failed(op: str, failure: NotCompiled) -> None:
    """Warns once per reason that an op runs without its kernel; where a fallback of the op is an error, raises it."""
    if policy_of(op) == "error":
        raise RuntimeError(f"{op}: {failure}") from failure
    if failure.reason not in _failures_reported:
        _failures_reported.add(failure.reason)
        message = f"{op} runs without a kernel (bringup.fallbacks() counts what runs on the CPU): {failure}"
        user_code.warn(message)


# ---- where a call came from ----
def capture_stack() -> str:
    """The user's part of the Python stack, innermost first, one call per line; empty on a thread without Python."""
    return "\n".join(_line_of(frame) for frame in itertools.islice(user_code.user_frames(), _STACK_DEPTH))


def _line_of(frame: FrameType) -> str:
    code = frame.f_code
    source = linecache.getline(code.co_filename, frame.f_lineno).strip()
    place = f"{_short(code.co_filename)}:{frame.f_lineno} in {code.co_name}"
    return f"{place}: {source}" if source else place


def _short(filename: str) -> str:
    relative = os.path.relpath(filename) if os.path.isabs(filename) else filename
    return filename if relative.startswith("..") else relative
