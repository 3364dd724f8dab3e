"""A fixed sample of PyTorch's op_db on the device against the CPU; ``bringup check --level ops`` runs all of it."""

from __future__ import annotations

import pytest

from bringup.kit.op_checks import OpReport, run_op_checks

#: Ops of every family, checked in dtypes beside float32: elementwise, reductions, indexing, sorting, shapes, linear
#: algebra, convolution, normalisation, loss, random, complex.
SAMPLED_OPS = """
    abs add addmm all amax any arange argmax atan2 baddbmm bernoulli bitwise_and bmm bool cat clamp conj count_nonzero
    cumsum diff div.floor_rounding dot eq equal exp expand fft.fft fill flip gather index_add index_put index_select
    isnan linalg.inv linalg.svd linspace logical_not masked_fill matmul max.reduction_with_dim mean mm mul
    nn.functional.batch_norm nn.functional.conv2d nn.functional.embedding nn.functional.layer_norm
    nn.functional.mse_loss nn.functional.pad.constant nn.functional.relu nonzero pow prod rand_like roll
    scatter_add sort sub sum t topk tril unique view_as_real where zero_
""".split()
#: The limits of the issue that built the device: more declared gaps than this are a defect in themselves.
MOST_GAPS = {"forward": 5, "backward": 15}


@pytest.fixture
def library_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of op_db on kernels takes half an hour of compiling: these run on sim's library."""
    monkeypatch.setenv("BRINGUP_SIM", "mode=library")


def run(device: str, **options: object) -> OpReport:
    report = run_op_checks(device, **options)  # type: ignore[arg-type]
    assert report.ok, report.summary()
    return report


@pytest.mark.slow
@pytest.mark.usefixtures("library_mode")
@pytest.mark.parametrize(("kind", "at_least"), [("forward", 650), ("backward", 500), ("error", 190)])
def test_all_operators(device: str, kind: str, at_least: int) -> None:
    """Two samples of each operator in float32: as the CPU, or a declared gap."""
    report = run(device, kinds=(kind,), samples=2)
    passed = sum(counter["pass"] for counter in report.counts().values())
    assert passed >= at_least, report.summary()
    if kind in MOST_GAPS:
        assert len([gap for gap in report.gaps if gap.kind == kind]) <= MOST_GAPS[kind]


@pytest.mark.slow
@pytest.mark.usefixtures("library_mode")
def test_other_dtypes(device: str) -> None:
    """A fixed list of operators in integers, booleans, a short float and complex numbers."""
    dtypes = ("int64", "bool", "bfloat16", "complex64")
    report = run(device, ops=SAMPLED_OPS, dtypes=dtypes, samples=2)
    for dtype in dtypes:
        assert report.counts()["forward", dtype]["pass"] >= 30, report.summary()


@pytest.mark.slow
def test_on_generated_kernels(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same list on kernels that bringup compiles: as the CPU, or a declared gap."""
    if device != "sim":
        pytest.skip("kernels mode is the simulator's")
    monkeypatch.setenv("BRINGUP_SIM", "threads=1")
    dtypes = ("float32", "int64", "bfloat16")
    report = run(device, ops=SAMPLED_OPS, kinds=("forward", "backward", "error"), dtypes=dtypes, samples=2)
    assert not [gap for gap in report.gaps if gap.kind != "error" and {"*", *dtypes} & set(gap.dtypes)]
    for case, at_least in ((("forward", "float32"), 65), (("backward", "float32"), 50), (("forward", "int64"), 55)):
        assert report.counts()[case]["pass"] >= at_least, report.summary()
