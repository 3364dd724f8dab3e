"""Traps 28 to 31, the signature cache and the disk cache of kernels, with the real lowerings."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

KERNELS = {"BRINGUP_DRIVERS": "sim", "BRINGUP_SIM": "mode=kernels", "BRINGUP_FALLBACK": "error"}
START = """
    import threading, traceback
    import torch
    from torch.testing import assert_close
    from bringup import _C as core

    def entries():
        return core.kernel_cache_info()["entries"]
"""


def run_kernels(run_python: Any, code: str, **env: str) -> Any:
    return run_python(START + code, env={**KERNELS, **env})


def test_trap_28_the_key_holds_what_a_kernel_depends_on(run_python: Any) -> None:
    """Dtypes, sizes, strides, conjugation, wrapped numbers, 0-dim CPU values and aliases; and no more than that."""
    run_kernels(
        run_python,
        """
    base = torch.randn(64)
    there = base.to("sim")
    views = [lambda t: t[:12].view(3, 4), lambda t: t[:12].view(4, 3), lambda t: t[:12].view(4, 3).t(),
             lambda t: t[:24:2].view(3, 4), lambda t: t[:4].expand(3, 4), lambda t: t[1:13].view(3, 4)]
    for view in views:
        assert_close((view(there) + view(there)).cpu(), view(base) * 2)
    before = entries()
    for offset in range(8):  # another address is no other kernel
        a = base[offset:offset + 12].view(3, 4)
        assert_close((there[offset:offset + 12].view(3, 4) + there[20:32].view(3, 4)).cpu(), a + base[20:32].view(3, 4))
    assert entries() <= before + 1, (before, entries())

    x, whole = base.to("sim"), torch.arange(64).to("sim")
    assert (x + 1).dtype == torch.float32 and (whole + 1).dtype == torch.int64 and (whole + 1.0).dtype == torch.float32
    assert (whole + torch.tensor(1.0, dtype=torch.float64)).dtype == torch.float64  # 0-dim: no wrapped number
    assert (whole + torch.tensor(1, dtype=torch.int8)).dtype == torch.int64
    assert (whole + torch.ones(1, dtype=torch.float64, device="sim")).dtype == torch.float64

    # the negative bit: the imaginary part of a conjugate
    z = torch.randn(6, dtype=torch.complex64)
    with __import__("bringup").fallback_policy("allow"):
        negative = z.to("sim").conj().imag
        assert negative.is_neg()
        for _ in range(2):
            assert_close((negative + 1).cpu(), z.conj().imag + 1)
            assert_close((z.to("sim").imag + 1).cpu(), z.imag + 1)

    # aliases: on every hit, not only on the first call
    for _ in range(3):
        y = base.to("sim")
        y[:32].add_(y[32:])  # apart
        y[:32].add_(y[:32])  # the same: pointwise may
        try:
            y[1:33].add_(y[:32])
        except RuntimeError as error:
            assert "single memory location" in str(error) or "partially overlap" in str(error), error
        else:
            raise AssertionError("a partial overlap was computed")
        expected = torch.cumsum(base, 0)
        y = base.to("sim")
        assert_close(torch.cumsum(y, 0, out=y).cpu(), expected)  # not pointwise: by way of a temporary
    torch.use_deterministic_algorithms(True)
    index = torch.tensor([0, 0, 1]).to("sim")
    sums = [torch.zeros(2, device="sim").index_add(0, index, x[:3]).cpu() for _ in range(3)]
    assert all(torch.equal(sums[0], one) for one in sums)
    """,
    )


def test_trap_29_scalars_are_data(run_python: Any) -> None:
    run_kernels(
        run_python,
        """
    x = torch.rand(9).to("sim")
    calls = {
        "alpha": lambda n: x.add(x, alpha=n), "times": lambda n: x * n, "clamp": lambda n: x.clamp(min=n),
        "cpu tensor": lambda n: x - torch.tensor(n), "lerp": lambda n: x.lerp(x, n),
        "fill": lambda n: x.clone().fill_(n),
        "threshold": lambda n: torch.threshold(x, n, n), "addcmul": lambda n: x.addcmul(x, x, value=n),
    }
    for name, call in calls.items():
        call(2.5)
        before = core.kernel_cache_info()
        for step in range(10_000 if name == "alpha" else 500):
            call(2.25 + 0.5 * step)
        after = core.kernel_cache_info()
        assert (after["entries"], after["plans"]) == (before["entries"], before["plans"]), (name, before, after)
    assert_close(x.add(x, alpha=3.5).cpu(), x.cpu().add(x.cpu(), alpha=3.5))
    before = core.kernel_cache_info()["plans"]
    for power in (2, 3, 0.5, 2, 3, 0.5, 1.7, 1.9, 2.3):  # structural where it pays
        assert_close(x.pow(power).cpu(), x.cpu().pow(power))
    assert core.kernel_cache_info()["plans"] - before <= 6
    for p in (1, 2, 3, float("inf"), 0):
        assert_close(torch.linalg.vector_norm(x, p).cpu(), torch.linalg.vector_norm(x.cpu(), p))
    """,
    )


def test_trap_30_a_miss_sees_no_mode_and_holds_no_lock(run_python: Any) -> None:
    """Misses on many threads and in backward, under modes; results of unknown size are made anew every time."""
    run_kernels(
        run_python,
        """
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.overrides import TorchFunctionMode
    ops = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, op, types, args=(), kwargs=None):
            ops.append(str(op))
            return op(*args, **(kwargs or {}))

    class Functions(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))

    x = torch.randn(5, 6).to("sim")
    with Watch(), Functions():
        y = torch.nn.functional.layer_norm(x, (6,)) * 2
        torch.linalg.vector_norm(x)
    names = {op.split(".")[1] for op in ops}
    assert names <= {"native_layer_norm", "mul", "linalg_vector_norm"}, names

    problems = []
    def work(number):
        try:
            for n in range(2, 14):
                leaf = torch.randn(n, 3 + number % 2).to("sim").requires_grad_()
                torch.nn.functional.gelu(leaf).softmax(0).square().sum().backward()
                cpu = leaf.detach().cpu().requires_grad_()
                torch.nn.functional.gelu(cpu).softmax(0).square().sum().backward()
                assert_close(leaf.grad.cpu(), cpu.grad)
        except BaseException:
            problems.append(traceback.format_exc())
    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not problems, problems[0]

    for truths in (0, 3, 5, 1):  # the same signature, other sizes
        mask = torch.arange(5) < truths
        assert mask.to("sim").nonzero().shape == (truths, 1)
        assert torch.arange(5).to("sim")[mask.to("sim")].tolist() == list(range(truths))
        assert torch.masked_select(torch.arange(5).to("sim"), mask.to("sim")).numel() == truths
    """,
    )


def test_trap_31_the_disk_key_holds_what_decides_the_binary(run_python: Any, tmp_path: Path) -> None:
    """Source, flags, compiler and instruction set: any other one makes new entries, the same ones make none."""
    compiler = tmp_path / "other-cc"
    compiler.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "another compiler 1.0" && exit 0\nexec cc "$@"\n')
    compiler.chmod(0o755)
    folder = tmp_path / "cache"
    code = """
    x = torch.arange(5.0).to("sim")
    assert (x + 2).tolist() == [2, 3, 4, 5, 6]
    """

    def entries(**env: str) -> set[str]:
        run_kernels(run_python, code, BRINGUP_CACHE=str(folder), **env)
        return {path.name for path in folder.glob("*.kernel")}

    first = entries()
    assert first
    assert entries() == first
    marched = entries(BRINGUP_MARCH="x86-64-v2") if os.uname().machine == "x86_64" else first
    assert marched >= first
    if os.uname().machine == "x86_64":
        assert len(marched) > len(first)
    flagged = entries(BRINGUP_CC="cc -DANOTHER_FLAG")
    assert len(flagged) > len(marched)
    compiled = entries(BRINGUP_CC=str(compiler))
    assert len(compiled) > len(flagged)
    assert all(os.stat(path).st_mode & 0o077 == 0 for path in [folder, *folder.glob("*.kernel")])
