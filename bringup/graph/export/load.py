"""``bringup.load``: an exported model, ready to be called."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

import torch
from torch import Tensor

import bringup
from bringup.graph.binding import Binding
from bringup.graph.export.artifact import ArtifactError, ArtifactFile
from bringup.graph.export.artifact_manifest import program_from
from bringup.graph.export.containers import Leaf, built
from bringup.graph.export.loaded_arguments import Arguments
from bringup.graph.export.loaded_bounds import BoundsCheck
from bringup.graph.export.targets import compiler_of, kernel_device
from bringup.graph.program import GraphProgram, SizeSymbol, TensorSpec, span
from bringup.graph.structure import GraphStructure, serving
from bringup.ir.index import evaluate_sizes
from bringup.ir.verify_error import VerifyError
from bringup.lowering.resolve import no_garbage_collection

#: Plans for exact sizes that a model keeps.
BINDINGS = 64


@dataclass(frozen=True)
class ModelReport:
    """What a model costs for some sizes; ``kernels`` in the order of their launches."""

    sizes: dict[str, int]
    kernels: tuple[str, ...]
    arena_bytes: int
    weight_bytes: int
    #: As the kernels' cost formulas say: arithmetic, and bytes read and written.
    flops: float
    moved_bytes: float

    def __str__(self) -> str:
        sizes = ", ".join(f"{name} = {size}" for name, size in self.sizes.items())
        return (
            f"{len(self.kernels)} kernels{f' for {sizes}' if sizes else ''}: {', '.join(self.kernels)}\n"
            f"{self.weight_bytes} bytes of weights, {self.arena_bytes} bytes of arena, {self.flops:.3g} flops, "
            f"{self.moved_bytes:.3g} bytes moved"
        )


@dataclass(frozen=True)
class _Bound:
    binding: Binding
    #: Strides that inputs must have.
    layouts: list[tuple[int, ...] | None]


class LoadedModel:
    """A model from a file; call it as the model itself. Inference only: results know no gradients.

    Inputs may be on the CPU: then the results are too. Many threads may call it at once.
    """

    def __init__(self, program: GraphProgram, constants: Sequence[Tensor], device: torch.device) -> None:
        self.device = device
        self._program, self._constants = program, list(constants)
        self._arguments = Arguments(program, device)
        load_all, names = compiler_of(device).load_all, [size.name for size in program.sizes]
        with no_garbage_collection():
            try:
                self._structures = [GraphStructure(one, names, device.index, load_all) for one in program.variants]
            except VerifyError as error:
                raise ArtifactError(f"a kernel breaks a rule: {error}") from error
        self._bindings: OrderedDict[tuple[int, ...], _Bound] = OrderedDict()
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        if not program.sizes:
            self._bound(())

    # ---- what it is ----

    @property
    def sizes(self) -> dict[str, SizeSymbol]:
        """The sizes that calls decide, by name."""
        return {size.name: size for size in self._program.sizes}

    @property
    def input_specs(self) -> tuple[TensorSpec, ...]:
        """Name, dtype, shape and strides of every input."""
        return self._program.inputs

    @property
    def output_spec(self) -> Any:
        """The outputs: containers with a text for every leaf."""
        from bringup.ir.printer import index_text

        results = self._program.variants[0].results

        def leaf(one: Leaf) -> Any:
            kind, content = one
            if kind == "result":
                result = results[content]
                return f"{result.dtype}[{', '.join(map(index_text, result.shape))}]"
            return index_text(content) if kind == "size" else content

        return built(self._program.gives, leaf)

    @property
    def state(self) -> dict[str, Tensor]:
        """The buffers that calls change, by name: the tensors themselves."""
        pairs = zip(self._program.constants, self._constants)
        return {constant.name: tensor for constant, tensor in pairs if constant.state}

    def report(self, **sizes: int) -> ModelReport:
        """What the model costs for some sizes; those that are not given are as in the example it was exported with."""
        known = self.sizes
        unknown = [name for name in sizes if name not in known]
        if unknown:
            raise TypeError(f"this model has no size '{unknown[0]}'; it has {', '.join(known) or 'none'}")
        numbers = {name: sizes.get(name, size.example) for name, size in known.items()}
        binding = self._bound(tuple(numbers.values())).binding
        launches = [launch for launch in binding.filled.launches if launch is not None]
        return ModelReport(
            sizes=numbers,
            kernels=tuple(call.kernel.name for call in binding.structure.variant.kernel_calls),
            arena_bytes=binding.memory.arena,
            weight_bytes=sum(span(t.shape, t.stride()) * t.itemsize for t in self._constants),
            flops=float(sum(launch.flops for launch in launches)),
            moved_bytes=float(sum(launch.bytes for launch in launches)),
        )

    def __repr__(self) -> str:
        sizes = "".join(f", {size.name} = {size.words}" for size in self._program.sizes)
        return f"LoadedModel(on {self.device}, {len(self._program.inputs)} inputs{sizes})"

    # ---- calls ----

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the model."""
        inputs = self._arguments.flat(args, kwargs)
        sizes = self._arguments.sizes(inputs)
        bound = self._bindings.get(sizes) or self._bound(sizes)
        from_host = all(value.device.type == "cpu" for value in inputs if isinstance(value, Tensor))
        with torch.no_grad():
            given = [self._arguments.on_device(value, strides) for value, strides in zip(inputs, bound.layouts)]
            if not self._program.updates:
                results = bound.binding.run([*self._constants, *given], ())
            else:
                with self._turn:  # the next call starts from this one's state
                    results = bound.binding.run([*self._constants, *given], ())
                    for constant, result in self._program.updates:
                        self._constants[constant].copy_(results[result])
            return self._given_back(results, bound.binding.structure, sizes, host=from_host and bool(given))

    def _given_back(
        self, results: Sequence[Tensor], structure: GraphStructure, sizes: Sequence[int], host: bool
    ) -> Any:
        known = self._program.named(sizes)

        def leaf(one: Leaf) -> Any:
            kind, content = one
            if kind == "value":
                return content
            if kind == "size":
                return evaluate_sizes(content, known)
            result = results[content]
            if host:
                return result.cpu()
            memory = structure.variant.results[content].memory
            # A caller who changes a result in place changes no weight.
            return result.clone() if memory[0] == "tensor" and memory[1] < len(self._constants) else result

        return built(self._program.gives, leaf)

    def _bound(self, sizes: tuple[int, ...]) -> _Bound:
        with self._lock, no_garbage_collection():
            if sizes in self._bindings:
                return self._bindings[sizes]
            try:
                found = serving(self._structures, sizes)
            except ZeroDivisionError as error:
                raise ArtifactError("a guard divides by 0") from error
            if found is None:
                shown = ", ".join(f"{name} = {n}" for name, n in self._program.named(sizes).items())
                raise ValueError(
                    f"this model was not lowered for {shown}: of ranges as large as its, only a sample of sizes is. "
                    "Export it with a smaller range"
                )
            layouts = self._arguments.layouts(sizes)
            BoundsCheck(self._program, found[0].variant, sizes).run()
            bound = _Bound(Binding(*found, sizes, self.device), layouts)
            self._bindings[sizes] = bound
            if len(self._bindings) > BINDINGS:
                self._bindings.popitem(last=False)
            return bound


