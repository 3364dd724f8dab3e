"""Compiled graphs on the simulated device against the best the CPU can do on the same machine, and our own eager.

python benchmarks/compile.py                                  # everything: about two hours
python benchmarks/compile.py --quick                          # one thread, generated kernels, few rounds
python benchmarks/compile.py --models mlp,gpt2 --threads 1 --json results/compile.json
python benchmarks/compile.py --frozen --json results/compile_frozen.json    # the networks that nobody tunes for

Each row is a process of its own with empty caches (BRINGUP_CACHE, TORCHINDUCTOR_CACHE_DIR), pinned to as many cores as
it has threads. In it the sides run in alternating bursts (timing.py). `best` is the fastest of CPU eager, inductor and,
for inference, inductor with freezing, which runs in a process of its own against inductor without: its constants would
stay in the caches of the others. glibc gives no memory back between calls, so that page faults decide nothing.

`inference` is one call without gradients, `training` forward, loss and backward; the optimizers are graphs of their
own. Compile time is the first call less a later one; before it, both compilers have compiled something else, so that
imports, probes of the C++ compiler and precompiled headers are not counted. Kernels are counted in a second process
that tells of every launch. `blas`: matrix products by OpenBLAS as the device's library (examples/vendor_blas),
`generated`: all kernels are ours.
"""

from __future__ import annotations

import argparse
import json
import os
import re
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
from timing import Pair, Side, calls_of_burst, compare

ROOT = Path(__file__).resolve().parents[1]

PHASES = ("inference", "training")
LIBRARIES = ("generated", "blas")
#: Networks that compilation has to gain as much for as for the graphs that only move memory.
LITTLE_ARITHMETIC = ("lstm", "dlrm")
#: Around the call whose launches are counted, on standard error.
MARK = "-- counted call --"


@dataclass(frozen=True)
class Question:
    """What one row measures."""

    model: str
    phase: str
    threads: int
    library: str
    memory_bound: bool
    backend: str
    seconds: float  # how long each comparison may take

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
    fallbacks: int
    cpu: float  # CPU eager
    vs_cpu: float
    frozen: float | None = None  # frozen ÷ plain inductor; None for training

    @property
    def vs_best(self) -> float:
        """Ours ÷ the best baseline."""
        return max(self.vs_inductor, self.vs_cpu, self.vs_inductor / (self.frozen or 1.0))

    @property
    def best(self) -> str:
        """Which baseline that is."""
        if self.vs_cpu == self.vs_best:
            return "eager"
        return "inductor" if self.vs_inductor == self.vs_best else "frozen"

    @property
    def vs_compile(self) -> float:
        return self.compile_ours / self.compile_inductor


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


def measure_here(question: Question) -> dict[str, Any]:
    """All of a row but the number of our launches."""
    import torch

    import bringup

    torch.set_num_threads(question.threads)
    device = open_device(question)

    def synchronize() -> None:
        torch.accelerator.synchronize(device)

    def nothing() -> None: ...

    def first_call(run: Callable[[], None], wait: Callable[[], None]) -> float:
        start = perf_counter()
        run()
        wait()
        return perf_counter() - start

    def warm_up(backend: str, where: Any) -> None:
        x = torch.ones(8, 8, device=where, requires_grad=True)
        torch.compile(lambda x: (x @ x).tanh().sum(), backend=backend)(x).backward()

    def peak(run: Callable[[], None]) -> int:
        module = getattr(torch, device.type)
        synchronize()
        held = module.memory_allocated(device)
        module.reset_peak_memory_stats(device)
        run()
        synchronize()
        return int(module.max_memory_allocated(device) - held)

    # Ours goes first: what the second compiler finds warm (Dynamo's and SymPy's caches) is inductor's gain.
    warm_up(question.backend, device)
    warm_up("inductor", "cpu")
    ours = runner(question, device, lambda f: torch.compile(f, backend=question.backend))
    compile_ours = first_call(ours, synchronize)
    inductor = runner(question, torch.device("cpu"), torch.compile)
    with InductorKernels() as kernels:
        compile_inductor = first_call(inductor, nothing)
    eager = runner(question, device, lambda f: f)
    on_cpu = runner(question, torch.device("cpu"), lambda f: f)
    for run in (ours, inductor, eager, on_cpu) * 2:
        run()
    synchronize()
    fallen = bringup.fallbacks().calls
    ours()
    fallen = bringup.fallbacks().calls - fallen

    def against(other: Callable[[], None], wait: Callable[[], None]) -> Pair:
        longest = max(first_call(ours, synchronize), first_call(other, wait))
        # A round is four bursts of three sides, and one call before each; fewer than five rounds give no interval.
        rounds = max(5, min(60, int(question.seconds / 12 / longest / (1 + calls_of_burst(longest)))))
        return compare(Side("f()", {"f": other}, wait), Side("f()", {"f": ours}, synchronize), rounds)

    with_inductor, with_eager = against(inductor, nothing), against(eager, synchronize)
    with_cpu = against(on_cpu, nothing)
    return {
        "ours": with_inductor.device,
        "inductor": with_inductor.cpu,
        "eager": with_eager.cpu,
        "vs_inductor": with_inductor.ratio,
        "vs_eager": with_eager.ratio,
        "cpu": with_cpu.cpu,
        "vs_cpu": with_cpu.ratio,
        "noisy": with_inductor.noisy or with_eager.noisy or with_cpu.noisy,
        "compile_ours": compile_ours - with_inductor.device,
        "compile_inductor": compile_inductor - with_inductor.cpu,
        "kernels_inductor": kernels.count,
        "peak_ours": peak(ours),
        "peak_eager": peak(eager),
        "fallbacks": fallen,
    }


