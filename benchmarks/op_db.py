"""Records PyTorch's op_db on a device against the CPU as ``results/NAME.json``.

    python benchmarks/op_db.py --workers 2 --record op_db
    python benchmarks/op_db.py --dtypes all --workers 16 --seconds 480 --keep op_db.jsonl --record op_db_all

``--keep FILE`` writes each result as it comes, and a run that finds the file goes on from there: a run may be cut
(``--seconds``, Ctrl-C) or split (``--shard 0/4`` and so on, and the files joined with cat).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.recording import record
from bringup.kit.op_cases import CaseResult
from bringup.kit.op_checks import OpReport, Progress, progress_display, run_op_checks


def kept(file: Path | None) -> list[CaseResult]:
    """The results that an earlier run wrote; a last line that was cut is left out."""
    lines = file.read_text(encoding="utf-8").splitlines() if file and file.exists() else []
    return [CaseResult.from_row(json.loads(line)) for line in lines if line.endswith("}")]


@contextmanager
def keeping(file: Path | None) -> Iterator[Progress]:
    """A progress display that also writes the results down."""
    with file.open("a", encoding="utf-8") if file else nullcontext() as stream, progress_display() as show:

        def progress(done: int, total: int, result: CaseResult) -> None:
            if stream is not None:
                stream.write(json.dumps(result.to_row()) + "\n")
                stream.flush()
            show(done, total, result)

        yield progress


def recorded_data(report: OpReport, shard: str) -> dict[str, Any]:
    """The report's JSON with totals: cases by kind and status, and how many sample inputs were run."""
    by_kind: dict[str, dict[str, int]] = {}
    for (kind, _), counter in report.counts().items():
        for status, count in counter.items():
            row = by_kind.setdefault(kind, {})
            row[status] = row.get(status, 0) + count
    samples = sum(result.samples_run for result in report.results)
    declared = len(report.verdict.declared)
    written = report.to_json()
    written["settings"].pop("BRINGUP_CACHE", None)  # a folder of one machine
    return {"shard": shard, "sample_inputs": samples, "in_gaps": declared, "by_kind": by_kind, **written}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="sim")
    parser.add_argument("--kinds", default="forward,backward,error")
    parser.add_argument("--dtypes", default="float32", help="names, or all")
    parser.add_argument("--samples", default="all", help="a number, or all")
    parser.add_argument("--ops", help="patterns, separated by commas")
    parser.add_argument("--workers", type=int, help="processes; all cores by default")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for one case")
    parser.add_argument("--seconds", type=float, help="cut the run after so long")
    parser.add_argument("--shard", default="0/1", help="a part of the cases: 0/4, 1/4, …")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="results as they come, one JSON object a line")
    parser.add_argument("--record", metavar="NAME", help="write results/NAME.json")
    options = parser.parse_args()
    part, _, of = options.shard.partition("/")
    with keeping(options.keep) as progress:
        report = run_op_checks(
            options.device,
            kinds=options.kinds.split(","),
            dtypes=options.dtypes.split(","),
            ops=options.ops.split(",") if options.ops else None,
            samples=0 if options.samples == "all" else int(options.samples),
            workers=options.workers,
            timeout=options.timeout,
            progress=progress,
            shard=(int(part), int(of)),
            seconds=options.seconds,
            earlier=kept(options.keep),
        )
    print(report.summary())
    if options.record:
        print(f"written: {record(options.record, recorded_data(report, options.shard))}")
    return report.exit_code


if __name__ == "__main__":
    sys.exit(main())
