"""Graph passes: the one ordered list of what is rewritten in a traced graph before it is lowered.

Graphs of torch.compile, of bringup.export, of TorchScript groups and of bare metal go through the same list, which
``bringup passes`` prints. A program adds its own with ``bringup.graph_pass``:

    @bringup.graph_pass("no_dropout", before="constant_folding")
    def no_dropout(graph):
        '''Dropout at inference is its input.'''
        for node in graph.find_nodes(op="call_function", target=torch.ops.aten.native_dropout.default):
            ...
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib import import_module
from typing import Any, Literal, TypeAlias, TypeVar

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.utils._pytree import tree_leaves

#: joint: forward and backward in one graph, before it is cut in two; graph: each graph that is lowered.
Stage: TypeAlias = Literal["joint", "graph"]
_STAGES = ("joint", "graph")


@dataclass
class Facts:
    """What is known of a graph besides its nodes."""

    #: Of an exported model: placeholder → its value, the same in every call; a pass may add and take away.
    constants: dict[str, Tensor] | None = None
    #: Placeholders that have values and change: a model's state.
    state: frozenset[str] = frozenset()
    #: Placeholder → what the user calls it.
    names: Mapping[str, str] = field(default_factory=dict)
    #: Whether norms may become part of weights, in other bits; and how many did.
    fold_batch_norm: bool = False
    folded_norms: int = 0

    @property
    def fixed(self) -> dict[str, Tensor]:
        """The constants that are not state."""
        return {name: value for name, value in (self.constants or {}).items() if name not in self.state}


@dataclass(frozen=True)
class GraphPass:
    """One entry of the list; ``wanted`` says cheaply whether it would change a graph."""

    name: str
    stage: Stage
    run: Callable[[Graph, Facts], None]
    function: Callable[..., Any]
    wanted: Callable[[Graph, Facts], bool]
    own: bool = True

    @property
    def where(self) -> str:
        """File and line of its function."""
        return described(self.function)[1]

    @property
    def summary(self) -> str:
        """The first line of its docstring."""
        return described(self.function)[0]


def described(function: Callable[..., Any]) -> tuple[str, str]:
    """Returns the first line of a function's docstring, and its file and line.

    >>> described(described)[1].startswith("bringup/graph/passes.py:")
    True
    """
    root = __file__.removesuffix("bringup/graph/passes.py")
    file = (inspect.getsourcefile(function) or "?").removeprefix(root)
    return (inspect.getdoc(function) or "").partition("\n")[0], f"{file}:{function.__code__.co_firstlineno}"


#: Ours, in order: name, stage, the module and its function, which takes (graph, facts), and when it is wanted.
_BUILT_IN: tuple[tuple[str, Stage, str, Callable[[Graph, Facts], bool]], ...] = (
    ("keyed_dropout", "joint", "compile.keyed_dropout:use_keys", lambda graph, facts: True),
    ("needless_copies", "joint", "compile.needless_copies:remove_needless_copies", lambda graph, facts: True),
    ("shared_bags", "joint", "compile.shared_bags:share_bags", lambda graph, facts: True),
    ("integer_ops", "graph", "quantize.rewrite:use_integer_ops", lambda graph, facts: _is_quantized(graph)),
    ("batch_norm_folding", "graph", "export.batch_norm_folding:fold_batch_norms", lambda _, f: f.fold_batch_norm),
    ("constant_folding", "graph", "export.constant_folding:fold_constants", lambda _, f: f.constants is not None),
)
_passes: list[GraphPass] = []


def passes() -> list[GraphPass]:
    """Returns the list, those of the joint graph first.

    >>> [one.name for one in passes() if one.stage == "graph"]
    ['integer_ops', 'batch_norm_folding', 'constant_folding']
    """
    if not _passes:
        for name, stage, place, wanted in _BUILT_IN:
            module, _, attribute = place.partition(":")
            function = getattr(import_module(f"bringup.graph.{module}"), attribute)
            _passes.append(GraphPass(name, stage, function, function, wanted))
    return list(_passes)


_Function = TypeVar("_Function", bound=Callable[[Graph], Any])


def graph_pass(
    name: str, *, stage: Stage = "graph", before: str | None = None, after: str | None = None
) -> Callable[[_Function], _Function]:
    """Adds a function that rewrites an FX graph of functional ATen ops in place; without a place it is the last one.

    New nodes need no ``meta["val"]``: it is filled in. What the graph returns must stay as it is, but for its values.
    The same name again replaces the pass; ``bringup.remove_graph_pass(name)`` takes it away.
    """
    if stage not in _STAGES:
        raise ValueError(f"there is no stage {stage!r}: choose one of {', '.join(_STAGES)}")
    if before is not None and after is not None:
        raise ValueError("say before or after, not both")
    known = [one.name for one in passes() if one.stage == stage and one.name != name]
    for neighbour in (before, after):
        if neighbour is not None and neighbour not in known:
            raise ValueError(f"there is no pass {neighbour!r} in the stage {stage!r}{_hint(neighbour, known)}")
    if any(one.name == name and one.own for one in passes()):
        raise ValueError(f"the pass {name!r} is bringup's own: choose another name")

    def add(function: _Function) -> _Function:
        if not callable(function):
            raise TypeError(f"a graph pass is a function of a graph, not {function!r}")
        mine = GraphPass(name, stage, _checking(name, function), function, lambda graph, facts: True, own=False)
        _passes[:] = [one for one in _passes if one.name != name]
        names = [one.name for one in _passes]
        last = max((n + 1 for n, one in enumerate(_passes) if one.stage == stage), default=len(_passes))
        place = names.index(before) if before else names.index(after) + 1 if after else last
        _passes.insert(place, mine)
        return function

    return add


def remove_graph_pass(name: str) -> None:
    """Takes a pass away that ``graph_pass`` added."""
    mine = [one.name for one in passes() if not one.own]
    if name not in mine:
        raise ValueError(f"no program added a pass {name!r}{_hint(name, mine)}")
    _passes[:] = [one for one in _passes if one.name != name]


def rewrite(graph: Graph, stage: Stage, facts: Facts | None = None) -> None:
    """Runs the passes of a stage on a graph, in place."""
    known = facts or Facts()
    for one in passes():
        if one.stage == stage and one.wanted(graph, known):
            one.run(graph, known)


def rewritten(module: GraphModule) -> GraphModule:
    """Returns the module, or a copy of it if a pass of the stage "graph" wants to change it."""
    facts = Facts()
    if not any(one.stage == "graph" and one.wanted(module.graph, facts) for one in passes()):
        return module
    graph = Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    (old,), (new,) = module.graph.find_nodes(op="output"), graph.find_nodes(op="output")
    new.meta = dict(old.meta)
    made = GraphModule(module, graph)
    rewrite(made.graph, "graph", facts)
    made.recompile()
    return made


def _is_quantized(graph: Graph) -> bool:
    return any(str(node.target).startswith("quantized_decomposed.") for node in graph.nodes)


def _hint(name: str, known: list[str]) -> str:
    close = get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; there are: {', '.join(known) or 'none'}"


# ---- a user's pass, checked ----
def _checking(name: str, function: Callable[[Graph], Any]) -> Callable[[Graph, Facts], None]:
    def run(graph: Graph, facts: Facts) -> None:
        where = f"the graph pass {name!r} ({inspect.getsourcefile(function)}:{function.__code__.co_firstlineno})"
        before = _outputs(graph)
        try:
            function(graph)
        except Exception as error:
            raise RuntimeError(f"{where} failed: {type(error).__name__}: {error}") from error
        try:
            graph.lint()
        except Exception as error:
            raise RuntimeError(f"{where} left a graph that is not valid: {error}") from error
        _fill_in(graph, where)
        after = _outputs(graph)
        if len(after) != len(before):
            raise RuntimeError(f"{where} left {len(after)} outputs of {len(before)}: what a graph returns must stay")
        for n, (was, now) in enumerate(zip(before, after)):
            if was != now:
                raise RuntimeError(f"{where} turned output {n} from {was} into {now}: what a graph returns must stay")

    return run


def _outputs(graph: Graph) -> list[str]:
    """What a graph returns, as its traced tensors show it."""
    (output,) = graph.find_nodes(op="output")
    shown = []
    for item in torch.utils._pytree.tree_leaves(output.args[0]):
        value = item.meta.get("val") if isinstance(item, Node) else item
        if isinstance(value, Tensor):
            value = f"{str(value.dtype).removeprefix('torch.')}{[*map(str, value.shape)]} on {value.device}"
        shown.append(str(value).replace("'", ""))
    return shown


def _fill_in(graph: Graph, where: str) -> None:
    """Traced values of nodes that have none, by running their ops on those of their arguments."""
    values = (node.meta.get("val") for node in graph.nodes)
    mode = next((value.fake_mode for value in values if isinstance(value, torch._subclasses.FakeTensor)), None)
    for node in graph.nodes:
        if node.op != "call_function" or "val" in node.meta or mode is None:
            continue
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: n.meta.get("val"))
        try:
            with mode:
                node.meta["val"] = node.target(*args, **kwargs)
        except Exception as error:
            raise RuntimeError(f"{where} added {node.format_node()}, which cannot be: {error}") from error


def traced_tensors(module: GraphModule) -> Iterator[torch.Tensor]:
    """What the nodes of a graph give, by Dynamo or by AOT Autograd, and those of the graphs inside it."""
    for graph in (inner.graph for inner in module.modules() if isinstance(inner, GraphModule)):
        for node in graph.nodes:
            found = tree_leaves(node.meta.get("example_value", node.meta.get("val")))
            yield from (value for value in found if isinstance(value, torch.Tensor))


def fake_mode(graph: Graph) -> AbstractContextManager[Any]:
    """The mode in which a graph's placeholders were traced, to trace more ops in."""
    shown = [node.meta.get("val") for node in graph.find_nodes(op="placeholder")]
    modes = {value.fake_mode for value in shown if isinstance(value, torch._subclasses.FakeTensor)}
    return modes.pop() if len(modes) == 1 else nullcontext()
