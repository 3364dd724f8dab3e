"""The command ``bringup``: each command through typer's runner, and the process where the process matters."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from bringup import __version__, cli, driver
from tests.fork_server import run_bringup

ROOT = Path(__file__).resolve().parents[2]


def bringup(*arguments: str, **env: str | None) -> Result:
    return CliRunner().invoke(cli.app(), list(arguments), env={"COLUMNS": "200", **env})


def process(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return run_bringup(*arguments, env={**os.environ, "COLUMNS": "200", **env})


def test_contract_prints_every_method_and_the_counts() -> None:
    result = bringup("contract")
    assert result.exit_code == 0, result.output
    rows = driver.contract()
    lines = [line.strip() for line in result.output.splitlines()]
    for method, group, _, meaning in rows:
        assert f"{group}:" in lines
        at = next(n for n, line in enumerate(lines) if line.startswith(f"{method}("))
        assert lines[at + 1] == meaning
    assert "alloc(device: int, nbytes: int) -> int" in lines
    assert "launch(device: int, kernel: int, launch: Launch) -> bool | None" in lines
    assert f"5 required, {len(rows) - 5} optional" in lines[-1]


def test_the_reference_page_is_what_the_code_gives() -> None:
    shown = bringup("contract", "--full")
    assert shown.exit_code == 0, shown.output
    page = (ROOT / "docs" / "reference.md").read_text()
    assert shown.output == page, "docs/reference.md is not what the code gives: make docs"
    for word in ("event_elapsed(", "`host_offset`", "`vector=BYTES`", "`xor`", "`sigmoid`", "`BRINGUP_CACHE_SIZE`"):
        assert word in page
    assert "`NAME_VISIBLE_DEVICES`" in page
    empty = [line for line in page.splitlines() if line.startswith("| `") and line.endswith("|  |")]
    assert not empty, f"without a meaning: {empty}"


def test_the_driver_of_a_check_may_be_an_argument(tmp_path: Path) -> None:
    path = tmp_path / "mychip.py"
    path.write_text("from bringup.driver import Driver as Base\nclass Driver(Base):\n    name = 'mychip'\n")
    result = bringup("check", str(path))
    assert "mychip: 0 passed" in result.output
    assert "name it once" in bringup("check", str(path), "--driver", "sim").output


def test_options_about_ops_mean_the_level_ops(monkeypatch: pytest.MonkeyPatch) -> None:
    from bringup.kit import op_checks

    asked: list[tuple[object, ...]] = []
    monkeypatch.setattr(op_checks, "main_ops", lambda *arguments: asked.append(arguments) or 0)
    assert bringup("check", "--ops", "add").exit_code == 0
    assert asked[0][:3] == ("sim", "sim:0", "add")
    assert bringup("check", "--dtypes", "int8").exit_code == 0
    assert len(asked) == 2
    refused = bringup("check", "--level", "driver", "--ops", "add")
    assert refused.exit_code == 2
    assert "--level ops" in " ".join(refused.output.split())
    assert len(asked) == 2


def test_contract_as_json() -> None:
    shown = json.loads(bringup("contract", "--json").output)
    assert shown["required"] == 5
    assert shown["optional"] == len(shown["methods"]) - 5
    assert [row["method"] for row in shown["methods"]] == [row[0] for row in driver.contract()]
    required = [row["method"] for row in shown["methods"] if row["required"]]
    assert required == ["device_count", "open", "alloc", "free", "copy"]


def test_include_is_where_the_header_is() -> None:
    folder = Path(bringup("include").output.strip())
    assert (folder / "bringup" / "driver.h").is_file()
    assert process("include").stdout.strip() == str(folder)


def test_drivers_lists_names_sources_and_counts() -> None:
    result = bringup("drivers", BRINGUP_SIM="devices=3")
    assert result.exit_code == 0, result.output
    line = next(line for line in result.output.splitlines() if " sim " in line)
    assert "built in" in line
    assert " 3 " in line


def test_a_broken_driver_does_not_hide_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    from bringup.driver import lookup as driver_lookup

    class Fine(driver.Driver):
        name = "fine"

        def device_count(self) -> int:
            return 7

    def find(name: str) -> driver.Driver:
        if name == "broken":
            raise RuntimeError("no [libbroken.so] here")
        return Fine()

    monkeypatch.setattr(driver_lookup, "list_drivers", lambda: {"broken": "broken_package:Driver", "fine": "built in"})
    monkeypatch.setattr(driver_lookup, "find_driver", find)
    result = bringup("drivers")
    assert result.exit_code == 0
    assert "no [libbroken.so] here" in result.output
    assert " 7 " in result.output


def test_diagnose_when_all_is_well() -> None:
    result = process("diagnose", BRINGUP_DRIVERS="sim", BRINGUP_SIM="devices=2")
    assert result.returncode == 0, result.stdout + result.stderr
    facts = dict(line.split(None, 1) for line in result.stdout.splitlines() if line[:1].isalpha())
    assert facts["bringup"].startswith(__version__)
    assert facts["BRINGUP_SIM"] == "devices=2"
    assert facts["active"] == "sim: 2 device(s) from sim:0"
    assert facts["autoload"].startswith("on")
    assert "C++ core" in result.stdout


def test_diagnose_says_why_it_is_not_active() -> None:
    result = process("diagnose", BRINGUP_DRIVERS="nosuchchip")
    assert result.returncode == 1
    line = next(line for line in result.stdout.splitlines() if line.startswith("not active"))
    assert "nosuchchip" in line


def test_diagnose_says_that_autoload_is_off() -> None:
    result = process("diagnose", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert result.returncode == 1
    assert "off: TORCH_DEVICE_BACKEND_AUTOLOAD is not 1" in result.stdout


def test_diagnose_opens_no_device(run_python) -> None:
    run_python(
        """
        from typer.testing import CliRunner
        from bringup import cli
        result = CliRunner().invoke(cli.app(), ["diagnose"])
        assert result.exit_code == 0, result.output
        from bringup import _C
        assert not any(_C.is_open(index) for index in range(_C.device_count()))
        """,
        env={"BRINGUP_DRIVERS": "sim"},
    )


WORKING = """
import ctypes
import bringup

