"""Finds, when a lowering is defined, the names in it that no kernel knows: its first call would otherwise be the first
to fail."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

from bringup.ir.ops import COMBINES, REDUCTIONS, unknown_name

#: Methods of the kernel builder: which of the arguments may be the name, the names there are, and what they are called.
_NAMED = {
    **dict.fromkeys(("reduce", "reduce_many", "scan"), (slice(1, 3), REDUCTIONS, "reduction")),
    "store": (slice(4, 5), COMBINES, "way to combine with what is stored"),
}


def check_names(function: Callable[..., Any]) -> None:
    """Raises ValueError for a reduction that does not exist, as in ``k.reduce(n, body, "sum")`` of a ``k`` that is
    ``call.kernel()``. Says nothing of a function whose source is not available, or of any other object's ``reduce``."""
    try:
        lines, first = inspect.getsourcelines(function)
        (tree,) = ast.parse(textwrap.dedent("".join(lines))).body
    except (OSError, TypeError, SyntaxError, ValueError):
        return
    if not isinstance(tree, ast.FunctionDef) or not tree.args.args:
        return
    builders = _builders(tree, tree.args.args[0].arg)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if isinstance(node.func.value, ast.Name) and node.func.value.id in builders and node.func.attr in _NAMED:
            positions, known, what = _NAMED[node.func.attr]
            given = [*node.args[positions], *(k.value for k in node.keywords if k.arg == "combine")]
            for argument in given:
                name = argument.value if isinstance(argument, ast.Constant) else None
                if isinstance(name, str) and name not in known:
                    place = f"{inspect.getsourcefile(function)}:{first + argument.lineno - 1}"
                    raise ValueError(f"{place}: {unknown_name(name, known, what)}")


def _builders(tree: ast.FunctionDef, call: str) -> set[str]:
    """The names that are ``call.kernel(…)`` wherever they are assigned."""
    made: set[str] = set()
    other: set[str] = set()
    for name, value in _assignments(tree):
        is_kernel = (
            isinstance(value, ast.Call)
            and isinstance(value.func, ast.Attribute)
            and value.func.attr == "kernel"
            and isinstance(value.func.value, ast.Name)
            and value.func.value.id == call
        )
        (made if is_kernel else other).add(name)
    return set() if call in other else made - other


def _assignments(tree: ast.FunctionDef) -> Iterator[tuple[str, ast.expr | None]]:
    """Every name that the function binds, also as a parameter of an inner one, with its value where it has one."""
    known: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            known.add(node.targets[0])
            yield node.targets[0].id, node.value
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node not in known:
            yield node.id, None
        elif isinstance(node, ast.arg) and node is not tree.args.args[0]:
            yield node.arg, None
