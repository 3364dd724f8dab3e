"""A small static quantizer: a trained float model to an int8 one, as a graph of ``quantized_decomposed`` ops.

    quantized = bringup.quantize(model.eval(), [(x,) for x in some_inputs])
    quantized(x)                                            # floats on the CPU: what the integers stand for
    torch.compile(quantized.to("sim"), backend="bringup")   # integers
    bringup.export(quantized, (x,), out="model.bup")

Activations are int8 with a scale and a zero point from the smallest and largest number that the calibration inputs
give; weights are int8 with one scale per output channel, biases int32. Batch norms are folded into the layer before.
"""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Interpreter, Node

from bringup.graph.quantize.batch_norm import fold_batch_norms

_aten = torch.ops.aten

#: Layers with a weight, and along which dimension of it the output channels lie.
_LAYERS: dict[Any, int] = {
    **dict.fromkeys((_aten.conv1d.default, _aten.conv2d.default, _aten.conv3d.default, _aten.linear.default), 0),
    **dict.fromkeys((_aten.conv1d.padding, _aten.conv2d.padding, _aten.conv3d.padding), 0),
    **dict.fromkeys((_aten.mm.default, _aten.matmul.default), 1),
}
#: Ops whose result needs parameters of its own.
_COMPUTING = {
    *(_aten.add.Tensor, _aten.add_.Tensor, _aten.cat.default, _aten.mean.dim),
    *(_aten.avg_pool1d.default, _aten.avg_pool2d.default),
    *(_aten.adaptive_avg_pool1d.default, _aten.adaptive_avg_pool2d.default),
}
#: Clamps: part of the op before them.
_CLAMPS = {
    *(_aten.relu.default, _aten.relu_.default, _aten.hardtanh.default, _aten.hardtanh_.default),
    *(_aten.relu6.default, _aten.clamp.default, _aten.clamp_.default, _aten.clamp_min.default),
}
#: Ops that give elements of what they get: the same parameters.
_MOVES = {
    *(_aten.max_pool1d.default, _aten.max_pool2d.default, _aten.flatten.using_ints, _aten.reshape.default),
    *(_aten.view.default, _aten.permute.default, _aten.transpose.int, _aten.unsqueeze.default, _aten.squeeze.dim),
    *(_aten.squeeze.default, _aten.slice.Tensor, _aten.select.int, _aten.contiguous.default, _aten.clone.default),
    *(_aten.dropout.default, _aten.dropout_.default),
}


@dataclass(frozen=True)
class _Affine:
    """number = (integer - zero) × scale."""

    scale: float
    zero: int

    @property
    def arguments(self) -> tuple[float, int, int, int, torch.dtype]:
        """As the ops want it."""
        return self.scale, self.zero, -128, 127, torch.int8


def affine_of(low: float, high: float) -> _Affine:
    """The parameters for numbers from low to high; 0 is always one of them, exactly.

    >>> affine_of(0.0, 25.5)
    _Affine(scale=0.1, zero=-128)
    """
    low, high = min(low, 0.0), max(high, 0.0)
    # Below this a scale would not survive float32, in which some quantizers keep it.
    scale = (high - low) / 255
    if scale < 1e-12:
        return _Affine(1.0, 0)
    return _Affine(scale, max(-128, min(127, round(-128 - low / scale))))


