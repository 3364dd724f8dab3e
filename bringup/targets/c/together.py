"""Several kernels in one translation unit, so that one run of the compiler makes them all.

What a kernel has for itself at file scope is called ``bu_…`` or ``bringup_…``; here these names get its number. Types
and macros are the same in all kernels, or defined again before they are used.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from bringup.targets.source import Source

_OWN_NAME = re.compile(r"\b(?:bu|bringup)_\w+")


def together(sources: Sequence[Source]) -> tuple[str, list[str]]:
    """One text of all sources, and the entry of each.

    >>> from bringup.ir.index import Int
    >>> together([Source("void bringup_k(void) {}", "bringup_k", Int(1))] * 2)
    ('void bringup_k_0(void) {}\\nvoid bringup_k_1(void) {}', ['bringup_k_0', 'bringup_k_1'])
    """
    texts = [_OWN_NAME.sub(rf"\g<0>_{n}", source.text) for n, source in enumerate(sources)]
    return "\n".join(texts), [f"{source.entry}_{n}" for n, source in enumerate(sources)]