class Driver(bringup.Driver):
    name = "heap"
    def __init__(self): self.buffers = {}
    def device_count(self): return 1
    def _at(self, device):
        if device != 0: raise ValueError(f"no device {device}")
    def open(self, device):
        self._at(device)
        return bringup.DeviceSpec(name="Host heap", memory_bytes=1 << 28, alignment=16)
    def alloc(self, device, nbytes):
        self._at(device)
        if nbytes + sum(map(len, self.buffers.values())) > 1 << 28: raise MemoryError("full")
        buffer = ctypes.create_string_buffer(max(nbytes, 1))
        self.buffers[ctypes.addressof(buffer)] = buffer
        return ctypes.addressof(buffer)
    def free(self, device, address):
        self._at(device)
        del self.buffers[address]
    def copy(self, device, dst, src, nbytes, kind, stream, placement=None):
        self._at(device)
        ctypes.memmove(dst, src, nbytes)
"""


@pytest.fixture
def driver_file(tmp_path: Path) -> Path:
    path = tmp_path / "heap.py"
    path.write_text(WORKING)
    return path


def test_check_of_a_working_driver(driver_file: Path, tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    result = bringup("check", "--driver", str(driver_file), "--json", str(found))
    assert result.exit_code == 0, result.output
    assert " 0 failed" in result.output
    rows = json.loads(found.read_text())["results"]
    assert {row["status"] for row in rows} == {"pass", "skip"}
    assert all(row["name"] in result.output for row in rows)


def test_check_of_a_broken_driver(driver_file: Path) -> None:
    driver_file.write_text(WORKING.replace("ctypes.memmove(dst, src, nbytes)", "ctypes.memmove(dst, src, nbytes // 2)"))
    result = bringup("check", "--driver", str(driver_file), "--level", "driver")
    assert result.exit_code == 1, result.output
    assert any(line.startswith("copy_round_trip") and " fail " in line for line in result.output.splitlines())


def test_check_without_a_device_says_so(driver_file: Path) -> None:
    driver_file.write_text(WORKING.replace("device_count(self): return 1", "device_count(self): return 0"))
    result = bringup("check", "--driver", str(driver_file))
    assert " 0 failed" in result.output
    assert "skip" in result.output


@pytest.mark.parametrize("level", ["driver", "ops"])
def test_check_of_an_unknown_driver(level: str) -> None:
    result = bringup("check", "--driver", "nosuchchip", "--level", level)
    assert result.exit_code == 2
    assert "nosuchchip" in result.output


def test_check_of_an_unknown_level() -> None:
    result = bringup("check", "--level", "nosuchlevel")
    assert result.exit_code == 2
    assert "nosuchlevel" in result.output


def test_check_of_ops_hands_everything_over(monkeypatch: pytest.MonkeyPatch, driver_file: Path) -> None:
    from bringup.kit import op_checks

    calls: list[dict[str, object]] = []

    def main_ops(*arguments: object) -> int:
        names = inspect.signature(original).parameters
        calls.append(dict(zip(names, arguments, strict=True)))
        return 1

    original = op_checks.main_ops
    monkeypatch.setattr(op_checks, "main_ops", main_ops)
    options = {"ops": "add,mul", "kinds": "forward,error", "dtypes": "all", "json": "x.json", "gaps": "gaps.toml"}
    flags = [text for name, value in options.items() for text in (f"--{name}", value)]
    numbers = ["--samples", "3", "--workers", "1", "--timeout", "9", "--index", "1"]
    result = bringup("check", "--driver", str(driver_file), "--level", "ops", *flags, *numbers)
    assert result.exit_code == 1
    options["json_file"] = options.pop("json")
    expected = {"driver": str(driver_file), "device": "heap:1", "samples": 3, "workers": 1, "timeout": 9.0, **options}
    assert calls == [expected]


@pytest.mark.slow
def test_check_of_ops_runs() -> None:
    result = process("check", "--driver", "cpu", "--level", "ops", "--ops", "add", "--samples", "1", "--workers", "1")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "0 undeclared" in result.stdout


@pytest.mark.parametrize("arguments", [["contract"], ["contract", "--json"], ["include"], ["drivers"], ["--help"]])
def test_these_commands_import_no_torch(arguments: list[str], run_python) -> None:
    run_python(
        f"""
        import sys
        from typer.testing import CliRunner
        from bringup import cli
        result = CliRunner().invoke(cli.app(), {arguments!r})
        assert result.exit_code == 0, result.output
        assert "torch" not in sys.modules
        """
    )


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_the_extras_there_is_a_hint(missing: str, run_python) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; from bringup.cli import main; main()"
    result = run_python(code, check=False)
    assert result.returncode == 2
    assert result.stderr.splitlines() == ["the command `bringup` needs typer and rich: pip install 'bringup[cli]'"]


def test_version() -> None:
    assert bringup("--version").output.strip() == __version__


@pytest.mark.parametrize(
    ("word", "now"),
    [
        ("check", "it is now `bringup check --level table`"),
        ("generate", "it is now `bringup generate`"),
        ("everything", "ops takes no argument"),
    ],
)
def test_an_old_spelling_names_the_new_one(word: str, now: str) -> None:
    result = bringup("ops", word)
    assert result.exit_code == 2
    assert f"`bringup ops {word}`: {now}" in " ".join(result.output.split())
    assert word not in bringup("ops", "--help").output


def test_options_about_ops_do_not_go_with_a_table() -> None:
    assert "--level ops" in " ".join(bringup("check", "--level", "table", "--ops", "add").output.split())


def test_an_unknown_command_is_refused() -> None:
    result = bringup("nosuchcommand")
    assert result.exit_code == 2
    assert "nosuchcommand" in result.output
