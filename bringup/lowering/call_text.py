"""A call in words: the op with types and shapes, and the guards that its lowering left behind.

>>> described(("t", 0, 6, (8, 128), (128, 1), 2))
'float32[8, 128]'
"""

from __future__ import annotations

from typing import Any

from bringup import debug
from bringup.compile.kernels import KernelRecord
from bringup.ir.index import Index
from bringup.ir.kernel import Kernel
from bringup.ir.printer import index_text, kernel_text
from bringup.lowering.observation import CallRecord
from bringup.lowering.resolve import is_dense
from bringup.lowering.scalar_types import BY_CODE, OTHERS
from bringup.lowering.symbolic import Trace

_RELATION = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


def described(argument: Any) -> str:
    """An argument or result as the core describes it (bringup/_C.pyi), in words.

    >>> described(("s", 0, None, 2.5, 0)), described([1, 2]), described(("new", 6, (2, 3), (1, 2)))
    ('2.5', '[1, 2]', 'float32[2, 3] strides (1, 2)')
    """
    if isinstance(argument, list):
        return f"[{', '.join(map(described, argument))}]"
    if not isinstance(argument, tuple) or not argument or not isinstance(argument[0], str):
        return repr(argument)
    if argument[0] in ("t", "new"):
        code, sizes, strides = argument[2:5] if argument[0] == "t" else argument[1:4]
        dense = is_dense(sizes, strides)
        kind = BY_CODE[code].name if code in BY_CODE else OTHERS.get(code, f"scalar type {code}")
        return f"{kind}{list(sizes)}" + ("" if dense else f" strides {tuple(strides)}")
    if argument[0] == "arg":
        return f"argument t{argument[1]}"
    return repr(argument[3])  # a number


def signature_text(record: CallRecord) -> str:
    """The op and its arguments: ``aten::exp(float32[8])``."""
    return f"{record.op}({', '.join(map(described, record.arguments))})"


def guard_lines(trace: Trace) -> list[str]:
    """What the lowering asked of sizes, strides and numbers: its kernels serve every call that answers alike.

    >>> trace = Trace()
    >>> bool(trace.symbol("t0_n0", 8) > 4), guard_lines(trace)
    (True, ['t0_n0 > 4'])
    """
    lines = [_comparison(relation, index) for relation, index in trace.guards]
    for slot, relation, number in trace.scalar_guards:
        lines.append(f"scalar {slot} {_RELATION[relation]} {number!r}")
    return lines


def _comparison(relation: str, index: Index) -> str:
    """``index relation 0`` with the constant and what is subtracted on the right-hand side."""
    from bringup.ir.index import from_terms, terms_of

    terms = terms_of(index)
    left = {factors: value for factors, value in terms.items() if factors and value > 0}
    right = {factors: -value for factors, value in terms.items() if factors and value < 0}
    rest = -terms.get((), 0)
    if not left:  # -n + 4 > 0 reads better as 4 > n
        return f"{rest * -1} {_RELATION[relation]} {index_text(from_terms(right))}"
    return f"{index_text(from_terms(left))} {_RELATION[relation]} {index_text(from_terms({**right, (): rest}))}"


def tell(record: CallRecord) -> None:
    """Reports a call that the signature cache did not know; the resolver calls it."""
    name = signature_text(record)
    if record.refusal:
        debug.say(1, f"no kernel for {name}: {record.refusal}")
        return
    if record.known:
        debug.say(2, f"{name}: known structure, plan in {record.seconds['plan'] * 1e6:.0f} µs")
        return
    debug.say(2, f"{name}: lowered in {record.seconds['lowering'] * 1e3:.2f} ms")
    for line in guard_lines(record.trace):
        debug.say(2, f"  guard {line}")
    for kernel in record.kernels:
        _tell_kernel(kernel, record.device)


def _tell_kernel(record: KernelRecord, device: int) -> None:
    if record.origin == "compiled":
        total = sum(record.seconds.values())
        compiler = record.seconds["compile"]
        debug.say(
            1,
            f"kernel {record.source.entry} compiled for device {device} in {total * 1e3:.1f} ms, "
            f"{compiler * 1e3:.1f} of them in the compiler",
        )
    elif record.origin == "disk cache":
        debug.say(2, f"kernel {record.source.entry} from the disk cache in {record.seconds['cache'] * 1e3:.2f} ms")
    else:
        debug.say(2, f"kernel {record.source.entry} is loaded already")
        return
    if debug.level >= 3 and record.cost is not None:
        assert isinstance(record.kernel, Kernel)
        debug.say(3, f"loop IR of {record.source.entry}\n{kernel_text(record.kernel)}")
    debug.say(4, f"source of {record.source.entry}\n{record.source.text}")
