"""The README says only what is so: its snippets run, its targets, commands, links and variables exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.optional_packages import need_the_command, skip_without_a_riscv_compiler

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = BLOCK.findall(README)
INLINE = re.findall(r"`([^`]+)`", BLOCK.sub("", README))
SNIPPETS = [text for language, text in BLOCKS if language == "python"]
COMMANDS = "\n".join(text for language, text in BLOCKS if language == "")


def test_there_are_snippets() -> None:
    assert len(SNIPPETS) >= 2


@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda text: text.splitlines()[0])
def test_every_snippet_runs(snippet: str, run_python, tmp_path: Path) -> None:
    if "riscv" in snippet:
        skip_without_a_riscv_compiler()
    output = run_python(snippet, env={"BRINGUP_DRIVERS": None, "BRINGUP_SIM": None}, cwd=tmp_path).stdout
    assert output.strip()


def test_every_make_target_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"^make ([a-z-]+)", COMMANDS, re.MULTILINE))
    assert named >= {"demo", "test"}
    assert named <= targets


def test_continuous_integration_runs_the_test_command() -> None:
    commands = (ROOT / ".ci" / "run").read_text().splitlines()
    assert "make test" in COMMANDS
    assert "make test" in commands
    assert "make lint" in commands


def test_every_option_of_a_named_command_exists() -> None:
    named = re.findall(r"^bringup ([a-z]+)((?: --\w+ \S+)*)", "\n".join([COMMANDS, *INLINE]), re.MULTILINE)
    assert {command for command, _ in named} >= {"check", "contract", "diagnose"}
    need_the_command()
    for command, options in named:
        line = [sys.executable, "-m", "bringup", command, "--help"]
        shown = subprocess.run(line, capture_output=True, text=True, cwd=ROOT, env={"COLUMNS": "200", "TERM": "dumb"})
        assert shown.returncode == 0, f"{command}: {shown.stderr}"
        for option in re.findall(r"--\w+", options):
            assert option in shown.stdout


def test_every_link_leads_somewhere() -> None:
    links = [link for link in re.findall(r"\]\(([^)]+)\)", README) if "://" not in link]
    assert links
    assert not [link for link in links if not (ROOT / link).exists()]


def test_every_variable_is_read_somewhere() -> None:
    sources = [path.read_text() for suffix in ("py", "c", "cpp") for path in (ROOT / "bringup").rglob(f"*.{suffix}")]
    for variable in set(re.findall(r"\bBRINGUP_[A-Z_]+\b", README)):
        assert any(variable in text for text in sources), variable


def test_no_machine_paths_and_no_hosts() -> None:
    shipped = ["README.md", "Makefile", "setup.py", "pyproject.toml", "CHANGELOG.md", "tests/README.md", ".ci/run"]
    for name in shipped:
        assert not re.search(r"/(?:root|home|opt|work|Users)/", (ROOT / name).read_text()), name