def load(path: str | PathLike[str], device: str | torch.device | None = None) -> LoadedModel:
    """The model that ``bringup.export`` wrote to a file, on a device (default: the active driver's first).

    >>> model = bringup.load("model.bup")  # doctest: +SKIP
    >>> model(x)  # doctest: +SKIP

    Nothing in the file is executed: kernels are read, verified and compiled here. A file that is damaged, foreign or of
    another version is an ArtifactError.
    """
    with ArtifactFile(path) as file:
        try:
            program = program_from(file.manifest)
            where = kernel_device(torch.device(device) if device is not None else bringup.device())
            constants = _constants(file, program, where)
            return LoadedModel(program, constants, where)
        except ArtifactError as error:
            raise error if str(error).startswith(file.path) else file.fail(str(error)) from error


def _constants(file: ArtifactFile, program: GraphProgram, device: torch.device) -> list[Tensor]:
    if len(file.blob_bytes) != len(program.constants):
        raise file.fail(f"it has {len(file.blob_bytes)} blobs for {len(program.constants)} constants")
    found = []
    for n, (spec, nbytes) in enumerate(zip(program.constants, file.blob_bytes)):
        dtype: torch.dtype = getattr(torch, spec.dtype)
        if span(spec.shape, spec.strides) * dtype.itemsize != nbytes:
            raise file.fail(f"constant '{spec.name}' has {nbytes} bytes, its shape and strides say others")
        data = file.blob(n)
        if dtype is torch.bool and data.translate(None, b"\0\1"):
            raise file.fail(f"constant '{spec.name}' has values that are not bool")
        flat = torch.frombuffer(data, dtype=dtype) if nbytes else torch.empty(0, dtype=dtype)
        found.append(flat.to(device).as_strided(spec.shape, spec.strides))
    return found