def quantize(model: nn.Module, examples: Iterable[Sequence[Any]], *, dynamic_shapes: Any = None) -> GraphModule:
    """A model as a graph on int8 numbers, calibrated on some calls: tuples of arguments; the first is also traced.

    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    >>> small = quantize(net, [(torch.randn(3, 4),) for _ in range(8)])
    >>> x = torch.randn(3, 4)
    >>> bool((small(x) - net(x)).abs().max() < 0.2)
    True
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"bringup.quantize takes a torch.nn.Module, not a {type(model).__name__}")
    if any(module.training for module in model.modules()):
        raise ValueError("bringup.quantize takes a model in evaluation: call model.eval() first")
    calls = _checked(examples)
    with torch.no_grad():
        program = torch.export.export(model, calls[0], dynamic_shapes=dynamic_shapes, strict=False)
        module = program.module()
        assert isinstance(module, GraphModule)
        module = copy.deepcopy(module)
        _importing_ops()
        fold_batch_norms(module)
        ranges = _Observing(module)
        for call in calls:
            ranges.run(*call)
        _Quantizing(module, ranges.found).run()
    module.graph.lint()
    module.recompile()
    return module


def _importing_ops() -> None:
    import torch.ao.quantization.fx._decomposed  # noqa: F401  defines the ops


def _checked(examples: Iterable[Sequence[Any]]) -> list[tuple[Any, ...]]:
    if isinstance(examples, Tensor):
        raise TypeError("the examples are calls, tuples of arguments: bringup.quantize(model, [(x,), …])")
    calls = list(examples)
    if not calls:
        raise ValueError("bringup.quantize needs at least one example to calibrate with")
    for call in calls:
        if not isinstance(call, (tuple, list)):
            raise TypeError(f"an example is a tuple of arguments, (x,), not a {type(call).__name__}")
    return [tuple(call) for call in calls]


class _Observing(Interpreter):
    """Runs a graph and remembers the smallest and largest number of each float tensor."""

    def __init__(self, module: GraphModule) -> None:
        super().__init__(module)
        self.found: dict[Node, tuple[float, float]] = {}

    def run_node(self, n: Node) -> Any:
        """One node."""
        value = super().run_node(n)
        if isinstance(value, Tensor) and value.dtype is torch.float32 and n.op != "get_attr" and value.numel():
            low, high = (float(edge) for edge in torch.aminmax(value))
            if not (math.isfinite(low) and math.isfinite(high)):
                raise ValueError(f"{n.name} is not finite for an example: there is no int8 range for it")
            before = self.found.get(n, (low, high))
            self.found[n] = min(low, before[0]), max(high, before[1])
        return value


class _Quantizing:
    """Writes quantize and dequantize around the ops that integers can compute."""

    def __init__(self, module: GraphModule, ranges: dict[Node, tuple[float, float]]) -> None:
        self._module, self._graph, self._ranges = module, module.graph, ranges
        self._parameters: dict[Node, _Affine] = {}
        #: Float tensor → the same after a round trip through int8.
        self._shown: dict[Node, Node] = {}
        #: Results that a clamp turns into what is quantized.
        self._open: set[Node] = set()
        self._names = 0

    def run(self) -> None:
        """Every node of the graph, in order."""
        for node in list(self._graph.nodes):
            if node.op != "call_function" or node not in self._ranges or not self._on_integers(node):
                continue
            users = list(node.users)
            if len(users) == 1 and users[0].target in _CLAMPS and node.target not in _MOVES:
                self._open.add(node)
            else:
                shown = self._round_trip(node)
                for user in users:
                    user.replace_input_with(node, shown)
        self._graph.eliminate_dead_code()

    def _on_integers(self, node: Node) -> bool:
        """Gives an op quantized operands, if it is one that integers can compute."""
        if node.target in _LAYERS:
            return self._layer(node)
        sources = [one for one in node.all_input_nodes if one in self._parameters]
        if node.target in _COMPUTING and sources:
            node.args = torch.fx.node.map_arg(node.args, self._input)
            return True
        if node.target in _CLAMPS and node.args[0] in self._open:
            return True
        if node.target in _MOVES or node.target in _CLAMPS:
            for source in sources:  # there is one at most: these ops have one tensor
                self._parameters[node] = self._parameters[source]
            return bool(sources)
        return False

    def _attribute(self, node: Any) -> Tensor | None:
        if not isinstance(node, Node) or node.op != "get_attr":
            return None
        value: Any = operator.attrgetter(str(node.target))(self._module)
        return value.detach() if isinstance(value, Tensor) else None

    def _input(self, node: Node) -> Node:
        """The dequantized form of an operand; of what is float until here, such as the model's input, a new one."""
        if node in self._parameters or node not in self._ranges:
            return node
        return self._shown.get(node) or self._round_trip(node)

    def _round_trip(self, node: Node) -> Node:
        """Quantize and dequantize behind a node."""
        own = self._parameters.get(node) or affine_of(*self._ranges[node])
        ops = torch.ops.quantized_decomposed
        after = node
        if node.op == "placeholder":  # all placeholders come first
            after = [one for one in self._graph.nodes if one.op == "placeholder"][-1]
        with self._graph.inserting_after(after):
            integers = self._graph.call_function(ops.quantize_per_tensor.default, (node, *own.arguments))
        with self._graph.inserting_after(integers):
            shown = self._graph.call_function(ops.dequantize_per_tensor.default, (integers, *own.arguments))
        self._parameters[shown] = own
        self._shown[node] = shown
        return shown

    def _layer(self, node: Node) -> bool:
        """A layer with a constant weight gets that in int8, and its bias in int32."""
        x, weight_node, *rest = node.args
        weight, axis = self._attribute(weight_node), _LAYERS[node.target]
        if weight is None or weight.dtype is not torch.float32 or (axis == 1 and weight.ndim != 2):
            return False
        assert isinstance(x, Node)
        source = self._input(x)
        if source not in self._parameters:
            return False
        bias, x_scale = self._attribute(rest[0]) if rest else None, self._parameters[source].scale
        scales = _weight_scales(weight, axis, bias, x_scale)
        with self._graph.inserting_before(node):
            args = [source, self._weight(weight, scales, axis), *rest]
            if bias is not None:
                args[2] = self._bias(bias, (x_scale * scales.double()).float())
        node.args = tuple(args)
        return True

    def _weight(self, weight: Tensor, scales: Tensor, axis: int) -> Node:
        across = [1] * weight.ndim
        across[axis] = -1
        integers = torch.round(weight / scales.view(across)).clamp(-127, 127).to(torch.int8)
        return self._per_channel("weight", integers, scales, axis, -127, 127)

    def _bias(self, bias: Tensor, scales: Tensor) -> Node:
        low, high = -(2**31), 2**31 - 1
        integers = torch.round(bias.double() / scales.double()).clamp(low, high).to(torch.int32)
        return self._per_channel("bias", integers, scales, 0, low, high)

    def _per_channel(self, kind: str, integers: Tensor, scales: Tensor, axis: int, low: int, high: int) -> Node:
        """No zero points: the graph then says that there are none, without a tensor of zeros."""
        self._names += 1
        held = []
        for name, value in ((f"quantized_{kind}_{self._names}", integers), (f"scales_{self._names}", scales)):
            self._module.register_buffer(name, value)
            held.append(self._graph.get_attr(name))
        arguments = (*held, None, axis, low, high, integers.dtype)
        return self._graph.call_function(torch.ops.quantized_decomposed.dequantize_per_channel.default, arguments)


