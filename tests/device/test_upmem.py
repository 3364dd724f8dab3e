"""UPMEM as a device, on simulated DPUs: the CPU's numbers, tensors that stay in MRAM, errors that name the limit."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bringup.drivers.upmem import Driver
from bringup.drivers.upmem.options import parse_options
from bringup.drivers.upmem.times import Times
from bringup.kit.upmem_command import upmem_application
from bringup.upmem.host import LIBRARY, DpuSet
from bringup.upmem.tools import write_tools

pytestmark = [
    pytest.mark.skipif(platform.machine() != "x86_64", reason="DPUs are simulated on x86-64 only"),
    pytest.mark.timeout(400),
]
application = upmem_application()
EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "upmem"
START = """
import torch
from torch import nn
from bringup import _C
from bringup.driver.in_use import active_drivers
F = torch.nn.functional
torch.manual_seed(0)
machine = lambda: active_drivers()[0].driver._machines[0]

def launches():
    return sum(row.calls for name, row in machine().times.rows.items() if row.seconds["DPU"])

def moved():
    return sum(row.nbytes for name, row in machine().times.rows.items()
               if name in ("copy to device", "copy to host", "copy on device", "relayout"))

def agree(device, cpu, **given):
    torch.testing.assert_close(device.cpu(), cpu, **(given or {"rtol": 1e-4, "atol": 1e-4}))
