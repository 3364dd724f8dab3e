"""Eager cost on the device against the CPU: one run, one thread, interleaved (method: timing.py).

python benchmarks/eager.py                    # the simulated device against the CPU
python benchmarks/eager.py --quick --json results/eager_library.json --plot build/eager.png
python benchmarks/eager.py --kernels          # sim on kernels that bringup generates, instead of ATen's
python benchmarks/eager.py --device cpu       # CPU against itself: every ratio should be 1.00
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import statistics
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from recording import record
from timing import Pair, Side, compare, compare_imports

if TYPE_CHECKING:
    import torch

TINY = "geomean of these"
SMALL_MATMUL = "geomean of small matmuls"

Bars: TypeAlias = dict[str, tuple[float, str]]

#: What the project promises: (largest allowed value, how it is counted).
BARS: Bars = {
    TINY: (1.5, "ratio"),
    "add 1M": (1.1, "ratio"),
    "mm 512": (1.05, "ratio"),
    "MLP step": (1.25, "ratio"),
    "import torch": (0.15, "added seconds"),
}

#: With --kernels: what generated code promises. 70 % of the CPU's speed is a ratio of 1 / 0.7.
KERNEL_BARS: Bars = {
    TINY: (1.5, "ratio"),
    **{f"{op} 1M": (1.15, "ratio") for op in ("add", "exp", "gelu", "softmax", "layer_norm", "sum")},
    "mm 512": (1 / 0.7, "ratio"),
    "linear 128x768x3072": (1 / 0.7, "ratio"),
    SMALL_MATMUL: (1 / 0.6, "ratio"),
    "conv2d 64 3x3 56, batch 1": (2.0, "ratio"),
    "conv2d 64 3x3 56, batch 64": (2.0, "ratio"),
    "import torch": (0.15, "added seconds"),
}

#: On 4 elements. `x`, `y`, `out` live on the side's device, `host` on the CPU, `a`, `b` are 2x2.
#: `to` of a CPU tensor to the CPU returns the tensor itself, so every `to` here copies.
TINY_OPS: dict[str, str] = {
    "empty": "torch.empty(4, device=device)",
    "add": "x.add(y)",
    "mul_": "out.mul_(1.0)",
    "mm": "a.mm(b)",
    "relu": "x.relu()",
    "abs": "x.abs()",
    "copy_": "out.copy_(x)",
    "view": "x.view(2, 2)",
    "slice": "x[1:3]",
    "sum": "x.sum()",
    "item": "one.item()",
    "randn": "torch.randn(4, device=device)",
    "zeros": "torch.zeros(4, device=device)",
    'to("cpu", copy=True)': 'x.to("cpu", copy=True)',
    "to(device, copy=True)": "host.to(device, copy=True)",
}

LARGE_OPS: dict[str, str] = {"add 1M": "big.add(big)", "mm 512": "matrix.mm(matrix)", "MLP step": "step()"}

#: `m` holds a million elements as 1024 x 1024 (rows for softmax and layer_norm).
ROW_OPS: dict[str, str] = {
    "add": "{m}.add({m})",
    "exp": "{m}.exp()",
    "gelu": "gelu({m})",
    "softmax": "{m}.softmax(-1)",
    "layer_norm": "layer_norm({m}, (1024,))",
    "sum": "{m}.sum()",
}
KERNEL_OPS: dict[str, str] = {
    **{f"{op} 1M": statement.format(m="m_f32") for op, statement in ROW_OPS.items()},
    **{f"{op} 1M bf16": statement.format(m="m_bf16") for op, statement in ROW_OPS.items()},
    **{f"{op} 1M f64": statement.format(m="m_f64") for op, statement in ROW_OPS.items()},
    "mm 512": "matrix.mm(matrix)",
    "linear 128x768x3072": "linear(tokens, weight)",
    "mm 1x768x768": "row.mm(square)",
    "mm 7x513x130": "odd_a.mm(odd_b)",
    "mm 64": "cube.mm(cube)",
    "bmm 12x128x64x128": "heads_a.bmm(heads_b)",
    "conv2d 64 3x3 56, batch 1": "conv2d(image, filters, padding=1)",
    "conv2d 64 3x3 56, batch 64": "conv2d(images, filters, padding=1)",
    "MLP step": "step()",
}
SMALL_MATMULS = ("mm 1x768x768", "mm 7x513x130", "mm 64", "bmm 12x128x64x128")


@dataclass(frozen=True)
class Row:
    """One line of the result; seconds per call (per process for the import)."""

    name: str
    cpu: float | None
    device: float | None
    value: float
    bar: float | None = None
    counted: str = "ratio"
    control: float = 1.0
    uncertainty: float = 0.0
    noisy: bool = False

    @property
    def met(self) -> bool | None:
        """None where there is no bar, or where the machine was too busy to say."""
        return None if self.bar is None or self.noisy else self.value <= self.bar

    @property
    def verdict(self) -> str:
        return "noisy" if self.noisy else {None: "", True: "met", False: "NOT met"}[self.met]


def names_on(device: torch.device, kernels: bool) -> dict[str, Any]:
    """The tensors the statements use, with the same values on every device."""
    import torch

    torch.manual_seed(0)
    values = {
        "x": torch.randn(4),
        "y": torch.randn(4),
        "out": torch.randn(4),
        "one": torch.randn(1),
        "a": torch.randn(2, 2),
        "b": torch.randn(2, 2),
        "big": torch.randn(1_000_000),
        "matrix": torch.randn(512, 512),
    }
    if kernels:
        million = torch.randn(1024, 1024)
        values |= {
            "m_f32": million,
            "m_bf16": million.bfloat16(),
            "m_f64": million.double(),
            "tokens": torch.randn(128, 768),
            "weight": torch.randn(3072, 768),
            "row": torch.randn(1, 768),
            "square": torch.randn(768, 768),
            "odd_a": torch.randn(7, 513),
            "odd_b": torch.randn(513, 130),
            "cube": torch.randn(64, 64),
            "heads_a": torch.randn(12, 128, 64),
            "heads_b": torch.randn(12, 64, 128),
            "image": torch.randn(1, 64, 56, 56),
            "images": torch.randn(64, 64, 56, 56),
            "filters": torch.randn(64, 64, 3, 3),
        }
    tensors: dict[str, Any] = {name: value.to(device, copy=True) for name, value in values.items()}
    functional = {name: getattr(torch.nn.functional, name) for name in ("gelu", "layer_norm", "linear", "conv2d")}
    here = {"host": torch.randn(4), "torch": torch, "device": device, "step": training_step(device)}
    return {**tensors, **functional, **here}


def training_step(device: torch.device) -> Any:
    """One SGD step of a 256-512-10 MLP at batch 64."""
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
    inputs, targets = torch.randn(64, 256).to(device), torch.randint(10, (64,)).to(device)
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()

    return step


def measure(device: torch.device, quick: bool, kernels: bool) -> Iterator[Row]:
    """All rows, as they are measured."""
    import torch

    torch.set_num_threads(1)
    rounds = 20 if quick else 80
    on_cpu, on_device = names_on(torch.device("cpu"), kernels), names_on(device, kernels)
    bars = KERNEL_BARS if kernels else BARS

    def synchronize() -> None:
        torch.accelerator.synchronize(device)

    wait = {} if device.type == "cpu" else {"synchronize": synchronize}
    tiny: list[Pair] = []
    small: list[Pair] = []
    for name, statement in {**TINY_OPS, **(KERNEL_OPS if kernels else LARGE_OPS)}.items():
        words = set(re.findall(r"\w+", statement))
        used = [key for key in on_cpu if key in words]
        pair = compare(
            Side(statement, {key: on_cpu[key] for key in used}),
            Side(statement, {key: on_device[key] for key in used}, **wait),
            rounds=rounds,
        )
        yield judged(name, pair, bars)
        if name in TINY_OPS:
            tiny.append(pair)
            if len(tiny) == len(TINY_OPS):
                yield judged_together(TINY, tiny, bars)
        elif name in SMALL_MATMULS:
            small.append(pair)
            if len(small) == len(SMALL_MATMULS):
                yield judged_together(SMALL_MATMUL, small, bars)
    imports = compare_imports("import torch", {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}, 3 if quick else 10)
    yield judged("import torch", imports, bars)


def judged(name: str, pair: Pair, bars: Bars) -> Row:
    bar, counted = bars.get(name, (None, "ratio"))
    value = pair.ratio if counted == "ratio" else pair.device - pair.cpu
    return Row(name, pair.cpu, pair.device, value, bar, counted, pair.control, pair.uncertainty, pair.noisy)


def judged_together(name: str, pairs: list[Pair], bars: Bars) -> Row:
    """The geometric mean; errors of single ops average out, so it is judged by the means of control and uncertainty."""
    value = statistics.geometric_mean(pair.ratio for pair in pairs)
    control = statistics.geometric_mean(pair.control for pair in pairs)
    mean = Pair(0.0, 0.0, value, control, statistics.mean(pair.uncertainty for pair in pairs))
    return Row(name, None, None, value, *bars[name], mean.control, mean.uncertainty, mean.noisy)


def cells(row: Row) -> tuple[str, ...]:
    def micro(seconds: float | None) -> str:
        return "" if seconds is None else f"{seconds * 1e6:,.2f}" if seconds < 1e-3 else f"{seconds * 1e6:,.0f}"

    seconds = row.counted != "ratio"
    value = f"{row.value:+.2f} s" if seconds else f"{row.value:.2f}"
    bar = "" if row.bar is None else f"≤ {row.bar:+.2f} s" if seconds else f"≤ {row.bar:.2f}"
    doubt = "" if seconds else f"{row.uncertainty:.0%}"
    control = "" if seconds else f"{row.control:.2f}"
    return row.name, micro(row.cpu), micro(row.device), value, doubt, control, bar, row.verdict


def titles(device: str) -> tuple[str, ...]:
    return "", "CPU µs", f"{device} µs", "ratio", "±", "A/A", "bar", ""


def print_table(rows: list[Row], title: str, device: str) -> None:
    head = titles(device)
    body = [cells(row) for row in rows]
    try:
        from rich import box
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        widths = [max(len(line[i]) for line in [head, *body]) for i in range(len(head))]
        print(title)
        for line in [head, *body]:
            cells_ = [
                text.ljust(w) if i == 0 else text.rjust(w) for i, (text, w) in enumerate(zip(line, widths, strict=True))
            ]
            print("  ".join(cells_).rstrip())
        return
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for index, name in enumerate(head):
        table.add_column(name, justify="left" if index == 0 else "right", no_wrap=True)
    for line, row in zip(body, rows, strict=True):
        table.add_row(*line, style={None: None, True: "green", False: "red"}[row.met])
    console = Console()
    console.width = max(console.width, 96)  # a pipe has 80 columns: too few
    console.print(table)


def plot(rows: list[Row], path: Path, device: str) -> None:
    try:
        import matplotlib
    except ImportError:
        sys.exit("--plot needs matplotlib: pip install matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    ratios = [row for row in rows if row.counted == "ratio"][::-1]
    figure, axes = pyplot.subplots(figsize=(8, 0.32 * len(ratios) + 1.2))
    colours = {None: "#8aa4c8", True: "#4c9f70", False: "#c8553d"}
    bars = axes.barh(
        [row.name for row in ratios], [row.value for row in ratios], color=[colours[row.met] for row in ratios]
    )
    axes.bar_label(bars, fmt="%.2f", padding=3)
    axes.axvline(1.0, color="black", linewidth=1)
    axes.set_xlabel(f"time on {device} / time on the CPU (one thread; lower is better)")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def open_device(name: str) -> torch.device:
    """The device, with its driver chosen before torch is imported, or a sentence about what is missing."""
    if name != "cpu":
        os.environ.setdefault("BRINGUP_DRIVERS", name.split(":")[0])
    import torch

    try:
        torch.empty(1, device=name)
    except (RuntimeError, ModuleNotFoundError) as error:
        sys.exit(
            f"device {name!r} cannot be used: {error}\nIs bringup installed? (pip install --no-build-isolation -e .)"
        )
    return torch.device(name)


def machine() -> dict[str, str]:
    import torch

    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return {"cpu": model, "python": platform.python_version(), "torch": torch.__version__, "threads": "1"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="sim", help="torch device to measure (default: sim)")
    parser.add_argument("--quick", action="store_true", help="fewer rounds: about a fifth of the time")
    parser.add_argument("--kernels", action="store_true", help="sim in kernels mode, and the rows that show its code")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows as JSON")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write a bar chart (needs matplotlib)")
    options = parser.parse_args()

    if options.kernels:
        os.environ["BRINGUP_SIM"] = os.environ.get("BRINGUP_SIM", "") + ",mode=kernels,threads=1"
    device = open_device(options.device)
    bars = KERNEL_BARS if options.kernels else BARS
    rows = []
    load = os.getloadavg()
    for row in measure(device, options.quick, options.kernels):
        rows.append(row)
        if sys.stderr.isatty():
            print(f"\r\033[K{row.name} {row.value:.2f}", end="", file=sys.stderr, flush=True)
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)

    about = machine()
    print_table(rows, f"{device} against the CPU · {about['cpu']} · torch {about['torch']} · one thread", device.type)
    print(f"aim for the tiny ops: 1.20; bars met: {sum(row.met is True for row in rows)} of {len(bars)}")
    if any(row.noisy for row in rows):
        print(f"noisy rows prove nothing: at the start the load was {load[0]:.1f} on {os.cpu_count()} cores")
    if options.json:
        tiny = next(row.value for row in rows if row.name == TINY)
        table = {"columns": titles(device.type), "rows": [cells(row) for row in rows]}  # as docs/conformance.md has it
        written = [{**asdict(row), "met": row.met} for row in rows]
        record(options.json, {"device": str(device), "load": load, "tiny": tiny, "table": table, "rows": written})
    if options.plot:
        plot(rows, options.plot, device.type)


if __name__ == "__main__":
    main()
