"""Every op with a kernel against the CPU's eager one, by family, size, shape and dtype, forward and backward.

python benchmarks/ops.py                                             # all rows, hours
python benchmarks/ops.py --rotate --size cache --size memory --seconds 0.1 --json results/ops.json  # about 30 minutes
python benchmarks/ops.py --family sorting --family unique --size memory
python benchmarks/ops.py --only 'topk|sort' --seconds 1 --json results/ops.json --plot build/ops.png
python benchmarks/ops.py --threads 8                                 # both sides with 8 threads
python benchmarks/ops.py --compare results/ops.json build/ops.json   # what changed between two runs
python benchmarks/ops.py --coverage                                  # ops with a kernel that no row reaches

Both sides run in this process, pinned to as many cores as they have threads, in short alternating bursts (timing.py).
A/A is CPU against CPU. A row whose A/A or spread is too wide is noisy: it is shown, and never counted as met. With
--json a run that was stopped goes on where it was when it is started again on the same commit. Backward is the gradient
alone: the forward pass it needs has run before.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import geometric_mean, median, quantiles
from time import perf_counter
from typing import TYPE_CHECKING, Any

from op_families import DTYPES, FAMILIES, SIZES, UNMEASURED
from op_rows import CONSTANTS, Case, cases, rotated
from recording import commit, record
from timing import Pair, Side, compare

if TYPE_CHECKING:
    pass

#: What the project wants: geometric mean over families, 90 of 100 rows, and any single row at the two larger sizes.
AIMS = {"float32": 0.95, "bfloat16": 1.0}
P90, LARGEST = 1.3, 2.0
#: From here on a row is named in the summary.
EXCEPTION = 1.5
CALLS_PER_ROUND = 12  # three sides in four bursts
MOST_ROUNDS = 25
LONGEST_BURST = 0.01  # seconds: of calls this long, what the host does beside the device's work no longer counts


@dataclass(frozen=True)
class Row:
    """One measured case; seconds per call."""

    key: str
    family: str
    op: str
    statement: str
    shape: tuple[int, ...]
    size: str
    dtype: str
    direction: str
    cpu: float
    device: float
    ratio: float
    control: float
    uncertainty: float
    noisy: bool
    fallback: bool = False


def pin(threads: int) -> None:
    """Keeps this process on as many cores as it has threads: the last ones, as the first also serve interrupts."""
    cores = sorted(os.sched_getaffinity(0))
    if threads > len(cores):
        sys.exit(f"--threads {threads}: this process may use {len(cores)} cores")
    os.sched_setaffinity(0, cores[-threads:])


def side(case: Case, device: str) -> tuple[str, dict[str, Any], Callable[[], object]]:
    """(statement, its names, a function that runs it once) on a device."""
    import torch

    space: dict[str, Any] = {"torch": torch, "F": torch.nn.functional}
    for name, value in case.tensors().items():
        moved = value if name == "host" else _moved(value, device)
        if case.direction == "backward" and name not in CONSTANTS and isinstance(moved, torch.Tensor):
            moved.requires_grad_(moved.is_floating_point())
        space[name] = moved
    statement = case.statement
    if case.direction == "backward":
        result = eval(statement, space)
        result = result if isinstance(result, torch.Tensor) else result[0]
        wanted = [value for value in space.values() if isinstance(value, torch.Tensor) and value.requires_grad]
        space = {
            "grad": torch.autograd.grad,
            "result": result,
            "wanted": wanted,
            "direction": torch.ones_like(result),
        }
        statement = "grad(result, wanted, direction, retain_graph=True, allow_unused=True)"
    return statement, space, lambda: eval(statement, space)


def _moved(value: Any, device: str) -> Any:
    if isinstance(value, list):
        return [_moved(part, device) for part in value]
    return value.to(device, copy=True)


def measure(case: Case, device: str, seconds: float) -> Row:
    """One row; ``seconds`` is about how long the comparison may take."""
    import torch

    import bringup

    def synchronize() -> None:
        torch.accelerator.synchronize(device)

    there, here = side(case, device), side(case, "cpu")
    before = bringup.fallbacks().calls
    there[2]()  # compiles
    fallback = bringup.fallbacks().calls != before
    start = perf_counter()
    here[2]()
    there[2]()
    synchronize()
    rounds = max(2, min(MOST_ROUNDS, int(seconds / ((perf_counter() - start) * CALLS_PER_ROUND * 0.75))))
    pair = compare(Side(*here[:2]), Side(*there[:2], synchronize), rounds, LONGEST_BURST)
    return row_of(case, pair, fallback)


def row_of(case: Case, pair: Pair, fallback: bool) -> Row:
    """What is written down of a measurement."""
    return Row(
        case.key,
        case.family,
        case.op,
        case.statement,
        case.shape,
        case.size,
        case.dtype,
        case.direction,
        pair.cpu,
        pair.device,
        pair.ratio,
        pair.control,
        pair.uncertainty,
        pair.noisy,
        fallback,
    )


# ---- what rows say together ----
def families(rows: Iterable[Row]) -> dict[str, float]:
    """Geometric mean of the ratios by family."""
    ratios: dict[str, list[float]] = {}
    for row in rows:
        ratios.setdefault(row.family, []).append(row.ratio)
    return {family: geometric_mean(values) for family, values in ratios.items()}


def p90(ratios: Sequence[float]) -> float:
    """The ratio that nine of ten rows stay below."""
    return quantiles(ratios, n=10)[-1] if len(ratios) > 1 else ratios[0]


def summary(rows: Sequence[Row]) -> list[str]:
    """Sentences about the aims; only rows that are not noisy count."""
    quiet, lines = [row for row in rows if not row.noisy], []
    lines.append(f"{len(rows)} rows, {len(rows) - len(quiet)} of them noisy (shown, not judged)")
    for dtype in sorted({row.dtype for row in quiet}):
        some = [row for row in quiet if row.dtype == dtype]
        mean = geometric_mean(families(some).values())
        aim = AIMS.get(dtype)
        verdict = "" if aim is None else f", aim {aim}: {'met' if mean <= aim else 'NOT met'}"
        ninth = p90([row.ratio for row in some])
        lines.append(f"{dtype}: geometric mean over families {mean:.2f}{verdict}; p90 {ninth:.2f} (aim {P90})")
    large = [row for row in quiet if row.size != "small" and row.ratio > LARGEST]
    lines.append(f"rows above {LARGEST} at the two larger sizes: {len(large)}")
    unmeasured = sorted({row.op for row in rows if row.fallback})
    if unmeasured:
        lines.append(f"ran on the CPU's kernel: {', '.join(unmeasured)}")
    return lines


def table(title: str, head: Sequence[str], body: Sequence[Sequence[str]]) -> None:
    """Prints a table, with rich where it is installed."""
    try:
        from rich import box
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        widths = [max(len(line[i]) for line in [head, *body]) for i in range(len(head))]
        print(title)
        for line in [head, *body]:
            print("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())
        return
    shown = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for place, name in enumerate(head):
        shown.add_column(name, justify="right" if place else "left", no_wrap=True)
    for line in body:
        shown.add_row(*line)
    console = Console()
    console.width = max(console.width, 120)
    console.print(shown)


def print_rows(rows: Sequence[Row], worst: int, title: str) -> None:
    """The worst rows first, then families."""

    def micro(seconds: float) -> str:
        return f"{seconds * 1e6:,.1f}"

    ordered = sorted(rows, key=lambda row: -row.ratio)
    body = [
        (
            f"{row.family} · {row.op}",
            "×".join(map(str, row.shape)),
            row.dtype,
            row.direction,
            micro(row.cpu),
            micro(row.device),
            f"{row.ratio:.2f}",
            f"{row.uncertainty:.0%}",
            f"{row.control:.2f}",
            "noisy" if row.noisy else "exception" if row.ratio > EXCEPTION else "",
        )
        for row in ordered[:worst]
    ]
    head = ("", "shape", "dtype", "", "CPU µs", "device µs", "ratio", "±", "A/A", "")
    table(f"{title}: the worst {len(body)} of {len(rows)}", head, body)
    by_size = {size: families(row for row in rows if row.size == size) for size in SIZES}
    means = sorted(families(rows).items(), key=lambda item: -item[1])
    cells = [
        (
            family,
            *(f"{by_size[size][family]:.2f}" if family in by_size[size] else "" for size in SIZES),
            f"{mean:.2f}",
            f"{max(row.ratio for row in rows if row.family == family):.2f}",
        )
        for family, mean in means
    ]
    table("geometric means by family", ("", *SIZES, "all", "worst"), cells)


def plot(rows: Sequence[Row], path: Path) -> None:
    """Ratio against size, one panel per family."""
    try:
        import matplotlib
    except ImportError:
        sys.exit("--plot needs matplotlib: pip install matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    means = families(rows)
    order, across = sorted(means, key=lambda family: -means[family]), 5
    down = -(-len(order) // across)
    figure, panels = pyplot.subplots(down, across, figsize=(3 * across, 2.2 * down), sharey=True, squeeze=False)
    colours = {"float32": "#31688e", "bfloat16": "#c8553d", "float64": "#4c9f70", "int64": "#8a5a9e"}
    for place, axes in enumerate(panels.flat):
        if place >= len(order):
            axes.set_visible(False)
            continue
        family = order[place]
        mine = [row for row in rows if row.family == family]
        for dtype, colour in colours.items():
            some = [row for row in mine if row.dtype == dtype]
            axes.scatter([list(SIZES).index(row.size) for row in some], [row.ratio for row in some], s=9, c=colour)
            points = [
                (at, median(found))
                for at, size in enumerate(SIZES)
                if (found := [row.ratio for row in some if row.size == size])
            ]
            axes.plot([x for x, _ in points], [y for _, y in points], color=colour, linewidth=1, label=dtype)
        axes.axhline(1.0, color="black", linewidth=0.8)
        axes.set_yscale("log", base=2)
        axes.set_xticks(range(len(SIZES)), list(SIZES))
        axes.set_title(f"{family} {means[family]:.2f}", fontsize=9)
    handles = [pyplot.Line2D([], [], color=colour, label=dtype) for dtype, colour in colours.items()]
    figure.legend(handles=handles, loc="lower right", ncol=4)
    figure.suptitle("time on the device / time on the CPU (lower is better)")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def read_rows(path: Path) -> tuple[str, list[Row]]:
    """(commit, rows) of a recorded run."""
    try:
        content = json.loads(path.read_text())
        rows = [Row(**{**row, "shape": tuple(row["shape"])}) for row in content["data"]["rows"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        sys.exit(f"{path} is not a run recorded by benchmarks/ops.py --json: {error}")
    return content["commit"], rows


def compare_runs(old: Path, new: Path, worst: int) -> None:
    """What changed between two recorded runs: the most first, rows that are noisy in neither."""
    (one, before), (two, after) = read_rows(old), read_rows(new)
    known = {row.key: row for row in before}
    both = [(known[row.key], row) for row in after if row.key in known]
    quiet = [(was, now) for was, now in both if not was.noisy and not now.noisy]
    changed = sorted(quiet, key=lambda pair: -abs(_log_change(*pair)))
    body = [(now.key, f"{was.ratio:.2f}", f"{now.ratio:.2f}", f"{now.ratio / was.ratio:.2f}") for was, now in changed]
    head = ("", f"ratio at {one}", f"ratio at {two}", "new ÷ old")
    table(f"{len(both)} rows in both runs, {len(both) - len(quiet)} noisy in one", head, body[:worst])
    if quiet:
        mean = geometric_mean(now.ratio / was.ratio for was, now in quiet)
        print(f"geometric mean of new ÷ old: {mean:.3f}")


def _log_change(was: Row, now: Row) -> float:
    from math import log

    return log(now.ratio / was.ratio)


# ---- which ops the rows reach ----
def coverage() -> list[str]:
    """Lowered ops that no statement calls and that op_families.UNMEASURED does not explain."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    from bringup.lowering.registry import LOWERINGS

    seen: set[str] = set()

    class Names(TorchDispatchMode):
        """Notes what a statement calls."""

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = func._schema.name.partition("::")[2]
            seen.update((name, name.removesuffix("_")))
            return func(*args, **(kwargs or {}))

    for case in cases(sizes=("small",)):
        with Names():
            side(case, "cpu")[2]()
    torch.ones(1, device="sim")  # brings all definitions
    lowered = {name.partition("::")[2].partition(".")[0] for name in LOWERINGS if name.startswith("aten::")}
    return sorted(lowered - seen - set(UNMEASURED))


