"""What the op-level check runs: one case is one operator of PyTorch's ``op_db``, in one kind, in one dtype.

A case ends in one status. Only ``fail``, ``crash`` and ``timeout`` are defects of the device; ``cpu_fails`` (the CPU
does not agree with itself) and ``skip`` (PyTorch says the CPU has no such op and dtype) are listed and not counted.
"""

from __future__ import annotations

import enum
import fnmatch
import importlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

#: What can be checked of an operator.
KINDS: tuple[str, ...] = ("forward", "backward", "error")
#: The dtype of a case whose inputs bring their own (``error``).
ANY_DTYPE = "any"
#: Which gradients ``--dtypes all`` compares: the widest real type, the usual one and a complex one.
BACKWARD_DTYPES: tuple[str, ...] = ("float32", "float64", "complex64")
#: PyTorch's own list of operators with sample inputs, as ``module:attribute``.
OP_DB = "torch.testing._internal.common_methods_invocations:op_db"


class Status(str, enum.Enum):
    """How a case ended."""

    PASS = "pass"
    FAIL = "fail"
    CRASH = "crash"
    TIMEOUT = "timeout"
    CPU_FAILS = "cpu_fails"
    SKIP = "skip"

    @property
    def is_defect(self) -> bool:
        """Whether the device is to blame, so that the case must be declared as a gap."""
        return self in (Status.FAIL, Status.CRASH, Status.TIMEOUT)


@dataclass(frozen=True, order=True)
class Case:
    """One operator, in one kind, in one dtype: ``Case("nn.functional.relu", "backward", "float32")``."""

    op: str
    kind: str
    dtype: str

    def __str__(self) -> str:
        return f"{self.op} {self.kind} {self.dtype}"


@dataclass
class CaseResult:
    """How one case ended, with the first thing that went wrong.

    ``ran`` and ``failed`` are numbers of samples; ``difference`` is the largest absolute one where nothing but finite
    values differed.
    """

    case: Case
    status: Status
    message: str = ""
    sample: int | None = None
    samples_run: int = 0
    seconds: float = 0.0
    note: str = ""
    ran: list[int] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)
    difference: float | None = None

    def to_row(self) -> dict[str, Any]:
        """A flat dictionary that JSON can hold; ``CaseResult.from_row`` reads it."""
        row = asdict(self)
        row.update(row.pop("case"))
        row["status"] = self.status.value
        row["seconds"] = round(self.seconds, 4)
        return row

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> CaseResult:
        """The result that ``to_row`` wrote."""
        fields = dict(row)
        case = Case(fields.pop("op"), fields.pop("kind"), fields.pop("dtype"))
        return cls(case=case, status=Status(fields.pop("status")), **fields)


def load_op_list(path: str = OP_DB) -> dict[str, Any]:
    """The operators at ``module:attribute`` by full name.

    >>> sorted(load_op_list())[:2]
    ['H', 'T']
    """
    module, _, attribute = path.partition(":")
    return {op_name(op): op for op in getattr(importlib.import_module(module), attribute)}


def op_name(op: Any) -> str:
    """``name`` and, where PyTorch lists an operator several times, its variant: ``div.floor_rounding``."""
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


def dtype_name(dtype: Any) -> str:
    """``torch.float32`` as ``float32``."""
    return str(dtype).removeprefix("torch.")


def supported_dtypes(op: Any, kind: str) -> list[str]:
    """Dtypes in which PyTorch says that the CPU has this op in this kind, sorted."""
    if kind == "error":
        return [ANY_DTYPE] if op.error_inputs_func is not None else []
    if kind == "backward":
        if not op.supports_autograd:
            return []
        differentiable = op.backward_dtypes & op.dtypes
        return sorted(dtype_name(d) for d in differentiable if d.is_floating_point or d.is_complex)
    return sorted(dtype_name(d) for d in op.dtypes)


def select_ops(names: Iterable[str], patterns: Sequence[str] | None) -> list[str]:
    """Names that match any of the glob patterns, sorted; all of them without patterns. No match is an error."""
    names = sorted(names)
    if patterns is None:
        return names
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            raise ValueError(f"no operator of the list matches {pattern!r}; names are like add or nn.functional.relu")
    return [name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]


def list_cases(
    ops: dict[str, Any],
    kinds: Sequence[str],
    dtypes: Sequence[str],
    patterns: Sequence[str] | None = None,
) -> tuple[list[Case], list[Case]]:
    """The cases to run, and those that PyTorch declares not to exist on the CPU (``skip``).

    ``dtypes=("all",)`` takes each dtype an op supports, so it skips none.
    """
    runnable: list[Case] = []
    skipped: list[Case] = []
    for name in select_ops(ops, patterns):
        for kind in kinds:
            supported = supported_dtypes(ops[name], kind)
            if kind == "error":
                wanted: Sequence[str] = (ANY_DTYPE,)
            elif "all" in dtypes:
                wanted = [d for d in supported if kind == "forward" or d in BACKWARD_DTYPES]
            else:
                wanted = dtypes
            for dtype in wanted:
                (runnable if dtype in supported else skipped).append(Case(name, kind, dtype))
    return runnable, skipped
