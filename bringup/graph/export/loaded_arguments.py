"""What a loaded model is called with: checked, named in errors, and brought to the device as its kernels expect it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from bringup.graph.export.artifact import ArtifactError
from bringup.graph.export.containers import Leaf, matched
from bringup.graph.program import INTEGER, GraphProgram, TensorSpec
from bringup.ir.index import Index, evaluate_sizes
from bringup.ir.printer import index_text


class Arguments:
    """The arguments of calls of one program."""

    def __init__(self, program: GraphProgram, device: torch.device) -> None:
        self._program, self._device = program, device
        self._dtypes = [None if i.dtype == INTEGER else getattr(torch, i.dtype) for i in program.inputs]

    def flat(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """The inputs in their order, with their types checked."""
        found: list[Any] = [None] * len(self._program.inputs)

        def take(leaf: Leaf, value: Any, where: str) -> None:
            kind, content = leaf
            if kind == "value":
                if type(value) is not type(content) or (value != content and value == value):
                    raise ValueError(f"{where} is {value!r}, and the model was exported with {content!r} there")
            else:
                self._check_type(content, value, where)
                found[content] = value

        tree_args, tree_kwargs = self._program.takes[1:]
        args, kwargs = self._bound(args, kwargs, len(tree_args) - 1)
        for n, (tree, value) in enumerate(zip(tree_args[1:], args)):
            matched(tree, value, self._name_of(n), take)
        for name, tree in tree_kwargs[1:]:
            matched(tree, kwargs[name], f"argument '{name}'", take)
        return found

    def _name_of(self, place: int) -> str:
        names = self._program.parameters
        return f"argument '{names[place]}'" if place < len(names) else f"argument {place}"

    def _bound(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], count: int
    ) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """Positional arguments may be given by name."""
        given, named = list(args), dict(kwargs)
        for name in self._program.parameters[len(given) : count]:
            if name in named:
                given.append(named.pop(name))
        wanted = [key for key, _ in self._program.takes[2][1:]]
        if len(given) != count or set(named) != set(wanted):
            names = [self._name_of(n).removeprefix("argument ") for n in range(count)] + [f"'{key}'" for key in wanted]
            shown = f"{len(args)} and by name {sorted(kwargs)}" if kwargs else f"{len(args)}"
            raise TypeError(f"this model takes {len(names)} arguments ({', '.join(names)}), it got {shown}")
        return given, named

    def _check_type(self, number: int, value: Any, where: str) -> None:
        spec, dtype = self._program.inputs[number], self._dtypes[number]
        if dtype is None:
            if type(value) is not int:
                raise TypeError(f"{where} is an int, not a {type(value).__name__}")
            return
        if not isinstance(value, Tensor):
            raise TypeError(f"{where} is a tensor, not a {type(value).__name__}")
        if value.dtype != dtype:
            raise TypeError(f"{where} is a tensor of torch.{spec.dtype}, not of {value.dtype}")
        if value.layout is not torch.strided:
            raise TypeError(f"{where} is a strided tensor, not one of {value.layout}")
        if value.ndim != len(spec.shape):
            raise ValueError(f"{where} has the shape {self._words(spec)}, not {list(value.shape)}")

    def _words(self, spec: TensorSpec) -> str:
        """A shape, and what the names in it may be."""
        ranges = [f"{size.name} = {size.words}" for size in self._program.sizes]
        shape = f"[{', '.join(map(index_text, spec.shape))}]"
        return f"{shape} ({', '.join(ranges)})" if ranges else shape

    def sizes(self, inputs: Sequence[Any]) -> tuple[int, ...]:
        """What the dynamic sizes are in a call, with all shapes checked."""
        sizes = []
        for size in self._program.sizes:
            given = inputs[size.input]
            number = given if size.dimension is None else given.shape[size.dimension]
            if number < size.low or (size.high is not None and number > size.high):
                where = "" if size.dimension is None else f"dimension {size.dimension} of "
                raise ValueError(
                    f"{size.name} = {number} ({where}input '{self._program.inputs[size.input].name}'): this model was "
                    f"exported for {size.words}"
                )
            sizes.append(number)
        known = self._program.named(sizes)
        for spec, value in zip(self._program.inputs, inputs):
            if spec.dtype != INTEGER and list(value.shape) != _numbers(spec.shape, known):
                raise ValueError(f"input '{spec.name}' has the shape {self._words(spec)}, not {list(value.shape)}")
        return tuple(sizes)

    def layouts(self, sizes: Sequence[int]) -> list[tuple[int, ...] | None]:
        """The strides that kernels expect of each input; None for an integer."""
        known = self._program.named(sizes)
        return [None if i.dtype == INTEGER else tuple(_numbers(i.strides, known)) for i in self._program.inputs]

    def on_device(self, value: Any, strides: tuple[int, ...] | None) -> Any:
        """An input where and as kernels expect it: itself, if it is so already."""
        if strides is None:
            return value
        tensor: Tensor = value.detach().resolve_conj().resolve_neg().to(self._device)
        if tensor.stride() == strides or tensor.numel() == 0:
            return tensor
        # The stride of a dimension of 1 is never used, and PyTorch lets it be anything.
        if all(size == 1 or one == other for size, one, other in zip(tensor.shape, tensor.stride(), strides)):
            return tensor
        return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=self._device).copy_(tensor)


def _numbers(formulas: Sequence[Index], sizes: Mapping[str, int]) -> list[int]:
    try:
        return [evaluate_sizes(formula, sizes) for formula in formulas]
    except ZeroDivisionError as error:
        raise ArtifactError("the shape of an input divides by 0") from error
