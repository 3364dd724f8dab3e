"""A group for one signature: traced to a graph of ATen ops, compiled like any other graph, called with tensors."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.fx import GraphModule

from bringup import debug
from bringup.graph.host_contents import brought_back, moved
from bringup.jit.replay import Replay

Compiled: TypeAlias = Callable[..., Sequence[Tensor]]
#: A program whose inputs never repeat would otherwise compile for ever.
MOST_SIGNATURES = 64
#: Ops refuse wrong arguments, and PyTorch's traced tensors what only a run knows (their exceptions are RuntimeErrors).
_OPS_RAISE = (RuntimeError, TypeError, ValueError, IndexError, ArithmeticError, AssertionError)


class Group:
    """The code of one group, by signature; the core calls it with the inputs of a run."""

    def __init__(self, graph: torch._C.Graph) -> None:
        self._graph = graph
        self._code: dict[bytes, Compiled | str] = {}  # or why there is none
        self._compiling, self._counting = threading.Lock(), threading.Lock()
        #: Calls that ran compiled, and calls that ran op by op by their reason.
        self.runs, self.refused = 0, Counter[str]()

    @property
    def compiled(self) -> int:
        """Signatures that have code."""
        return sum(not isinstance(code, str) for code in list(self._code.values()))

    def __call__(self, key: bytes, device: int, inputs: Sequence[Any]) -> list[Tensor] | None:
        """The outputs, or None where the ops have to run one by one."""
        code = self._code.get(key)
        if code is None:
            code = self._made(key, device, inputs)
        with self._counting:
            if isinstance(code, str):
                self.refused[code] += 1
                return None
            self.runs += 1
        return list(code(*(value for value in inputs if isinstance(value, Tensor))))

    def _made(self, key: bytes, device: int, inputs: Sequence[Any]) -> Compiled | str:
        with self._compiling:
            code = self._code.get(key)
            if code is None and len(self._code) >= MOST_SIGNATURES:
                return "it has been called with too many signatures"
            if code is None:
                code = self._code[key] = compile_group(self._graph.copy(), inputs, device)
            return code


def compile_group(graph: torch._C.Graph, inputs: Sequence[Any], device_index: int) -> Compiled | str:
    """Compiles for a new signature: a function of the tensors among ``inputs``, or why there is none."""
    from bringup.driver.in_use import device_type

    device = torch.device(device_type(), device_index)
    on_cpu = any(isinstance(value, Tensor) and value.device.type == "cpu" for value in inputs)
    values = [moved(value, device) if isinstance(value, Tensor) else value for value in inputs]
    replay = Replay(graph, values, device)
    try:
        module = _traced(replay)
    except _OPS_RAISE as error:  # TorchScript then runs the ops themselves, which say what is wrong
        debug.say(1, f"a TorchScript group of {replay} is not traced: {type(error).__name__}: {error}")
        first_line = str(error).strip().partition("\n")[0]
        return f"tracing failed: {type(error).__name__}: {first_line}"
    drawn = [str(node.target) for node in module.graph.nodes if _draws(node)]
    if drawn:
        return f"it draws random numbers: {', '.join(drawn)}"
    make = _with_context(_compiled, replay, "is not compiled for")
    call = _with_context(make(module, replay), replay, "failed on")
    return for_cpu_tensors(call, device) if on_cpu else call


def for_cpu_tensors(function: Compiled, device: torch.device) -> Compiled:
    """``function`` on the device, with arguments and results on the CPU."""

    def call(*tensors: Tensor) -> list[Tensor]:
        there = [moved(tensor, device) for tensor in tensors]
        return brought_back(function(*there), there, tensors)

    return call


def _traced(replay: Replay) -> GraphModule:
    traced = _trace(replay.outputs, replay)
    if any(
        isinstance(op := node.target, torch._ops.OpOverload) and op._schema.is_mutable for node in traced.graph.nodes
    ):
        # What PyTorch takes apart may write: the product of a vector and a matrix ends with squeeze_.
        traced = _trace(torch.func.functionalize(traced), replay)
    return traced


def _trace(function: Callable[..., Any], replay: Replay) -> GraphModule:
    from torch.fx.experimental.proxy_tensor import make_fx

    from bringup.graph.decompositions import decompositions

    with torch.no_grad():
        traced = make_fx(function, decomposition_table=decompositions(), tracing_mode="fake")(*replay.tensors)
    traced.graph.eliminate_dead_code()
    traced.recompile()
    return traced


def _draws(node: torch.fx.Node) -> bool:
    op = node.target
    if not isinstance(op, torch._ops.OpOverload) or torch.Tag.nondeterministic_seeded not in op.tags:
        return False
    for place, argument in enumerate(op._schema.arguments):  # attention without dropout draws nothing
        if argument.name == "dropout_p":
            given = node.args[place] if place < len(node.args) else node.kwargs.get("dropout_p", argument.default_value)
            return bool(given != 0)
    return True


def _compiled(module: GraphModule, replay: Replay) -> Compiled:
    """The traced graph on the device, without the outputs that are inputs or one another."""
    from bringup.graph.compile.backend import compile_fx_graph
    from bringup.lowering.install import compiler_for

    placeholders = {node: n for n, node in enumerate(module.graph.find_nodes(op="placeholder"))}
    (end,) = module.graph.find_nodes(op="output")
    computed = list(dict.fromkeys(node for node in end.args[0] if node not in placeholders))
    # A tensor that comes through untouched (dropout at inference) is the caller's own, not a copy.
    untouched = [placeholders.get(node) for node in end.args[0]]
    places = [0 if node in placeholders else computed.index(node) for node in end.args[0]]
    end.args = (tuple(computed),)
    module.recompile()
    run: Compiled = module  # a driver with a library of ops and no compiler
    if compiler_for(replay.device.index) is not None:
        run = compile_fx_graph(module)

    def call(*tensors: Tensor) -> list[Tensor]:
        given = (*tensors, *(moved(constant, replay.device) for constant in replay.constants))
        results = run(*given) if computed else ()
        return [results[place] if own is None else given[own] for own, place in zip(untouched, places)]

    return call


def _with_context(function: Callable[..., Any], replay: Replay, what: str) -> Callable[..., Any]:
    """The function, whose errors name the group."""

    def call(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except Exception as error:
            shapes = ", ".join(f"{tensor.dtype}{list(tensor.shape)}" for tensor in replay.tensors)
            raise RuntimeError(f"a TorchScript group of {replay} {what} {shapes}: {error}") from error

    return call