# ---- the run ----
def chosen(options: argparse.Namespace) -> list[Case]:
    """The rows that were asked for."""
    dtypes = "".join(letter for letter, name in DTYPES.items() if not options.dtype or name in options.dtype)
    found = list(cases(options.family, options.size or tuple(SIZES), dtypes, options.every))
    if options.only:
        found = [case for case in found if re.search(options.only, case.key)]
    if options.rotate:
        found = rotated(found)
    if options.sample:
        found = random.Random(0).sample(found, min(options.sample, len(found)))
    if not found:
        sys.exit("no row is left: --list shows what there is")
    return found


def run(todo: Sequence[Case], options: argparse.Namespace, save: Callable[[list[Row]], None]) -> list[Row]:
    """Measures row by row; saves every half minute."""
    rows: list[Row] = []
    if options.json and options.json.exists():
        content = json.loads(options.json.read_text())
        if content.get("commit") == commit() and content["data"].get("threads") == options.threads:
            rows = read_rows(options.json)[1]
    done, saved = {row.key for row in rows}, perf_counter()
    left = [case for case in todo if case.key not in done]
    progress = _progress(len(left))
    for case in left:
        progress(case.key)
        try:
            rows.append(measure(case, options.device, options.seconds))
        except RuntimeError as error:
            print(f"\n{case.key}: {error}", file=sys.stderr)
        if perf_counter() - saved > 30:
            save(rows)
            saved = perf_counter()
    wanted = {case.key for case in todo}
    return [row for row in rows if row.key in wanted]


