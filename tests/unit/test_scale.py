"""The model of training on many devices: collectives by known formulas, and what a step overlaps."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from bringup.cli import app
from bringup.kit.line_chart import line_chart
from bringup.kit.scale import (
    Collective,
    Fit,
    Link,
    Network,
    Pair,
    Profile,
    Unit,
    buckets,
    collective_seconds,
    predict,
)

MB = 1 << 20


def profile(**changed: Any) -> Profile:
    values: dict[str, Any] = {
        "forward_seconds": 1.0,
        "backward_seconds": 2.0,
        "optimizer_seconds": 0.5,
        "gradients": ((30 * MB, 0.5), (30 * MB, 1.0), (30 * MB, 2.0)),
        "units": (Unit("a", 45 * MB, 0.5, 1.0), Unit("b", 45 * MB, 0.5, 1.0)),
        "pairs": (Pair("a", 40 * MB, 0.4, 0.8, MB, 2 * MB),),
        "parameter_bytes": 90 * MB,
        "optimizer_bytes": 180 * MB,
        "activation_bytes": 10 * MB,
        **changed,
    }
    return Profile(**values)


@pytest.mark.parametrize(
    ("topology", "devices", "seconds"),
    [
        ("ring", 2, 2 * (0.5 * 1e9 / 1e10 + 1e-3)),
        ("ring", 8, 2 * (7 / 8 * 1e9 / 1e10 + 7e-3)),
        ("fat-tree", 8, 2 * (7 / 8 * 1e9 / 1e10 + 3e-3)),
        ("tree", 8, 2 * (1e9 / 1e10 + 3e-3)),
        ("ring", 1, 0.0),
    ],
)
def test_an_all_reduce_takes_what_its_algorithm_sends(topology: Any, devices: int, seconds: float) -> None:
    network = Network(topology, Link(1e10, 1e-3))
    assert collective_seconds("all_reduce", 1e9, devices, network) == pytest.approx(seconds)


@pytest.mark.parametrize("topology", ["ring", "fat-tree"])
def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather(topology: Any) -> None:
    network = Network(topology, Link(1e10, 1e-5))
    parts = [collective_seconds(kind, 1e8, 16, network) for kind in ("reduce_scatter", "all_gather")]  # type: ignore[arg-type]
    assert collective_seconds("all_reduce", 1e8, 16, network) == pytest.approx(sum(parts))


@pytest.mark.parametrize("text", ["25GB", "25GB/s", "fast,2us", "0GB/s,2us", "25GB/s,2", "1.2.3GB/s,2us", ""])
def test_what_is_no_link_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(text))):
        Link.parse(text)


def test_bits_are_an_eighth() -> None:
    assert Link.parse("200Gb/s,3us") == Link.parse("25GB/s,3us")


def test_without_communication_a_step_is_what_was_measured() -> None:
    for strategy in ("ddp", "fsdp"):
        found = predict(profile(), strategy, 1, lambda kind, nbytes: 0.0)  # type: ignore[arg-type]
        assert found.seconds == pytest.approx(3.5)
        assert found.efficiency == pytest.approx(1)
        assert found.memory_bytes == (90 + 90 + 180 + 10) * MB
    split = predict(profile(), "tp", 4, lambda kind, nbytes: 0.0)
    updated = 0.5 * (50 + 40 / 4) / 90
    assert split.seconds == pytest.approx(3.0 - 1.2 * 3 / 4 + updated)


def test_ddp_hides_all_but_what_comes_after_the_last_gradient() -> None:
    """Three buckets of a second each, ready at 0.5, 1 and 2: they end at 1.5, 2.5 and 3.5."""
    found = predict(profile(), "ddp", 2, lambda kind, nbytes: 1.0)
    assert found.seconds == pytest.approx(1.0 + 3.5 + 0.5)
    assert found.communication_seconds == 3
    assert found.exposed_seconds == pytest.approx(1.5)
    serial = predict(profile(), "ddp", 2, lambda kind, nbytes: 1.0, overlap=0)
    assert serial.seconds == pytest.approx(3.5 + 3)


def test_fsdp_gathers_the_next_layers_while_these_compute() -> None:
    """Gathers of 0.5 s: the first is waited for, the second is hidden; backward gathers both again and scatters."""
    costs = {"all_gather": 0.5, "reduce_scatter": 0.25, "all_reduce": 9.0}
    found = predict(profile(optimizer_seconds=0.0), "fsdp", 2, lambda kind, nbytes: costs[kind])
    # Forward ends at 1.5; b is gathered until 2 and computes until 3; a, gathered meanwhile, until 4; then its scatter.
    assert found.seconds == pytest.approx(4.25)
    assert found.communication_seconds == pytest.approx(4 * 0.5 + 2 * 0.25)


def test_fsdp_holds_a_share_and_the_layers_at_work() -> None:
    one, many = (predict(profile(), "fsdp", count, lambda kind, nbytes: 0.0).memory_bytes for count in (1, 9))
    assert one == 370 * MB
    assert many == (360 / 9 + 3 * 45 + 10) * MB


def test_buckets_are_those_of_pytorch() -> None:
    assert buckets([(MB // 2, 0.1)] * 3 + [(30 * MB, 0.2)]) == [(MB, 0.1), (MB // 2 + 30 * MB, 0.2)]
    assert buckets([]) == []


def test_a_fit_goes_through_what_was_measured() -> None:
    points: list[tuple[float, float]] = [(1e3, 1.0), (1e6, 2.0), (1e7, 4.0)]
    fit = Fit({"all_gather": points})
    kind: Collective = "all_gather"
    assert [fit(kind, nbytes) for nbytes, _ in points] == [seconds for _, seconds in points]
    assert fit(kind, 0) == 0
    assert fit(kind, 1.9e7) == pytest.approx(6.0)


def test_a_chart_is_svg_with_its_names(tmp_path: Path) -> None:
    text = line_chart({"a < b": [(1, 2.0), (10, 30.0)], "none": []}, "title & more", "x", "y")
    root = ElementTree.fromstring(text)
    words = [one.text for one in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "a < b" in words
    assert "title & more" in words


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--devices", "8,many"], "--devices '8,many': write numbers from 1 on"),
        (["--devices", "0"], "--devices '0'"),
        (["--link", "fast"], "'fast' is not a link: write its bandwidth and latency, such as 25GB/s,2us"),
        (["--strategy", "zero"], "--strategy knows ddp, fsdp, tp, not zero"),
        (["--check", "1"], "--check 1: at least 2 processes"),
        (["--plot", "nowhere/at.svg"], "there is no folder nowhere"),
    ],
)
def test_options_that_say_nothing_are_refused(words: list[str], said: str, capfd: Any) -> None:
    result = CliRunner().invoke(app(), ["scale", "model.py", *words])
    assert result.exit_code == 2
    assert said in result.output + capfd.readouterr().err
