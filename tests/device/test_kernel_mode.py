"""Every kind of op on compiled kernels, against the CPU, where a fallback is an error; and what happens without one."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.device.kernel_programs import LENIENT, STRICT, load_programs

load_programs()
KERNELS = {"BRINGUP_DRIVERS": "sim", "BRINGUP_SIM": "mode=kernels"}


def outcomes(run_python: Any, group: str, policy: str) -> Any:
    code = f"import tests.device.kernel_programs as programs; programs.main({group!r})"
    done = run_python(code, env={**KERNELS, "BRINGUP_FALLBACK": policy}, timeout=290)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def strict(run_python: Any) -> Any:
    return outcomes(run_python, "strict", "error")


@pytest.fixture(scope="module")
def lenient(run_python: Any) -> Any:
    return outcomes(run_python, "lenient", "allow")


@pytest.mark.parametrize("name", STRICT)
def test_without_fallback(name: str, strict: Any) -> None:
    if strict[name][0] is not None:
        pytest.fail(strict[name][0], pytrace=False)


@pytest.mark.parametrize("name", LENIENT)
def test_with_fallback(name: str, lenient: Any) -> None:
    if lenient[name][0] is not None:
        pytest.fail(lenient[name][0], pytrace=False)


# ---- compilers and caches that do not work ----
SUMS = """
    import torch
    x = torch.arange(6.0).to("sim").view(2, 3)
    assert (x + 1).cpu().tolist() == [[1, 2, 3], [4, 5, 6]]
    assert x.sum(0).cpu().tolist() == [3, 5, 7]
    assert x.t().matmul(x).cpu().tolist() == [[9, 12, 15], [12, 17, 22], [15, 22, 29]]
    import bringup
    print(bringup.fallbacks().calls)
