"""A formula runs once when an op is defined: what it cannot do is an error there, and not in the first call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from bringup.ir.dtypes import float32
from bringup.ir.expr import Expr, Param
from bringup.lowering.call import NoKernel

#: Arguments that are Python values, where the schema has no default.
_GUESSES = {"int": 1, "bool": False, "str": ""}


def try_formula(
    what: str,
    formula: Callable[..., Any],
    names: Sequence[str],
    types: Sequence[str],
    defaults: Sequence[Any],
    results: int | None,
) -> None:
    """Raises ValueError if a formula does not take the arguments of its schema or gives no values.

    ``results``: how many gradients it must give, None for the op itself.

    >>> try_formula("f: the formula", lambda x: x ** 2, ["x"], ["Tensor"], [None], None)
    Traceback (most recent call last):
    ...
    ValueError: f: the formula: values of a kernel have no operator **: write x * x, or binary("pow", x, y)
    """
    values: list[Any] = []
    guessed = False
    for name, kind, default in zip(names, types, defaults):
        if kind in ("Tensor", "float", "number"):
            values.append(Param(name, float32))
        else:
            guessed |= default is None
            values.append(_GUESSES.get(kind) if default is None else default)
    try:
        inspect.signature(formula).bind(*values)
    except TypeError as error:
        raise ValueError(f"{what} must take {len(names)} arguments ({', '.join(names)}): {error}") from None
    try:
        found = formula(*values)
    except NoKernel:
        return  # not of float32
    except (TypeError, AttributeError, NameError) as error:
        raise ValueError(f"{what}: {error}") from error
    except Exception as error:
        if guessed:  # it may be the guess
            return
        raise ValueError(f"{what}: {error}") from error
    made = found if isinstance(found, tuple) else (found,)
    if results is None and isinstance(found, tuple):
        raise ValueError(f"{what} gives {len(made)} values: a pointwise op has one")
    if results is not None and len(made) != results:
        raise ValueError(f"{what} gives {len(made)} gradients for {results} tensors: None for one that has none")
    for value in made:
        if not isinstance(value, Expr) and not (value is None and results is not None):
            raise ValueError(f"{what} gives {value!r}: it must be an expression of its arguments")
