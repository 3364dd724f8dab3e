"""A fixed sample of PyTorch's op_db on the device against the CPU; ``bringup check --level ops`` runs all of it."""

from __future__ import annotations

import re

import pytest

from bringup.kit.op_checks import OpReport, run_op_checks
from tests.fork_server import MODULE, OP_DB, run

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
#: Fewer for what costs compilations or proves little: one of each family.
FEW_OPS = """
    add addmm amax bernoulli cat clamp cumsum fill gather index_put linalg.svd masked_fill matmul mul
    nn.functional.batch_norm nn.functional.conv2d nn.functional.dropout nn.functional.embedding nn.functional.relu
    nonzero sort sum view_as_real where
""".split()
#: More declared gaps than this are a defect in themselves.
MOST_GAPS = {"forward": 5, "backward": 15}
KINDS = ("forward", "backward", "error")


@pytest.fixture
def library_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    """ATen's CPU kernels on device memory: what differs is copies, views and allocation, not arithmetic."""
    monkeypatch.setenv("BRINGUP_SIM", "mode=library")


@pytest.fixture
def kernels_mode(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if device != "sim":
        pytest.skip("kernels mode is the simulator's")
    monkeypatch.setenv("BRINGUP_SIM", "threads=1")


def check(device: str, **options: object) -> OpReport:
    report = run_op_checks(device, **options)  # type: ignore[arg-type]
    assert report.ok, report.summary()
    return report


@pytest.mark.slow
@pytest.mark.usefixtures("library_mode")
def test_on_the_library(device: str) -> None:
    report = check(device, ops=FEW_OPS, kinds=KINDS, samples=2)
    for case, at_least in ((("forward", "float32"), 23), (("backward", "float32"), 20), (("error", "any"), 8)):
        assert report.counts()[case]["pass"] >= at_least, report.summary()


@pytest.mark.slow
@pytest.mark.usefixtures("kernels_mode")
@pytest.mark.parametrize(
    ("ops", "dtypes", "passing"),
    [
        (SAMPLED_OPS, ("float32",), {"forward": 65, "backward": 50}),
        (FEW_OPS, ("int64", "bfloat16"), {"forward": 15}),
        pytest.param(SAMPLED_OPS, ("int64", "bfloat16"), {"forward": 55}, marks=pytest.mark.sweep),
    ],
    ids=["float32", "few in other dtypes", "other dtypes"],
)
def test_on_generated_kernels(device: str, ops: list[str], dtypes: tuple[str, ...], passing: dict[str, int]) -> None:
    """The fixed list on kernels that bringup compiles: as the CPU, or a declared gap."""
    report = check(device, ops=ops, kinds=KINDS, dtypes=dtypes, samples=2)
    assert not [gap for gap in report.verdict.declared if gap.case.kind != "error"], report.summary()
    for kind, at_least in passing.items():
        assert report.counts()[kind, dtypes[0]]["pass"] >= at_least, report.summary()


@pytest.mark.sweep
@pytest.mark.timeout(4 * 3600)
@pytest.mark.usefixtures("kernels_mode")
@pytest.mark.parametrize(("kind", "at_least"), [("forward", 665), ("backward", 530), ("error", 190)])
def test_all_operators_on_generated_kernels(device: str, kind: str, at_least: int) -> None:
    """Every sample of every operator in float32: as the CPU, or a declared gap."""
    report = check(device, kinds=(kind,), samples=0, timeout=900)
    passed = sum(counter["pass"] for counter in report.counts().values())
    assert passed >= at_least, report.summary()
    if kind in MOST_GAPS:
        assert len([gap for gap in report.gaps if gap.kind == kind]) <= MOST_GAPS[kind]


@pytest.mark.sweep
@pytest.mark.timeout(3600)
@pytest.mark.usefixtures("library_mode")
@pytest.mark.parametrize(("kind", "at_least"), [("forward", 650), ("backward", 500), ("error", 190)])
def test_all_operators_on_the_library(device: str, kind: str, at_least: int) -> None:
    report = check(device, kinds=(kind,), samples=4)
    passed = sum(counter["pass"] for counter in report.counts().values())
    assert passed >= at_least, report.summary()


@pytest.mark.sweep
@pytest.mark.usefixtures("library_mode")
def test_other_dtypes_on_the_library(device: str) -> None:
    """A fixed list of operators in integers, booleans, a short float and complex numbers."""
    dtypes = ("int64", "bool", "bfloat16", "complex64")
    report = check(device, ops=SAMPLED_OPS, dtypes=dtypes, samples=2)
    for dtype in dtypes:
        assert report.counts()["forward", dtype]["pass"] >= 30, report.summary()


# ---- the check itself: wrong results on purpose ----
#: Ops whose results are easily taken for right: random ones, ties, factorisations, plain numbers, uninitialised memory.
MUTATED_OPS = """
    add argmax equal empty_like linalg.eigh linalg.svd multinomial nn.functional.dropout
    nn.functional.fractional_max_pool3d nn.functional.rrelu rand_like sort svd_lowrank sum topk var_mean
""".split()


def mutate(*options: str) -> str:
    """Runs ``python -m tests.mutation``, which must find every wrong result noticed."""
    process = run(MODULE.format("tests.mutation"), *options, ahead=[OP_DB], timeout=3600)
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


@pytest.mark.slow
def test_the_check_notices_wrong_results() -> None:
    written = mutate("--samples", "2", "--ops", ",".join(MUTATED_OPS))
    assert re.search(r"^one result for all seeds +caught +[1-9]", written, re.MULTILINE), "random ops were among them"


@pytest.mark.sweep
@pytest.mark.timeout(3600)
def test_the_check_notices_wrong_results_of_every_operator() -> None:
    mutate()
