"""Host and DPU programs in C, written for the SDK: by ``bringup upmem run``, and by a Makefile of their own."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bringup.upmem.host import LIBRARY
from bringup.upmem.tools import write_tools

PROGRAMS = Path(__file__).parent / "programs"
HISTOGRAM = [
    "70 DPUs in 2 ranks (callbacks saw 70), done 1, fault 0",
    "histogram equals the host's",
    "scattered blocks arrived",
    "tasklet 0 of 16 saw all 4096 bytes; counter runs",
    "3000 DPUs: allocation failed: 3000 DPUs: a machine has 2556, and 0 of them are taken",
]
PIPELINE = [
    "64 DPUs, items has 2048 bytes",
    "wrong sums: 0",
    f"tasklet 2 of 7: text c 0x5a {0x11 + (0x5A << 24) + (0x5A << 32)}",
]
JOIN = [
    "128 DPUs in 2 ranks, callbacks 1128",
    "wrong counts: 0, the first is 207",
    "6 + 5 tasklets, 5.5, 207 matches, same bytes 1000100, flags 3, counter runs",
    "seconds in the probe: not known here",
    "1: 'nothing'",
]
MAKEFILE = """
NR_TASKLETS ?= 16
HOST_FLAGS := -std=c11 -Wall -Werror -O3 $(shell dpu-pkg-config --cflags --libs dpu)
DPU_FLAGS := -Wall -Wextra -O2 -DNR_TASKLETS=$(NR_TASKLETS)

all: host histogram_dpu
host: histogram_host.c
\t$(CC) -o $@ $< $(HOST_FLAGS)
histogram_dpu: histogram_dpu.c
\tdpu-upmem-dpurte-clang $(DPU_FLAGS) -o $@ $<
"""
OBJECTS_MAKEFILE = """
CFLAGS := -Wall -Wextra -g -I.
HOST_FLAGS := -std=c11 -O3 `dpu-pkg-config --cflags --libs dpu` -lm -DDPU_BINARY=\\"join_dpu\\"
DPU_FLAGS := -O2 -D NR_TASKLETS=11 -DSTACK_SIZE_DEFAULT=512 -DSTACK_SIZE_TASKLET_0=1024 -fgnu89-inline -flto=thin