def _progress(total: int) -> Callable[[str], None]:
    """A function that is told of each row as it begins."""
    if not sys.stderr.isatty():
        return lambda _: None
    start, done = perf_counter(), 0

    def tell(key: str) -> None:
        nonlocal done
        left = (perf_counter() - start) / done * (total - done) / 60 if done else 0.0
        print(f"\r\033[K{done} of {total}, {left:.0f} min left: {key}", end="", file=sys.stderr, flush=True)
        done += 1
        if done == total:
            print(file=sys.stderr)

    return tell


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", action="append", default=[], choices=list(FAMILIES), metavar="NAME")
    parser.add_argument("--size", action="append", default=[], choices=list(SIZES))
    parser.add_argument("--dtype", action="append", default=[], choices=list(DTYPES.values()))
    parser.add_argument("--only", metavar="REGEX", help="rows whose key matches")
    parser.add_argument("--every", action="store_true", help="every shape in every dtype: about twice the rows")
    parser.add_argument(
        "--rotate", action="store_true", help="two rows of each op, size and direction, by a fixed rule"
    )
    parser.add_argument("--sample", type=int, metavar="N", help="N rows, the same each time")
    parser.add_argument("--list", action="store_true", help="print the rows' keys and stop")
    parser.add_argument("--seconds", type=float, default=0.3, help="for each row (default: 0.3)")
    parser.add_argument("--threads", type=int, default=1, help="of both sides (default: 1)")
    parser.add_argument("--device", default="sim", help="torch device to measure (default: sim)")
    parser.add_argument("--worst", type=int, default=40, metavar="N", help="rows to print (default: 40)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows, and go on from there")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="ratio against size by family (needs matplotlib)")
    parser.add_argument(
        "--compare", type=Path, nargs=2, metavar=("OLD", "NEW"), help="two recorded runs; measures nothing"
    )
    parser.add_argument("--coverage", action="store_true", help="ops that no row reaches; measures nothing")
    options = parser.parse_args()

    if options.compare:
        compare_runs(*options.compare, options.worst)
        return
    todo = chosen(options)
    if options.list:
        print("\n".join(case.key for case in todo))
        return
    pin(options.threads)
    os.environ["BRINGUP_SIM"] = f"{os.environ.get('BRINGUP_SIM', '')},mode=kernels,threads={options.threads}"
    os.environ.setdefault("BRINGUP_DRIVERS", options.device.split(":")[0])
    import warnings

    import torch

    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")  # of old spellings in the statements
    if options.coverage:
        missing = coverage()
        print("\n".join(missing) or "every op with a kernel is measured or has a reason not to be")
        sys.exit(bool(missing))
    load = os.getloadavg()

    def save(rows: list[Row]) -> None:
        if options.json:
            by_family = {family: round(mean, 3) for family, mean in families(rows).items()}
            written = [asdict(row) for row in sorted(rows, key=lambda row: -row.ratio)]
            about = {"threads": options.threads, "load": load, "summary": summary(rows), "families": by_family}
            record(options.json, {**about, "rows": written})

    rows = run(todo, options, save)
    save(rows)
    print_rows(rows, options.worst, f"{options.device} against the CPU, {options.threads} thread(s)")
    print("\n".join(summary(rows)))
    if options.plot:
        plot(rows, options.plot)


if __name__ == "__main__":
    main()
