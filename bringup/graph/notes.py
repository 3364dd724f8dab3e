"""Says where a kernel comes from: its ops, the shapes it takes and makes, and the lines of the user's model.

A note stands beside a kernel, never in it: two layers with the same loops have one kernel and two notes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.fx import Graph, Node

_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)', re.MULTILINE)
_TORCH = str(Path(torch.__file__).parent)
#: How many ops and lines a note names: a fused kernel may have a hundred.
_MOST = 6


def notes_of(graph: Graph, names: Sequence[str], origins: Sequence[Sequence[int]]) -> list[str]:
    """Describes each step of a fused graph; ``names``: nodes of the steps before, ``origins``: which became it."""
    nodes = {node.name: node for node in graph.nodes}
    made = [dict.fromkeys(names[step] for step in origin) for origin in origins]
    return [note_of([nodes[name] for name in some if name in nodes]) for some in made]


def note_of(nodes: Sequence[Node]) -> str:
    """Describes the nodes that became one kernel: ``addmm, relu: 1 × 8, 8 × 4 → 1 × 4 (net.py:12, layer fc)``."""
    if not nodes:
        return ""
    given = [n for node in nodes for n in node.all_input_nodes if n not in nodes]
    inside = [n for node in nodes for n in node.all_input_nodes if n in nodes]
    made = [node for node in nodes if node not in inside] or list(nodes[-1:])
    takes, makes = (", ".join(_shapes(dict.fromkeys(these))) for these in (given, made))
    ops = dict.fromkeys(str(node.target).removeprefix("aten.").partition(".")[0] for node in nodes)
    said = [_plain(str(node.args[1])) for node in nodes if str(node.target) == "aten._assert_async.msg"]
    places = dict.fromkeys(place for node in nodes for place in [source_line(node)] if place)
    layers = dict.fromkeys(layer for node in nodes for layer in [_layer(node)] if layer)
    where = [*_some(places), *(f"layer {layer}" for layer in _some(layers))]
    text = f"{', '.join(_some(ops))}: {takes or 'nothing'} → {makes or 'nothing'}"
    return " ".join([text, *(f'"{words}"' for words in said), *([f"({', '.join(where)})"] if where else [])])


def comment(text: str) -> str:
    """A comment of one line, whatever the text: a model's names must not end it.

    >>> comment('a */ b /* c' + chr(10) + 'd')
    '/* a * / b / * c d */'
    """
    words = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return f"/* {words.replace('*/', '* /').replace('/*', '/ *').replace(chr(92), '/')} */"


def source_line(node: Node) -> str:
    """The line of the model that a node comes from, such as ``net.py:12``; empty where the trace does not say.

    Only the file's name: the same model in another folder gives the same project.
    """
    frames = [(match["file"], match["line"]) for match in _FRAME.finditer(node.meta.get("stack_trace") or "")]
    own = [(file, line) for file, line in frames if not file.startswith(_TORCH)]
    return f"{_plain(Path(own[-1][0]).name)}:{own[-1][1]}" if own else ""


def _layer(node: Node) -> str:
    """The module that a node was traced in, by its name in the model."""
    stack: dict[str, tuple[str, Any]] = node.meta.get("nn_module_stack") or {}
    names = [path for path, _ in stack.values() if path]
    if not names:
        return ""
    name = re.sub(r"^L\['\w+'\]\.?|\['(\w+)'\]", r"\1", names[-1]).removeprefix("_modules.")
    return _plain(name.replace("_modules.", "").replace("'].", "."))


def _plain(text: str) -> str:
    """A text from outside without what other languages could take for more than words."""
    return re.sub(r"[^\w .,:-]", "_", text)


def _shapes(nodes: Iterable[Node]) -> list[str]:
    values = [value for node in nodes for value in torch.utils._pytree.tree_leaves(node.meta.get("val"))]
    return [" × ".join(map(str, one.shape)) or "number" for one in values if isinstance(one, torch.Tensor)]


def _some(names: dict[str, None]) -> list[str]:
    return [*list(names)[:_MOST], *(["…"] if len(names) > _MOST else [])]
