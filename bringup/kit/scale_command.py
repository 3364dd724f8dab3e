"""``bringup scale``: what a model's training step takes on many devices, from one device and a network's numbers."""

from __future__ import annotations

import json
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bringup.kit.ops_command import choose, first_device
from bringup.kit.terminal import fail, print_table, readable_bytes, readable_seconds

if TYPE_CHECKING:
    from bringup.kit.scale import Prediction, Profile
    from bringup.kit.scale_check import Comparison


class _Topology(str, Enum):
    ring = "ring"
    tree = "tree"
    fat_tree = "fat-tree"


class _Optimizer(str, Enum):
    adamw = "adamw"
    sgd = "sgd"


def scale(
    model: Annotated[
        str, typer.Argument(metavar="FILE.py[:NAME]", help="A module in a file (default NAME: model), which is run.")
    ],
    devices: Annotated[str, typer.Option(metavar="N,…", help="How many devices.")] = "1,8,64,512,4096",
    link: Annotated[str, typer.Option(help="Bandwidth and latency of a device's link.")] = "25GB/s,2us",
    topology: Annotated[_Topology, typer.Option(help="How the links are laid.")] = _Topology.ring,
    strategy: Annotated[str, typer.Option(metavar="NAME,…", help="ddp, fsdp, tp.")] = "ddp,fsdp,tp",
    optimizer: Annotated[_Optimizer, typer.Option(help="Its state counts in memory.")] = _Optimizer.adamw,
    overlap: Annotated[float, typer.Option(min=0, max=1, help="The part of messages that compute can hide.")] = 1.0,
    inputs: Annotated[
        list[str] | None, typer.Option("--input", metavar="4x16:float32", help="An argument; repeat it.")
    ] = None,
    driver: Annotated[str | None, typer.Option(help="A name, ./mychip.py or ./libmychip.so.")] = None,
    check: Annotated[
        str | None, typer.Option(metavar="N,…", help="Also train on so many processes here, and print the error.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.svg", help="Step time over devices.")] = None,
    as_json: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Everything, machine-readable.")
    ] = None,
) -> None:
    """Predict step time, memory of a device and efficiency of a model's training on many devices.

    The step is measured on one device, layer by layer; collectives follow from the link and the topology. ddp and fsdp
    keep the batch of a device, tp that of all.
    """
    from rich.console import Console

    from bringup.kit.scale import STRATEGIES, Link, Network, collective_seconds, predict

    counts, chosen = _numbers("--devices", devices), [name.strip() for name in strategy.split(",") if name.strip()]
    checked = [] if check is None else _numbers("--check", check)
    wrong = [name for name in chosen if name not in STRATEGIES] or ([] if chosen else ["nothing"])
    if wrong:
        fail("scale", f"--strategy knows {', '.join(STRATEGIES)}, not {', '.join(wrong)}")
    if any(count < 2 for count in checked):
        fail("scale", f"--check {check}: at least 2 processes")
    try:
        network = Network(topology.value, Link.parse(link))
    except ValueError as error:
        fail("scale", str(error))
    for option, path in (("--plot", plot), ("--json", as_json)):
        if path is not None and not path.resolve().parent.is_dir():
            fail("scale", f"{option} {path}: there is no folder {path.parent}")
    place = model if ".py:" in model else f"{model}:model"
    choose(driver, None)
    err = Console(stderr=True, markup=False, highlight=False)
    profile = _measured(place, inputs or [], optimizer.value, err)
    predictions = [
        predict(profile, name, count, lambda kind, size: collective_seconds(kind, size, count, network), overlap)  # noqa: B023
        for name in STRATEGIES
        if name in chosen and (name != "tp" or profile.pairs)
        for count in counts
    ]
    _print(profile, predictions, f"{link}, {topology.value}")
    if "tp" in chosen and not profile.pairs:
        print("tp: the model has no layers that are split by outputs and then by inputs")
    comparisons = _checked(place, inputs or [], optimizer.value, checked, err)
    if plot is not None:
        plot.write_text(_chart(place, predictions), encoding="utf-8")
        print(f"written: {plot}")
    if as_json is not None:
        found = {
            "model": place,
            "network": {"topology": topology.value, **asdict(network.link)},
            "profile": asdict(profile),
            "predictions": [asdict(one) for one in predictions],
            "checks": [{**asdict(one), "error": one.error} for one in comparisons],
        }
        as_json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        print(f"written: {as_json}")


def _numbers(option: str, text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() and int(part) > 0 for part in parts):
        fail("scale", f"{option} {text!r}: write numbers from 1 on, such as 8,64")
    return sorted({int(part) for part in parts})


def _measured(place: str, inputs: list[str], optimizer: str, err: object) -> Profile:
    import torch
    from rich.console import Console

    from bringup.driver.in_use import device_type
    from bringup.kit.graph_explain_model import NoModel, error_line, load_model
    from bringup.kit.scale_measure import profile

    assert isinstance(err, Console)
    index = first_device("scale")
    try:
        with err.status(f"loading {place}") as status:
            model = load_model(place, inputs, torch.device(device_type(), index), True)
            return profile(model, optimizer, say=lambda text: status.update(f"training on one device: {text}"))
    except NoModel as error:
        fail("scale", str(error))
    except Exception as error:  # the user's model, and the user's mistake to see
        fail("scale", f"{place} raised {error_line(error)}")


def _print(profile: Profile, predictions: list[Prediction], network: str) -> None:
    held = f"parameters {readable_bytes(profile.parameter_bytes)}, optimizer {readable_bytes(profile.optimizer_bytes)}"
    print(
        f"one device: {readable_seconds(profile.seconds)} a step (forward {readable_seconds(profile.forward_seconds)}, "
        f"backward {readable_seconds(profile.backward_seconds)}, optimizer "
        f"{readable_seconds(profile.optimizer_seconds)}); {held}, activations "
        f"{readable_bytes(profile.activation_bytes)}"
    )
    rows = [
        (
            f"{one.strategy} × {one.devices}",
            readable_seconds(one.seconds),
            readable_seconds(one.communication_seconds),
            readable_bytes(one.memory_bytes),
            f"{one.efficiency:.1%}",
        )
        for one in predictions
    ]
    print_table(("", "step", "messages", "memory of each", "efficiency"), rows, title=f"predicted: {network}")


def _checked(place: str, inputs: list[str], optimizer: str, counts: list[int], err: object) -> list[Comparison]:
    from rich.console import Console

    from bringup.kit.scale_check import CheckFailed, compare

    assert isinstance(err, Console)
    found: list[Comparison] = []
    for count in counts:
        try:
            with err.status(f"training on {count} processes of this machine"):
                found += compare(place, inputs, count, optimizer)
        except CheckFailed as error:
            fail("scale", str(error), 1)
    if found:
        rows = [
            (
                f"{one.strategy} × {one.devices}",
                *map(readable_seconds, (one.predicted, one.measured)),
                f"{one.error:+.1%}",
            )
            for one in found
        ]
        title = "real runs here: predicted from collectives measured on the same processes"
        print_table(("", "predicted", "measured", "error"), rows, title=title)
    return found


def _chart(place: str, predictions: list[Prediction]) -> str:
    from bringup.kit.line_chart import line_chart

    lines: dict[str, list[tuple[float, float]]] = {}
    for one in predictions:
        lines.setdefault(one.strategy, []).append((one.devices, one.seconds * 1e3))
    return line_chart(lines, f"{Path(place.partition(':')[0]).name}: predicted step", "devices", "milliseconds")
