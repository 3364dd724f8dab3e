"""docs/*.md says only what is so: its programs and commands run, its excerpts are in the files they name.

How a fenced block is treated:

- ``python``: runs in a new process; ``# continues`` as its first line adds it to the block before
- ``bash``: runs in bash, where a failing command ends it
- ``# file: NAME`` as the first line: is written to that file instead; ``# file: NAME, continued`` adds to it
- below ``<!-- from: PATH -->``: must stand in that file, word for word
- below ``<!-- tested in: PATH -->``: runs in that test, which must name what the block names
- anything else (``text``, ``toml`` …): is output or a fragment, and is not run

The blocks of one page share a folder, in which ``examples`` is the repository's.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import fork_server
from tests.optional_packages import need_the_command, skip_without_a_riscv_compiler, skip_without_graphs

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))
BLOCK = re.compile(r"^(?:<!-- (from|tested in): (\S+) -->\n+)?```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"^# file: (\S+?)(, continued)?\n")
WRITTEN_HERE = {"design.md", "drivers.md", "environment.md", "gaps.md", "operators.md", "sim.md", "vendor_ops.md"}


@dataclass
class Block:
    line: int
    marker: str
    marked: str
    language: str
    text: str


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(text.count("\n", 0, found.start()) + 1, *[part or "" for part in found.groups()])
        for found in BLOCK.finditer(text)
    ]


def programs(page: Path) -> list[tuple[int, str, str]]:
    """(line, language, text) of what is run, in order; files come as programs of the language ``file``."""
    found: list[tuple[int, str, str]] = []
    for block in blocks(page):
        if block.marker:
            continue
        if FILE.match(block.text):
            found.append((block.line, "file", block.text))
        elif block.language == "python" and block.text.startswith("# continues\n"):
            line, language, text = found.pop()
            assert language == "python", f"{page.name}:{block.line} continues no Python block"
            found.append((line, language, text + block.text))
        elif block.language in ("python", "bash"):
            found.append((block.line, block.language, block.text))
    return found


def test_the_pages_are_there() -> None:
    assert {page.name for page in PAGES} >= WRITTEN_HERE


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_program_and_command_runs(page: Path, tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("BRINGUP_")}
    environment = {**kept, "BRINGUP_CACHE": os.environ["BRINGUP_CACHE"]}  # this session's kernels
    tools = [str(fork_server.commands(tmp_path / ".commands")), str(Path(sys.executable).parent)]
    environment["PATH"] = os.pathsep.join([*tools, environment.get("PATH", os.defpath)])
    for line, language, text in programs(page):
        if re.search(r"\briscv\b", text):
            skip_without_a_riscv_compiler()
        if re.search(r"\.Graph\(", text):
            skip_without_graphs()
        if "webassembly" in text:
            pytest.importorskip("wasmtime")
        if language == "bash" and "bringup " in text:
            need_the_command()
        if language == "file":
            name = FILE.match(text)
            assert name is not None
            with (tmp_path / name[1]).open("a" if name[2] else "w") as file:
                file.write(text)
            continue
        if language == "python":
            result = fork_server.run(text, env=environment, cwd=tmp_path)
        else:
            command = ["bash", "-euo", "pipefail", "-c", text]
            result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=120)
        assert result.returncode == 0, f"docs/{page.name}:{line}\n{text}\n{result.stdout}\n{result.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_excerpt_is_in_its_file(page: Path) -> None:
    for block in blocks(page):
        where = f"docs/{page.name}:{block.line}"
        if block.marker == "from":
            assert block.text in (ROOT / block.marked).read_text(), where
        elif block.marker:
            tested = (ROOT / block.marked).read_text()
            for name in re.findall(r"examples/\S+/(\w+)\.py", block.text):
                assert name in tested, where


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_and_named_file_exists(page: Path) -> None:
    text = page.read_text()
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    assert not [link for link in links if link and not (page.parent / link).exists()]
    assert not re.search(r"/(?:root|home|opt|work|Users)/", text)


def test_every_variable_is_documented_and_read() -> None:
    sources = "\n".join(path.read_text() for path in (ROOT / "bringup").rglob("*.py"))
    # A variable's name stands alone in quotes; status codes of the C ABI do not.
    read = set(re.findall(r'"(BRINGUP_[A-Z_]+)"', sources))
    documented = set(
        re.findall(r"^\| `(BRINGUP_[A-Z_]+)`", (ROOT / "docs" / "environment.md").read_text(), re.MULTILINE)
    )
    assert read <= documented
    tests = (ROOT / "tests" / "conftest.py").read_text()
    assert not [name for name in documented - read if name not in tests]


def test_the_recipes_are_as_long_as_they_say() -> None:
    page = (ROOT / "docs" / "extending.md").read_text()
    told = re.findall(r"^\| \[.*?\]\(#([a-z-]+)\) \|.*\| (\d+) \| (\d+) \|$", page, re.MULTILINE)
    sections = {
        heading.lower().replace(" ", "-"): text
        for heading, text in re.findall(r"^## (.*?)$(.*?)(?=^## |\Z)", page, re.M | re.S)
    }
    assert {name for name, _, _ in told} == set(sections)
    for name, files, lines in told:
        found = re.search(r"```python\n(.*?)```", sections[name], re.DOTALL)
        text = found[1] if found else (ROOT / "examples/targets/webassembly.py").read_text()
        counted = sum(bool(line.strip()) for line in text.splitlines() if not line.startswith("# file:"))
        assert (files, lines) == ("1", str(counted)), name
