"""The training step of a model on one device, layer by layer in the device's time: what scale.py predicts from."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from bringup.kit.graph_explain_model import Model, NoModel
from bringup.kit.scale import Pair, Profile, Unit

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adamw": torch.optim.AdamW,
    "sgd": torch.optim.SGD,
}


def loss_of(result: Any) -> Tensor:
    """Returns one number to go back from: the model's own loss, its number, or the mean square of what it returns."""
    own = getattr(result, "loss", None)
    if isinstance(own, Tensor):
        return own
    for leaf in tree_leaves(result):
        if isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.requires_grad:
            return leaf if leaf.dim() == 0 else leaf.float().square().mean()
    raise NoModel("the model returns nothing that has a gradient")


def units_of(module: nn.Module) -> dict[str, nn.Module]:
    """Returns the layers that FSDP would wrap: the members of lists of layers, or the children where there is none."""
    found: dict[str, nn.Module] = {}

    def walk(parent: nn.Module, prefix: str) -> None:
        for name, child in parent.named_children():
            listed = isinstance(parent, (nn.ModuleList, nn.Sequential)) and len(parent) > 1
            if listed and any(True for _ in child.parameters()):
                found[prefix + name] = child
            else:
                walk(child, f"{prefix}{name}.")

    walk(module, "")
    return found or {name: child for name, child in module.named_children() if any(True for _ in child.parameters())}


def bytes_of(tensors: Any) -> int:
    """Returns the bytes of all tensors in something nested; one that is there twice counts once."""
    found = {id(leaf): leaf for leaf in tree_leaves(tensors) if isinstance(leaf, Tensor)}
    return sum(leaf.numel() * leaf.element_size() for leaf in found.values())


@dataclass
class _Step:
    """Events of one step: the begin and end of layers, by name, and gradients as they became ready."""

    forward: dict[str, list[Any]] = field(default_factory=dict)
    ready: list[tuple[str, Any]] = field(default_factory=list)
    sizes: dict[str, tuple[int, int]] = field(default_factory=dict)


