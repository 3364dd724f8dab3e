"""The C emitter under the address and undefined-behaviour sanitizers: hand-written kernels, and random ones."""

import subprocess
import sys

import pytest

from benchmarks.random_kernels import SANITIZE, under_sanitizers
from bringup.ir.kernel import Kernel
from bringup.targets.toolchain import host_target
from tests.loops.compiled import compile_kernels, disagreement
from tests.unit.targets.c_kernels import KERNELS, PARAMS, SIZES, ULP, arrays_for

#: One of each kind: the types differ in nothing that a sanitizer sees.
_CHOSEN = [name for name in KERNELS if not name.endswith(("64", "32", "_int8", "_uint16"))]


def _run(*arguments: str) -> None:
    result = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=200)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.slow
def test_written_kernels():
    _run("-m", "tests.unit.targets.test_c_sanitize")


@pytest.mark.slow
def test_random_kernels():
    _run("benchmarks/random_kernels.py", "--sanitize", "--count", "25", "--seed", "3000000")


def _check(kernels: dict[str, Kernel]) -> None:
    compiled = compile_kernels(list(kernels.values()), host_target(), SANITIZE)
    for (name, kernel), built in zip(kernels.items(), compiled):
        for n in (0, 1, 17, 150):
            sizes = {size.name: {**SIZES, "n": n, "m": 33}[size.name] for size in kernel.sizes}
            copies = arrays_for(kernel, sizes), arrays_for(kernel, sizes)
            found = disagreement(built, *copies, sizes, PARAMS, ulp=ULP.get(name, 0))
            assert not found, f"{name}: {found}"


if __name__ == "__main__":
    under_sanitizers("-m", "tests.unit.targets.test_c_sanitize")
    _check({name: KERNELS[name] for name in _CHOSEN})
