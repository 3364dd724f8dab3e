"""Known mistakes that can be put back into the core: each still finds its place in the source."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.order.found_again import BUGS
from tests.sanitize.put_back import MISTAKES

ROOT = Path(__file__).resolve().parents[2]
PLACES = {
    **{bug.name: [(bug.file, bug.old), *([bug.also[:2]] if bug.also else [])] for bug in BUGS},
    **{name: [(f"bringup/csrc/runtime/{e[0]}", e[1]) for e in mistake.edits] for name, mistake in MISTAKES.items()},
}


@pytest.mark.parametrize("name", PLACES)
def test_a_mistake_still_has_its_place(name: str) -> None:
    """A change of the source moves it, and the run that would say so takes an hour."""
    for file, text in PLACES[name]:
        assert (ROOT / file).read_text().count(text) == 1, f"{file} should have this once:\n{text}"
