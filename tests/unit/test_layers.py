"""The layers of the design, read from the sources: nothing below knows what is above."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "bringup"
CSRC = PACKAGE / "csrc"

#: Files and folders that know no torch, and what else each may not know.
UPPER = {"bringup._C", "bringup.runtime", "bringup.device_module", "bringup.kit", "bringup.cli"}
MAY_NOT_IMPORT = {
    "__init__.py": {"torch", "bringup._C"},  # it offers names of the runtime, imported on first use
    "__main__.py": {"torch", "bringup._C"},
    "cli.py": {"bringup._C"},
    "driver*.py": {"torch", *UPPER},
    "drivers": {"torch", *UPPER},
    "graph/fusion": {"torch", *UPPER},
    "graph/bare_metal": {"torch", *UPPER},
    "ir": {"torch", *UPPER},
    "riscv": {"torch", *UPPER},
    "targets": {"torch", *UPPER},
}
DRIVER_NAMES = ["sim", "upmem", "riscv", "cuda", "dictmem"]


def sources(pattern: str) -> Iterator[Path]:
    for path in PACKAGE.glob(pattern):
        yield from path.rglob("*.py") if path.is_dir() else [path]


def imported(code: str) -> Iterator[tuple[str, int]]:
    """Every module that imports name, also inside functions, but not under ``if TYPE_CHECKING``; with its line."""

    def walk(node: ast.AST) -> Iterator[tuple[str, int]]:
        children = list(ast.iter_child_nodes(node))
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            children = list(node.orelse)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "bringup" if node.level else node.module or ""
            yield base, node.lineno
            yield from ((f"{base}.{alias.name}", node.lineno) for alias in node.names)
        for child in children:
            yield from walk(child)

    yield from walk(ast.parse(code))


def core_sources() -> list[Path]:
    return sorted(path for path in CSRC.rglob("*") if path.suffix in {".cpp", ".h"})


def without_comments(text: str) -> str:
    return re.sub(r"//[^\n]*|/\*.*?\*/", lambda comment: "\n" * comment.group().count("\n"), text, flags=re.DOTALL)


def is_inside(module: str, packages: set[str]) -> bool:
    return any(module == package or module.startswith(package + ".") for package in packages)


@pytest.mark.parametrize("pattern", MAY_NOT_IMPORT)
def test_nothing_below_imports_what_is_above(pattern: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: imports {module}"
        for path in sources(pattern)
        for module, line in imported(path.read_text())
        if is_inside(module, MAY_NOT_IMPORT[pattern])
    ]
    assert not wrong, "\n".join(wrong)


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


@pytest.mark.parametrize("module", ["bringup", "bringup.driver", "bringup.driver_lookup", "bringup.cli"])
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


def test_the_core_stays_small() -> None:
    lines = sum(len(path.read_text().splitlines()) for path in core_sources())
    assert lines < 9870, f"bringup/csrc has {lines} lines; docs/design.md says why it may have up to 9,870"


def test_files_stay_readable() -> None:
    checked = [*core_sources(), *PACKAGE.rglob("*.py"), *(PACKAGE / "drivers").rglob("*.c")]
    sizes = {path: len(path.read_text().splitlines()) for path in checked}
    long = {str(path.relative_to(ROOT)): size for path, size in sizes.items() if size > 600}
    assert not long, f"more than 600 lines: {long}; one idea per file"
    assert sum(size > 400 for size in sizes.values()) <= len(sizes) / 5, "most files stay under 400 lines"


@pytest.mark.parametrize("name", ["utils", "helpers", "misc", "common"])
def test_no_file_is_named_after_nothing(name: str) -> None:
    assert not [path for suffix in ("py", "cpp", "c", "h") for path in PACKAGE.rglob(f"{name}.{suffix}")]
