"""The training programs of test_training.py on compiled kernels, where a fallback is an error: the same rules hold."""

from __future__ import annotations

import xml.etree.ElementTree as xml
from pathlib import Path

import pytest

from tests.device import test_training

pytestmark = pytest.mark.timeout(600)

MODELS = list(test_training.models.MODELS)
COMBINATIONS = [combination.id for combination in test_training.every_combination]
NAMES = [
    *(f"test_one_step_is_as_exact_as_the_cpu[{name}]" for name in COMBINATIONS),
    *(f"test_twenty_steps_stay_as_close_as_the_cpu_to_itself[{name}]" for name in COMBINATIONS),
    *(f"test_the_loss_falls[{name}]" for name in MODELS),
    *(f"test_evaluation_after_training_agrees[{name}]" for name in MODELS),
    "test_optimizer_state_survives_save_and_load",
]


@pytest.fixture(scope="module")
def outcomes(run_python, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | None]:
    """What went wrong in each test of the file, in a process of its own."""
    report = tmp_path_factory.mktemp("training") / "report.xml"
    options = [str(Path(test_training.__file__)), f"--junitxml={report}", "-p", "no:cacheprovider"]
    env = {"BRINGUP_DRIVERS": "sim", "BRINGUP_SIM": "mode=kernels", "BRINGUP_FALLBACK": "error"}
    code = f"import pytest; pytest.main({options!r})"
    done = run_python(code, env={**env, "BRINGUP_TEST_DEVICE": None}, check=False, timeout=580)
    assert report.exists(), done.stdout + done.stderr
    found: dict[str, str | None] = {}
    for case in xml.parse(report).iter("testcase"):
        wrong = [*case.iter("failure"), *case.iter("error"), *case.iter("skipped")]
        found[case.attrib["name"]] = f"{wrong[0].attrib.get('message')}\n{wrong[0].text}" if wrong else None
    return found


@pytest.mark.parametrize("name", NAMES)
def test_in_kernels_mode(name: str, outcomes: dict[str, str | None]) -> None:
    if outcomes[name] is not None:
        pytest.fail(outcomes[name], pytrace=False)


def test_no_test_is_left_out(outcomes: dict[str, str | None]) -> None:
    assert set(outcomes) == set(NAMES)
