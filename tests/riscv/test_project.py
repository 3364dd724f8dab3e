"""Exported projects: ``make`` with gcc and zig, ``make run``, limits, names, and a weights file that was damaged."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import bringup
from bringup.graph.bare_metal.build import DoesNotFit
from bringup.riscv import MachineSpec, open_machine
from tests.optional_packages import missing, skip_without_a_riscv_compiler

COMPILERS = {"zig": f"{sys.executable} -m ziglang cc", "gcc": "riscv64-unknown-elf-gcc"}
CORES = {
    "rv64gc": MachineSpec("rv64gc"),
    "rv64gcv": MachineSpec("rv64gcv", vlen=256),
    "rv32imfc": MachineSpec("rv32imfc"),
    "rv32imc": MachineSpec("rv32imc"),
}
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


class Net(nn.Module):
    """A convolution, pooling, something transcendental, and an integer output beside the float one."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(2, 4, 3, padding=1), nn.Linear(36, 5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = torch.softmax(self.head(torch.max_pool2d(torch.tanh(self.conv(x)), 2).flatten(1)), -1)
        return scores, scores.argmax(-1)


@pytest.fixture(scope="module")
def net() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return Net().eval(), torch.randn(2, 2, 6, 6)


def compiler(family: str) -> str:
    command = COMPILERS[family]
    if shutil.which(command.split()[0]) is None:
        pytest.skip(f"{command} is not installed (Debian: gcc-riscv64-unknown-elf)")
    if family == "zig" and missing("ziglang"):
        pytest.skip("ziglang is not installed")
    return command