"""


@pytest.fixture
def on_upmem(run_python: Callable[..., Any]) -> Callable[..., str]:
    def run(code: str, options: str = "dpus=5") -> str:
        env = {"BRINGUP_DRIVERS": "upmem", "BRINGUP_UPMEM": options, "BRINGUP_FALLBACK": "error"}
        done = run_python(START + textwrap.dedent(code), env={**env, "BRINGUP_TEST_DEVICE": None}, timeout=380)
        return str(done.stdout)

    return run


def test_ops_of_the_public_stack(on_upmem: Callable[..., str]) -> None:
    on_upmem("""
        x, y, b = torch.randn(6, 10), torch.randn(6, 10), torch.randn(7)
        w, m = torch.randn(7, 10), torch.randn(10, 7)
        image, kernel = torch.randn(2, 3, 9, 9), torch.randn(4, 3, 3, 3)
        for work, *given in [
            (lambda x: torch.softmax(x, 0), x),
            (lambda x: torch.softmax(x, -1), x),
            (torch.relu, x),
            (torch.mm, x, m),
            (lambda x, y: torch.add(x, y, alpha=2.5), x, y),
            (torch.sub, x, y),
            (torch.mul, x, y),
            (lambda b, x, m: torch.addmm(b, x, m, beta=0.5, alpha=2), b, x, m),
            (lambda x, k: F.conv2d(x, k, stride=2, padding=1), image, kernel),
            (F.linear, x, w, b),
            (lambda x, w: F.linear(x[0], w), x, w),
            (lambda x, w: F.linear(x.expand(2, 3, 6, 10), w), x, w),
            (lambda x: torch.empty_like(x).fill_(4.5), x),
            (lambda x: x.reshape(4, 15) + 1, x),
            (lambda x: x.t() * 2, x),
            (lambda x: x.t().contiguous().view(-1)[3:], x),
        ]:
            agree(work(*[t.to("upmem") for t in given]), work(*given))
        t = x.to("upmem")
        assert t.t().data_ptr() == t.data_ptr()  # a view
        t.t()[1].fill_(9)
        assert (t.cpu()[:, 1] == 9).all()
    """)


def test_every_type(on_upmem: Callable[..., str]) -> None:
    on_upmem("""
        torch.arange(1, device="upmem")
        for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8,
                      torch.int16, torch.int32, torch.int64, torch.bool):
            x = torch.arange(-20, 30).to(dtype)
            dx = x.to("upmem")
            agree(dx[3:] == dx[:-3], x[3:] == x[:-3])
            if dtype != torch.bool:
                agree(dx * 3 + dx, x * 3 + x, rtol=0, atol=0)
    """)


def test_training_and_saving(on_upmem: Callable[..., str]) -> None:
    on_upmem("""
        import copy, io
        net = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 3))
        there = copy.deepcopy(net).to("upmem")
        x, target = torch.randn(20, 12), torch.randint(0, 3, (20,))
        dx, dtarget = x.to("upmem"), target.to("upmem")
        for model, given, wanted in ((net, x, target), (there, dx, dtarget)):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            for _ in range(3):
                optimizer.zero_grad()
                F.cross_entropy(model(given), wanted).backward()
                optimizer.step()
        for p, q in zip(net.parameters(), there.parameters()):
            agree(q, p)
        file = io.BytesIO()
        torch.save(there.state_dict(), file)
        file.seek(0)
        again = torch.load(file)
        assert all(p.device.type == "upmem" for p in again.values())
        agree(again["0.weight"], there[0].weight.detach().cpu())
    """)


def test_a_chain_stays_in_mram_and_is_one_launch_when_compiled(on_upmem: Callable[..., str]) -> None:
    on_upmem("""
        def chain(x):
            for n in range(5):
                x = torch.relu(x * 0.5) + n
            return x

        x = torch.randn(1024, 16)
        dx = x.to("upmem")
        before = moved()
        y = chain(dx)
        assert moved() == before
        agree(y, chain(x))
        compiled = torch.compile(chain, backend="bringup")
        compiled(dx)
        torch.upmem.reset_report()
        y = compiled(dx)
        assert (launches(), moved()) == (1, 0), (launches(), moved())
        agree(y, chain(x))
    """)


def test_a_matrix_product_is_one_launch_over_all_dpus(on_upmem: Callable[..., str]) -> None:
    said = on_upmem("""
        x, y = torch.randn(40, 24), torch.randn(24, 16)
        dx, dy = x.to("upmem"), y.to("upmem")
        torch.upmem.reset_report()
        z = dx @ dy
        assert launches() == 1
        assert (machine().dpus.counters["dma_writes"] > 0).all()
        agree(z, x @ y)
        print(torch.upmem.report())
    """)
    for part in ("5 DPUs, 16 tasklets, 350 MHz", "what they take at least", "CPU→DPU ms", "bringup_mm"):
        assert part in said


@pytest.mark.parametrize("program", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_the_examples_run(program: str) -> None:
    arguments = ["--size", "32"] if program == "resnet.py" else []
    env = {**os.environ, "BRINGUP_DRIVERS": "upmem", "BRINGUP_UPMEM": "dpus=8", "BRINGUP_FALLBACK": "error"}
    subprocess.run([sys.executable, str(EXAMPLES / program), *arguments], env=env, check=True, timeout=380)


def test_offloading_to_it(on_upmem: Callable[..., str]) -> None:
    on_upmem("""
        import bringup
        net = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 3))
        x = torch.randn(5, 12)
        expected = net(x)
        for mode in ("module", "fx", "compile"):
            fast = bringup.offload(net, device="upmem", ops=["linear", "relu"], min_flops=0, mode=mode)
            agree(fast(x), expected)
            net = bringup.offload.restore(fast)
    """)


def test_out_of_range_and_out_of_memory(on_upmem: Callable[..., str]) -> None:
    said = on_upmem(
        """
        table = torch.randn(10, 4).to("upmem")
        for work in (lambda: F.embedding(torch.tensor([10]).to("upmem"), table).cpu(),
                     lambda: torch.empty(1 << 26, device="upmem")):
            try:
                work()
                print("nothing")
            except (IndexError, torch.OutOfMemoryError) as error:
                print(type(error).__name__, error)
        agree(table * 2, table.cpu() * 2)
        """,
        options="dpus=2",
    )
    assert "IndexError" in said
    assert "10 is out of range for a dimension of 10" in said
    assert "OutOfMemoryError" in said
    assert "nothing" not in said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("tasklets=25", "1 to 24, which is what a DPU has"),
        ("dpus=3000", "1 to 2,556, usable in a server"),
        ("timing=yes", "0 and 1"),
        ("hardware=maybe", "auto, never"),
        ("ranks=2", "known are dpus, tasklets"),
    ],
)
def test_wrong_options_name_the_limit(options: str, said: str) -> None:
    with pytest.raises(ValueError, match="BRINGUP_UPMEM") as caught:
        parse_options(options)
    assert said in str(caught.value)


def test_demanded_hardware_that_is_not_there() -> None:
    for demanded, said in (("always", "has no /sys/class/dpu_rank"), ("/nowhere/libdpu.so", "has no libdpu.so there")):
        driver = Driver(f"hardware={demanded}")
        assert driver.device_count() == 0
        assert said in driver.absent_reason()
        assert "hardware=auto simulates" in driver.absent_reason()


def test_on_the_library_of_the_sdk(on_upmem: Callable[..., str], tmp_path: Path) -> None:
    """The stand-in for hardware is a copy of our library: the driver uses public calls of it alone."""
    write_tools(tmp_path)
    (tmp_path / "libdpu.so").unlink()
    shutil.copy(LIBRARY, tmp_path / "libdpu.so")
    said = on_upmem(
        """
        import copy
        assert "hardware, by" in torch.upmem.get_device_name()
        net = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 3))
        there = copy.deepcopy(net).to("upmem")
        x, target = torch.randn(400, 12), torch.randint(0, 3, (400,))
        for model, device in ((net, "cpu"), (there, "upmem")):
            loss = F.cross_entropy(model(x.to(device)), target.to(device))
            loss.backward()
        for p, q in zip(net.parameters(), there.parameters()):
            agree(q.grad, p.grad)
        agree(x.to("upmem").t().contiguous()[3:5], x.t()[3:5])
        print(torch.upmem.report())
        """,
        options=f"dpus=3,hardware={tmp_path / 'libdpu.so'}",
    )
    assert "times are measured" in said
    assert "estimates" not in said


def test_it_stays_small() -> None:
    """docs/upmem.md says so: simulator, target, driver, commands and pages."""
    root = EXAMPLES.parents[1]
    folders = ("bringup/upmem", "bringup/targets/dpu", "bringup/drivers/upmem")
    files = [file for folder in folders for file in (root / folder).rglob("*")]
    files += [*(root / "bringup/kit").glob("upmem*.py"), *(root / "docs").glob("upmem*.md")]
    texts = [file for file in files if file.suffix in {".py", ".c", ".h", ".ld", ".json", ".md"}]
    assert 5000 < sum(len(file.read_text().splitlines()) for file in texts) <= 8000


def test_launches_are_counted(on_upmem: Callable[..., str]) -> None:
    said = on_upmem(
        """
        x = torch.randn(4000).to("upmem")
        whole = torch.arange(1, 4001).to("upmem")
        torch.upmem.reset_report()
        start = machine().times.seconds
        agree(x + x, 2 * x.cpu())
        ((_, row),) = [(name, row) for name, row in machine().times.rows.items() if row.seconds["DPU"]]
        assert (row.calls, row.counted) == (1, 1)
        assert row.mram_bytes >= 3 * 4 * 4000
        assert 2000 * (70 + 8) < row.instructions < 2000 * 150  # of a DPU with half; a float sum takes 71
        assert machine().times.seconds > start + 180e-6
        x.softmax(0), whole // 3, (x > 0).sum(), x.view(40, 100) @ x.view(100, 40)
        assert all(row.counted == row.calls for row in machine().times.rows.values()), machine().times.rows
        text = torch.upmem.report()
        assert text.count("≥") == 1  # what the mark means
        print(text)
        """,
        options="dpus=2,timing=1",
    )
    assert re.search(r"kernels ±\d+% on average, not calibrated, instructions counted on samples", said)


def test_a_counted_launch_in_the_report() -> None:
    times = Times(2, 16, counted=True)
    with DpuSet(2) as dpus:
        dpus.load(
            """
            #include <mram.h>
            __host int rounds;
            __mram_noinit long long values[8];
            int main() { for (int i = 0; i < rounds; i++) values[i & 7] += i; return 0; }""",
            tasklets=16,
            timed=True,
        )
        dpus.launch(rounds=100)
        times.kernel("rounds", dpus.counters, dpus.time())
    row = times.rows["rounds"]
    assert row.calls == row.counted == 1
    assert row.instructions > 16 * 100
    assert row.seconds["DPU"] == pytest.approx(180e-6 + row.cycles / 350e6)
    assert "≥ " not in times.text("a device").partition("counted)")[2]


def test_a_sweep_over_machines(tmp_path: Path) -> None:
    program = tmp_path / "model.py"
    program.write_text("import torch\nx = torch.ones(40_000).to('upmem')\nassert (x + x).sum().item() == 80_000\n")
    runner = CliRunner()
    environment = {"COLUMNS": "200", "BRINGUP_FALLBACK": "error"}
    done = runner.invoke(application, ["sweep", str(program), "--dpus", "1,4", "--tasklets", "2,16"], env=environment)
    assert done.exit_code == 0, done.output
    lines = [line.split("│") for line in done.output.splitlines() if "█" in line]
    assert [[cell.strip() for cell in line[1:3]] for line in lines] == [
        ["1", "2"],
        ["1", "16"],
        ["4", "2"],
        ["4", "16"],
    ]
    for wrong, said in (("3000", "2,556"), ("0", "1 to")):
        done = runner.invoke(application, ["sweep", str(program), "--dpus", wrong])
        assert done.exit_code == 2
        assert said in done.output
