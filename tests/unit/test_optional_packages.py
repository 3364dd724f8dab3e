"""Where packages are missing, tests are left out with a reason; where they are there, nothing is."""

from __future__ import annotations

import pytest

from bringup.riscv.toolchain import ToolchainMissing
from tests import optional_packages
from tests.optional_packages import SkipWithoutZig, files_left_out, need_the_command


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch):
    """Makes packages look as if they were not installed."""

    def hide(*names: str) -> None:
        monkeypatch.setattr(optional_packages, "missing", lambda *asked: [name for name in asked if name in names])

    return hide


def test_files_that_import_what_is_missing(without) -> None:
    without("hypothesis")
    found = files_left_out()
    assert set(found.values()) == {"hypothesis"}
    assert any(path.endswith("test_allocator.py") for path in found)
    assert not any(path.endswith(("test_cli.py", "test_docs.py")) for path in found)
    without("typer")
    assert any(path.endswith("test_cli.py") for path in files_left_out())
    without()
    assert files_left_out() == {}


def test_the_command(without) -> None:
    without()
    need_the_command()
    without("rich")
    with pytest.raises(pytest.skip.Exception, match="rich not installed"):
        need_the_command()


def ended_by(error: Exception) -> None:
    """Runs the hook around a test that raises this."""
    hook = SkipWithoutZig().pytest_runtest_call()
    next(hook)
    hook.throw(error)


def test_no_riscv_compiler_is_a_skip_only_without_zig(without) -> None:
    packed = RuntimeError("the backend failed")
    packed.__cause__ = ToolchainMissing("no RISC-V compiler")
    without("ziglang")
    for error in (ToolchainMissing("no RISC-V compiler"), packed):
        with pytest.raises(pytest.skip.Exception, match="no RISC-V compiler"):
            ended_by(error)
    with pytest.raises(ValueError, match="something else"):
        ended_by(ValueError("something else"))
    without()
    with pytest.raises(RuntimeError, match="the backend failed"):
        ended_by(packed)
