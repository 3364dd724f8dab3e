"""Compiled graphs on the simulated device against the best the CPU can do on the same machine, and our own eager.

python benchmarks/compile.py --quick --keep build/inductor --fill              # first, busy machine or not
python benchmarks/compile.py --quick --keep build/inductor --frozen --fill     # one thread, generated kernels
python benchmarks/compile.py --quick --keep build/inductor --json results/compile.json                   # then, quiet
python benchmarks/compile.py --quick --keep build/inductor --frozen --json results/compile_frozen.json   # not tuned
python benchmarks/compile.py                                  # one thread and two, with and without a BLAS: hours
python benchmarks/compile.py --models mlp,gpt2 --threads 1

Each row is a process of its own, pinned to as many cores as it has threads. In it all sides run in alternating bursts
(timing.py). `best` is the fastest of CPU eager, inductor and, for inference, inductor with freezing. glibc gives no
memory back between calls, so that page faults decide nothing.

Ours compiles into an empty cache. So does inductor without `--keep`; with it the code that inductor made, how long that
took and how many kernels it calls are kept in a folder, and `--fill` does that and nothing else. Compile time is the
first call's CPU time, with compilers that it starts, less a later call's; before it, both have compiled something else,
so that imports, probes of the C++ compiler and precompiled headers are not counted. CPU time is the same on a busy
machine, or nearly.

`inference` is one call without gradients, `training` forward, loss and backward; the optimizers are graphs of their
own. Launches are those that torch.profiler sees, peak memory is what a call allocates above what is held before it.
`blas`: matrix products by OpenBLAS as the device's library (examples/vendor_blas), `generated`: all kernels are ours.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import geometric_mean
from time import perf_counter
from typing import Any

from recording import record
from timing import BURSTS_PER_ROUND, Side, calls_of_burst, compare_all

ROOT = Path(__file__).resolve().parents[1]

PHASES = ("inference", "training")
LIBRARIES = ("generated", "blas")
#: Networks that compilation has to gain as much for as for the graphs that only move memory.
LITTLE_ARITHMETIC = ("lstm", "dlrm")
#: What a timeline has beside launches.
NO_LAUNCH = ("copy ", "wait", "host function")


@dataclass(frozen=True)
class Question:
    """What one row measures."""

    model: str
    phase: str
    threads: int
    library: str
    memory_bound: bool
    backend: str
    seconds: float  # how long the comparison may take
    kept: str | None = None  # where inductor's code is kept

    def __str__(self) -> str:
        return f"{self.model} {self.phase}, {self.threads} thread{'s'[: self.threads - 1]}, {self.library}"


@dataclass(frozen=True)
class Row:
    """What came out; times in seconds, memory in bytes. ``vs_*`` are ratios of bursts side by side."""

    question: Question
    ours: float
    inductor: float
    eager: float
    vs_inductor: float
    vs_eager: float
    noisy: bool
    compile_ours: float
    compile_inductor: float
    kernels_ours: int
    kernels_eager: int
    kernels_inductor: int
    peak_ours: int
    peak_eager: int
    peak_inductor: int
    fallbacks: int
    cpu: float  # CPU eager
    vs_cpu: float
    vs_frozen: float | None = None  # inductor with freezing; None for training

    @property
    def vs_best(self) -> float:
        """Ours ÷ the best baseline."""
        return max(self.vs_inductor, self.vs_cpu, self.vs_frozen or 0.0)

    @property
    def best(self) -> str:
        """Which baseline that is."""
        if self.vs_cpu == self.vs_best:
            return "eager"
        return "inductor" if self.vs_inductor == self.vs_best else "frozen"

    @property
    def vs_compile(self) -> float:
        return self.compile_ours / self.compile_inductor

    @property
    def vs_peak(self) -> float:
        return self.peak_ours / self.peak_inductor


# ---- in a process of its own ----
def runner(question: Question, device: Any, compiler: Callable[[Any], Any]) -> Callable[[], None]:
    """A function that does the work once on a device; ``compiler`` gets what is to be compiled."""
    import torch
    from workloads import EVERYTHING

    work, training = EVERYTHING[question.model], question.phase == "training"
    model, batch = work.model().train(training).to(device), work.batch().to(device)
    if not training:
        forward = compiler(model)

        def infer() -> None:
            with torch.no_grad():
                forward(*batch.inputs)

        return infer

    forward = compiler(lambda *inputs: work.loss(model(*inputs), batch.target))

    def train() -> None:
        forward(*batch.inputs).backward()
        for parameter in model.parameters():  # afterwards, so that gradients count as memory of the call
            parameter.grad = None

    return train


class InductorKernels:
    """Counts what a graph compiled by inductor calls: its own loops, and functions of ATen and its libraries."""

    def __init__(self) -> None:
        self.sources: list[str] = []

    def __enter__(self) -> InductorKernels:
        from torch._inductor.graph import GraphLowering

        self.before = GraphLowering.save_output_code
        GraphLowering.save_output_code = staticmethod(self.sources.append)
        return self

    def __exit__(self, *_: object) -> None:
        from torch._inductor.graph import GraphLowering

        GraphLowering.save_output_code = staticmethod(self.before)

    @property
    def count(self) -> int:
        calls = re.compile(r"^\s+(?:\w+ = )?(?:cpp_fused\w*|extern_kernels\.\w+|torch\.ops\.[\w.]+|aten\.[\w.]+)\(")
        return sum(bool(calls.match(line)) for source in self.sources for line in source.splitlines())


def open_device(question: Question) -> Any:
    import bringup

    return bringup.device("blas_chip" if question.library == "blas" else "sim")


def cpu_seconds() -> float:
    """Of this process and of those it has waited for."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def first_call(run: Callable[[], None], clock: Callable[[], float] = cpu_seconds) -> float:
    start = clock()
    run()
    return clock() - start


