"""The op table of offloading: what an operator is called as a module, as a function, as a method.

All levels read it: swapped modules, rewritten graphs, torch.compile.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.fx import GraphModule, Node

#: Takes a module that is offloaded and the device; returns the module that runs there in its place.
Replacement = Callable[[nn.Module, torch.device], nn.Module]


@dataclass(frozen=True)
class OffloadOp:
    """One operator by all the names that a program has for it."""

    name: str
    modules: tuple[type[nn.Module], ...] = ()
    functions: tuple[Callable[..., Any], ...] = ()
    methods: tuple[str, ...] = ()
    replacement: Replacement | None = None


def _op(name: str, *modules: type[nn.Module], functions: Iterable[Any] = (), methods: Iterable[str] = ()) -> OffloadOp:
    return OffloadOp(name, modules, tuple(functions), tuple(methods))


_OPS = [
    _op("linear", nn.Linear, functions=[F.linear]),
    _op("bilinear", nn.Bilinear, functions=[F.bilinear]),
    _op(
        "matmul",
        functions=[torch.matmul, torch.mm, torch.bmm, torch.addmm, torch.baddbmm, torch.einsum, operator.matmul],
        methods=["matmul", "mm", "bmm", "addmm", "baddbmm"],
    ),
    _op("conv", nn.Conv1d, nn.Conv2d, nn.Conv3d, functions=[F.conv1d, F.conv2d, F.conv3d]),
    _op(
        "conv_transpose",
        *(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
        functions=[F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d],
    ),
    _op("attention", functions=[F.scaled_dot_product_attention]),
    _op("embedding", nn.Embedding, functions=[F.embedding]),
    _op("relu", nn.ReLU, nn.ReLU6, functions=[F.relu, torch.relu, F.relu6], methods=["relu"]),
    _op("leaky_relu", nn.LeakyReLU, functions=[F.leaky_relu]),
    _op("gelu", nn.GELU, functions=[F.gelu]),
    _op("silu", nn.SiLU, functions=[F.silu]),
    _op("sigmoid", nn.Sigmoid, functions=[F.sigmoid, torch.sigmoid], methods=["sigmoid"]),
    _op("tanh", nn.Tanh, functions=[F.tanh, torch.tanh], methods=["tanh"]),
    _op("hardswish", nn.Hardswish, functions=[F.hardswish]),
    _op("softmax", nn.Softmax, functions=[F.softmax, torch.softmax], methods=["softmax"]),
    _op("log_softmax", nn.LogSoftmax, functions=[F.log_softmax, torch.log_softmax], methods=["log_softmax"]),
    _op("layer_norm", nn.LayerNorm, functions=[F.layer_norm]),
    _op("batch_norm", nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, functions=[F.batch_norm]),
    _op("group_norm", nn.GroupNorm, functions=[F.group_norm]),
    _op("rms_norm", nn.RMSNorm, functions=[F.rms_norm]),
    _op("max_pool", nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, functions=[F.max_pool1d, F.max_pool2d, F.max_pool3d]),
    _op("avg_pool", nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d, functions=[F.avg_pool1d, F.avg_pool2d, F.avg_pool3d]),
    _op("adaptive_avg_pool", nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, functions=[F.adaptive_avg_pool2d]),
    _op("add", functions=[torch.add, operator.add], methods=["add"]),
    _op("sub", functions=[torch.sub, operator.sub], methods=["sub"]),
    _op("mul", functions=[torch.mul, operator.mul], methods=["mul"]),
    _op("div", functions=[torch.div, operator.truediv], methods=["div"]),
]
#: What only rearranges: it goes with its neighbours, and alone it stays.
GLUE_FUNCTIONS = frozenset({torch.flatten, torch.reshape, torch.transpose, torch.permute, getattr, operator.getitem})
GLUE_METHODS = frozenset(
    {"flatten", "view", "reshape", "transpose", "permute", "t", "contiguous", "size", "unsqueeze", "squeeze"}
)
_table: dict[str, OffloadOp] = {op.name: op for op in _OPS}


def names() -> list[str]:
    """Returns the operators that can be offloaded.

    >>> "linear" in names()
    True
    """
    return sorted(_table)


def register(
    name: str,
    *modules: type[nn.Module],
    functions: Iterable[Callable[..., Any]] = (),
    methods: Iterable[str] = (),
    replacement: Replacement | None = None,
) -> None:
    """Adds names to an operator, or a new one. With ``replacement`` its modules run as what that returns."""
    for module in modules:
        if not (isinstance(module, type) and issubclass(module, nn.Module)):
            raise TypeError(f"offload.register takes classes of modules, not {module!r}")
    if replacement is not None and not modules:
        raise ValueError(f"offload.register({name!r}): a replacement is for modules, and none is named")
    functions, methods = tuple(functions), tuple(methods)
    if not (modules or functions or methods):
        raise ValueError(f"offload.register({name!r}) names no module, function or method")
    old = _table.get(name, OffloadOp(name))
    _table[name] = OffloadOp(
        name,
        (*old.modules, *modules),
        (*old.functions, *functions),
        (*old.methods, *methods),
        replacement or old.replacement,
    )


@dataclass(frozen=True)
class Selection:
    """The ops of one call of ``offload``, to be looked up by what a program holds."""

    ops: tuple[OffloadOp, ...]

    def of_module(self, module: nn.Module) -> OffloadOp | None:
        """The op that a module is; a subclass may compute something else, so it is none."""
        return next((op for op in self.ops if type(module) in op.modules), None)

    def of_node(self, node: Node, root: GraphModule) -> OffloadOp | None:
        """The op of a node of an FX graph; None for one that is not chosen, or that writes to its argument."""
        if node.kwargs.get("out") is not None or node.kwargs.get("inplace"):
            return None
        if node.op == "call_module":
            return self.of_module(root.get_submodule(str(node.target)))
        if node.op == "call_function":
            return next((op for op in self.ops if node.target in op.functions), None)
        if node.op == "call_method":
            return next((op for op in self.ops if node.target in op.methods), None)
        return None


def selection(ops: Iterable[str] | None) -> Selection:
    """Returns the named ops of the table, all if none are named; an unknown name is an error."""
    if isinstance(ops, str):
        raise TypeError(f"ops is a list of names, such as [{ops!r}], not a text")
    chosen = names() if ops is None else list(dict.fromkeys(ops))
    for name in chosen:
        if name not in _table:
            close = get_close_matches(str(name), names(), n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(names())}"
            raise ValueError(f"offload knows no op {name!r}: {hint} offload.register adds one")
    return Selection(tuple(_table[name] for name in chosen))


def is_glue(node: Node) -> bool:
    """Whether a node only rearranges its input."""
    if node.op == "call_function":
        return node.target in GLUE_FUNCTIONS
    return node.op == "call_method" and node.target in GLUE_METHODS