def make(folder: Path, family: str, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    command = ["make", "-C", str(folder), f"CC={compiler(family)}", "CFLAGS=-Werror", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


def printed(text: str) -> list[torch.Tensor]:
    """The tensors that a project's main printed."""
    found = []
    for dtype, shape, numbers in re.findall(
        r"^out\d+: (\w+), ([\d x]+)\n((?:[-\d.e\s]|nan|inf)+)$", text, re.MULTILINE
    ):
        values = [float(word) for word in numbers.split()]
        found.append(torch.tensor(values, dtype=getattr(torch, dtype)).reshape([int(n) for n in shape.split(" x ")]))
    return found


@pytest.mark.parametrize("isa", CORES)
@pytest.mark.parametrize("family", COMPILERS)
def test_it_builds_without_a_warning_and_prints_what_eager_gives(
    net: tuple[nn.Module, torch.Tensor], isa: str, family: str, tmp_path: Path
) -> None:
    model, x = net
    vector = 256 if isa.endswith("v") else 0
    bringup.export(model, (x,), target="riscv", out=tmp_path, isa=isa, vector=vector, name="net")
    built = make(tmp_path, family)
    assert re.search(r"arena [\d,]+ .* = RAM [\d,]+ bytes", built.stdout)
    with open_machine("interpreter", tmp_path / "net.elf", CORES[isa]) as machine:
        stop = machine.run()
        text = machine.console.decode()
    assert (stop.reason, stop.code) == ("exit", 0), text
    assert re.search(r"^instructions: \d+$", text, re.MULTILINE)
    scores, best = printed(text)
    expected, expected_best = model(x)
    torch.testing.assert_close(scores, expected)
    assert torch.equal(best, expected_best)


@pytest.mark.parametrize("isa", CORES)
def test_make_run_prints_the_same_in_qemu(net: tuple[nn.Module, torch.Tensor], isa: str, tmp_path: Path) -> None:
    if shutil.which(f"qemu-system-riscv{CORES[isa].xlen}") is None:
        pytest.skip("QEMU is not installed (Debian: qemu-system-misc)")
    model, x = net
    bringup.export(model, (x,), target="riscv", out=tmp_path, isa=isa, vector=CORES[isa].vlen, name="net")
    ran = make(tmp_path, "zig", "run")
    with open_machine("interpreter", tmp_path / "net.elf", CORES[isa]) as machine:
        machine.run()
        ours = machine.console.decode()
    assert ours in ran.stdout, "the same outputs, and the same number of instructions"


def test_a_damaged_weights_file_is_noticed(net: tuple[nn.Module, torch.Tensor], tmp_path: Path) -> None:
    model, x = net
    bringup.export(model, (x,), target="riscv", out=tmp_path, name="net")
    weights = bytearray((tmp_path / "net_weights.bin").read_bytes())
    weights[100] ^= 1
    (tmp_path / "net_weights.bin").write_bytes(weights)
    make(tmp_path, "zig")
    with open_machine("interpreter", tmp_path / "net.elf") as machine:
        stop = machine.run()
        assert (stop.reason, stop.code) == ("exit", 1)
        assert b"net: the weights are damaged: their checksum is another one" in machine.console


def test_swapped_weights_are_noticed(net: tuple[nn.Module, torch.Tensor], tmp_path: Path) -> None:
    """The sum of all words is the same then."""
    model, x = net
    bringup.export(model, (x,), target="riscv", out=tmp_path, name="net")
    weights = (tmp_path / "net_weights.bin").read_bytes()
    assert weights[:4] != weights[4:8]
    (tmp_path / "net_weights.bin").write_bytes(weights[4:8] + weights[:4] + weights[8:])
    make(tmp_path, "zig")
    with open_machine("interpreter", tmp_path / "net.elf") as machine:
        assert machine.run().code == 1


#: What PyTorch takes as a module's name; its own tracing fails for those with quotes and line ends.
HOSTILE = "*/ system(1); #error hostile /* $(shell false) `false` ${HOME} % ' é"


def test_names_of_the_model_never_reach_c(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential()
    for name, layer in (
        (HOSTILE, nn.Linear(4, 4)),
        ("int", nn.ReLU()),
        ("main", nn.Linear(4, 4)),
        ("é", nn.Linear(4, 2)),
    ):
        model.add_module(name, layer)
    x = torch.randn(1, 4)
    bringup.export(model, (x,), target="riscv", out=tmp_path, name=f'../{HOSTILE}"\n#error hostile\n\\')
    names = {path.name for path in tmp_path.iterdir()}
    assert all(re.fullmatch(r"[A-Za-z0-9_]+(\.[A-Za-z0-9]+)?", name) for name in names), names
    assert {path.parent for path in tmp_path.rglob("*")} == {tmp_path}
    for path in tmp_path.iterdir():
        if path.suffix != ".bin":
            assert not re.search(r"system\(|#error|\$\(shell false|`false`", path.read_text()), path.name
    make(tmp_path, "zig")
    with open_machine("interpreter", next(tmp_path.glob("*.elf"))) as machine:
        assert machine.run().code == 0
        torch.testing.assert_close(printed(machine.console.decode())[0], model(x))


@pytest.mark.parametrize("name", ["memory", "Main", "gemm"])
def test_a_model_named_as_a_file_of_the_program(name: str, tmp_path: Path) -> None:
    model, x = nn.Linear(4, 2), torch.randn(1, 4)
    bringup.export(model, (x,), target="riscv", out=tmp_path, name=name)
    make(tmp_path, "zig")
    with open_machine("interpreter", tmp_path / f"{name.lower()}_model.elf") as machine:
        assert machine.run().code == 0
        torch.testing.assert_close(printed(machine.console.decode())[0], model(x))


def test_two_vector_models_in_one_program(tmp_path: Path) -> None:
    """Models of the same layers: nothing that the linker sees has the same name."""
    x = torch.randn(3, 6)
    for name in ("first", "second"):
        model = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 4))
        bringup.export(model, (x,), target="riscv", out=tmp_path, name=name, vector=128)
    files = [f"{name}{end}" for name in ("first", "second") for end in (".c", "_weights.c", "_vector.S")]
    make(tmp_path, "zig", f"SOURCES={' '.join(files)} main.c memory.c crt0.S")
    with open_machine("interpreter", tmp_path / "second.elf", CORES["rv64gcv"]) as machine:
        assert machine.run().code == 0
        torch.testing.assert_close(printed(machine.console.decode())[0], model(x))


class Orders(nn.Module):
    """Results that do not lie row by row in eager PyTorch."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.conv = nn.LSTM(4, 3, batch_first=True), nn.Conv2d(2, 3, 1)

    def forward(self, x: torch.Tensor, picture: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            x[0].t() * 2,
            self.lstm(x)[0],
            x.permute(2, 0, 1) + 1,
            self.conv(picture),
            x[:, ::2],
            x[0, 0].expand(3, 4),
        )


def test_outputs_are_row_major(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Orders().eval(), torch.randn(2, 5, 4)
    picture = torch.randn(1, 2, 3, 3).contiguous(memory_format=torch.channels_last)
    bringup.export(model, (x, picture), target="riscv", out=tmp_path, name="net")
    header = (tmp_path / "net.h").read_text()
    assert "const float *in0; /* float32, 2 × 5 × 4, row-major */" in header
    assert "const float *in1; /* float32, 1 × 2 × 3 × 3, strides 18 × 1 × 6 × 2 */" in header
    assert header.count("row-major") == 7
    make(tmp_path, "zig")
    with open_machine("interpreter", tmp_path / "net.elf") as machine:
        assert machine.run().code == 0
        found = printed(machine.console.decode())
    expected = model(x, picture)
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected):
        torch.testing.assert_close(ours, theirs.contiguous())


def test_results_have_the_strides_of_eager_ones() -> None:
    torch._dynamo.reset()
    model, x = Orders().eval().requires_grad_(False), torch.randn(2, 5, 4)
    picture = torch.randn(1, 2, 3, 3).contiguous(memory_format=torch.channels_last)
    backend = bringup.Backend(target="riscv")
    found = torch.compile(model, backend=backend, dynamic=False)(x, picture)
    for ours, theirs in zip(found, model(x, picture)):
        torch.testing.assert_close(ours, theirs, check_stride=theirs.is_contiguous())


def test_limits_on_ram_and_flash_are_checked_at_export(tmp_path: Path) -> None:
    skip_without_a_riscv_compiler()
    model, x = nn.Linear(300, 100), torch.randn(1, 300)
    code = r"code [1-9][\d,]+ \+ weights 120,\d+ = flash 12\d,\d+;"
    with pytest.raises(DoesNotFit, match=rf"bytes of flash, and there are 65,536: {code}"):
        bringup.export(model, (x,), target="riscv", out=tmp_path, flash="64K")
    with pytest.raises(
        DoesNotFit, match=rf"bytes of RAM, and there are 4,096: {code} .*\(chosen by stack=\)"
    ) as caught:
        bringup.export(model, (x,), target="riscv", out=tmp_path, ram=4096)
    assert "a smaller stack would do" not in str(caught.value)
    with pytest.raises(DoesNotFit, match=r"a smaller stack would do, such as stack='4K'"):
        bringup.export(model, (x,), target="riscv", out=tmp_path, ram="16K")
    bringup.export(model, (x,), target="riscv", out=tmp_path, ram="16K", stack="4K")
    bringup.export(model, (x,), target="riscv", out=tmp_path, flash="256K", ram="128K")
    assert re.search(code, (tmp_path / "Makefile").read_text())
    bringup.export(model, (x,), target="riscv", out=tmp_path)
    assert re.search(r'echo "weights 120,\d+ \+ the code = flash; arena', (tmp_path / "Makefile").read_text())


def test_run_without_qemu_says_what_to_do(tmp_path: Path) -> None:
    bringup.export(nn.Linear(2, 2), (torch.randn(1, 2),), target="riscv", out=tmp_path, name="net")
    done = make(tmp_path, "zig", "run", "QEMU=no-such-emulator", check=False)
    assert done.returncode != 0
    assert (
        "no-such-emulator is not here (Debian: qemu-system-misc); without it: bringup riscv run net.elf" in done.stdout
    )


def test_without_gcc_it_builds_with_zig(tmp_path: Path) -> None:
    compiler("zig")
    bringup.export(nn.Linear(2, 2), (torch.randn(1, 2),), target="riscv", out=tmp_path, name="net")
    words = ["make", "-C", str(tmp_path), "CROSS_COMPILE=no-such-", f"PYTHON={sys.executable}"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "net.elf").exists()


def test_the_code_alone_can_be_too_large(tmp_path: Path) -> None:
    skip_without_a_riscv_compiler()
    with pytest.raises(DoesNotFit, match=r"bytes of flash, and there are 1,200: code"):
        bringup.export(nn.Linear(16, 16), (torch.randn(1, 16),), target="riscv", out=tmp_path, flash=1200)


def test_the_linker_checks_the_limits_again_with_the_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no compiler at export it is the only one who can."""
    monkeypatch.setenv("BRINGUP_RISCV_CC", "no-such-compiler")
    model, x = nn.Linear(16, 16), torch.randn(1, 16)
    bringup.export(model, (x,), target="riscv", out=tmp_path, flash=1200)
    monkeypatch.undo()
    done = make(tmp_path, "zig", check=False)
    assert done.returncode != 0
    assert "needs more than 1200 bytes of flash" in done.stderr


def test_the_header_says_what_a_caller_needs(net: tuple[nn.Module, torch.Tensor], tmp_path: Path) -> None:
    """C++ includes it, every step is announced, and two calls at once do not meet: all state is in their arenas."""
    model, x = net
    bringup.export(model, (x,), target="riscv", out=tmp_path, name="net")
    header = (tmp_path / "net.h").read_text()
    for word in ('extern "C"', "NET_ARENA_BYTES", "NET_ARENA_ALIGN", "int net_run(const net_io *io, void *arena);"):
        assert word in header
    (tmp_path / "main.c").write_text(_TWICE)
    make(tmp_path, "zig")
    with open_machine("interpreter", tmp_path / "net.elf") as machine:
        assert machine.run().code == 0
        steps = re.findall(rb"^step (\w+)$", machine.console, re.MULTILINE)
    assert steps
    assert len(set(steps)) == len(steps) == int(re.findall(r"NET_STEPS (\d+)", header)[0])


_TWICE = """
#include "net.h"
static unsigned char arenas[2][NET_ARENA_BYTES] __attribute__((aligned(NET_ARENA_ALIGN)));
static float x[2][NET_IN0_ELEMENTS], y[2][NET_OUT0_ELEMENTS];
static int64_t best[2][NET_OUT1_ELEMENTS];
static void put(const char *words) { while (*words) *(volatile char *)(uintptr_t)0x10000000 = *words++; }
/* The other call runs in the middle of this one. */
static void on_step(void *context, int step, const char *name) {
  const net_io other = {.in0 = x[1], .out0 = y[1], .out1 = best[1], .on_step = 0};
  (void)context, (void)step;
  put("step "), put(name), put("\\n");
  net_run(&other, arenas[1]);
}
int main(void) {
  for (int i = 0; i < NET_IN0_ELEMENTS; i++) x[0][i] = x[1][i] = (float)(i % 7) - 3.0f;
  const net_io io = {.in0 = x[0], .out0 = y[0], .out1 = best[0], .on_step = on_step};
  if (net_check() || net_run(&io, arenas[0])) return 3;
  for (int i = 0; i < NET_OUT0_ELEMENTS; i++) if (y[0][i] != y[1][i]) return 4;
  return 0;
}
"""


WITHOUT_KERNELS = """
import pathlib, sys, torch, bringup
model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.ReLU()).eval()
x = torch.randn(2, 4)
folder = bringup.export(model, (x,), out=pathlib.Path(sys.argv[1]) / "project", target="riscv")
assert (folder / "Makefile").exists()
with torch.no_grad():
    got = torch.compile(model, backend=bringup.Backend(target="riscv"))(x)
torch.testing.assert_close(got, model(x))
"""


@pytest.mark.parametrize(
    "active", [{"BRINGUP_DRIVERS": "examples/drivers/dictmem.py"}, {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}]
)
def test_bare_metal_needs_no_device_with_kernels(run_python, tmp_path: Path, active: dict[str, str]) -> None:
    """The chip that runs a project is the target; what PyTorch device this process has does not matter."""
    skip_without_a_riscv_compiler()
    run_python(WITHOUT_KERNELS, str(tmp_path), env=active)


class _Attention(nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def test_attention_is_exported_as_the_products_it_is_made_of(tmp_path: Path) -> None:
    """As one kernel it took 186,000 instructions where these take 75,000."""
    inputs = tuple(torch.randn(1, 2, 8, 4) for _ in range(3))
    bringup.export(_Attention(), inputs, target="riscv", out=tmp_path / "a", name="a")
    text = (tmp_path / "a" / "a.c").read_text()
    assert "bmm(" in text
    assert "softmax(" in text
    assert " attention(" not in text
