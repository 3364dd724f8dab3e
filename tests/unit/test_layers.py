"""The layers of the design, read from the sources: nothing below knows what is above."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "bringup"
CSRC = PACKAGE / "csrc"

#: From the bottom up: a module imports what is in its own layer or below it, also inside of functions. A module belongs
#: to the longest name here that it starts with.
LAYERS = (
    "bringup",  # offers public names, each imported when it is first used
    "bringup.environment",
    "bringup.debug",
    "bringup.cache_directory",
    "bringup.user_code",
    "bringup.ir",
    "bringup.targets",
    "bringup.targets.c",
    "bringup.targets.dpu",
    "bringup.targets.toolchain",
    "bringup.targets.riscv",
    "bringup.driver",
    "bringup.compile",
    "bringup.riscv",
    "bringup.upmem",
    "bringup.drivers",
    "bringup.lowering",
    "bringup.vendor",
    "bringup.graph.fusion",
    "bringup.graph",
    "bringup.graph.bare_metal",
    "bringup.graph.quantize",
    "bringup.graph.export",
    "bringup.graph.compile",
    "bringup.jit",
    "bringup.distributed",
    "bringup.torch_device",
    "bringup.profiler",
    "bringup.sanitizer",
    "bringup.offloading",
    "bringup.runtime",  # the path that installed metadata names
    "bringup.integrations",
    "bringup.kit",
    "bringup.cli",
    "bringup.__main__",
)
#: What knows neither torch nor the core: everything below lowering, and the parts of graph/ that see only the IR.
WITHOUT_TORCH = {*LAYERS[: LAYERS.index("bringup.lowering")], "bringup.graph.fusion", "bringup.graph.bare_metal"}
#: Two halves of one idea: the second makes what the first offers.
CYCLES = [
    {"bringup.lowering.builder", "bringup.lowering.call"},
    {"bringup.riscv.device", "bringup.riscv.remote"},
    {"bringup.torch_device.memory", "bringup.torch_device.memory_history"},
]
DRIVER_NAMES = ["sim", "upmem", "riscv", "cuda", "dictmem"]


def modules() -> dict[str, Path]:
    """Every module of the package, by name."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        found[name] = path
    return found


def layer_of(module: str) -> str:
    return max((layer for layer in LAYERS if is_inside(module, {layer})), key=len)


def imported(code: str, package: str = "bringup") -> Iterator[tuple[str, int]]:
    """Every module that imports name, also inside functions, but not under ``if TYPE_CHECKING``; with its line."""

    def walk(node: ast.AST) -> Iterator[tuple[str, int]]:
        children = list(ast.iter_child_nodes(node))
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            children = list(node.orelse)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            inside = package.split(".")[: 1 - node.level or None] if node.level else []
            base = ".".join([*inside, *([node.module] if node.module else [])])
            yield base, node.lineno
            yield from ((f"{base}.{alias.name}", node.lineno) for alias in node.names)
        for child in children:
            yield from walk(child)

    yield from walk(ast.parse(code))


def imports_of(name: str, path: Path) -> list[tuple[str, int]]:
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    return list(imported(path.read_text(), package))


def core_sources() -> list[Path]:
    return sorted(path for path in CSRC.rglob("*") if path.suffix in {".cpp", ".h"})


def without_comments(text: str) -> str:
    return re.sub(r"//[^\n]*|/\*.*?\*/", lambda comment: "\n" * comment.group().count("\n"), text, flags=re.DOTALL)


def is_inside(module: str, packages: set[str]) -> bool:
    return any(module == package or module.startswith(package + ".") for package in packages)


def test_nothing_below_imports_what_is_above() -> None:
    known = modules()
    wrong = []
    for name, path in known.items():
        height = LAYERS.index(layer_of(name))
        for module, line in imports_of(name, path):
            if module in known and module != "bringup" and LAYERS.index(layer_of(module)) > height:
                wrong.append(f"{path.relative_to(ROOT)}:{line}: imports {module}")
    assert not wrong, "\n".join(wrong)


def test_what_is_below_pytorch_knows_no_torch() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: imports {module}"
        for name, path in modules().items()
        if layer_of(name) in WITHOUT_TORCH
        for module, line in imports_of(name, path)
        if is_inside(module, {"torch", "bringup._C"})
    ]
    assert not wrong, "\n".join(wrong)