def frozen_here(question: Question) -> dict[str, Any]:
    """How long inductor with freezing takes, as a part of what it takes without."""
    import torch

    torch.set_num_threads(question.threads)
    plain = runner(question, torch.device("cpu"), torch.compile)
    for _ in range(2):
        plain()
    frozen = runner(question, torch.device("cpu"), lambda f: torch.compile(f, options={"freezing": True}))
    for _ in range(2):
        frozen()
    start = perf_counter()
    plain()
    longest = perf_counter() - start
    rounds = max(5, min(40, int(question.seconds / 12 / longest / (1 + calls_of_burst(longest)))))
    found = compare(Side("f()", {"f": plain}), Side("f()", {"f": frozen}), rounds)
    return {"ratio": found.ratio, "noisy": found.noisy}


def count_here(question: Question) -> dict[str, Any]:
    """Runs both of our sides between marks; the parent counts the launches that BRINGUP_DEBUG=5 tells of."""
    import torch

    device = open_device(question)
    for compiler in (lambda f: torch.compile(f, backend=question.backend), lambda f: f):
        run = runner(question, device, compiler)
        for _ in range(2):
            run()
        torch.accelerator.synchronize(device)
        print(MARK, file=sys.stderr, flush=True)
        run()
        torch.accelerator.synchronize(device)
        print(MARK, file=sys.stderr, flush=True)
    return {}


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
        "TORCHINDUCTOR_CACHE_DIR": str(Path(folder) / "inductor"),
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


def launches(told: str) -> tuple[int, int]:
    """How many launches stand between the marks: of the compiled side, of the eager one."""
    parts = told.split(MARK)
    counts = [sum(" launch " in f" {line}" for line in part.splitlines()) for part in parts]
    return counts[1], counts[3]


def measure(question: Question) -> Row:
    with tempfile.TemporaryDirectory(prefix="bringup-compile-") as folder:
        found = json.loads(in_process(question, "measure", folder).stdout.splitlines()[-1])
        ours, eager = launches(in_process(question, "count", folder, BRINGUP_DEBUG="5").stderr)
        frozen: dict[str, Any] = {"ratio": None, "noisy": False}
        if question.phase == "inference" and not question.memory_bound:
            frozen = json.loads(in_process(question, "frozen", folder).stdout.splitlines()[-1])
    found["noisy"] |= frozen["noisy"]
    return Row(question, kernels_ours=ours, kernels_eager=eager, frozen=frozen["ratio"], **found)


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
                    yield Question(name, phase, threads, library, work.memory_bound, options.backend, options.seconds)


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
        "kernels\nours/eager/inductor", "compile s\nours/inductor", "ratio", "peak MiB\nours/eager", "",
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
            f"{mib(row.peak_ours)}/{mib(row.peak_eager)}",
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
    parser.add_argument("--part", choices=("measure", "count", "frozen"), help=argparse.SUPPRESS)
    parser.add_argument("question", nargs="?", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        question = Question(**json.loads(options.question))
        part = {"measure": measure_here, "count": count_here, "frozen": frozen_here}[options.part]
        print(json.dumps(part(question)))
        return
    from workloads import EVERYTHING, FROZEN, WORKLOADS

    options.seconds = 4.0 if options.quick else 15.0
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
                row = measure(question)
                rows.append(row)
                progress.console.print(
                    f"{question}: {row.vs_best:.2f} of the best ({row.best}), {row.vs_eager:.2f} of own eager"
                )
            except RuntimeError as error:  # a graph that does not compile must not cost the other rows
                failed.append(str(error))
                print(error, file=sys.stderr)
            progress.advance(task)
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
