"""The overloads of a run, each with the recorded calls that its arguments come from.

The supervisor of the workers imports ``SUBJECTS``; the file of recorded calls is in the environment, because a plan
names a module and nothing else.
"""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from tests.overloads.calls import OverloadCall, out_arguments, overload_named
from tests.overloads.capture import read
from tests.overloads.handmade import handmade
from tests.overloads.siblings import borrowed, family_of
from tests.overloads.sweep import CALLS_FILE, JOURNAL, rows_without_findings


@dataclass
class Subject:
    """One overload; named and typed as the op check wants its operators."""

    name: str
    recorded: list[OverloadCall] = field(default_factory=list)
    borrowed: list[OverloadCall] = field(default_factory=list)
    functional: list[str] = field(default_factory=list)
    variant_test_name: str = ""
    dtypes: frozenset[Any] = frozenset({torch.float32})


def make_subjects(recorded: dict[str, list[OverloadCall]], names: list[str]) -> list[Subject]:
    """Returns a subject for each overload that can be called."""
    families: dict[str, dict[str, list[OverloadCall]]] = defaultdict(dict)
    for name, calls in recorded.items():
        families[family_of(name)][name] = calls
    members: dict[str, list[str]] = defaultdict(list)
    for name in names:
        members[family_of(name)].append(name)
    subjects = []
    for name in names:
        if overload_named(name) is None:
            continue
        own = recorded.get(name, [])
        others = {n: calls for n, calls in families[family_of(name)].items() if n != name}
        functional = [
            n for n in members[family_of(name)]
            if overload_named(n) is not None and not overload_named(n)._schema.is_mutable
        ]  # fmt: skip
        need = bool(out_arguments(overload_named(name))) or not own
        subjects.append(Subject(name, own, borrowed(name, others) if need else [], functional))
    return subjects


def _load() -> list[Subject]:
    from bringup.kit import op_table

    file = os.environ.get(CALLS_FILE)
    recorded = {**(read(Path(file)) if file else {}), **handmade()}
    names = sorted(name for name, route in op_table.routes().items() if name.startswith("aten::") and route != "error")
    journal = os.environ.get(JOURNAL)
    done = rows_without_findings(Path(journal)) if journal else {}
    return [subject for subject in make_subjects(recorded, names) if subject.name not in done]


def __getattr__(name: str) -> list[Subject]:
    if name != "SUBJECTS":
        raise AttributeError(name)
    made = _load()
    setattr(sys.modules[__name__], name, made)
    return made
