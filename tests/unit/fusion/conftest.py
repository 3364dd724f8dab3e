"""Every graph twice: with its sizes written in, and open."""

from __future__ import annotations

import pytest

from tests.unit.fusion.fusing import Rows


@pytest.fixture(params=["static", "symbolic"])
def rows(request: pytest.FixtureRequest) -> Rows:
    """The number of rows: 6, or a size of the graph that is 6 in this call."""
    return lambda g: g.size("s0", 6) if request.param == "symbolic" else 6
