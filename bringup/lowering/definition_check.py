"""Finds, when a lowering is defined, the names in it that nobody knows: its first call would otherwise be the first to
fail, or there would be no call."""

from __future__ import annotations

import ast
import difflib
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

from bringup.ir.ops import COMBINES, REDUCTIONS, unknown_name
from bringup.lowering import formulas

#: Methods of the kernel builder: which of the arguments may be the name, the names there are, and what they are called.
_NAMED = {
    **dict.fromkeys(("reduce", "reduce_many", "scan"), (slice(1, 3), REDUCTIONS, "reduction")),
    "store": (slice(4, 5), COMBINES, "way to combine with what is stored"),
}


def check_overload(overload: str, now: bool) -> None:
    """Raises ValueError for an overload that PyTorch does not have: nothing would ever call its lowering.

    An operator outside ATen may be defined after its lowering, but for ``now``: devices are open, and get it at once.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return
    name = overload.partition(".")[0]
    known = torch._C._dispatch_get_all_op_names()
    there = [one for one in known if one.partition(".")[0] == name]
    if overload in there:
        return
    if there:
        raise ValueError(f"PyTorch has no {overload}: there are {', '.join(sorted(there))}")
    if name.startswith("aten::"):
        close = difflib.get_close_matches(name, {one.partition(".")[0] for one in known}, n=1)
        raise ValueError(f"PyTorch has no {overload}" + (f": did you mean {close[0]}?" if close else ""))
    if now:
        raise ValueError(f"{overload} is not an operator yet: define it (torch.library) before its lowering")


def check_names(function: Callable[..., Any]) -> None:
    """Raises ValueError for a reduction that does not exist, as in ``k.reduce(n, body, "sum")`` of a ``k`` that is
    ``call.kernel()``, and for a formula that does not exist, as in ``formulas.sigmod(x)``.

    A name may stand in a variable of the module or of an enclosing function. Says nothing of a function whose source
    is not available, or of any other object's ``reduce``: such a name is an error when the op is lowered first.
    """
    try:
        lines, first = inspect.getsourcelines(function)
        (tree,) = ast.parse(textwrap.dedent("".join(lines))).body
        outside = inspect.getclosurevars(function)
    except (OSError, TypeError, SyntaxError, ValueError):
        return
    if not isinstance(tree, ast.FunctionDef) or not tree.args.args:
        return
    variables = {**outside.globals, **outside.nonlocals}
    bound = {name for name, _ in _assignments(tree)}
    builders = _builders(tree, tree.args.args[0].arg)

    def refuse(node: ast.expr, reason: object) -> ValueError:
        return ValueError(f"{inspect.getsourcefile(function)}:{first + node.lineno - 1}: {reason}")

    def value_of(node: ast.expr) -> Any:
        if isinstance(node, ast.Constant):
            return node.value
        return variables.get(node.id) if isinstance(node, ast.Name) and node.id not in bound else None

    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and value_of(node.value) is formulas:
            try:
                getattr(formulas, node.attr)
            except AttributeError as error:
                raise refuse(node, error) from None
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if isinstance(node.func.value, ast.Name) and node.func.value.id in builders and node.func.attr in _NAMED:
            positions, known, what = _NAMED[node.func.attr]
            given = [*node.args[positions], *(k.value for k in node.keywords if k.arg == "combine")]
            for argument in given:
                name = value_of(argument)
                if isinstance(name, str) and name not in known:
                    raise refuse(argument, unknown_name(name, known, what))


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