def warm_up(backend: str, where: Any) -> None:
    import torch

    x = torch.ones(8, 8, device=where, requires_grad=True)
    torch.compile(lambda x: (x @ x).tanh().sum(), backend=backend)(x).backward()


def inductor_here(question: Question) -> tuple[Callable[[], None], dict[str, Any]]:
    """Inductor's side, compiled; how long that took and how many kernels it calls, perhaps in an earlier run."""
    import torch

    warm_up("inductor", "cpu")
    run = runner(question, torch.device("cpu"), torch.compile)
    with InductorKernels() as kernels:
        seconds = first_call(run)
    found = {"compile_inductor": seconds - min(first_call(run) for _ in range(3)), "kernels_inductor": kernels.count}
    if question.kept is None:
        return run, found
    file = Path(question.kept) / f"{question.model}-{question.phase}-{question.threads}-torch{torch.__version__}.json"
    code = hashlib.sha256("".join(kernels.sources).encode()).hexdigest()
    known = json.loads(file.read_text()) if file.exists() else {}
    if known.get("code") != code:  # compiled just now, and not found there
        known = {"code": code, "found": found}
        file.write_text(json.dumps(known))
    return run, known["found"]


def frozen_here(question: Question) -> Callable[[], None] | None:
    """Inductor with weights as constants, where that means something."""
    import torch

    if question.phase == "training" or question.memory_bound:
        return None
    run = runner(question, torch.device("cpu"), lambda f: torch.compile(f, options={"freezing": True}))
    run()
    return run


def fill_here(question: Question) -> dict[str, Any]:
    """Has inductor compile, so that a later row need not."""
    _, found = inductor_here(question)
    frozen_here(question)
    return found


def timeline(run: Callable[[], None], on_device: bool) -> list[Any]:
    """What torch.profiler sees of a call, in order: the device's work, or the CPU's with its allocations."""
    from torch.profiler import ProfilerActivity, profile

    kind = ProfilerActivity.PrivateUse1 if on_device else ProfilerActivity.CPU
    with profile(activities=[kind], profile_memory=not on_device) as found:
        run()
    return sorted(found.profiler.kineto_results.events(), key=lambda event: event.start_ns())


def peak_on_cpu(run: Callable[[], None]) -> int:
    """The most bytes that a call holds of PyTorch's CPU allocator above what was held before it."""
    sizes = [event.nbytes() for event in timeline(run, on_device=False) if event.name() == "[memory]"]
    return max(itertools.accumulate(sizes), default=0)


def launches(run: Callable[[], None]) -> int:
    """How many launches a call makes."""
    import torch

    cpu = torch.autograd.DeviceType.CPU
    names = [event.name() for event in timeline(run, on_device=True) if event.device_type() != cpu]
    return sum(not name.startswith(NO_LAUNCH) for name in names)


