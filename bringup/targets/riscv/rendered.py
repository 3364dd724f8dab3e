"""What an emitter makes of one kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from bringup.targets.c.unit import Part


@dataclass(frozen=True)
class Rendered:
    """A C function, the assembly it calls, and the order in which it wants its constants.

    ``packed`` says for a buffer which of its elements lie where: the packed array is ``old.flat[indices]``; -1 is a
    zero that only fills up.
    """

    part: Part
    packed: Mapping[str, npt.NDArray[np.int64]] = field(default_factory=dict)
    assembly: str = ""
    how: str = "loops"
    """Which emitter it was, for reports."""
    surely_best: bool = False
    """Whole vectors from adjacent memory, or a matrix engine: no other form needs to be looked at."""


def packed_array(old: npt.NDArray[Any], indices: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """The packed array of a constant.

    >>> packed_array(np.array([5, 6, 7]), np.array([2, -1, 0])).tolist()
    [7, 0, 5]
    """
    flat = np.where(indices >= 0, old.reshape(-1)[np.maximum(indices, 0)], np.zeros((), old.dtype))
    return flat.astype(old.dtype, copy=False)
