"""Arguments and results as trees of tuples, lists and dicts: what a file can hold of PyTorch's pytrees. A tuple whose
elements have names, as of ``torch.topk``, is a plain one.

A tree is a nested list: ["tuple", …], ["list", …], ["dict", [key, tree], …]; a leaf is a Python tuple (kind, value).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

Leaf = tuple[str, Any]


class OtherContainer(TypeError):
    """A container that is none of these."""


def tree_of(value: Any, leaf: Callable[[Any], Leaf]) -> Any:
    """The tree of a value.

    >>> tree_of({"a": (1, None)}, lambda x: ("value", x))
    ['dict', ['a', ['tuple', ('value', 1), ('value', None)]]]
    """
    if isinstance(value, tuple) or type(value) is list:
        return ["tuple" if isinstance(value, tuple) else "list", *(tree_of(part, leaf) for part in value)]
    if type(value) in (dict, OrderedDict):
        wrong = [key for key in value if type(key) not in (str, int)]
        if wrong:
            raise OtherContainer(f"a dict with the key {wrong[0]!r}: keys must be str or int")
        return ["dict", *([key, tree_of(part, leaf)] for key, part in value.items())]
    return leaf(value)


def built(tree: Any, leaf: Callable[[Leaf], Any]) -> Any:
    """The value of a tree.

    >>> built(["list", ("value", 1), ["dict", ["a", ("value", 2)]]], lambda leaf: leaf[1])
    [1, {'a': 2}]
    """
    if type(tree) is tuple:
        return leaf(tree)
    kind, *parts = tree
    if kind == "dict":
        return {key: built(part, leaf) for key, part in parts}
    made = [built(part, leaf) for part in parts]
    return tuple(made) if kind == "tuple" else made


def matched(tree: Any, value: Any, where: str, take: Callable[[Leaf, Any, str], None]) -> None:
    """Walks a value along a tree: ``take(leaf, part, where it is)``. Another structure is a TypeError that says where.

    >>> matched(["tuple", ("input", 0)], (5,), "arguments", lambda leaf, part, where: print(leaf, part, where))
    ('input', 0) 5 arguments[0]
    """
    if type(tree) is tuple:
        take(tree, value, where)
        return
    kind, *parts = tree
    if kind == "dict":
        keys = [key for key, _ in parts]
        if not isinstance(value, dict) or set(value) != set(keys):
            shown = f"keys {sorted(map(str, value))}" if isinstance(value, dict) else f"a {type(value).__name__}"
            raise TypeError(f"{where} is a dict with the keys {keys}, not {shown}")
        for key, part in parts:
            matched(part, value[key], f"{where}[{key!r}]", take)
        return
    if not isinstance(value, (list, tuple)) or len(value) != len(parts):
        shown = f"{len(value)}" if isinstance(value, (list, tuple)) else f"a {type(value).__name__}"
        raise TypeError(f"{where} is a {kind} of {len(parts)}, not {shown}")
    for n, (part, one) in enumerate(zip(parts, value)):
        matched(part, one, f"{where}[{n}]", take)