def test_modules_import_each_other_in_no_circle() -> None:
    known = modules()
    graph = {
        name: {module for module, _ in imports_of(name, path)} & known.keys() - {name, "bringup"}
        for name, path in known.items()
    }
    assert sorted(map(sorted, circles(graph))) == sorted(map(sorted, CYCLES))


def circles(graph: Mapping[str, set[str]]) -> list[set[str]]:
    """The sets of modules of which each reaches every other one."""
    reached: dict[str, set[str]] = {}
    for name in graph:
        found: set[str] = set()
        left = list(graph[name])
        while left:
            module = left.pop()
            if module not in found:
                found.add(module)
                left.extend(graph[module])
        reached[name] = found
    together = [frozenset(other for other in reached[name] if name in reached[other]) for name in graph]
    return [set(one) for one in set(together) if one]


def test_circles_are_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set()}) == [{"a", "b", "c"}]


def test_the_reader_finds_every_kind_of_import() -> None:
    code = """
    from typing import TYPE_CHECKING
    if TYPE_CHECKING:
        import torch.types
    else:
        import torch.a
    def f():
        from torch.b import c
        try:
            from bringup import _C
        except ImportError:
            import torch.d as e
    """
    found = {module for module, _ in imported(textwrap.dedent(code)) if is_inside(module, {"torch", "bringup._C"})}
    assert found == {"torch.a", "torch.b", "torch.b.c", "bringup._C", "torch.d"}


@pytest.mark.parametrize("module", ["bringup", "bringup.driver", "bringup.driver.lookup", "bringup.cli"])
def test_importing_this_does_not_import_torch(module: str, run_python) -> None:
    code = f"import sys, {module}; sys.exit('torch was imported' if 'torch' in sys.modules else 0)"
    run_python(code)


def test_the_core_names_no_driver() -> None:
    name = re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(DRIVER_NAMES)})(?![A-Za-z0-9])", re.IGNORECASE)
    # PyTorch's own names that contain one.
    of_torch = re.compile(r"DeviceType::CUDA|DispatchKey::\w*CUDA\w*|at::cuda\b|\w+_CUDA\w*|/cuda/|hasCUDA")
    wrong = []
    for path in core_sources():
        for number, line in enumerate(without_comments(path.read_text()).splitlines(), 1):
            found = name.search(of_torch.sub("", line))
            if found:
                wrong.append(f"{path.relative_to(ROOT)}:{number}: {found.group()}: {line.strip()}")
    assert not wrong, "\n".join(wrong)


def test_the_runtime_includes_no_torch_header() -> None:
    """runtime/ is what the sanitizer programs link, without torch."""
    wrong = [
        f"{path.relative_to(ROOT)}:{number}: {line}"
        for path in sorted((CSRC / "runtime").glob("*"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.match(r"\s*#\s*include\s*[<\"](ATen|c10|torch|pybind11|Python\.h)", line)
    ]
    assert not wrong, "\n".join(wrong)


#: Folder of csrc/ → how many lines it may have; what is in none of them counts as "the rest". docs/design.md says why.
CORE_LINES = {"distributed": 1396, "placement": 530, "profiler": 570, "the rest": 8460}


def test_the_core_stays_small() -> None:
    lines = dict.fromkeys(CORE_LINES, 0)
    for path in core_sources():
        folder = path.relative_to(CSRC).parts[0]
        lines[folder if folder in lines else "the rest"] += len(path.read_text().splitlines())
    over = {folder: count for folder, count in lines.items() if count > CORE_LINES[folder]}
    assert not over, f"bringup/csrc is larger than docs/design.md allows: {over}, not {CORE_LINES}"


def test_files_stay_readable() -> None:
    checked = [*core_sources(), *PACKAGE.rglob("*.py"), *(PACKAGE / "drivers").rglob("*.c")]
    sizes = {path: len(path.read_text().splitlines()) for path in checked}
    long = {str(path.relative_to(ROOT)): size for path, size in sizes.items() if size > 600}
    assert not long, f"more than 600 lines: {long}; one idea per file"
    assert sum(size > 400 for size in sizes.values()) <= len(sizes) / 5, "most files stay under 400 lines"


@pytest.mark.parametrize("name", ["utils", "helpers", "misc", "common"])
def test_no_file_is_named_after_nothing(name: str) -> None:
    assert not [path for suffix in ("py", "cpp", "c", "h") for path in PACKAGE.rglob(f"{name}.{suffix}")]
