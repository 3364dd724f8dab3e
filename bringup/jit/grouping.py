"""Finds the parts of a TorchScript graph that a device can run, and puts each into a bringup::CompilationGroup.

Groups grow from their last op backwards, as far as PyTorch's alias analysis lets ops move together. The JIT calls this
once for each graph that it optimizes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cmp_to_key
from typing import Any

import torch
from torch._C import Graph, Node, Value

from bringup.jit.replay import overload_of

GROUP = "bringup::CompilationGroup"
#: The reason for ops on sizes and numbers, of which there are many.
NO_TENSOR = "gives no tensor"
_TENSOR: Any = torch._C.OptionalType.ofTensor()
#: Ops that may return their argument itself, which their schemas do not say: writing to the result writes to it.
_MAY_RETURN_ARGUMENT = {
    *("aten::type_as", "aten::dropout", "aten::feature_dropout", "aten::alpha_dropout", "aten::feature_alpha_dropout"),
    *("aten::atleast_1d", "aten::atleast_2d", "aten::atleast_3d", "aten::broadcast_tensors", "aten::meshgrid"),
    *("aten::cartesian_prod", "aten::chain_matmul", "aten::conj_physical", "aten::einsum", "aten::sum_to_size"),
}
#: In place they keep the dtype of their argument, otherwise they give a bool.
_COMPARISONS = {"aten::eq", "aten::ne", "aten::lt", "aten::le", "aten::gt", "aten::ge"}
_next_id = itertools.count(1)


@dataclass(frozen=True)
class Settings:
    """What ``bringup.jit.enable`` was told."""

    #: Overload ("aten::add.Tensor") → why it is not grouped; empty for one that is. Others have no lowering.
    ops: Mapping[str, str]
    #: Views and lists do not count.
    min_group_size: int


#: Those in force.
enabled: Settings | None = None


def settings_in_force() -> Settings:
    """Returns them, or raises where the pass is not enabled."""
    if enabled is None:
        raise RuntimeError("bringup.jit is not enabled: call bringup.jit.enable() first")
    return enabled


def make_groups(graph: Graph, settings: Settings) -> None:
    """The pass."""
    from bringup import _C

    _C.jit_prepare(graph)
    # relu_ of a value that nothing else sees is relu. add_ keeps the dtype of its argument, add may give a wider one.
    before = {node: node.kind() for node in _inner_first(graph)}
    twins = {schema.name[:-1] for node in before if (schema := _schema(node)) and _has_supported_twin(node, settings)}
    _C.jit_remove_mutation(graph, lambda node: _has_supported_twin(node, settings))
    for node in list(_inner_first(graph)):
        if before.get(node) != node.kind() and node.kind() in twins:
            _keep_form(graph, node)
    grouping = _Grouping(graph, settings)
    grouping.grow(graph)
    grouping.finish(graph)
    if not torch._C._jit_texpr_fuser_enabled():
        _C.jit_forget_shapes(graph)


def why_not(node: Node, aliases: Any, settings: Settings) -> str:
    """Why a node can be in no group; empty where it could be."""
    from bringup import _C

    schema = _schema(node)
    if schema and schema.mutable:
        return "writes to its argument"
    for output in node.outputs():
        kind: Any = output.type()
        if kind.isSubtypeOf(torch._C.TensorType.get()):
            continue
        if not _is_list_of_tensors(kind):
            return NO_TENSOR
        uses = output.uses()
        if len(uses) != 1 or uses[0].user.kind() != "prim::ListUnpack":
            return "gives a list that is not unpacked at once"
    known = settings.ops.get(name_of(node))
    if known is None:
        return "has no lowering"
    if known:
        return known
    if _C.jit_is_mutable(aliases, node):  # alias analysis knows what schemas of normalizations hide
        return (
            "may write to its running statistics: `training` is not the constant False (torch.jit.freeze makes it one)"
        )
    tensors = False
    for value in node.inputs():
        kind, maker = value.type(), value.node()
        is_list, is_tensor = _is_list_of_tensors(kind), _is_tensor(kind)
        tensors |= is_list or is_tensor
        if is_list and (maker.kind() != "prim::ListConstruct" or not _used_only_by(maker, node)):
            return "takes a list of tensors that others have too"
        if not is_list and not is_tensor and not _is_plain(kind) and maker.kind() != "prim::Constant":
            return f"takes a {kind.str()} that is not constant"
    return "" if tensors else "takes no tensor"


def name_of(node: Node) -> str:
    """Its overload, or the kind of a node that has none."""
    schema = _schema(node)
    return "aten::chunk" if _is_chunk(node) else schema.overload if schema else node.kind()


# ---- nodes ----
@dataclass(frozen=True)
class _Schema:
    name: str
    overload: str
    mutable: bool
    view: bool
    parsed: Any


def _schema(node: Node) -> _Schema | None:
    return _parsed(node.schema())


@cache
def _parsed(text: str) -> _Schema | None:
    try:
        schema = torch._C.parse_schema(text)
    except RuntimeError:  # a node without one
        return None
    overload = f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name
    view = any(result.alias_info is not None for result in schema.returns)
    return _Schema(schema.name, overload, schema.is_mutable, view, schema)


def _is_tensor(kind: Any) -> bool:
    return bool(kind.isSubtypeOf(_TENSOR))


def _is_list_of_tensors(kind: Any) -> bool:
    return kind.kind() == "ListType" and _is_tensor(kind.getElementType())


def _is_plain(kind: Any) -> bool:
    """What a group may get besides tensors: values that its signature compares."""
    for wrapper in ("OptionalType", "ListType"):
        if kind.kind() == wrapper:
            kind = kind.getElementType()
    return bool(kind.isSubtypeOf(torch._C.NumberType.get()) or kind.isSubtypeOf(torch._C.BoolType.get()))


def _is_chunk(node: Node) -> bool:
    return node.kind() == "prim::ConstantChunk"  # the JIT's form of aten::chunk


def _is_view(node: Node) -> bool:
    schema = _schema(node)
    return _is_chunk(node) or node.kind() == "prim::ListUnpack" or bool(schema and schema.view)


def _is_free(node: Node) -> bool:
    return node.kind() in ("prim::Constant", "prim::ListConstruct") or _is_view(node)


def _used_only_by(node: Node, user: Node) -> bool:
    return all(use.user is user for output in node.outputs() for use in output.uses())


def _may_return_argument(node: Node) -> bool:
    return node.kind() in _MAY_RETURN_ARGUMENT or node.kind().startswith(("aten::_cast_", "aten::unsafe_"))


def _may_share(node: Node) -> bool:
    """Whether anything else may see the memory of its result."""
    if _is_view(node) or not _may_return_argument(node):
        return _is_view(node)
    argument = node.inputsAt(0)
    maker = argument.node()
    is_new = (maker.kind().startswith("aten::") or maker.kind() == GROUP) and not _may_share(maker)
    return not is_new or len(argument.uses()) > 1


def _has_supported_twin(node: Node, settings: Settings) -> bool:
    schema = _schema(node)
    if not schema or not schema.name.endswith("_") or _may_return_argument(node.inputsAt(0).node()):
        return False
    twin = schema.name[:-1]
    if twin in _COMPARISONS or twin.startswith("aten::logical_"):
        return False
    return settings.ops.get(twin + schema.overload[len(schema.name) :]) == ""


def _inner_first(block: Any) -> Iterator[Node]:
    for node in list(block.nodes()):
        for inner in node.blocks():
            yield from _inner_first(inner)
        yield node


def _later_first(a: Node, b: Node) -> int:
    return -1 if a.isAfter(b) else 1


def _keep_form(graph: Any, node: Node) -> None:
    """What was in place keeps the dtype and the strides of its argument."""
    schema = _schema(node)
    assert schema is not None  # it is the twin of an op
    # masked_fill is contiguous where its mask is broadcast; hardswish is pointwise without the tag.
    op = overload_of(schema.parsed)
    pointwise = op is not None and torch.Tag.pointwise in op.tags and schema.name != "aten::masked_fill"
    strides = pointwise or schema.overload == "aten::hardswish" or _may_share(node)
    if strides and sum(_is_tensor(value.type()) for value in node.inputs()) <= 1:
        return
    was, now = node.inputsAt(0), node.output()
    with graph.insert_point_guard(node):
        kept: Value = graph.insert("aten::type_as", [now, was]) if strides else graph.insert("aten::copy", [was, now])
    kept.node().moveAfter(node)
    now.replaceAllUsesAfterNodeWith(kept.node(), kept)


# ---- groups ----
class _Grouping:
    def __init__(self, graph: Graph, settings: Settings) -> None:
        self._graph, self._settings = graph, settings
        self._aliases: Any = graph.alias_db()

    def grow(self, block: Any) -> None:
        for node in block.nodes():
            for inner in node.blocks():
                self.grow(inner)
        changed = True
        while changed:
            changed = False
            nodes = list(block.nodes())
            node = nodes[-1] if nodes else None
            while node is not None and node.kind() != "prim::Return":  # which is in front of the first
                if self._starts_group(node):
                    node = self._merge(node, self._new_group(node))
                while node.kind() == GROUP and self._absorb_one(node):
                    changed = True
                node = node.prev()

    def finish(self, block: Any) -> None:
        from bringup import _C

        for node in list(block.nodes()):
            for inner in node.blocks():
                self.finish(inner)
            if node.kind() != GROUP:
                continue
            subgraph = node.g("Subgraph")
            size = sum(not _is_free(inside) for inside in subgraph.nodes())
            # The maker of a list may not have been able to move along.
            whole = all(_is_tensor(value.type()) or _is_plain(value.type()) for value in node.inputs())
            if not whole or size < self._settings.min_group_size:
                _C.jit_unmerge(node)
                continue
            _C.jit_forget_shapes(subgraph)  # the profile's are no promise
            node.i_("group_id", next(_next_id))

    def _supported(self, node: Node) -> bool:
        return not why_not(node, self._aliases, self._settings)

    def _starts_group(self, node: Node) -> bool:
        # A list of tensors does not leave a group: whoever unpacks it takes its maker along.
        outputs = list(node.outputs())
        return (
            name_of(node) in self._settings.ops
            and not _is_free(node)
            and not _may_share(node)
            and self._supported(node)
            and all(_is_tensor(output.type()) for output in outputs)
            and any(output.uses() for output in outputs)
        )

    def _absorb_one(self, group: Node) -> bool:
        block = group.owningBlock()
        makers = dict.fromkeys(value.node() for value in group.inputs())
        producers = [maker for maker in makers if maker.owningBlock() is block and self._fits(maker, group)]
        for producer in sorted(producers, key=cmp_to_key(_later_first)):
            if self._aliases.move_before_topologically_valid(producer, group):
                self._merge(producer, group)
                return True
        return False

    def _fits(self, node: Node, group: Node) -> bool:
        """A view or a list that others see stays outside: what leaves a group is always new memory."""
        if node.kind() == GROUP:
            return True
        if node.kind() == "prim::ListUnpack":
            return _used_only_by(node, group) and self._supported(node.inputsAt(0).node())
        if node.kind() == "prim::ListConstruct":
            kind: Any = node.output().type()
            return _used_only_by(node, group) and (_is_plain(kind) or _is_list_of_tensors(kind))
        return self._supported(node) and (not _may_share(node) or _used_only_by(node, group))

    def _new_group(self, before: Node) -> Node:
        group = self._graph.create(GROUP, [], 0).insertBefore(before)
        return group.g_("Subgraph", Graph())

    def _merge(self, node: Node, group: Node) -> Node:
        from bringup import _C

        _C.jit_merge(self._aliases, node, group)
        return group
