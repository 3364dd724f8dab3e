"""The verifier's error: which rule, why, and the kernel's text with the statement marked."""

from __future__ import annotations

from bringup.ir.kernel import Kernel, Stmt
from bringup.ir.printer import kernel_lines


class VerifyError(ValueError):
    """A kernel that breaks a rule.

    >>> print(VerifyError(Kernel("k"), None, "bounds", "too far"))
    k: bounds: too far
        kernel k
          {
          }
    """

    def __init__(self, kernel: Kernel, stmt: Stmt | None, rule: str, reason: str):
        self.kernel, self.stmt, self.rule, self.reason = kernel, stmt, rule, reason
        lines = []
        marked = False
        for text, owner in kernel_lines(kernel):
            mark = stmt is not None and owner is stmt and not marked
            marked = marked or mark
            lines.append(("--> " if mark else "    ") + text)
        super().__init__(f"{kernel.name}: {rule}: {reason}\n" + "\n".join(lines))