def _weight_scales(weight: Tensor, axis: int, bias: Tensor | None, x_scale: float) -> Tensor:
    """One scale per channel: its largest number is 127. A bias must fit into int32 in units of x_scale × scale."""
    largest = weight.abs().amax([d for d in range(weight.ndim) if d != axis]).double()
    scales = largest / 127
    if bias is not None:
        scales = torch.maximum(scales, bias.abs().double() / (x_scale * 2.0**30))
    return torch.where(scales < 1e-12, 1.0, scales).float()


def without_zero_points(model: GraphModule) -> GraphModule:
    """A quantized graph, whoever made it, whose zero points of weights are left out where all of them are 0.

    torch.compile sees them as inputs, which could be anything; without them the weights are known to be symmetric, and
    the layers run on integers. ``bringup.export`` knows constants and needs no such help.
    """
    module = copy.deepcopy(model)
    _importing_ops()
    for node in module.graph.nodes:
        if node.target is torch.ops.quantized_decomposed.dequantize_per_channel.default:
            zeros: Any = node.args[2]
            known = isinstance(zeros, Node) and zeros.op == "get_attr"
            if known and not bool(operator.attrgetter(str(zeros.target))(module).any()):
                node.update_arg(2, None)
    module.graph.eliminate_dead_code()
    module.recompile()
    return module
