"""``bringup`` shows its public names, each from one list, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import bringup

STUB = Path(bringup.__file__).with_suffix(".pyi")


def test_dir_shows_public_names_only() -> None:
    names = set(re.findall(r" as (\w+)$", STUB.read_text(), re.MULTILINE))
    assert {name for name in dir(bringup) if not name.startswith("__")} == names
    assert {"Driver", "CDriver", "Tensor", "activate", "export", "lowering"} <= names


def test_every_public_name_can_be_imported(run_python) -> None:
    run_python("""
        import bringup
        from bringup import *
        for name in bringup.__all__:
            assert globals()[name] is getattr(bringup, name), name
    """)


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(bringup, "activat")
