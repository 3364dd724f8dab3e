"""The host's C compiler: which one, for which CPU, and what its failures say."""

from __future__ import annotations

import ctypes
import os
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from bringup.targets import toolchain
from bringup.targets.c import host_cpu
from bringup.targets.c.target import CTarget
from bringup.targets.toolchain import CompileError, CompilerMissing, compile_c, find_compiler, host_target, identity

ROOT = Path(__file__).resolve().parents[3]
GOOD = "int answer(void) { return 42; }\n"
PORTABLE = CTarget(vector_bytes=0, fma=False, isa="")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("BRINGUP_CC", "CC", "BRINGUP_MARCH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("BRINGUP_CACHE", str(tmp_path / "cache"))


def program(folder: Path, name: str, script: str = 'exec cc "$@"') -> Path:
    """A compiler of our own."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def call(binary: bytes, tmp_path: Path, function: str = "answer") -> int:
    path = tmp_path / f"{len(list(tmp_path.iterdir()))}.so"  # a new file: one that is loaded may not be written
    path.write_bytes(binary)
    return ctypes.CDLL(str(path))[function]()


# ---- which compiler ----
def test_the_order_of_the_search(monkeypatch, tmp_path):
    chosen, conventional, cc, gcc, clang = (
        program(tmp_path / "bin", name) for name in ("chosen", "conventional", "cc", "gcc", "clang")
    )
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("CC", "conventional -m64")
    monkeypatch.setenv("BRINGUP_CC", "chosen --flag 'two words'")
    assert find_compiler() == (str(chosen), "--flag", "two words")
    monkeypatch.delenv("BRINGUP_CC")
    assert find_compiler() == (str(conventional), "-m64")
    monkeypatch.setenv("CC", "not-there")
    for compiler in (cc, gcc, clang):
        assert find_compiler() == (str(compiler),)
        compiler.unlink()
        toolchain._find_compiler.cache_clear()
    monkeypatch.setattr(toolchain.importlib.util, "find_spec", lambda name: name == "ziglang")
    assert find_compiler() == (sys.executable, "-m", "ziglang", "cc")
    toolchain._find_compiler.cache_clear()


def test_no_compiler_says_what_was_looked_for(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)  # ziglang would do
    with pytest.raises(CompilerMissing) as error:
        compile_c(GOOD, PORTABLE)
    for words in ("cc, gcc, clang", "ziglang", "BRINGUP_CC", "install"):
        assert words in str(error.value)
    monkeypatch.setenv("BRINGUP_CC", "mycc")  # a wish is not replaced by something else
    monkeypatch.setenv("PATH", os.defpath)
    with pytest.raises(CompilerMissing, match="BRINGUP_CC=mycc"):
        compile_c(GOOD, PORTABLE)


def test_a_compiler_that_does_not_work(monkeypatch, tmp_path):
    monkeypatch.setenv("BRINGUP_CC", str(program(tmp_path, "broken", "echo 'licence expired' >&2; exit 3")))
    with pytest.raises(CompilerMissing, match="does not work: licence expired; set BRINGUP_CC"):
        identity(PORTABLE)
    garbage = tmp_path / "garbage"
    garbage.write_bytes(b"\x00\x01\x02")
    garbage.chmod(0o755)
    monkeypatch.setenv("BRINGUP_CC", str(garbage))
    with pytest.raises(CompilerMissing, match="cannot be started"):
        compile_c(GOOD, PORTABLE)


def test_identity_holds_version_flags_and_instruction_set(monkeypatch, tmp_path):
    first = identity(CTarget(isa="x86-64-v3"))
    assert "-ffp-contract=off" in first
    assert "-march=x86-64-v3" in first
    assert first != identity(CTarget(isa="x86-64"))
    script = 'if [ "$1" = --version ]; then echo "my cc 1.2"; else exec cc "$@"; fi'
    monkeypatch.setenv("BRINGUP_CC", str(program(tmp_path, "mycc", script)))
    assert "my cc 1.2" in identity(PORTABLE)


def test_the_version_is_asked_once(monkeypatch, tmp_path):
    script = f'echo asked >> {tmp_path}/log; exec cc "$@"'
    monkeypatch.setenv("BRINGUP_CC", str(program(tmp_path, "counting", script)))
    for _ in range(5):
        identity(PORTABLE)
    assert (tmp_path / "log").read_text().count("asked") == 1


# ---- which instruction set ----
V4 = " ".join(sorted(host_cpu.level_flags("x86-64-v4")))
V3 = " ".join(sorted(host_cpu.level_flags("x86-64-v3")))


@pytest.mark.parametrize(
    ("machine", "flags", "target"),
    [
        ("x86_64", V4, CTarget(vector_bytes=64, fma=True, isa="x86-64-v4")),
        ("x86_64", V4.replace("avx512vl", ""), CTarget(vector_bytes=32, fma=True, isa="x86-64-v3")),
        ("x86_64", V3, CTarget(vector_bytes=32, fma=True, isa="x86-64-v3")),
        ("x86_64", V3.replace("fma", ""), CTarget(vector_bytes=16, fma=False, isa="x86-64-v2")),
        ("x86_64", "", CTarget(vector_bytes=16, fma=False, isa="x86-64")),
        ("aarch64", "fp asimd", CTarget(vector_bytes=16, fma=True, isa="armv8-a")),
        ("riscv64", "", CTarget(vector_bytes=0, fma=True, isa="rv64gc")),
        ("mips", "", CTarget(vector_bytes=0, fma=False, isa="")),
    ],
)
def test_a_cpu_becomes_a_target(machine, flags, target):
    assert host_cpu.target_of(machine, frozenset(flags.split())) == target


def test_the_compiler_agrees_with_the_probe():
    """-march of the probed level defines exactly what the target says."""
    if host_cpu.platform.machine() != "x86_64":
        pytest.skip("x86 only")
    target = host_target()
    macros = toolchain._predefined(target.isa)
    assert ("__AVX512F__" in macros) == (target.vector_bytes == 64)
    assert ("__AVX2__" in macros) == (target.vector_bytes >= 32)
    assert ("__FMA__" in macros) == target.fma


@pytest.mark.skipif(host_cpu.platform.machine() != "x86_64", reason="x86 only")
def test_march_is_chosen_by_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("BRINGUP_MARCH", "x86-64")
    assert host_target() == CTarget(vector_bytes=16, fma=False, isa="x86-64")
    monkeypatch.setenv("BRINGUP_MARCH", "nocona")  # not a level: the compiler says what it has
    assert host_target() == CTarget(vector_bytes=16, fma=False, isa="nocona")
    assert call(compile_c(GOOD, host_target()), tmp_path) == 42
    monkeypatch.setenv("BRINGUP_MARCH", "z80")
    with pytest.raises(ValueError, match=r"BRINGUP_MARCH=z80: .*cc.* does not know it"):
        host_target()


@pytest.mark.skipif(host_cpu.platform.machine() != "x86_64", reason="x86 only")
def test_an_instruction_set_the_cpu_lacks_is_refused(monkeypatch):
    monkeypatch.setattr(host_cpu, "_own_flags", lambda: host_cpu.level_flags("x86-64-v2"))
    for march in ("x86-64-v3", "haswell"):
        monkeypatch.setenv("BRINGUP_MARCH", march)
        with pytest.raises(ValueError, match=f"BRINGUP_MARCH={march} needs .*avx2.* it is x86-64-v2"):
            host_target()


def test_zig_spells_levels_its_own_way():
    flags = toolchain._all_flags(("python", "-m", "ziglang", "cc"), CTarget(isa="x86-64-v3"))
    assert "-march=x86_64_v3" in flags
    assert not [flag for flag in flags if flag.startswith("-Wl")]


# ---- compiling ----
def test_compile_gives_a_shared_object(tmp_path):
    binary = compile_c(GOOD, host_target())
    assert binary.startswith(b"\x7fELF")
    assert call(binary, tmp_path) == 42
    assert call(compile_c("int answer(void) { return N; }", host_target(), ["-DN=7"]), tmp_path) == 7


def test_the_same_source_gives_the_same_bytes():
    assert compile_c(GOOD, host_target()) == compile_c(GOOD, host_target())


def test_nothing_is_contracted_and_integers_wrap(tmp_path):
    source = """
    int fused(void) { volatile float a = 1.0f + 0x1p-12f, c = -1.0f - 0x1p-11f; return a * a + c != 0.0f; }
    int wraps(void) { volatile int a = 0x7fffffff; int b = a; return b + 1 < b; }
    """
    binary = compile_c(source, host_target())
    assert call(binary, tmp_path, "fused") == 0  # (1 + 2^-12)^2 rounds to 1 + 2^-11: a fused result keeps 2^-24
    assert call(binary, tmp_path, "wraps") == 1


def test_an_error_shows_the_compilers_words_and_keeps_the_source(tmp_path):
    with pytest.raises(CompileError) as error:
        compile_c("int f(void) { return nothing; }\n", host_target())
    path = error.value.source_path
    assert path.read_text() == "int f(void) { return nothing; }\n"
    assert path.parent == tmp_path / "cache" / "failed"
    message = str(error.value)
    assert f"{path}:1:" in message  # the compiler's own place, with the file that is there now
    assert "nothing" in message
    again = message.rsplit("again: ", 1)[1]
    assert subprocess.run(again, shell=True, capture_output=True, cwd=tmp_path).returncode != 0


def test_without_a_cache_directory_the_source_is_kept_elsewhere(monkeypatch):
    monkeypatch.setenv("BRINGUP_CACHE", "off")
    with pytest.raises(CompileError) as error:
        compile_c("not C", PORTABLE)
    assert error.value.source_path.read_text() == "not C"
    assert error.value.source_path.parent.stat().st_mode & 0o777 == 0o700
    error.value.source_path.unlink()
    error.value.source_path.parent.rmdir()


def test_many_errors_are_cut():
    source = "\n".join(f"int f{n}(void) {{ return missing{n}; }}" for n in range(100))
    with pytest.raises(CompileError, match="more lines"):
        compile_c(source, PORTABLE)


@pytest.mark.parametrize(
    ("script", "words"),
    [("kill -9 $$", "killed by SIGKILL"), ("exit 0", "wrote no output"), ("exit 7", "exit status 7")],
)
def test_strange_endings(monkeypatch, tmp_path, script, words):
    monkeypatch.setenv("BRINGUP_CC", str(program(tmp_path, "strange", script)))
    with pytest.raises(CompileError, match=words):
        compile_c(GOOD, PORTABLE)


def test_nothing_is_left_behind(monkeypatch, tmp_path):
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(toolchain, "_memory_directory", lambda: str(folder))
    compile_c(GOOD, PORTABLE)
    with pytest.raises(CompileError):
        compile_c("not C", PORTABLE)
    assert list(folder.iterdir()) == []


def test_a_full_memory_directory_is_not_used(monkeypatch):
    class Full:
        f_bavail, f_frsize = 10, 4096

    monkeypatch.setattr(os, "statvfs", lambda path: Full)
    assert toolchain._memory_directory() is None
    assert compile_c(GOOD, PORTABLE)


def test_threads_compile_at_once(tmp_path):
    results: dict[int, bytes] = {}

    def work(number: int) -> None:
        results[number] = compile_c(f"int answer(void) {{ return {number}; }}", host_target())

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {number: call(binary, tmp_path) for number, binary in results.items()} == {n: n for n in range(6)}


def test_the_overhead_beyond_the_compiler_is_small(monkeypatch, tmp_path):
    """A compiler that only copies a file: what is left is ours. It takes 1 to 2 ms; 20 ms would be a mistake."""
    ready = tmp_path / "ready.so"
    ready.write_bytes(b"\x7fELF")
    script = f'cat > /dev/null; for last; do :; done; cp {ready} "$last"'
    monkeypatch.setenv("BRINGUP_CC", str(program(tmp_path, "instant", script)))

    def once() -> float:
        start = time.perf_counter()
        assert compile_c(GOOD, PORTABLE) == b"\x7fELF"
        return time.perf_counter() - start

    assert min(once() for _ in range(10)) < 0.02
