"""A module as a graph of functional ops on a device: torch.export, moved there, and taken apart into simple ops."""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.utils import _pytree as pytree

from bringup.graph.export.decompositions import table
from bringup.graph.export.dims import without_ones
from bringup.graph.passes import fake_mode
from bringup.graph.ways_out import ways_out


class ExportError(RuntimeError):
    """A model that cannot be exported, and why."""


@dataclass
class TracedModel:
    """A functional graph whose first placeholders are constants (parameters, buffers, tensors of the code).

    The graph returns new values of ``updates`` first, then the results.
    """

    module: torch.fx.GraphModule
    #: Placeholder → its tensor on the device.
    constants: dict[str, Tensor]
    #: Placeholder → what the user calls it.
    names: dict[str, str]
    #: Placeholders of inputs, in order; None for an argument that became a constant of the graph.
    inputs: Sequence[str | None] = ()
    #: Buffers that the model changes, as placeholders, in the order of the graph's first results.
    updates: Sequence[str] = ()
    #: Values of the arguments that became constants, by their place among the inputs.
    fixed: Mapping[int, Any] = field(default_factory=dict)
    #: The arguments and keyword arguments, and what came out, with their leaves replaced by numbers.
    takes: Any = ((), {})
    gives: Any = ()
    #: Names of the positional parameters.
    parameters: tuple[str, ...] = ()
    #: Symbol → (smallest, largest or None).
    ranges: Mapping[str, tuple[int, int | None]] = field(default_factory=dict)


def trace(
    model: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    dynamic_shapes: Any,
    device: torch.device,
    products_of_attention: bool = False,
) -> TracedModel:
    """Traces a model where it is, without changing it; the graph is one for the device.

    ``products_of_attention``: attention becomes the matrix products that it is made of.
    """
    home = next((t.device for t in [*model.parameters(), *model.buffers()]), None)
    parameters = _positional(model)
    example = without_ones(args, kwargs, parameters, dynamic_shapes)
    given, named = pytree.tree_map_only(Tensor, lambda t: _example(t, home), example)
    with torch.no_grad(), _plain_attention(), _no_hook_stays(), _data_dependence_in_words(), _no_warning_of_trees():
        program = torch.export.export(model, given, named, dynamic_shapes=dynamic_shapes, strict=False)
        on_device = _moved(program, device).run_decompositions(table(products_of_attention))
    _check_effects(on_device)
    return _read(on_device, parameters, device)


def _example(tensor: Tensor, home: torch.device | None) -> Tensor:
    moved = tensor.detach().to(home) if home is not None else tensor.detach()
    # What kernels expect of later calls is what the example looks like; one that overlaps itself is not an example.
    dense = torch.ops.aten.is_non_overlapping_and_dense(moved)
    return moved if dense else moved.contiguous()


@contextlib.contextmanager
def _plain_attention() -> Iterator[None]:
    """torch.nn's attention as the ops it is made of: its fast path is one large op of the CPU and CUDA."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


@contextlib.contextmanager
def _no_hook_stays() -> Iterator[None]:
    """Takes back the hook by which torch.export 2.12 watches buffers, which it leaves where tracing fails: every later
    torch.compile of a module that assigns a buffer would fail."""
    hooks = torch.nn.modules.module._global_buffer_registration_hooks
    before = set(hooks)
    try:
        yield
    finally:
        for added in set(hooks) - before:
            del hooks[added]


@contextlib.contextmanager
def _data_dependence_in_words() -> Iterator[None]:
    """What torch.export raises where data decide sizes or the way through the model, with the way out of it."""
    from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    try:
        yield
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        what = "how the model goes on" if isinstance(error, DataDependentOutputException) else "how much it gives"
        text = f"{error.func}: {what} depends on the data"
        raise ExportError("\n".join([text, *ways_out([error.func])])) from error
    except GuardOnDataDependentSymNode as error:
        raise ExportError(
            f"a size or a branch of the model depends on the data ({error.cond}): say it as a number, as in "
            "F.one_hot(x, num_classes=10), or choose with torch.where"
        ) from error


@contextlib.contextmanager
def _no_warning_of_trees() -> Iterator[None]:
    """PyTorch 2.13 warns of its own LeafSpec where its run_decompositions copies the description of a call."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r".*isinstance\(treespec, LeafSpec\)", category=FutureWarning)
        yield


