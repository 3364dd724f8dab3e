"""What ``bringup scale`` predicts, beside real runs: processes on this machine, connected by Gloo.

Each process measures the step and the collectives as they are with the others at work: the prediction is made from
these. Then it trains with DistributedDataParallel, fully_shard and tensor parallelism, and the prediction is compared
with that. Nothing is fitted to the trained steps.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from time import perf_counter
from typing import Any

from bringup.kit.scale import STRATEGIES, Collective, Fit, Pair, Profile, Strategy, Unit, predict

_SIZES = (1 << 12, 1 << 16, 1 << 20, 1 << 23, 1 << 25)
_STEPS, _WARM = 7, 3


@dataclass(frozen=True)
class Comparison:
    """One strategy on some processes: the step as predicted and as it was."""

    strategy: Strategy
    devices: int
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """Of the prediction, as a part of what was measured."""
        return self.predicted / self.measured - 1


class CheckFailed(RuntimeError):
    """A process of the real runs failed; the message has the end of what it printed."""


def compare(place: str, inputs: Sequence[str], devices: int, optimizer: str, seconds: float = 600) -> list[Comparison]:
    """Trains a model on as many processes of this machine; returns predictions beside what was measured."""
    with tempfile.TemporaryDirectory() as folder:
        words = [place, optimizer, str(devices), folder, *inputs]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        processes = []
        for rank in range(devices):
            with open(Path(folder) / f"output{rank}", "w", encoding="utf-8") as output:
                command = [sys.executable, "-m", "bringup.kit.scale_check", str(rank), *words]
                processes.append(subprocess.Popen(command, env=env, stdout=output, stderr=subprocess.STDOUT))
        until = perf_counter() + seconds
        try:
            for rank, process in enumerate(processes):
                if process.wait(max(1.0, until - perf_counter())):
                    tail = "\n".join((Path(folder) / f"output{rank}").read_text(encoding="utf-8").splitlines()[-8:])
                    raise CheckFailed(f"process {rank} of {devices} ended with status {process.returncode}\n{tail}")
        except subprocess.TimeoutExpired as error:
            raise CheckFailed(f"the real runs on {devices} processes took longer than {seconds:.0f} s") from error
        finally:
            for process in processes:
                process.kill()
        found = json.loads((Path(folder) / "result.json").read_text(encoding="utf-8"))
    cost = Fit({kind: [tuple(point) for point in points] for kind, points in found["collectives"].items()})
    # Processes that share the cores with each other and with what carries the messages hide nothing behind compute.
    overlap = 0.0 if devices >= (os.cpu_count() or 1) else 1.0
    profile = _read(found["profile"])
    return [
        Comparison(strategy, devices, predict(profile, strategy, devices, cost, overlap).seconds, found[strategy])
        for strategy in STRATEGIES
        if strategy in found
    ]


def _read(found: dict[str, Any]) -> Profile:
    units = tuple(Unit(**unit) for unit in found["units"])
    pairs = tuple(Pair(**pair) for pair in found["pairs"])
    gradients = tuple((nbytes, at) for nbytes, at in found["gradients"])
    return Profile(**{**found, "units": units, "pairs": pairs, "gradients": gradients})


# ---- one process ----
def _main(rank: int, place: str, optimizer: str, devices: int, folder: str, inputs: Sequence[str]) -> None:
    import torch
    import torch.distributed as dist

    from bringup.driver.in_use import device_type
    from bringup.kit.graph_explain_model import Model, load_model
    from bringup.kit.scale_measure import OPTIMIZERS, loss_of, pairs_of, profile, units_of

    kind = device_type()
    device = torch.device(kind, 0)
    # No port: the processes find each other by a file.
    store = f"file://{folder}/store"
    dist.init_process_group("bringup", store, rank=rank, world_size=devices, timeout=timedelta(seconds=120))

    def loaded() -> Model:
        torch.manual_seed(0)
        return load_model(place, inputs, device, True)

    def median(work: Callable[[], Any], runs: int) -> float:
        times = []
        for _ in range(runs + _WARM):
            dist.barrier()
            start = perf_counter()
            work()
            getattr(torch, kind).synchronize()
            times.append(perf_counter() - start)
        longest = torch.tensor([statistics.median(times[_WARM:])], device=device)
        dist.all_reduce(longest, dist.ReduceOp.MAX)
        return float(longest)

    dist.barrier()
    found: dict[str, Any] = {"profile": asdict(profile(loaded(), optimizer))}
    collectives: dict[Collective, list[tuple[int, float]]] = {"all_reduce": [], "all_gather": [], "reduce_scatter": []}
    for nbytes in _SIZES:
        whole, part = torch.zeros(nbytes // 4, device=device), torch.zeros(nbytes // 4 // devices, device=device)
        whole = whole[: part.numel() * devices]
        calls: dict[Collective, Callable[[], Any]] = {
            "all_reduce": lambda: dist.all_reduce(whole),  # noqa: B023
            "all_gather": lambda: dist.all_gather_into_tensor(whole, part),  # noqa: B023
            "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole),  # noqa: B023
        }
        for name, call in calls.items():
            collectives[name].append((nbytes, median(call, _STEPS)))
    found["collectives"] = collectives

    def trained(model: Model, module: Any) -> float:
        # An optimizer updates a group at once, and takes no group of which only some are DTensors.
        groups: dict[type, list[Any]] = {}
        for parameter in module.parameters():
            groups.setdefault(type(parameter.data), []).append(parameter)
        update = OPTIMIZERS[optimizer]([{"params": group} for group in groups.values()], lr=1e-4)

        def step() -> None:
            loss_of(module(*model.args, **model.kwargs)).backward()
            update.step()
            update.zero_grad()

        return median(step, _STEPS)

    model = loaded()
    found["ddp"] = trained(model, torch.nn.parallel.DistributedDataParallel(model.function))  # type: ignore[arg-type]

    from torch.distributed.fsdp import fully_shard

    model = loaded()
    module: Any = model.function
    for unit in units_of(module).values():
        fully_shard(unit)
    found["fsdp"] = trained(model, fully_shard(module))

    model = loaded()
    module = model.function
    pairs = pairs_of(module)
    if pairs and all(len(layers) == 2 for layers in pairs.values()):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        plan: dict[str, Any] = {}
        for layers in pairs.values():
            first, second = layers
            plan |= {first: ColwiseParallel(), second: RowwiseParallel()}
        found["tp"] = trained(model, parallelize_module(module, init_device_mesh(kind, (devices,)), plan))
    if rank == 0:
        (Path(folder) / "result.json").write_text(json.dumps(found), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    number, where, how, count, into, *given = sys.argv[1:]
    _main(int(number), where, how, int(count), into, given)
