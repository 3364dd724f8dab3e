"""A sample of PyTorch's op_db on a RISC-V guest; ``bringup check --level ops --driver riscv`` runs all of it."""

from __future__ import annotations

import random

import pytest

from bringup.kit.op_checks import run_op_checks
from tests.optional_packages import no_riscv_compiler
from tests.sweeps import swept_unless

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(no_riscv_compiler()), reason=no_riscv_compiler() or "there is a compiler"),
]

#: Families of kernels, and ops drawn at random (which, the number decides): each new kernel is a cross compilation.
CHOSEN = """
    add sum mm bmm amax softmax cumsum sort where index_select scatter_add nn.functional.conv2d nn.functional.layer_norm
    nn.functional.embedding
""".split()
VECTORS = "isa=rv64gcv,vlen=256"


def drawn() -> list[str]:
    from torch.testing._internal.common_methods_invocations import op_db  # 2.5 s, for the long sweep only

    return random.Random(5).sample(sorted({op.full_name for op in op_db}), 25)


@pytest.mark.parametrize("options", swept_unless([VECTORS], ["isa=rv64gc", VECTORS]))
def test_a_sample_of_operators(options: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the CPU, or a declared gap; no hang and no crash."""
    monkeypatch.setenv("BRINGUP_RISCV", options)
    ops = sorted({*CHOSEN, *drawn()}) if options == "isa=rv64gc" else CHOSEN
    report = run_op_checks("riscv", ops=ops, samples=1, workers=1, timeout=300, driver="riscv")
    assert report.ok, report.summary()
    assert report.counts()["forward", "float32"]["pass"] >= len(ops) * 3 // 4, report.summary()