def measure_here(question: Question) -> dict[str, Any]:
    """A row."""
    import torch

    import bringup

    torch.set_num_threads(question.threads)
    device = open_device(question)

    def synchronize() -> None:
        torch.accelerator.synchronize(device)

    def waited(run: Callable[[], None]) -> Callable[[], None]:
        def both() -> None:
            run()
            synchronize()

        return both

    def peak(run: Callable[[], None]) -> int:
        module = getattr(torch, device.type)
        synchronize()
        held = module.memory_allocated(device)
        module.reset_peak_memory_stats(device)
        waited(run)()
        return int(module.max_memory_allocated(device) - held)

    # Ours goes first: what the second compiler finds warm (Dynamo's and SymPy's caches) is inductor's gain.
    warm_up(question.backend, device)
    ours = runner(question, device, lambda f: torch.compile(f, backend=question.backend))
    compile_ours = first_call(waited(ours))
    compile_ours -= min(first_call(waited(ours)) for _ in range(3))
    inductor, found = inductor_here(question)
    eager = runner(question, device, lambda f: f)
    on_cpu = runner(question, torch.device("cpu"), lambda f: f)
    others = {"eager": (eager, synchronize), "inductor": (inductor, nothing), "cpu": (on_cpu, nothing)}
    frozen = frozen_here(question)
    if frozen is not None:
        others["frozen"] = (frozen, nothing)
    for run in (ours, *(run for run, _ in others.values())) * 2:
        run()
    synchronize()
    fallen = bringup.fallbacks().calls
    ours()
    fallen = bringup.fallbacks().calls - fallen

    longest = max(first_call(waited(run), perf_counter) for run in (ours, *(run for run, _ in others.values())))
    # Each side has one call before each burst; ours runs twice; fewer than five rounds give no interval.
    one_round = BURSTS_PER_ROUND * (len(others) + 2) * longest * (1 + calls_of_burst(longest))
    rounds = max(5, min(60, int(question.seconds / one_round)))
    sides = [Side("f()", {"f": run}, wait) for run, wait in others.values()]
    pairs = dict(zip(others, compare_all(Side("f()", {"f": ours}, synchronize), sides, rounds)))
    return {
        **found,
        "ours": pairs["eager"].cpu,
        **{name: pairs[name].device for name in ("inductor", "eager", "cpu")},
        **{f"vs_{name}": 1 / pair.ratio for name, pair in pairs.items()},
        "noisy": any(pair.noisy for pair in pairs.values()),
        "compile_ours": compile_ours,
        "kernels_ours": launches(waited(ours)),
        "kernels_eager": launches(waited(eager)),
        "peak_ours": peak(ours),
        "peak_eager": peak(eager),
        "peak_inductor": peak_on_cpu(inductor),
        "fallbacks": fallen,
    }


def nothing() -> None:
    """The CPU has nothing to wait for."""


