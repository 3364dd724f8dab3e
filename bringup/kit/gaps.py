"""Declared gaps: what a device is known not to do, each with a reason, held strictly.

A file has one entry per operator and kind::

    [[gap]]
    op = "linalg.eig"
    kind = "backward"
    dtypes = ["*"]
    reason = "the device has no complex matrix product yet"

Two more fields may narrow it: ``at_most = 2e-5`` is the largest difference of values that is declared (a wrong shape or
NaN is not); ``samples = [14]`` are those that fail, without ``at_most`` the only ones that may: the gap is judged where
all of them ran. ``since = "2.13"`` says that an older torch may lack
the operator. A defect without an entry, or beyond one, fails the
run, and so does an entry whose cases all pass or whose operator does not exist.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bringup.kit.op_cases import KINDS, Case, CaseResult, Status

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: One file per device, by name.
GAPS_FOLDER = Path(__file__).with_suffix("")


class GapsFileError(ValueError):
    """A gaps file cannot be read as one; the message names the file and the entry."""


@dataclass(frozen=True)
class Gap:
    """One declared gap. ``dtypes`` holds names, or ``"*"`` for all."""

    op: str
    kind: str
    dtypes: tuple[str, ...]
    reason: str
    samples: tuple[int, ...] = ()
    at_most: float | None = None
    since: str = ""

    def covers(self, case: Case) -> bool:
        """Whether this gap speaks of that case."""
        return (self.op, self.kind) == (case.op, case.kind) and ("*" in self.dtypes or case.dtype in self.dtypes)

    def declares(self, result: CaseResult) -> bool:
        """Whether this gap declares what went wrong: the case, the samples that failed, and by how much."""
        if not self.covers(result.case):
            return False
        if self.at_most is not None:  # rounding, which may strike another sample on another CPU
            return result.difference is not None and result.difference <= self.at_most
        return not self.samples or (bool(result.failed) and set(result.failed) <= set(self.samples))

    def tried(self, result: CaseResult) -> bool:
        """Whether that run of a case could have shown the gap: a gap of samples is shown only where all of them ran."""
        return self.covers(result.case) and set(self.samples) <= {*result.ran, *result.failed}

    def __str__(self) -> str:
        return f"{self.op} {self.kind} {','.join(self.dtypes)}"


@dataclass
class GapVerdict:
    """What the declared gaps and the results of a run say about each other."""

    undeclared: list[CaseResult] = field(default_factory=list)
    declared: list[CaseResult] = field(default_factory=list)
    passing: list[Gap] = field(default_factory=list)
    unknown: list[Gap] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether every defect is declared and every declaration is true."""
        return not (self.undeclared or self.passing or self.unknown)


def default_gaps_file(device: str) -> Path | None:
    """The gaps file that bringup ships for a device (``sim``, ``sim:1``), if there is one.

    A driver whose options choose a mode (``BRINGUP_SIM="mode=library"``) may have a file for it: sim.library.toml.
    """
    name = device.partition(":")[0]
    modes = re.findall(r"\bmode=(\w+)", os.environ.get(f"BRINGUP_{name.upper()}", ""))
    candidates = [GAPS_FOLDER / f"{name}.{mode}.toml" for mode in modes[-1:]] + [GAPS_FOLDER / f"{name}.toml"]
    return next((path for path in candidates if path.exists()), None)


def load_gaps(path: str | Path) -> list[Gap]:
    """The gaps in a file; anything unclear in it is a ``GapsFileError``."""
    try:
        document = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise GapsFileError(f"{path}: {error}") from error
    if unknown := set(document) - {"gap"}:
        raise GapsFileError(f"{path}: unknown {', '.join(sorted(unknown))}; a gaps file holds [[gap]] entries only")
    gaps = [_parse(entry, f"{path}: gap {number}") for number, entry in enumerate(document.get("gap", []), 1)]
    seen: dict[tuple[str, str, str], Gap] = {}
    for gap in gaps:
        for dtype in gap.dtypes:
            if (gap.op, gap.kind, dtype) in seen:
                raise GapsFileError(f"{path}: {gap.op} {gap.kind} {dtype} is declared twice")
            seen[gap.op, gap.kind, dtype] = gap
    return gaps


def _parse(entry: dict[str, Any], where: str) -> Gap:
    wanted, optional = {"op", "kind", "dtypes", "reason"}, {"samples", "at_most", "since"}
    if set(entry) - optional != wanted:
        wrong = ", ".join(sorted((set(entry) - optional) ^ wanted))
        raise GapsFileError(
            f"{where}: needs op, kind, dtypes and reason, may have samples, at_most, since; missing or unknown: {wrong}"
        )
    for name in ("op", "kind", "reason"):
        if not isinstance(entry[name], str) or not entry[name].strip():
            raise GapsFileError(f"{where}: {name} must be a text that is not empty")
    if entry["kind"] not in KINDS:
        raise GapsFileError(f"{where}: kind {entry['kind']!r} is none of {', '.join(KINDS)}")
    dtypes, samples, at_most = entry["dtypes"], entry.get("samples", [0]), entry.get("at_most", 1.0)
    if not isinstance(dtypes, list) or not dtypes or not all(isinstance(d, str) for d in dtypes):
        raise GapsFileError(f'{where}: dtypes must be a list such as ["*"] or ["float16", "bfloat16"]')
    if not isinstance(samples, list) or not samples or not all(type(n) is int and n >= 0 for n in samples):
        raise GapsFileError(f"{where}: samples must be a list of numbers such as [14]")
    if type(at_most) not in (int, float) or not 0 < at_most < float("inf"):
        raise GapsFileError(f"{where}: at_most must be a positive number such as 2e-5")
    named, since = tuple(entry.get("samples", ())), entry.get("since", "")
    if "since" in entry and not (isinstance(since, str) and re.fullmatch(r"\d+\.\d+", since)):
        raise GapsFileError(f'{where}: since must be a version of torch such as "2.13"')
    return Gap(entry["op"], entry["kind"], tuple(dtypes), entry["reason"], named, entry.get("at_most"), since)


def _minor(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def judge(
    gaps: Sequence[Gap], results: Iterable[CaseResult], op_names: Iterable[str], torch_version: str = ""
) -> GapVerdict:
    """Hold the gaps against the results: undeclared defects, declared ones, gaps that pass, gaps of no operator.

    A gap is judged on those of its cases that ran and counted; a run that leaves all of them out says nothing about it.
    """
    verdict = GapVerdict()
    known = set(op_names)
    older = _minor(torch_version) if torch_version else ()
    verdict.unknown = [gap for gap in gaps if gap.op not in known and not (older and older < _minor(gap.since))]
    failing: set[Gap] = set()
    tried: set[Gap] = set()
    for result in results:
        if result.status.is_defect:
            declaring = [gap for gap in gaps if gap.declares(result)]
            (verdict.declared if declaring else verdict.undeclared).append(result)
            failing.update(gap for gap in gaps if gap.covers(result.case))  # a gap that fails otherwise does not pass
        if result.status.is_defect or result.status is Status.PASS:
            tried.update(gap for gap in gaps if gap.tried(result))
    verdict.passing = [gap for gap in gaps if gap in tried and gap not in failing]
    return verdict