"""


def test_a_missing_compiler_is_one_warning_and_a_fallback(run_python: Any, tmp_path: Path) -> None:
    env = {**KERNELS, "BRINGUP_CC": "/nonexistent/cc", "BRINGUP_CACHE": str(tmp_path / "cache")}
    done = run_python(SUMS, env={**env, "BRINGUP_FALLBACK": "allow"})
    assert int(done.stdout) > 0
    assert done.stderr.count("RuntimeWarning") == 1, done.stderr
    assert "BRINGUP_CC=/nonexistent/cc" in done.stderr
    kept = list((tmp_path / "cache" / "failed").glob("*.c"))
    assert any(str(path) in done.stderr for path in kept), (kept, done.stderr)


def test_where_a_fallback_is_an_error_it_says_what_the_compiler_lacks(run_python: Any, tmp_path: Path) -> None:
    env = {**KERNELS, "BRINGUP_CC": "/nonexistent/cc", "BRINGUP_CACHE": str(tmp_path / "cache")}
    done = run_python(SUMS, env={**env, "BRINGUP_FALLBACK": "error"}, check=False)
    assert done.returncode != 0
    said = re.search(r"^RuntimeError: aten::add.Tensor.*", done.stderr, re.MULTILINE)
    assert said, done.stderr
    assert "no C compiler" in said[0]
    assert str(tmp_path / "cache" / "failed") in said[0]
    done = run_python(SUMS, env={**env, "BRINGUP_FALLBACK": "allow,aten::sum=error"}, check=False)
    assert "RuntimeError: aten::sum" in done.stderr, done.stderr


def test_a_compiler_that_refuses_a_kernel_names_its_source(run_python: Any, tmp_path: Path) -> None:
    env = {**KERNELS, "BRINGUP_CC": "cc -include /nonexistent.h", "BRINGUP_CACHE": str(tmp_path / "cache")}
    done = run_python(SUMS, env={**env, "BRINGUP_FALLBACK": "allow"})
    assert "the C compiler refused a kernel" in done.stderr
    assert "/nonexistent.h: No such file" in done.stderr
    assert str(tmp_path / "cache" / "failed") in done.stderr


def test_a_cache_that_cannot_be_a_directory(run_python: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run_python(SUMS, env={**KERNELS, "BRINGUP_FALLBACK": "error", "BRINGUP_CACHE": str(tmp_path / "file" / "x")})
    assert done.stderr.count("the disk cache of kernels does not work") == 1, done.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads and writes everywhere")
def test_a_cache_that_may_not_be_read(run_python: Any, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o000)
    done = run_python(SUMS, env={**KERNELS, "BRINGUP_FALLBACK": "error", "BRINGUP_CACHE": str(folder)})
    assert done.stderr.count("the disk cache of kernels does not work") == 1, done.stderr


def test_a_full_disk(run_python: Any, tmp_path: Path) -> None:
    full = """
    import errno, os
    real = os.replace
    def replace(source, target, **options):
        if str(target).endswith(".kernel"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(source, target, **options)
    os.replace = replace
    """
    env = {**KERNELS, "BRINGUP_FALLBACK": "error", "BRINGUP_CACHE": str(tmp_path / "cache")}
    done = run_python(full + SUMS, env=env)
    assert done.stderr.count("No space left on device") == 1, done.stderr
    assert not list((tmp_path / "cache").glob("*.new")), "a file that was not completed is left"


def test_damaged_entries_are_made_again(run_python: Any, tmp_path: Path) -> None:
    env = {**KERNELS, "BRINGUP_FALLBACK": "error", "BRINGUP_CACHE": str(tmp_path / "cache")}
    run_python(SUMS, env=env)
    entries = list((tmp_path / "cache").glob("*.kernel"))
    assert entries
    for n, entry in enumerate(entries):
        data = entry.read_bytes()
        entry.write_bytes(data[: len(data) // 2] if n % 2 else data[:-8] + bytes(8))
    run_python(SUMS, env=env)


def test_fallbacks_are_counted_for_each_device(run_python: Any) -> None:
    code = """
        import bringup, torch
        for index, times in ((0, 3), (1, 2)):
            x = torch.eye(3, device=f"sim:{index}")
            for _ in range(times):
                torch.linalg.qr(x)
        calls = {row.device: row.calls for row in bringup.fallbacks() if row.op.startswith("aten::linalg_qr")}
        assert calls == {"sim:0": 3, "sim:1": 2}, calls
        assert {row.device for row in bringup.fallbacks("sim:1")} == {"sim:1"}
        assert all(" in <module>" in row.stack for row in bringup.fallbacks() if "linalg_qr" in row.op)
        bringup.reset_fallbacks()
        assert len(bringup.fallbacks()) == 0
    """
    run_python(code, env={**KERNELS, "BRINGUP_FALLBACK": "allow"})


def test_the_table_of_ops_fits_80_columns(run_python: Any) -> None:
    code = "from bringup import cli; import sys; sys.argv = ['bringup', 'ops', '--missing']; cli.main()"
    done = run_python(code, env={**KERNELS, "COLUMNS": "80"}, check=False)
    lines = done.stdout.splitlines()
    assert len(lines) > 100
    assert max(map(len, lines)) <= 80
    assert "…" not in done.stdout, "something is cut off"


def test_the_compiler_of_a_device_is_found_by_the_device(run_python: Any) -> None:
    """None before the first use, and for a driver that runs no kernels; eager ops and graphs share one."""
    code = """
    import torch
    from bringup.lowering.install import compiler_for
    assert compiler_for(0) is None
    torch.ones(2, device="sim").exp()
    found = compiler_for(0)
    print(found is not None and found is compiler_for(1), compiler_for(2))
    """
    environment = {"BRINGUP_DRIVERS": "sim"}
    for mode, expected in (("kernels", "True None"), ("library", "False None")):
        done = run_python(code, env={**environment, "BRINGUP_SIM": f"mode={mode},devices=2"})
        assert done.stdout.strip() == expected, mode