def _check_effects(program: ExportedProgram) -> None:
    """Refuses ops that PyTorch keeps in order by tokens, such as the checks of linalg.solve, by their names."""
    held = [node for node in program.graph.nodes if str(node.target) == "with_effects"]
    if not held:
        return
    ops = [node.args[1] for node in held]
    others = [n.target for n in program.graph.nodes if isinstance(n.target, torch._ops.OpOverload)]
    solvers = [op for op in others if "linalg" in str(op)]
    named = dict.fromkeys(str(op) for op in [*solvers, *ops])
    lines = [f"the model has ops without a kernel, and a file can hold nothing else: {', '.join(named)}"]
    lines += [f"    {stack.strip()}" for stack in dict.fromkeys(n.meta.get("stack_trace") or "" for n in held) if stack]
    raise ExportError("\n".join([*lines, *ways_out(ops)]))


def _moved(program: ExportedProgram, device: torch.device) -> ExportedProgram:
    from torch.export.passes import move_to_device_pass

    return move_to_device_pass(program, str(device))


def _positional(model: nn.Module) -> tuple[str, ...]:
    """Names of the positional parameters of a model."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(model.forward).parameters.values()
    return tuple(parameter.name for parameter in parameters if parameter.kind in kinds)


def _read(program: ExportedProgram, parameters: tuple[str, ...], device: torch.device) -> TracedModel:
    """What torch.export says of a program."""
    constants: dict[str, Tensor] = {}
    names: dict[str, str] = {}
    inputs: list[str | None] = []
    fixed: dict[int, Any] = {}
    for spec in program.graph_signature.input_specs:
        name = getattr(spec.arg, "name", "")
        if spec.kind is InputKind.USER_INPUT:
            if hasattr(spec.arg, "value"):  # a number, a flag or None: part of the graph by now
                fixed[len(inputs)] = spec.arg.value
                inputs.append(None)
            else:
                inputs.append(name)
        elif spec.kind in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
            assert spec.target is not None
            state = program.state_dict if spec.target in program.state_dict else program.constants
            constants[name], names[name] = state[spec.target].detach().to(device), spec.target
        else:
            raise ExportError(f"{spec.target or name}: a {spec.kind.name.lower()} cannot be part of a file")
    updates, results = _outputs(program, {target: name for name, target in names.items()})
    return TracedModel(
        module=program.graph_module,
        constants=constants,
        names=names,
        inputs=inputs,
        updates=updates,
        fixed=fixed,
        takes=pytree.tree_unflatten(range(len(inputs)), program.call_spec.in_spec),
        gives=pytree.tree_unflatten(results, program.call_spec.out_spec),
        parameters=parameters,
        ranges={str(symbol): _finite(bounds) for symbol, bounds in program.range_constraints.items()},
    )


def _outputs(program: ExportedProgram, placeholders: Mapping[str, str]) -> tuple[list[str], list[int]]:
    """The buffers that change; the places of the results among all that the graph returns."""
    updates, results = [], []
    for n, spec in enumerate(program.graph_signature.output_specs):
        if spec.kind is OutputKind.USER_INPUT_MUTATION:
            raise ExportError(f"the model writes to its input '{spec.target}': an exported model leaves inputs alone")
        if spec.kind is OutputKind.BUFFER_MUTATION:
            assert spec.target is not None
            updates.append(placeholders[spec.target])
        elif spec.kind is OutputKind.USER_OUTPUT:
            results.append(n)
        else:
            raise ExportError(f"'{spec.target}': the model has a {spec.kind.name.lower()}, which no file holds")
    return updates, results


def _finite(bounds: Any) -> tuple[int, int | None]:
    from torch.utils._sympy.numbers import int_oo

    return int(bounds.lower) if bounds.lower > 0 else 0, None if bounds.upper in (
        int_oo,
    ) or bounds.upper > 1 << 60 else int(bounds.upper)


def show_aliases(graph: torch.fx.Graph) -> None:
    """Traces the graph's ops once more, so that a view shares its storage with what it is a view of.

    torch.export's placeholders carry other traced tensors than those that its ops were traced with.
    """
    values: dict[torch.fx.Node, Any] = {}
    with fake_mode(graph):
        for node in graph.nodes:
            if node.op == "placeholder":
                values[node] = node.meta.get("val")
            elif node.op == "call_function":
                args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: values[n])
                values[node] = node.meta["val"] = node.target(*args, **kwargs)