class Meter:
    """Runs training steps of a module and keeps their events."""

    def __init__(self, model: Model, optimizer: str) -> None:
        if not isinstance(model.function, nn.Module):
            raise NoModel(f"{model.name} is not a module: there are no parameters to share out")
        self.model, self.module = model, model.function
        self.parameters = {name: one for name, one in self.module.named_parameters() if one.requires_grad}
        if not self.parameters:
            raise NoModel(f"{model.name} has no parameter that is trained")
        self.device = next(iter(self.parameters.values())).device
        self.on = getattr(torch, self.device.type)
        self.optimizer = OPTIMIZERS[optimizer](self.parameters.values(), lr=1e-4)
        self.units = units_of(self.module)
        self.pairs = pairs_of(self.module)
        self.step = _Step()
        watched = {**self.units, **{name: layer for layers in self.pairs.values() for name, layer in layers.items()}}
        for name, layer in watched.items():
            layer.register_forward_pre_hook(self._begins(name), with_kwargs=True)
            layer.register_forward_hook(self._ends(name), with_kwargs=True)
        for name, parameter in self.parameters.items():
            parameter.register_post_accumulate_grad_hook(self._ready(name))

    def _event(self) -> Any:
        event = self.on.Event(enable_timing=True)
        event.record()
        return event

    def _begins(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
            self.step.forward.setdefault(name, []).append(self._event())

        return hook

    def _ends(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            self.step.forward[name].append(self._event())
            self.step.sizes[name] = bytes_of((args, kwargs)), bytes_of(output)

        return hook

    def _ready(self, name: str) -> Callable[[Tensor], None]:
        return lambda parameter: self.step.ready.append((name, self._event()))

    def train(self) -> tuple[_Step, list[float]]:
        """Runs a step; returns its events and the seconds of forward, backward and the optimizer."""
        self.step = step = _Step()
        marks = [self._event()]
        result = self.module(*self.model.args, **self.model.kwargs)
        loss = loss_of(result)
        marks.append(self._event())
        loss.backward()
        marks.append(self._event())
        self.optimizer.step()
        self.optimizer.zero_grad()
        marks.append(self._event())
        self.on.synchronize(self.device)
        self.turned = marks[1]
        return step, [a.elapsed_time(b) / 1e3 for a, b in pairwise(marks)]


def pairs_of(module: nn.Module) -> dict[str, dict[str, nn.Module]]:
    """Returns the layers that tensor parallelism would split, in pairs: attention, and linear layers two by two."""
    found: dict[str, dict[str, nn.Module]] = {}

    def walk(parent: nn.Module, prefix: str) -> None:
        waiting: tuple[str, nn.Module] | None = None
        for name, child in parent.named_children():
            path = prefix + name
            if isinstance(child, nn.MultiheadAttention):
                found[path] = {path: child}
            elif isinstance(child, nn.Linear):
                if waiting is None or waiting[1].out_features != child.in_features:
                    waiting = (path, child)
                else:
                    found[f"{waiting[0]} + {name}"] = {waiting[0]: waiting[1], path: child}
                    waiting = None
            else:
                walk(child, f"{path}.")

    walk(module, "")
    return found


def profile(
    model: Model, optimizer: str = "adamw", steps: int = 5, say: Callable[[str], None] = lambda text: None
) -> Profile:
    """Measures a model that is on its device, in training mode; medians of some steps."""
    meter = Meter(model, optimizer)
    for number in range(3):
        say(f"warm-up {number + 1} of 3")
        meter.train()
    rows = []
    peak, base = 0, 0
    for number in range(steps):
        say(f"step {number + 1} of {steps}")
        base = meter.on.memory_allocated(meter.device)
        meter.on.reset_peak_memory_stats(meter.device)
        rows.append(_row(meter))
        peak = max(peak, meter.on.max_memory_allocated(meter.device) - base)
    times = [statistics.median(row["seconds"][at] for row in rows) for at in range(3)]
    ready = {name: statistics.median(row["ready"].get(name, 0.0) for row in rows) for name in meter.parameters}
    nbytes = {name: bytes_of(parameter) for name, parameter in meter.parameters.items()}
    order = sorted((name for name in ready if rows[-1]["ready"].get(name) is not None), key=lambda name: ready[name])
    forward = {name: statistics.median(row["forward"].get(name, 0.0) for row in rows) for name in rows[-1]["forward"]}
    ratio = times[1] / times[0] if times[0] else 0.0
    units = _units(meter, forward, ratio, times, ready)
    pairs = tuple(
        Pair(
            name,
            sum(bytes_of(list(layer.parameters())) for layer in layers.values()),
            took := sum(forward.get(part, 0.0) for part in layers),
            took * ratio,
            meter.step.sizes[next(iter(layers))][0],
            meter.step.sizes[list(layers)[-1]][1],
        )
        for name, layers in meter.pairs.items()
        if all(part in meter.step.sizes for part in layers)
    )
    state = bytes_of([one for held in meter.optimizer.state.values() for one in held.values()])
    held = sum(nbytes.values())
    return Profile(
        forward_seconds=times[0],
        backward_seconds=times[1],
        optimizer_seconds=times[2],
        gradients=tuple((nbytes[name], ready[name]) for name in order),
        units=units,
        pairs=pairs,
        parameter_bytes=held,
        optimizer_bytes=state,
        activation_bytes=max(0, peak - sum(nbytes[name] for name in order)),
    )


def _row(meter: Meter) -> dict[str, Any]:
    step, seconds = meter.train()
    forward = {
        name: sum(a.elapsed_time(b) for a, b in zip(events[::2], events[1::2])) / 1e3
        for name, events in step.forward.items()
    }
    ready = {name: meter.turned.elapsed_time(event) / 1e3 for name, event in step.ready}
    return {"seconds": seconds, "forward": forward, "ready": ready}


def _units(
    meter: Meter, forward: Mapping[str, float], ratio: float, times: Sequence[float], ready: Mapping[str, float]
) -> tuple[Unit, ...]:
    """The units in the order of forward, then what is in none of them: FSDP's outermost."""
    seen: set[int] = set()
    units = []
    for name, layer in meter.units.items():
        parameters = [one for one in layer.parameters() if id(one) not in seen]
        seen.update(map(id, parameters))
        took = forward.get(name, 0.0)
        units.append(Unit(name, bytes_of(parameters), took, took * ratio))
    rest = [one for one in meter.module.parameters() if id(one) not in seen]
    left = [max(0.0, times[at] - sum(part)) for at, part in enumerate(_columns(units))]
    if rest:
        units.insert(0, Unit("(the rest)", bytes_of(rest), *left))
    return tuple(units)


def _columns(units: Sequence[Unit]) -> tuple[list[float], list[float]]:
    return [unit.forward_seconds for unit in units], [unit.backward_seconds for unit in units]
