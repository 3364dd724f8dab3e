"""A graph's story in the terminal: tables that fit 100 columns, and a chart of the lifetimes in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console, Group, RenderableType
from rich.rule import Rule
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from bringup.kit.terminal import readable_bytes, shortened

if TYPE_CHECKING:
    from bringup.kit.graph_explain import GraphStory, KernelStory

WIDTH = 100
_CHART = 48  # columns for the steps
_ROWS = 24  # of the chart; the largest temporaries
_PAIRS = 6  # shown for each reason
_NAME = 26  # columns for a node where several share a line
_HEIGHTS = " ▁▂▃▄▅▆▇█"


def console() -> Console:
    """Where stories go: at most 100 columns, and exactly 100 where there is no terminal."""
    found = Console(highlight=False, markup=False, emoji=False)
    wide = min(found.width, WIDTH) if found.is_terminal else WIDTH
    return Console(highlight=False, markup=False, emoji=False, width=wide)


def story_parts(story: GraphStory, ir: bool = False, source: bool = False) -> Iterator[RenderableType]:
    """Everything that is printed for a graph, in order."""
    yield Rule(Text(f"{story.title} on {story.device}", style="bold"), align="left")
    yield Text(story.summary())
    yield Text()
    yield _nodes_table(story)
    yield _kernels_table(story)
    yield from _fusion(story)
    yield from _ordinary(story)
    yield from memory_chart(story)
    for kernel in story.kernels:
        if ir and kernel.ir:
            yield _code(kernel, "IR", kernel.ir, "rust")
        if source:
            yield _code(kernel, "source", kernel.source, "c")


def _table(title: str, *columns: str, numbers: Sequence[str] = ()) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        table.add_column(name, justify="right" if name in numbers else "left", overflow="fold")
    return table


def _nodes_table(story: GraphStory) -> Table:
    table = _table("Graph", "node", "op", "value", "becomes")
    for node in story.nodes:
        style = {"op": "red", "kernel": ""}.get(node.fate, "dim")
        op = "" if node.fate == "input" else shortened(node.op, 24)
        table.add_row(shortened(node.name, 28), op, node.value, story.becomes(node), style=style)
    return table


def _kernels_table(story: GraphStory) -> Table:
    numbers = ("", "runs", "flops", "bytes", "flops/byte", "time")
    table = _table("Kernels", "", "kernel", "runs", "nodes", *numbers[2:], numbers=numbers)
    for kernel in story.kernels:
        *costs, _ = story.costs(kernel)
        runs, nodes = str(len(kernel.steps)), _nodes_of(story, kernel)
        table.add_row(str(kernel.number), shortened(kernel.name, 22), runs, nodes, *costs)
    return table


def _nodes_of(story: GraphStory, kernel: KernelStory) -> str:
    first = " + ".join(shortened(name, _NAME) for name in story.steps[kernel.steps[0]].nodes)
    return first if len(kernel.steps) == 1 else f"{first}, … ×{len(kernel.steps)}"


def _fusion(story: GraphStory) -> Iterator[RenderableType]:
    for title, reasons in (("Fused", story.fused), ("Not fused", story.refused)):
        if reasons:
            table = _table(title, "why", "rule", "pairs", "between", numbers=("pairs",))
            for reason in reasons:
                table.add_row(*reason.row(_PAIRS))
            yield table


def _ordinary(story: GraphStory) -> Iterator[RenderableType]:
    if story.ordinary:
        table = _table("No kernels", "node", "op", "why", "time", numbers=("time",))
        for step in story.ordinary:
            table.add_row(", ".join(step.nodes), step.name, step.reason, step.time)
        yield table


# ---- memory ----
def memory_chart(story: GraphStory) -> Iterator[RenderableType]:
    """The arena: its size, what it would be without sharing, and a bar for each temporary over the steps."""
    yield Text("Memory", style="bold")
    yield Text(story.memory())
    inside = story.in_arena
    if not inside:
        yield Text()
        return
    count = len(story.steps)
    columns = min(count, _CHART)
    largest = sorted(inside, key=lambda tensor: -tensor.nbytes)[:_ROWS]
    grid = Table.grid(padding=(0, 1))
    grid.add_column(max_width=30, no_wrap=True, overflow="ellipsis")
    grid.add_column(justify="right")
    grid.add_column(no_wrap=True)
    for tensor in inside:
        if tensor in largest:
            first, last = tensor.first * columns // count, tensor.last * columns // count
            bar = "·" * first + "█" * (last - first + 1) + "·" * (columns - last - 1)
            grid.add_row(tensor.name, readable_bytes(tensor.nbytes), Text(bar, style="cyan"))
    grid.add_row(Text("alive", style="bold"), readable_bytes(max(story.alive())), Text(_profile(story, columns)))
    yield grid
    left = len(inside) - len(largest)
    yield Text(f"steps 0 to {count - 1}, left to right" + (f"; {left} smaller ones left out" if left else ""), "dim")
    yield Text()


def _profile(story: GraphStory, columns: int) -> str:
    """Bytes alive at each column, as heights."""
    alive = story.alive()
    most = max(alive) or 1
    bars = []
    for column in range(columns):
        part = [alive[n] for n in range(len(alive)) if n * columns // len(alive) == column]
        bars.append(_HEIGHTS[-(-max(part) * (len(_HEIGHTS) - 1) // most)])
    return "".join(bars)


def _code(kernel: KernelStory, what: str, text: str, language: str) -> RenderableType:
    head = Text(f"{what} of kernel {kernel.number}: {kernel.name}", style="bold")
    return Group(head, Syntax(text.rstrip(), language, theme="ansi_dark", background_color="default", word_wrap=True))
