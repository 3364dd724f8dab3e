"""Outputs of pointwise ops as the CPU makes them, for definitions that do not ask PyTorch's meta kernel.

Meta kernels in Python (``torch._refs``) refuse what the CPU takes (``bool << 1``), or lay results out in another way.
Arguments come as the core describes them (bringup/_C.pyi).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bringup.ir.dtypes import boolean
from bringup.lowering.call import NoKernel
from bringup.lowering.scalar_types import BY_CODE, C10_NAMES, CODE_OF, number_type, result_type

Sizes = tuple[int, ...]


def is_tensor(argument: Any) -> bool:
    """True for the description of a tensor on the device."""
    return type(argument) is tuple and argument[0] == "t"


def broadcast(*shapes: Sequence[int]) -> Sizes:
    """The common size of some shapes; PyTorch's error if they have none.

    >>> broadcast((3, 1), (4,))
    (3, 4)
    """
    result: list[int] = []
    for shape in shapes:
        whole = [1] * (len(shape) - len(result)) + result
        for d in range(len(whole) - len(shape), len(whole)):
            mine, theirs = whole[d], shape[d - len(whole)]
            if mine != theirs and mine != 1 and theirs != 1:
                raise RuntimeError(
                    f"The size of tensor a ({mine}) must match the size of tensor b ({theirs}) "
                    f"at non-singleton dimension {d}"
                )
            whole[d] = theirs if mine == 1 else mine
        result = whole
    return tuple(result)


def iterator_strides(sizes: Sizes, layouts: Sequence[tuple[Sizes, Sizes]]) -> Sizes:
    """The strides of a new result over operands of some (sizes, strides), in the order that TensorIterator chooses.

    >>> iterator_strides((2, 3), [((2, 3), (1, 2))])
    (1, 2)
    """
    spread = []
    for shape, strides in layouts:
        ahead = len(sizes) - len(shape)
        own = zip(shape, sizes[ahead:], strides)
        spread.append([0] * ahead + [0 if n == 1 != whole else step for n, whole, step in own])
    order = list(reversed(range(len(sizes))))  # innermost first
    for i in range(1, len(order)):
        place = i
        for j in reversed(range(i)):
            swap = _swapped(order[j], order[place], sizes, spread)
            if swap < 0:
                break
            if swap > 0:
                order[j], order[place] = order[place], order[j]
                place = j
    result, step = [0] * len(sizes), 1
    for d in order:
        result[d] = step
        step *= max(sizes[d], 1)
    return tuple(result)


def _swapped(inner: int, outer: int, sizes: Sizes, strides: Sequence[Sequence[int]]) -> int:
    """1 if two dimensions lie in memory the other way round, -1 if they do not, 0 if no operand tells."""
    for steps in strides:
        a, b = steps[inner], steps[outer]
        if a == 0 or b == 0:
            continue
        if a != b:
            return 1 if a > b else -1
        if sizes[inner] > sizes[outer]:
            return 1
    return 0


def promoted_output(*arguments: Any) -> list[Any]:
    """One output of the common type and shape of tensors and numbers, laid out as TensorIterator does it."""
    tensors = [argument for argument in arguments if is_tensor(argument)]
    if any(argument[2] is not None and argument[2] not in BY_CODE for argument in arguments):
        raise NoKernel("a type that kernels do not have")
    if any(isinstance(argument[3], complex) for argument in arguments):
        raise NoKernel("complex numbers are not a type of kernels")
    kinds: tuple[list[Any], list[Any], list[Any]] = ([], [], [])
    for argument in arguments:
        if is_tensor(argument):
            wrapped = bool(argument[5] & 1)
            kinds[2 if wrapped else 0 if argument[3] else 1].append(BY_CODE[argument[2]])
        else:
            _, _, code, value, flags = argument
            number = code is None or bool(flags & 1)
            kinds[2 if number else 1].append(number_type(value) if number else BY_CODE[code])
    sizes = broadcast(*(tensor[3] for tensor in tensors))
    strides = iterator_strides(sizes, [(tensor[3], tensor[4]) for tensor in tensors])
    return [("new", CODE_OF[result_type(*kinds)], sizes, strides)]


def check_in_place(self: Any, result: Any) -> None:
    """Raises PyTorch's error if a result does not fit into the tensor that an in-place form writes it to.

    PyTorch's meta kernels of in-place forms return the tensor and look at nothing.
    """
    if tuple(self[3]) != tuple(result[2]):
        raise RuntimeError(f"output with shape {list(self[3])} doesn't match the broadcast shape {list(result[2])}")
    given, held = (BY_CODE.get(code) for code in (result[1], self[2]))
    if given is None or held is None:
        return
    if (given.is_float and not held.is_float) or (held is boolean and given is not boolean):
        names = [C10_NAMES[code] for code in (result[1], self[2])]
        raise RuntimeError(f"result type {names[0]} can't be cast to the desired output type {names[1]}")
