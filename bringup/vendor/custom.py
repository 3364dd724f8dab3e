"""Ops that PyTorch does not have, as the table describes them: outputs, reference and gradient, read and checked."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from bringup.driver import DTYPES
from bringup.vendor.bound import Bound, imported, parsed_expression
from bringup.vendor.formula import Formula, FormulaError, read

Function = Callable[..., Any]


@dataclass(frozen=True)
class OutputRule:
    """What one output is: its shape, and the dtype itself or the argument that has it."""

    shape: tuple[Formula, ...] | str  # a text: like this argument
    dtype: str

    def make(self, values: Mapping[str, Any], device: torch.device) -> torch.Tensor:
        """The output as a new tensor."""
        shape = values[self.shape].shape if isinstance(self.shape, str) else [size(values) for size in self.shape]
        dtype = getattr(torch, self.dtype) if self.dtype in DTYPES else values[self.dtype].dtype
        return torch.empty(shape, dtype=dtype, device=device)


@dataclass(frozen=True)
class Gradient:
    """``run`` maps values to gradients by argument; ``needs`` are the arguments and outputs it looks at."""

    run: Callable[[Mapping[str, Any]], dict[str, Any]]
    needs: frozenset[str]


@dataclass(frozen=True)
class CustomOp:
    """A new op, checked and ready to be defined; ``entries`` are all that serve it."""

    bound: Bound
    entries: tuple[Bound, ...]
    outputs: tuple[OutputRule, ...]
    meta: Function | None
    reference: Function | None
    backward: Gradient | None

    @property
    def has_in_place(self) -> bool:
        """True where the result may be written over the first argument."""
        arguments = self.bound.arguments
        return len(self.outputs) == 1 and bool(arguments) and self.outputs[0].shape == arguments[0].name

    def forms(self) -> dict[str, str]:
        """name → schema of the op and its forms, as torch.library takes them."""
        schema = str(self.bound.schema).partition("::")[2]
        base, _, rest = schema.partition("(")
        arguments, _, results = rest.rpartition(" -> ")
        arguments = arguments.removesuffix(")")
        letters = "abcdefgh"
        outs = ", ".join(f"Tensor({letter}!) {name}" for letter, name in zip(letters, self.bound.outs))
        given = ", ".join(f"Tensor({letter}!)" for letter, _ in zip(letters, self.bound.outs))
        star = "" if any(argument.keyword for argument in self.bound.arguments) else "*, "
        separator = ", " if arguments else ""
        results = f"({given})" if len(self.bound.outs) > 1 else given
        forms = {base: schema, f"{base}.out": f"{base}.out({arguments}{separator}{star}{outs}) -> {results}"}
        if self.has_in_place:
            first = arguments.replace("Tensor", "Tensor(a!)", 1)
            forms[f"{base}_"] = f"{base}_({first}) -> Tensor(a!)"
        return forms


# ---- reading, before anything is registered ----
def prepare(entries: Sequence[Bound]) -> list[CustomOp]:
    """The new ops of a table; raises TableError."""
    defined = {bound.op for bound in entries if bound.entry.is_full and not bound.entry.is_aten}
    return [
        _custom(bound, tuple(one for one in entries if one.op == bound.op), defined)
        for bound in entries
        if bound.entry.is_full and not bound.entry.is_aten
    ]


def _custom(bound: Bound, entries: tuple[Bound, ...], defined: set[str]) -> CustomOp:
    entry = bound.entry
    names = {argument.name for argument in bound.arguments}
    reference = None
    if entry.reference:
        named = ":" in entry.reference and "(" not in entry.reference
        reference = imported(entry, "reference", entry.reference) if named else _expression(bound, "reference", names)
    return CustomOp(
        bound,
        entries,
        _outputs(bound) if entry.output else (),
        imported(entry, "meta", entry.meta) if entry.meta else None,
        reference,
        _backward(bound, names, defined) if entry.backward else None,
    )


def _expression(bound: Bound, key: str, names: set[str]) -> Function:
    tree = parsed_expression(bound.entry, key, getattr(bound.entry, key), names)
    order = [argument.name for argument in bound.arguments]

    def evaluate(*args: Any, **kwargs: Any) -> Any:
        return run_expression(tree, {**dict(zip(order, args)), **kwargs})

    return evaluate


def run_expression(tree: ast.expr, values: Mapping[str, Any]) -> Any:
    """The value of a formula over ops."""
    code = compile(ast.Expression(tree), "<op table>", "eval")
    return eval(code, {"__builtins__": {}, "torch": torch, "ops": torch.ops}, dict(values))


def _outputs(bound: Bound) -> tuple[OutputRule, ...]:
    entry = bound.entry
    given = entry.output if isinstance(entry.output, list) else [entry.output]
    if len(given) != len(bound.outs):
        raise entry.error("output", f"the op has {len(bound.outs)} outputs, the rule says {len(given)}")
    tensors = [a.name for a in bound.arguments if a.kind == "tensor"]

    def tensor(name: object) -> str:
        if name not in tensors:
            raise entry.error("output", f"there is no tensor {name!r}, only {', '.join(tensors)}")
        return str(name)

    rules = []
    for rule in given:
        if isinstance(rule, str):
            if not rule.startswith("like "):
                raise entry.error("output", f"{rule!r} is not of the form 'like x'")
            name = tensor(rule.removeprefix("like ").strip())
            rules.append(OutputRule(name, name))
            continue
        if (
            not isinstance(rule, dict)
            or not isinstance(rule.get("shape"), list)
            or not rule.keys() <= {"shape", "dtype"}
        ):
            raise entry.error("output", f"{rule!r} is neither 'like x' nor a table of shape and dtype")
        try:
            arguments = {a.name for a in bound.arguments}
            shape = tuple(read(str(size), arguments) for size in rule["shape"])
        except FormulaError as error:
            raise entry.error("output", error) from None
        dtype = rule.get("dtype", tensors[0] if tensors else "float32")
        rules.append(OutputRule(shape, dtype if dtype in DTYPES else tensor(dtype)))
    return tuple(rules)


def _backward(bound: Bound, names: set[str], defined: set[str]) -> Gradient:
    entry = bound.entry
    tensors = [a.name for a in bound.arguments if a.kind == "tensor"]
    if isinstance(entry.backward, str):
        op_name = entry.backward
        if "::" not in op_name or (op_name not in defined and not torch._C._jit_get_schemas_for_operator(op_name)):
            raise entry.error(
                "backward", f"there is no op {op_name!r}; write a table x = formula, or the name of an op"
            )
        order = [a.name for a in bound.arguments]
        namespace, _, base = op_name.partition("::")

        def by_op(values: Mapping[str, Any]) -> dict[str, Any]:
            op = getattr(getattr(torch.ops, namespace), base)
            given = [values[grad] for grad in gradients(bound)]
            found = op(*given, *(values[name] for name in order))
            return dict(zip(tensors, found if isinstance(found, (tuple, list)) else [found]))

        return Gradient(by_op, frozenset(names))
    known = names | set(bound.outs) | set(gradients(bound))
    trees = {name: parsed_expression(entry, "backward", text, known) for name, text in entry.backward.items()}
    used = {node.id for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.Name)}

    def by_formula(values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: run_expression(tree, values) for name, tree in trees.items() if values[f"needs {name}"]}

    return Gradient(by_formula, frozenset(used & (names | set(bound.outs))))


def gradients(bound: Bound) -> list[str]:
    """What a backward formula calls the gradients of the outputs: grad, or grad_ and the output's name."""
    return ["grad"] if len(bound.outs) == 1 else [f"grad_{name}" for name in bound.outs]
