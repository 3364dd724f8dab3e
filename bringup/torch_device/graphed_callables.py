"""make_graphed_callables: forward and backward of a function or module, each one graph, as one node of autograd."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from bringup.driver import in_use
from bringup.torch_device.capture import Graph, Pool, graph, graph_pool_handle
from bringup.torch_device.streams import Stream, StreamContext, synchronize


class _Part:
    """One callable: the tensors that its two graphs read and write, always the same ones."""

    def __init__(self, function: Callable[..., Any], sample: Sequence[Any], allow_unused: bool) -> None:
        self.function = function
        self.sample = tuple(sample)
        self.allow_unused = allow_unused
        self.arguments = tree_leaves(self.sample)
        self.parameters: list[Tensor] = []
        if not all(isinstance(value, Tensor) for value in self.arguments):
            raise TypeError("make_graphed_callables: sample_args may hold tensors only")
        if isinstance(function, torch.nn.Module):
            self._check_module(function)
            self.parameters = list(function.parameters())
        self.inputs = [*self.arguments, *self.parameters]
        self.forward, self.backward = Graph(), Graph()
        self.has_backward = False

    @staticmethod
    def _check_module(module: torch.nn.Module) -> None:
        if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks:
            raise RuntimeError("make_graphed_callables: add hooks to the graphed module, not to the one that is given")
        if any(buffer.requires_grad for buffer in module.buffers()):
            raise RuntimeError("make_graphed_callables: only parameters may require gradients, not buffers")

    def warm_up(self) -> None:
        outputs = tree_leaves(self.function(*self.sample))
        self.gradients(outputs, [torch.empty_like(y) if y.requires_grad else None for y in outputs])

    def gradients(self, outputs: Sequence[Tensor], seeds: Sequence[Tensor | None]) -> list[Tensor | None]:
        """One for each input; None for those that want none."""
        wanted = [x for x in self.inputs if x.requires_grad]
        roots = [y for y in outputs if y.requires_grad]
        if not roots:
            return [None] * len(self.inputs)
        given = [seed for seed in seeds if seed is not None]
        found = iter(torch.autograd.grad(roots, wanted, given, allow_unused=self.allow_unused))
        return [next(found) if x.requires_grad else None for x in self.inputs]

    def capture_forward(self, pool: Pool) -> None:
        with graph(self.forward, pool=pool):
            self.outputs, self.structure = tree_flatten(self.function(*self.sample))

    def capture_backward(self, pool: Pool) -> None:
        self.output_gradients = [torch.empty_like(y) if y.requires_grad else None for y in self.outputs]
        self.has_backward = any(y.requires_grad for y in self.outputs)
        if self.has_backward:
            with graph(self.backward, pool=pool):
                self.input_gradients = self.gradients(self.outputs, self.output_gradients)

    def replay_forward(self, arguments: Sequence[Tensor]) -> tuple[Tensor, ...]:
        for static, value in zip(self.arguments, arguments, strict=True):
            _fill(static, value)
        self.forward.replay()
        return tuple(y.detach() for y in self.outputs)

    def replay_backward(self, seeds: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
        for static, seed in zip(self.output_gradients, seeds, strict=True):
            if static is not None and seed is not None:
                _fill(static, seed)
        self.backward.replay()
        # Copies, because autograd keeps what it is given as .grad, and the next replay writes here.
        return tuple(None if x is None else x.clone() for x in self.input_gradients)

    def graphed(self) -> Callable[..., Any]:
        part = self

        class Graphed(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, *inputs: Tensor) -> tuple[Tensor, ...]:
                outputs = part.replay_forward(inputs[: len(part.arguments)])
                ctx.mark_non_differentiable(*(y for y, x in zip(outputs, part.outputs) if not x.requires_grad))
                return outputs

            @staticmethod
            @once_differentiable
            def backward(ctx: Any, *seeds: Tensor) -> tuple[Tensor | None, ...]:
                return part.replay_backward(seeds)

        def call(*arguments: Any) -> Any:
            outputs = Graphed.apply(*tree_leaves(arguments), *part.parameters)  # type: ignore[no-untyped-call]
            return tree_unflatten(outputs, part.structure)

        return call


def _fill(static: Tensor, value: Tensor) -> None:
    if static.data_ptr() != value.data_ptr():
        with torch.no_grad():
            static.copy_(value)


def _in_place_of(module: torch.nn.Module, graphed: Callable[..., Any]) -> torch.nn.Module:
    """The module itself: it runs the graphs in the mode (training or not) that they were captured in."""
    usual, training = module.forward, module.training

    def forward(*arguments: Any) -> Any:
        return (graphed if module.training == training else usual)(*arguments)

    module.forward = forward  # type: ignore[method-assign]
    return module


def make_graphed_callables(
    callables: Any,
    sample_args: tuple[Any, ...],
    num_warmup_iters: int = 3,
    allow_unused_input: bool = False,
    pool: Pool | None = None,
) -> Any:
    """Functions or modules whose forward and backward are replayed graphs; arguments as in torch.cuda.

    Give one callable and the tuple of its sample arguments, or a tuple of callables, in the order in which they will
    run, and a tuple of such tuples. A module comes back as itself. Arguments are copied into the samples' memory.

    >>> layer = torch.sim.make_graphed_callables(layer, (torch.randn(8, 16, device="sim"),))  # doctest: +SKIP
    """
    if torch.is_autocast_enabled(in_use.device_type()) and torch.is_autocast_cache_enabled():
        raise RuntimeError("make_graphed_callables: autocast needs cache_enabled=False, or casts are not captured")
    several = isinstance(callables, tuple)
    functions: tuple[Callable[..., Any], ...] = callables if several else (callables,)
    samples = sample_args if several else (sample_args,)
    parts = [_Part(*pair, allow_unused_input) for pair in zip(functions, samples, strict=True)]
    shared = graph_pool_handle() if pool is None else pool

    synchronize()
    with StreamContext(Stream()):
        for part in parts:
            for _ in range(num_warmup_iters):
                part.warm_up()
    synchronize()
    for part in parts:  # memory is shared: captured in the order in which they will be replayed
        part.capture_forward(shared)
    for part in reversed(parts):
        part.capture_backward(shared)

    made = [
        _in_place_of(function, part.graphed()) if isinstance(function, torch.nn.Module) else part.graphed()
        for function, part in zip(functions, parts, strict=True)
    ]
    return tuple(made) if several else made[0]
