"""A program as JSON and back. What is read is checked as if an attacker had written it: see docs/export.md."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, get_args

import bringup
from bringup.compile.kernels import Launch
from bringup.graph.export.artifact import ArtifactError
from bringup.graph.program import (
    INTEGER,
    ConstantSpec,
    Formulas,
    GivenKind,
    GraphProgram,
    KernelCall,
    Memory,
    SizeSymbol,
    TensorSpec,
    Variant,
)
from bringup.ir.dtypes import DTYPES
from bringup.ir.index import Index
from bringup.ir.index_json import BadFormula, from_json, to_json
from bringup.ir.kernel import Kernel
from bringup.ir.parser import parse
from bringup.ir.printer import kernel_text
from bringup.lowering.symbolic import RELATIONS

_RELATIONS = tuple(RELATIONS)
_GIVEN = get_args(GivenKind)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
#: More sizes, launches or inputs than any model has.
MANY = 1 << 20
LARGEST = 1 << 62
_MOST_DIMENSIONS = 64
_MOST_TREE_DEPTH = 32
_LONGEST_KERNEL = 1 << 22


# ---- to JSON ----


def manifest_of(program: GraphProgram) -> dict[str, Any]:
    """The program as JSON values."""
    numbers: dict[str, int] = {}  # text of a kernel → its number
    variants = [_variant(variant, numbers) for variant in program.variants]
    return {
        "bringup": bringup.__version__,
        "target": program.target,
        "sizes": [[s.name, s.low, s.high, s.input, s.dimension, s.example] for s in program.sizes],
        "inputs": [[i.name, i.dtype, _formulas(i.shape), _formulas(i.strides)] for i in program.inputs],
        "constants": [[c.name, c.dtype, list(c.shape), list(c.strides), c.state] for c in program.constants],
        "kernels": list(numbers),
        "variants": variants,
        "parameters": list(program.parameters),
        "takes": _tree(program.takes),
        "gives": _tree(program.gives),
        "updates": [list(pair) for pair in program.updates],
    }


def _formulas(formulas: Formulas) -> list[Any]:
    return [to_json(formula) for formula in formulas]


def _variant(variant: Variant, numbers: dict[str, int]) -> dict[str, Any]:
    return {
        "guards": [[relation, to_json(index)] for relation, index in variant.guards],
        "number_guards": [[n, relation, _constant(value)] for n, relation, value in variant.number_guards],
        "numbers": _formulas(variant.numbers),
        "temporaries": _formulas(variant.temporaries),
        "calls": [
            [
                numbers.setdefault(kernel_text(call.kernel), len(numbers)),  # type: ignore[arg-type]  # no foreign ones
                [[*memory, to_json(offset)] for memory, offset in call.buffers],
                _formulas(call.sizes),
                [list(given) for given in call.params],
            ]
            for call in variant.kernel_calls
        ],
        "results": [
            [*r.memory, r.dtype, _formulas(r.shape), _formulas(r.strides), to_json(r.offset)] for r in variant.results
        ],
        "draws": variant.draws,
    }


def _constant(value: Any) -> Any:
    """A Python constant; floats by their bits, as JSON has no infinity."""
    return {"float": value.hex()} if type(value) is float else value


def _tree(tree: Any) -> Any:
    if type(tree) is tuple:
        kind, value = tree
        return {kind: to_json(value) if kind == "size" else _constant(value)}
    kind, *parts = tree
    if kind == "dict":
        return [kind, *([key, _tree(part)] for key, part in parts)]
    return [kind, *map(_tree, parts)]


# ---- from JSON ----


def program_from(manifest: Any) -> GraphProgram:
    """The program of JSON values; an ArtifactError says what is wrong with them."""
    return _Reader(manifest).program()


class _Reader:
    """Reads one manifest; what was read first (sizes, inputs, constants, kernels) bounds what may follow."""

    def __init__(self, manifest: Any) -> None:
        names = "bringup target sizes inputs constants kernels variants parameters takes gives updates"
        version, *self._parts = fields(manifest, "the whole", *names.split())
        text(version, "bringup")
        self._names: set[str] = set()

    def program(self) -> GraphProgram:
        target, sizes, inputs, constants, kernels, variants, parameters, takes, gives, updates = self._parts
        count = len(items(inputs, "inputs"))
        self._sizes = self._each(sizes, "sizes", lambda value, where: self._size(value, where, count))
        self._names = {size.name for size in self._sizes}
        need(len(self._names) == len(self._sizes), "sizes", "two have the same name")
        self._before = len(items(constants, "constants"))
        self._inputs = tuple(self._input(one, n) for n, one in enumerate(inputs))
        for n, size in enumerate(self._sizes):
            self._check_source(size, f"sizes[{n}]")
        self._constants = self._each(constants, "constants", self._a_constant)
        self._kernels = self._each(kernels, "kernels", _kernel)
        need(type(variants) is list and bool(variants), "variants", "there is none")
        read = self._each(variants, "variants", self._variant)
        results = {tuple(result.dtype for result in variant.results) for variant in read}
        need(len(results) == 1, "variants", "they do not give the same results")
        self._dtypes = [result.dtype for result in read[0].results]
        self._results = len(self._dtypes)
        names = self._each(parameters, "parameters", text)
        return GraphProgram(
            text(target, "target"),
            self._sizes,
            self._inputs,
            self._constants,
            read,
            names,
            self._arguments(takes),
            self._tree(gives, "gives", self._given),
            self._each(updates, "updates", self._update),
        )

    def _each(self, value: Any, where: str, read: Callable[[Any, str], Any]) -> tuple[Any, ...]:
        return tuple(read(one, f"{where}[{n}]") for n, one in enumerate(items(value, where)))

    def _formula(self, value: Any, where: str) -> Index:
        try:
            return from_json(value, self._names)
        except BadFormula as error:
            raise ArtifactError(f"manifest: {where}: {error}") from error

    def _layout(self, shape: Any, strides: Any, where: str) -> tuple[Formulas, Formulas]:
        items(shape, where, 0, _MOST_DIMENSIONS)
        items(strides, where, len(shape), len(shape))
        return self._each(shape, where, self._formula), self._each(strides, where, self._formula)

    def _size(self, value: Any, where: str, inputs: int) -> SizeSymbol:
        name, low, high, source, dimension, example = items(value, where, 6, 6)
        need(bool(_NAME.fullmatch(text(name, where))), where, "no name")
        low = whole(low, where)
        high = None if high is None else whole(high, where, low)
        dimension = None if dimension is None else whole(dimension, where, 0, _MOST_DIMENSIONS - 1)
        source = whole(source, where, 0, inputs - 1)
        return SizeSymbol(name, low, high, source, dimension, whole(example, where))

    def _check_source(self, size: SizeSymbol, where: str) -> None:
        given = self._inputs[size.input]
        need((given.dtype == INTEGER) == (size.dimension is None), where, "it comes from no such input")
        need(size.dimension is None or size.dimension < len(given.shape), where, "it comes from no such dimension")

    def _input(self, value: Any, number: int) -> TensorSpec:
        where = f"inputs[{number}]"
        name, dtype, shape, strides = items(value, where, 4, 4)
        if dtype != INTEGER:
            _dtype(dtype, where)
        memory = ("tensor", self._before + number)
        return TensorSpec(memory, dtype, *self._layout(shape, strides, where), name=text(name, where))

    def _a_constant(self, value: Any, where: str) -> ConstantSpec:
        name, dtype, shape, strides, state = items(value, where, 5, 5)
        items(shape, where, 0, _MOST_DIMENSIONS)
        items(strides, where, len(shape), len(shape))
        need(type(state) is bool, where, "wanted true or false")
        sizes, steps = (self._each(part, where, whole) for part in (shape, strides))
        return ConstantSpec(text(name, where), _dtype(dtype, where), sizes, steps, state)

    # ---- variants ----

    def _variant(self, value: Any, where: str) -> Variant:
        names = ("guards", "number_guards", "numbers", "temporaries", "calls", "results", "draws")
        guards, number_guards, numbers, temporaries, calls, results, draws = fields(value, where, *names)
        self._numbers = self._each(numbers, f"{where}.numbers", self._formula)
        self._temporaries = self._each(temporaries, f"{where}.temporaries", self._formula)
        self._draws = whole(draws, where, 0, MANY)
        return Variant(
            self._each(guards, f"{where}.guards", self._guard),
            self._each(number_guards, f"{where}.number_guards", self._number_guard),
            self._numbers,
            self._temporaries,
            self._each(calls, f"{where}.calls", self._call),
            self._each(results, f"{where}.results", self._result),
            self._draws,
        )

    def _guard(self, value: Any, where: str) -> tuple[str, Index]:
        relation, formula = items(value, where, 2, 2)
        need(relation in _RELATIONS, where, "no relation")
        return relation, self._formula(formula, where)

    def _number_guard(self, value: Any, where: str) -> tuple[int, str, bool | int | float]:
        number, relation, constant = items(value, where, 3, 3)
        need(relation in _RELATIONS, where, "no relation")
        known = _read_constant(constant, where)
        need(type(known) in (bool, int, float) and known == known, where, "no number")
        return whole(number, where, 0, len(self._numbers) - 1), relation, known

    def _memory(self, kind: Any, number: Any, where: str) -> Memory:
        need(kind in ("tensor", "temporary"), where, "no kind of memory")
        tensors = len(self._constants) + len(self._inputs)
        found = whole(number, where, 0, (tensors if kind == "tensor" else len(self._temporaries)) - 1)
        if kind == "tensor" and found >= len(self._constants):
            given = self._inputs[found - len(self._constants)]
            need(given.dtype != INTEGER, where, "an integer is not memory")
        return kind, found

    def _call(self, value: Any, where: str) -> KernelCall:
        number, buffers, sizes, params = items(value, where, 4, 4)
        number = whole(number, where, 0, len(self._kernels) - 1)
        kernel: Kernel = self._kernels[number]
        items(buffers, where, len(kernel.buffers), len(kernel.buffers))
        items(sizes, where, len(kernel.sizes), len(kernel.sizes))
        items(params, where, len(kernel.params), len(kernel.params))
        places = []
        for buffer, place in zip(kernel.buffers, buffers):
            kind, which, offset = items(place, where, 3, 3)
            memory = self._memory(kind, which, where)
            # Calls change a model's state after their last kernel, and never what the caller gave them.
            need(buffer.role == "in" or memory[0] == "temporary", where, "a kernel may write to temporaries only")
            places.append((memory, self._formula(offset, where)))
        given = []
        for param in params:
            kind, bits = items(param, where, 2, 2)
            need(kind in _GIVEN, where, "no kind of argument")
            most = {"bits": (1 << 64) - 1, "number": len(self._numbers) - 1}.get(kind, self._draws - 1)
            given.append((kind, whole(bits, where, 0, most)))
        return Launch(kernel, tuple(places), self._each(sizes, where, self._formula), tuple(given))

    def _result(self, value: Any, where: str) -> TensorSpec:
        kind, number, dtype, shape, strides, offset = items(value, where, 6, 6)
        memory = self._memory(kind, number, where)
        layout = self._layout(shape, strides, where)
        return TensorSpec(memory, _dtype(dtype, where), *layout, self._formula(offset, where))

    # ---- inputs and outputs ----

    def _tree(self, value: Any, where: str, leaf: Callable[[str, Any, str], Any], depth: int = _MOST_TREE_DEPTH) -> Any:
        need(depth > 0, where, "nested too deeply")
        if type(value) is dict:
            need(len(value) == 1, where, "wanted one kind of leaf")
            ((kind, content),) = value.items()
            return kind, _read_constant(content, where) if kind == "value" else leaf(kind, content, where)
        kind, *parts = items(value, where, 1)
        need(kind in ("tuple", "list", "dict"), where, "no kind of container")
        if kind != "dict":
            return [kind, *(self._tree(part, where, leaf, depth - 1) for part in parts)]
        pairs = [items(part, where, 2, 2) for part in parts]
        need(all(type(key) in (str, int) for key, _ in pairs), where, "a key is a text or a whole number")
        need(len({key for key, _ in pairs}) == len(pairs), where, "a key is there twice")
        return [kind, *([key, self._tree(part, where, leaf, depth - 1)] for key, part in pairs)]

    def _arguments(self, takes: Any) -> Any:
        """Positional arguments and those by name; every input is one of them, once."""
        self._seen: list[int] = []
        tree = self._tree(takes, "takes", self._taken)
        shaped = type(tree) is list and len(tree) == 3 and all(type(part) is list for part in tree[1:])
        need(shaped and (tree[0], tree[1][0], tree[2][0]) == ("tuple", "tuple", "dict"), "takes", "no arguments")
        need(all(type(key) is str for key, _ in tree[2][1:]), "takes", "an argument's name is a text")
        need(len(set(self._seen)) == len(self._seen), "takes", "an input is there twice")
        for n, given in enumerate(self._inputs):  # a number that is written in is not an argument, and decides no size
            written_in = given.dtype == INTEGER and all(size.input != n for size in self._sizes)
            need(n in self._seen or written_in, "takes", f"input {n} is not there")
        return tree

    def _taken(self, kind: str, content: Any, where: str) -> int:
        need(kind == "input", where, "no kind of leaf")
        self._seen.append(whole(content, where, 0, len(self._inputs) - 1))
        return self._seen[-1]

    def _given(self, kind: str, content: Any, where: str) -> Any:
        need(kind in ("result", "size"), where, "no kind of leaf")
        return whole(content, where, 0, self._results - 1) if kind == "result" else self._formula(content, where)

    def _update(self, value: Any, where: str) -> tuple[int, int]:
        constant, result = items(value, where, 2, 2)
        number = whole(constant, where, 0, len(self._constants) - 1)
        need(self._constants[number].state, where, "this constant is not state")
        place = whole(result, where, 0, self._results - 1)
        need(self._dtypes[place] == self._constants[number].dtype, where, "this result is of another type")
        return number, place


def _dtype(value: Any, where: str) -> str:
    need(type(value) is str and value in DTYPES, where, "no type of kernels")
    found: str = value
    return found


def _kernel(value: Any, where: str) -> Kernel:
    source = text(value, where, _LONGEST_KERNEL)
    try:
        kernel = parse(source)
    except Exception as error:  # of the parser: whatever it stumbles over, this is not a kernel
        raise ArtifactError(f"manifest: {where}: no kernel: {error}") from error
    # The disk cache knows kernels by their text: only the one text that a kernel has may name it.
    need(kernel_text(kernel) == source, where, "not as bringup prints kernels")
    need(bool(_NAME.fullmatch(kernel.name)), where, "no name of a kernel")
    return kernel


def _read_constant(value: Any, where: str) -> Any:
    if type(value) is dict:
        (digits,) = fields(value, where, "float")
        try:
            return float.fromhex(text(digits, where, 40))
        except (ValueError, OverflowError) as error:
            raise ArtifactError(f"manifest: {where}: no number") from error
    need(value is None or type(value) in (bool, int, str), where, "no constant")
    return value


# ---- values that are believed only after a look: each reader says what it wanted and where ----


def need(good: bool, where: str, what: str) -> None:
    """An ArtifactError unless ``good``.

    >>> need(False, "inputs[0]", "no dtype")
    Traceback (most recent call last):
    bringup.graph.export.artifact.ArtifactError: manifest: inputs[0]: no dtype
    """
    if not good:
        raise ArtifactError(f"manifest: {where}: {what}")


def whole(value: Any, where: str, low: int = 0, high: int = LARGEST) -> int:
    """An integer in a range.

    >>> whole(3, "version")
    3
    """
    need(type(value) is int and low <= value <= high, where, f"wanted a whole number in {low}…{high}")
    number: int = value
    return number


def text(value: Any, where: str, longest: int = 200) -> str:
    """A string.

    >>> text("x", "name")
    'x'
    """
    need(type(value) is str and len(value) <= longest, where, f"wanted a text of at most {longest} characters")
    found: str = value
    return found


def items(value: Any, where: str, least: int = 0, most: int = MANY) -> list[Any]:
    """A list.

    >>> items([1, 2], "pair", 2, 2)
    [1, 2]
    """
    counted = str(least) if least == most else f"{least}…{most}"
    need(type(value) is list and least <= len(value) <= most, where, f"wanted a list of {counted}")
    found: list[Any] = value
    return found


def fields(value: Any, where: str, *names: str) -> list[Any]:
    """The values of an object that has these keys and no others.

    >>> fields({"b": 2, "a": 1}, "object", "a", "b")
    [1, 2]
    """
    need(type(value) is dict and set(value) == set(names), where, f"wanted an object with the keys {', '.join(names)}")
    return [value[name] for name in names]