# ---- the processes ----
def in_process(question: Question, part: str, folder: str, **extra: str) -> subprocess.CompletedProcess[str]:
    """Measures or counts in a fresh process whose caches are in ``folder``."""
    blas = str(ROOT / "examples" / "vendor_blas" / "blas_driver.py")
    count = str(question.threads)
    environment = {
        **os.environ,
        "BRINGUP_DRIVERS": blas if question.library == "blas" else "sim",
        "BRINGUP_SIM": f"{os.environ.get('BRINGUP_SIM', '')},mode=kernels,threads={count}".lstrip(","),
        "BRINGUP_CACHE": str(Path(folder) / "bringup"),
        "TORCHINDUCTOR_CACHE_DIR": str(Path(question.kept or folder) / "inductor"),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",  # processes that are waited for, so that their time is known
        "OMP_NUM_THREADS": count,
        "OPENBLAS_NUM_THREADS": count,
        # Blocks of any size stay with the process: page faults were a third of DLRM's training.
        "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
        "MALLOC_TRIM_THRESHOLD_": str(1 << 32),
        "MALLOC_TOP_PAD_": str(1 << 26),
        **extra,
    }
    command = [sys.executable, __file__, "--part", part, json.dumps(asdict(question))]
    cores = sorted(os.sched_getaffinity(0))[-question.threads :]
    done = subprocess.run(
        command,
        env=environment,
        capture_output=True,
        text=True,
        cwd=ROOT,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )
    if done.returncode:
        raise RuntimeError(f"{question}: {part} ended with status {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done


def measure(question: Question) -> Row:
    with tempfile.TemporaryDirectory(prefix="bringup-compile-") as folder:
        return Row(question, **json.loads(in_process(question, "measure", folder).stdout.splitlines()[-1]))


def fill(question: Question) -> None:
    with tempfile.TemporaryDirectory(prefix="bringup-compile-") as folder:
        in_process(question, "fill", folder)


def questions(options: argparse.Namespace) -> Iterator[Question]:
    """All rows that were asked for; only networks have matrix products that a BLAS could do."""
    from workloads import EVERYTHING

    for name in options.models:
        work = EVERYTHING[name]
        for phase in options.phases:
            if phase == "training" and work.loss is None:
                continue
            for threads in options.threads:
                for library in LIBRARIES[:1] if work.memory_bound else options.libraries:
                    yield Question(
                        name, phase, threads, library, work.memory_bound, options.backend, options.seconds, options.keep
                    )


# ---- what the numbers say ----
@dataclass(frozen=True)
class Bar:
    """A promise of the project about some rows, and what they measured."""

    words: str
    limit: float
    value: float
    noisy: bool

    @property
    def met(self) -> bool | None:
        """None where a row is noisy: the machine was too busy to say."""
        return None if self.noisy else self.value <= self.limit

    @property
    def verdict(self) -> str:
        return {None: "noisy", True: "met", False: "NOT met"}[self.met]


def judge(rows: Sequence[Row]) -> list[Bar]:
    """Each promise whose rows were measured; geometric means, except where each row must hold."""
    found: list[Bar] = []

    def bar(words: str, limit: float, chosen: Sequence[Row], ratio: str, together: Any = geometric_mean) -> None:
        if chosen:
            # One compilation per row is not repeated, so its noise is not known: the load at the start has to do.
            value = together([getattr(row, ratio) for row in chosen])
            found.append(Bar(words, limit, value, any(row.noisy for row in chosen)))

    networks = [row for row in rows if not row.question.memory_bound]
    memory_bound = [row for row in rows if row.question.memory_bound]
    for phase, limit in (("inference", 1.3), ("training", 1.5)):
        for library, most in (("blas", limit), ("generated", 1.8)):
            asked = (phase, library)
            chosen = [row for row in networks if (row.question.phase, row.question.library) == asked]
            bar(f"networks, {phase}, {library}: ours ÷ inductor", most, chosen, "vs_inductor")
        chosen = [row for row in memory_bound if row.question.phase == phase]
        bar(f"memory-bound, {phase}: ours ÷ inductor", limit, chosen, "vs_inductor")
    light = [row for row in rows if row.question.memory_bound or row.question.model in LITTLE_ARITHMETIC]
    bar("memory-bound, LSTM and DLRM: ours ÷ own eager", 0.8, light, "vs_eager")
    others = [row for row in rows if row not in light]
    bar("other networks: ours ÷ own eager, the worst row", 1.0, others, "vs_eager", max)
    own = [row for row in networks if row.question.library == "generated"]
    for phase in PHASES:
        chosen = [row for row in own if row.question.phase == phase]
        bar(f"networks, {phase}: ours ÷ best baseline", 1.0, chosen, "vs_best")
        bar(f"networks, {phase}: ours ÷ best baseline, the worst row", 1.25, chosen, "vs_best", max)
    bar("networks: ours ÷ own eager", 0.85, own, "vs_eager")
    training = [row for row in rows if row.question.phase == "training"]
    bar("peak memory of training: ours ÷ inductor, the worst row", 1.05, training, "vs_peak", max)
    bar("compile time: ours ÷ inductor", 0.25, rows, "vs_compile")
    return found


def print_rows(rows: Sequence[Row], bars: Sequence[Bar]) -> None:
    from rich.console import Console
    from rich.table import Table

    def ms(seconds: float) -> str:
        return f"{seconds * 1e3:,.2f}"

    def mib(count: int) -> str:
        return f"{count / 2**20:,.1f}"

    columns = (
        "model", "phase", "threads", "library", "ours ms", "inductor ms", "ratio", "eager ms", "ratio", "÷ best",
        "kernels\nours/eager/inductor", "compile s\nours/inductor", "ratio", "peak MiB\nours/eager/inductor", "",
    )  # fmt: skip
    table = Table(*columns)
    for row in rows:
        asked = row.question
        table.add_row(
            asked.model,
            asked.phase,
            str(asked.threads),
            asked.library,
            ms(row.ours),
            ms(row.inductor),
            f"{row.vs_inductor:.2f}",
            ms(row.eager),
            f"{row.vs_eager:.2f}",
            f"{row.vs_best:.2f} {row.best}",
            f"{row.kernels_ours}/{row.kernels_eager}/{row.kernels_inductor}",
            f"{row.compile_ours:.2f}/{row.compile_inductor:.2f}",
            f"{row.vs_compile:.2f}",
            f"{mib(row.peak_ours)}/{mib(row.peak_eager)}/{mib(row.peak_inductor)}",
            ", ".join(["noisy"] * row.noisy + [f"{row.fallbacks} fallbacks"] * bool(row.fallbacks)),
        )
    console = Console(width=None if sys.stdout.isatty() else 180)
    console.print(table)
    verdicts = Table("bar", "limit", "measured", "")
    for one in bars:
        verdicts.add_row(one.words, f"≤ {one.limit:.2f}", f"{one.value:.2f}", one.verdict)
    console.print(verdicts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=_names, help="only these, by commas")
    parser.add_argument("--phases", type=_names, default=list(PHASES), help="inference,training")
    parser.add_argument("--threads", type=lambda text: [int(n) for n in text.split(",")], help="1,2 (default)")
    parser.add_argument("--libraries", type=_names, help="generated,blas (default)")
    parser.add_argument("--quick", action="store_true", help="one thread, generated kernels, few rounds")
    parser.add_argument("--backend", default="bringup", help="what compiles our side (default: bringup)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows as JSON")
    parser.add_argument("--frozen", action="store_true", help="the frozen list instead of the networks that are tuned")
    parser.add_argument("--keep", metavar="FOLDER", help="keep what inductor compiles there, for the next run")
    parser.add_argument("--fill", action="store_true", help="only let inductor compile what the folder lacks")
    parser.add_argument("--part", choices=("measure", "fill"), help=argparse.SUPPRESS)
    parser.add_argument("question", nargs="?", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        question = Question(**json.loads(options.question))
        part = {"measure": measure_here, "fill": fill_here}[options.part]
        print(json.dumps(part(question)))
        return
    from workloads import EVERYTHING, FROZEN, WORKLOADS

    if options.fill and not options.keep:
        parser.error("--fill fills the folder of --keep")
    if options.keep:
        options.keep = str(Path(options.keep).resolve())
        Path(options.keep).mkdir(parents=True, exist_ok=True)
    options.seconds = 6.0 if options.quick else 30.0
    options.threads = options.threads or ([1] if options.quick else [1, 2])
    options.libraries = options.libraries or (["generated"] if options.quick else list(LIBRARIES))
    options.models = options.models or [work.name for work in (FROZEN if options.frozen else WORKLOADS.values())]
    for given, known in ((options.models, EVERYTHING), (options.phases, PHASES), (options.libraries, LIBRARIES)):
        if wrong := [name for name in given or () if name not in known]:
            parser.error(f"{wrong[0]!r} is none of {', '.join(known)}")

    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    asked = list(questions(options))
    rows: list[Row] = []
    failed: list[str] = []
    columns = (
        *Progress.get_default_columns(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[now]}"),
    )
    load = os.getloadavg()
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("rows", total=len(asked), now="")
        for question in asked:
            progress.update(task, now=str(question))
            try:
                if options.fill:
                    fill(question)
                    progress.advance(task)
                    continue
                row = measure(question)
                rows.append(row)
                progress.console.print(
                    f"{question}: {row.vs_best:.2f} of the best ({row.best}), {row.vs_eager:.2f} of own eager"
                )
            except RuntimeError as error:  # a graph that does not compile must not cost the other rows
                failed.append(str(error))
                print(error, file=sys.stderr)
            progress.advance(task)
    if options.fill:
        sys.exit(f"{len(failed)} of {len(asked)} could not be compiled" if failed else None)
    bars = judge(rows)
    print_rows(rows, bars)
    met = sum(bar.met is True for bar in bars)
    print(f"bars met: {met} of {len(bars)}; load at the start {load[0]:.1f}, {os.cpu_count()} cores")
    if any(row.noisy for row in rows):
        print("noisy rows prove nothing, and their bars get no verdict: the machine was busy")
    if options.json:
        result = {
            "load": load,
            "rows": [
                {**asdict(row), "vs_compile": row.vs_compile, "vs_best": row.vs_best, "best": row.best} for row in rows
            ],
            "bars": [{**asdict(bar), "met": bar.met} for bar in bars],
            "failed": failed,
        }
        record(options.json, result)
    if failed:
        sys.exit(f"{len(failed)} of {len(asked)} rows could not be measured")


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


if __name__ == "__main__":
    main()
