"""The parts that write a kernel's statements as C. A dialect takes those that suit it and brings the others."""

from __future__ import annotations

from bringup.ir.expr import Load
from bringup.ir.index_proof import Facts
from bringup.ir.kernel import Kernel
from bringup.ir.walk import all_values
from bringup.targets.c.access import Accesses
from bringup.targets.c.expr import Values
from bringup.targets.c.lanes import Lanes
from bringup.targets.c.loops import Loops
from bringup.targets.c.operations import Operations
from bringup.targets.c.options import COptions
from bringup.targets.c.scope import Scopes
from bringup.targets.c.statements import Statements


class Parts:
    """The parts for one function; each knows those before it and no other. A dialect may bring its own ``accesses``."""

    def __init__(self, kernel: Kernel, target: COptions, accesses: type[Accesses] = Accesses) -> None:
        self.w = w = Scopes(target)
        w.facts = Facts(sizes={size.name: (size.low, size.high) for size in kernel.sizes})
        self.ops = Operations(w)
        self.lanes = Lanes(w, frozenset(local.name for local in kernel.locals))
        loaded = {part.buffer for part in all_values(kernel.body) if isinstance(part, Load)}
        self.values = Values(w, self.ops, self.lanes, kernel.written & loaded)
        self.accesses = accesses(w, self.ops, self.lanes, self.values, kernel)
        self.loops = Loops(w)
        self.statements = Statements(w, self.ops, self.values, self.accesses, self.loops)