join_host: join_host.c join_dpu
\t$(CC) -o $@ $< $(CFLAGS) $(HOST_FLAGS)
join_dpu: join_dpu.o libtable.a
\tdpu-upmem-dpurte-clang $(CFLAGS) $(DPU_FLAGS) -o $@ $^
libtable.a: join_table.o
\tar rcs $@ $<
%.o: %.c
\tdpu-upmem-dpurte-clang $(CFLAGS) $(DPU_FLAGS) -MMD -MF $*.d -c -o $@ $<
"""


def bringup(*words: str, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bringup", "upmem", *words]
    return subprocess.run(command, capture_output=True, text=True, **options)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [("histogram", [], HISTOGRAM), ("pipeline", ["--tasklets", "7"], PIPELINE)],
)
def test_a_program_for_the_sdk_runs_unchanged(name: str, options: list[str], expected: list[str]) -> None:
    words = ("run", f"{PROGRAMS / name}_host.c", "--dpu", f"{PROGRAMS / name}_dpu.c", *options)
    for checks in ("0", "1"):
        done = bringup(*words, env={**os.environ, "BRINGUP_UPMEM_CHECKS": checks})
        assert done.stdout.splitlines() == expected, done.stderr
        assert done.returncode == 0


def test_its_own_makefile_works(tmp_path: Path) -> None:
    for part in ("host", "dpu"):
        (tmp_path / f"histogram_{part}.c").symlink_to(PROGRAMS / f"histogram_{part}.c")
    (tmp_path / "Makefile").write_text(MAKEFILE)
    environment = {**os.environ, "BRINGUP_CACHE": str(tmp_path / "cache")}
    tools = bringup("path", env=environment).stdout.strip()
    environment["PATH"] = f"{tools}:{environment['PATH']}"
    made = subprocess.run(["make", "all"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert made.returncode == 0, made.stdout + made.stderr
    done = subprocess.run(["./host"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.stdout.splitlines() == HISTOGRAM


@pytest.fixture
def tools(tmp_path: Path) -> dict[str, str]:
    """The environment of a user who has put the tools before everything."""
    folder = tmp_path / "tools"
    folder.mkdir()
    write_tools(folder)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}


def test_a_makefile_with_objects_and_archives_works(tmp_path: Path, tools: dict[str, str]) -> None:
    for file in PROGRAMS.glob("join*"):
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "Makefile").write_text(OBJECTS_MAKEFILE)
    made = subprocess.run(["make", "join_host"], cwd=tmp_path, env=tools, capture_output=True, text=True)
    assert made.returncode == 0, made.stdout + made.stderr
    done = subprocess.run(["./join_host"], cwd=tmp_path, env=tools, capture_output=True, text=True)
    assert done.stdout.splitlines() == JOIN, done.stderr
    assert "a callback that does not block" in done.stderr
    compiler = ["dpu-upmem-dpurte-clang", "-DNR_TASKLETS=11"]
    for words, said in (
        ([*compiler, "-DSTACK_SIZE_TASKLET_3=60000", "join_dpu.o", "libtable.a"], "a DPU has 65,536"),
        ([*compiler, "-c", "join_dpu.c", "join_table.c", "-o", "both.o"], "-o names one file"),
        ([*compiler, "join.h"], "join.h is no C file, object or archive"),
        ([*compiler, "--what", "join_dpu.c"], "what does --what mean?"),
        ([*compiler], "no C file"),
    ):
        refused = subprocess.run(words, cwd=tmp_path, env=tools, capture_output=True, text=True)
        assert refused.returncode == 1
        assert said in refused.stderr


@pytest.mark.parametrize("archived", [False, True])
def test_instructions_of_objects_are_counted(archived: bool, tmp_path: Path, tools: dict[str, str]) -> None:
    if shutil.which("riscv64-unknown-elf-gcc") is None:
        pytest.skip("instructions are counted by gcc for RISC-V")
    body = "".join(f"  x = x * x + {n} / (x | 1);\n" for n in range(1, 900))
    (tmp_path / "long.c").write_text(f"volatile int x;\nvoid all(void) {{\n{body}}}\n")
    (tmp_path / "main.c").write_text("void all(void);\nint main(void) { all(); return 0; }\n")
    commands = [["dpu-upmem-dpurte-clang", "-c", "long.c"], ["dpu-upmem-dpurte-clang", "-c", "main.c"]]
    if archived:
        commands.append(["ar", "rcs", "liblong.a", "long.o"])
    for command in commands:
        subprocess.run(command, cwd=tmp_path, env=tools, check=True)
    link = ["dpu-upmem-dpurte-clang", "main.o", "liblong.a" if archived else "long.o"]
    refused = subprocess.run(link, cwd=tmp_path, env=tools, capture_output=True, text=True)
    assert refused.returncode == 1
    assert "a DPU's IRAM holds 4,096" in refused.stderr


def test_a_host_program_in_cpp(tmp_path: Path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("there is no C++ compiler")
    host, dpu = tmp_path / "host.cpp", tmp_path / "dpu.c"
    host.write_text(
        """
        #include <iostream>
        #include <vector>
        extern "C" {
        #include <dpu.h>
        }
        DPU_INCBIN(program, DPU_BINARY)
        int main(int, char **arguments) {
          dpu_set_t set, dpu;
          DPU_ASSERT(dpu_alloc(3, nullptr, &set));
          DPU_ASSERT(dpu_load_from_incbin(set, &program, nullptr));
          DPU_ASSERT(dpu_launch(set, DPU_SYNCHRONOUS));
          std::vector<int> numbers;
          DPU_FOREACH(set, dpu) {
            int number;
            DPU_ASSERT(dpu_copy_from(dpu, "number", 0, &number, sizeof number));
            numbers.push_back(number);
          }
          std::cout << arguments[1] << numbers.size() * numbers[2] << std::endl;
          DPU_ASSERT(dpu_free(set));
        }"""
    )
    dpu.write_text("#include <defs.h>\n__host int number;\nint main(void) { number += 7; return 0; }")
    done = bringup("run", str(host), "--dpu", str(dpu), "--tasklets", "2", "--", "thrice ")
    assert done.stdout == "thrice 42\n", done.stderr


def test_a_fault_ends_the_host_program(tmp_path: Path) -> None:
    host, dpu = tmp_path / "host.c", tmp_path / "dpu.c"
    host.write_text(
        "#include <dpu.h>\nint main(void) {\nstruct dpu_set_t set;\nDPU_ASSERT(dpu_alloc(2, NULL, &set));\n"
        "DPU_ASSERT(dpu_load(set, DPU_BINARY, NULL));\nDPU_ASSERT(dpu_launch(set, DPU_SYNCHRONOUS));\nreturn 0; }"
    )
    dpu.write_text("#include <mram.h>\nint main(void) {\n  mram_read(0, (void *)8, 8);\n  return 0; }")
    done = bringup("run", str(host), "--dpu", str(dpu))
    assert done.returncode == 1
    assert "a DPU is in fault: DPU 0, tasklet 0: mram_read with WRAM address 0x8" in done.stderr
    assert "dpu.c:3" in done.stderr


def test_hardware_that_is_demanded_is_missing(tmp_path: Path) -> None:
    host = tmp_path / "host.c"
    host.write_text(
        '#include <dpu.h>\nint main(void) {\nstruct dpu_set_t set;\nDPU_ASSERT(dpu_alloc(1, "backend=hw", &set));\n'
        "return 0; }"
    )
    dpu = tmp_path / "dpu.c"
    dpu.write_text("int main(void) { return 0; }")
    done = bringup("run", str(host), "--dpu", str(dpu))
    assert done.returncode == 1
    assert "demands hardware" in done.stderr
    assert "UPMEM's SDK" in done.stderr


def test_what_does_not_compile_is_said() -> None:
    done = bringup("run", "nothing.c", "--dpu", "nothing_else.c")
    assert done.returncode == 2
    assert "there is no file nothing.c, nothing_else.c" in done.stderr
    host = str(PROGRAMS / "histogram_host.c")
    done = bringup("run", host, "--dpu", host)
    assert done.returncode == 2
    assert "the compiler refused a DPU program" in done.stderr


def test_a_program_is_compared_on_two_libraries(tmp_path: Path) -> None:
    """The other library is a copy of ours; a program that prints the name of its DPU program differs."""
    library = tmp_path / "libdpu.so"
    shutil.copy(LIBRARY, library)
    words = (str(PROGRAMS / "pipeline_host.c"), "--dpu", str(PROGRAMS / "pipeline_dpu.c"), "--tasklets", "7")
    tool = f"{sys.executable} -m bringup.upmem.tools"
    done = bringup("compare", *words, "--library", str(library), "--compiler", tool)
    assert (done.returncode, done.stdout) == (0, "no difference: 3 lines, exit code 0\n"), done.stderr

    host, dpu = tmp_path / "host.c", tmp_path / "dpu.c"
    host.write_text("#include <stdio.h>\n#include <string.h>\nint main(void) { puts(strrchr(DPU_BINARY, 95)); }")
    dpu.write_text("int main(void) { return 0; }")
    names = (str(host), "--dpu", str(dpu))
    done = bringup("compare", *names, "--library", str(library), "--compiler", tool)
    assert done.returncode == 1
    assert {"-_simulator", "+_other"} <= set(done.stdout.splitlines())

    done = bringup("compare", *names, "--library", str(tmp_path / "none.so"))
    assert done.returncode == 2
    assert "there is no hardware side" in done.stderr
    done = bringup("compare", *names, "--library", str(library), "--compiler", "no-such-compiler")
    assert done.returncode == 2
    assert "there is no program 'no-such-compiler'" in done.stderr


def test_the_numbers_of_the_calibration_are_printed() -> None:
    done = bringup("calibrate")
    assert done.returncode == 0
    assert "350 / 4.91 MOPS" in done.stdout
    assert "UPMEM hardware:" in done.stdout


def test_the_report_names_every_phase() -> None:
    done = bringup("run", str(PROGRAMS / "pipeline_host.c"), "--dpu", str(PROGRAMS / "pipeline_dpu.c"))
    assert [line.split()[0] for line in done.stderr.splitlines()[1:]] == ["CPU→DPU", "DPU", "DPU→CPU", "probe"]
    assert "128 calls, 128,256 bytes" in done.stderr
