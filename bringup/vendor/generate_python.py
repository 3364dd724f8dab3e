"""An op table as one Python file that needs torch and the vendor's library alone: torch.library around ctypes calls."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from bringup.vendor.bound import Bound
from bringup.vendor.call_text import prototypes
from bringup.vendor.custom import CustomOp, gradients
from bringup.vendor.formula import Formula
from bringup.vendor.generate import NoSource, conditions, free_tensors, function_name, select
from bringup.vendor.op_lookup import find_overload, in_place_form, out_form

_BASICS = '''
import ctypes
import importlib.util
import warnings
from pathlib import Path

import torch

#: The dispatch key of the device; PrivateUse1 is that of an out-of-tree one.
KEY = "PrivateUse1"
_registered = []  # libraries live as long as this module


def find(name):
    if name.startswith("package:"):
        package, _, inside = name.removeprefix("package:").partition("/")
        return str(Path(importlib.util.find_spec(package).submodule_search_locations[0]) / inside)
    beside = Path(__file__).with_name(name)
    return str(beside) if beside.exists() else name


def wait_for_stream(device):
    """The calls run on this thread: work on the current stream may still be writing what they read."""
    if device.type != "cpu":
        torch.accelerator.current_stream(device).synchronize()


# ---- layouts ----
def dense_along(t, along):
    across = -3 - along
    unit = t.stride(along) == 1 or t.shape[along] == 1
    return unit and (t.stride(across) >= t.shape[along] or t.shape[across] == 1)


def is_blas(t):
    if t.ndim < 2:
        return t.ndim == 1 and (t.stride(0) > 0 or t.shape[0] == 1)
    return dense_along(t, -1) or dense_along(t, -2)


def is_row_major(t):
    inner = 1
    for n, (size, stride) in enumerate(zip(reversed(t.shape), reversed(t.stride()))):
        if not ((stride == 1 if n == 0 else stride >= inner) or size == 1):
            return False
        inner = size if n == 0 else stride * size
    return True


def transposed(t):
    return 0 if t.ndim < 2 or dense_along(t, -1) else 1


def ld(t):
    """BLAS's leading dimension, or the step of a vector."""
    if t.ndim < 2:
        return max(t.stride(0), 1)
    along = -2 if transposed(t) else -1
    return max(t.stride(-3 - along), t.shape[along], 1)


def as_meta(t):
    return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta")


def like_meta(meta, where):
    return torch.empty_strided(meta.shape, meta.stride(), dtype=meta.dtype, device=where.device)


def write(op, out, result):
    if out.dtype != result.dtype:
        raise RuntimeError(f"{op}: out is {out.dtype}, the result is {result.dtype}")
    if out.shape != result.shape:
        out.resize_(result.shape)
    return out.copy_(result)


def fit_int(*numbers):
    return max(numbers) < 1 << 31


def check(condition, message):
    if not condition:
        raise RuntimeError(message)
'''


def python_source(driver: str, entries: Sequence[Bound], ops: Sequence[CustomOp]) -> str:
    """The file; what it cannot say (a call that is more than one C function with plain arguments) is a comment."""
    found = select(entries, ops, lambda bound: list(_entry(bound)))
    parts = [f'"""Tuned ops of {driver}: written by `bringup generate` from ops.toml; needs torch, not bringup."""']
    parts += [_BASICS, *_prototypes(found.entries), *(f"# {line}" for line in found.left_out)]
    parts += ["\n".join(_entry(bound)) for bound in found.entries]
    parts += ["\n".join(_aten_op(name, bounds)) for name, bounds in found.aten.items()]
    parts += ["\n".join(_custom_op(op, bounds)) for op, bounds in found.new]
    return "\n".join(parts) + "\n"


def _c_type(parameter: str) -> str:
    words = parameter.replace("*", " * ").replace("const", "").split()
    if "*" in words:
        return "ctypes.c_void_p"
    for word, found in (("double", "c_double"), ("float", "c_float"), ("int64_t", "c_int64"), ("size_t", "c_size_t")):
        if word in words:
            return f"ctypes.{found}"
    return "ctypes.c_long" if "long" in words else "ctypes.c_int"


def _prototypes(entries: Sequence[Bound]) -> Iterator[str]:
    libraries: dict[str, str] = {}
    done = set()
    for bound in entries:
        for call in bound.calls.values():
            (symbol,) = call.text.symbols
            if symbol in done:
                continue
            done.add(symbol)
            library = bound.entry.library
            if library not in libraries:
                libraries[library] = f"library{len(libraries)}"
                yield (
                    f"\n{libraries[library]} = ctypes.CDLL(find({library!r}))"
                    if library
                    else "library0 = ctypes.CDLL(None)"
                )
            types = ", ".join(_c_type(parameter) for parameter in prototypes(call.declare)[symbol])
            yield f"{symbol} = {libraries[library]}.{symbol}"
            yield f"{symbol}.restype, {symbol}.argtypes = None, [{types}]"


def _given(bound: Bound, argument: Sequence[str | Formula]) -> str:
    if len(argument) == 1 and isinstance(argument[0], Formula):
        formula = argument[0]
        return f"{formula.bare}.data_ptr()" if formula.bare in bound.tensors else formula.python()
    text = "".join(part if isinstance(part, str) else "{…}" for part in argument)
    try:
        return repr(ast.literal_eval(re.sub(r"(?<=[\d.])[fFlLuU]+$", "", text)))
    except (ValueError, SyntaxError):
        raise NoSource(f"the C expression {text}") from None


def _entry(bound: Bound) -> Iterator[str]:
    out = bound.outs[0]
    names = [argument.name for argument in bound.arguments]
    yield f"\n\ndef {function_name(bound)}_{bound.entry.number}({', '.join([*names, out])}):"
    yield f'    """{bound.op}, entry {bound.entry.number}; False: not for these arguments."""'
    yield from (f"    if not ({condition}):\n        return False" for condition in _conditions(bound))
    if bound.entry.initial:
        yield f"    {out}.copy_({bound.entry.initial})"
    yield f"    wait_for_stream({out}.device)"
    if bound.units is not None or (bound.calls and any(len(call.text.symbols) != 1 for call in bound.calls.values())):
        raise NoSource("a call that is split, or more than one")
    for dtype, call in bound.calls.items():
        (symbol,) = call.text.symbols
        if symbol not in prototypes(call.declare) or not "".join(map(str, call.text.parts[:1])).startswith(symbol):
            raise NoSource(f"no prototype of {symbol}, or more than its call")
        given = ", ".join(_given(bound, argument) for argument in call.text.arguments(symbol))
        free = free_tensors(bound)
        test = f"{free[0]}.dtype == torch.{dtype}" if free else "True"
        narrow = ", ".join(sorted(formula.python() for formula in call.narrow))
        yield f"    if {test}{f' and fit_int({narrow})' if narrow else ''}:"
        yield f"        {symbol}({given})\n        return True"
    yield "    return False"


def _conditions(bound: Bound) -> Iterator[str]:
    unused = {argument.name for argument in bound.unused}
    for argument in bound.arguments:
        if argument.name in unused:
            yield f"{argument.name} is None" if argument.default is None else f"{argument.name} == {argument.default!r}"
        elif argument.optional:
            yield f"{argument.name} is not None"
    yield from conditions(bound, "{}.dtype", "torch.{}".format, Formula.python)


def _signature(bound: Bound) -> str:
    parts, starred = [], False
    for argument in bound.arguments:
        if argument.keyword and not starred:
            parts.append("*")
            starred = True
        parts.append(f"{argument.name}={argument.default!r}" if argument.has_default else argument.name)
    return ", ".join(parts)


def _passed(bound: Bound, wrap: str = "{}") -> str:
    found = []
    for argument in bound.arguments:
        value = wrap.format(argument.name) if argument.kind == "tensor" and not argument.optional else argument.name
        found.append(f"{argument.name}={value}" if argument.keyword else value)
    return ", ".join(found)


def _tries(entries: Sequence[Bound], indent: str) -> Iterator[str]:
    for bound in entries:
        names = ", ".join([*(argument.name for argument in bound.arguments), "out"])
        yield f"{indent}if {function_name(bound)}_{bound.entry.number}({names}):\n{indent}    return out"


def _aten_op(name: str, entries: Sequence[Bound]) -> Iterator[str]:
    bound, function, op = entries[0], function_name(entries[0]), find_overload(name)
    first = next(a.name for a in bound.arguments if a.kind == "tensor")
    base, _, overload = name.partition("::")[2].partition(".")
    target = f"torch.ops.aten.{base}.{overload or 'default'}"
    out, in_place = out_form(op), in_place_form(op)
    yield f"\n\nusual_{function} = torch.library.get_kernel({target}, KEY)  # what runs without this file"
    yield f"\n\ndef {function}(keys, {_signature(bound)}):"
    yield f"    out = like_meta({target}({_passed(bound, 'as_meta({})')}), {first})  # checks the arguments"
    yield from _tries(entries, "    ")
    yield f"    return usual_{function}.call_boxed(keys, {_passed(bound)})"
    names = [(f'"{name.partition("::")[2]}"', function)]
    if out is not None:
        star = "" if "*" in _signature(bound).split(", ") else "*, "
        yield f"\n\ndef {function}_out(keys, {_signature(bound)}, {star}out):"
        yield f'    return write("{name}", out, {function}(keys, {_passed(bound)}))'
        names.append((f'"{out._name.partition("::")[2]}"', f"{function}_out"))
    if in_place is not None:
        yield f"\n\ndef {function}_in_place(keys, {_signature(bound)}):"
        yield f"    return {bound.arguments[0].name}.copy_({function}(keys, {_passed(bound)}))"
        names.append((f'"{in_place._name.partition("::")[2]}"', f"{function}_in_place"))
    yield '\n\n_registered.append(torch.library.Library("aten", "IMPL"))'
    yield 'with warnings.catch_warnings():\n    warnings.simplefilter("ignore")  # it takes the place of another kernel'
    yield from (f"    _registered[-1].impl({key}, {kernel}, KEY, with_keyset=True)" for key, kernel in names)


def _custom_op(op: CustomOp, entries: Sequence[Bound]) -> Iterator[str]:
    bound, function = op.bound, function_name(op.bound)
    namespace, _, base = bound.op.partition("::")
    entry, rule, signature = bound.entry, op.outputs[0], _signature(op.bound)
    first = next(a.name for a in bound.arguments if a.kind == "tensor")
    shape = f"{rule.shape}.shape" if isinstance(rule.shape, str) else f"[{', '.join(s.python() for s in rule.shape)}]"
    dtype = f"{rule.dtype}.dtype" if rule.dtype in bound.tensors else f"torch.{rule.dtype}"
    yield f'\n\n_{function} = torch.library.Library("{namespace}", "FRAGMENT")\n_registered.append(_{function})'
    yield from (f'_{function}.define("{schema}")' for schema in op.forms().values())
    yield f"\n\ndef {function}_new({signature}):"
    free = [name for name in free_tensors(bound) if name not in bound.outs]
    for name in free[1:]:
        yield f'    check({free[0]}.dtype == {name}.dtype, "{bound.op}: {free[0]} and {name} differ in dtype")'
    for condition in bound.require:
        yield f'    check({condition.python()}, "{bound.op} requires {condition.text}")'
    yield f"    return torch.empty({shape}, dtype={dtype}, device={first}.device)"
    yield f"\n\ndef {function}({signature}):\n    out = {function}_new({_passed(bound)})"
    yield from _tries(entries, "    ")
    plain = entry.reference and ":" not in entry.reference
    missing = f'raise NotImplementedError("{bound.op}: the library has no function for these arguments")'
    yield f"    return {function}_reference({_passed(bound)})" if plain else f"    {missing}"
    yield f'\n\n_{function}.impl("{base}", {function}, KEY)\n_{function}.impl("{base}", {function}_new, "Meta")'
    if plain:
        yield f"\n\ndef {function}_reference({signature}):\n    return {entry.reference.replace('ops.', 'torch.ops.')}"
        yield f'\n\n_{function}.impl("{base}", {function}_reference, "CPU")'
    star = "" if any(a.keyword for a in bound.arguments) else "*, "
    yield f"\n\ndef {function}_out({signature}, {star}out):"
    yield f'    return write("{bound.op}", out, {function}({_passed(bound)}))'
    yield f'\n\n_{function}.impl("{base}.out", {function}_out, KEY)'
    if op.has_in_place:
        yield f"\n\ndef {function}_in_place({signature}):"
        yield f"    return {first}.copy_({function}({_passed(bound)}))"
        yield f'\n\n_{function}.impl("{base}_", {function}_in_place, KEY)'
    if isinstance(entry.backward, dict):
        yield from _gradient(op, function)
    elif entry.backward:
        yield f"# Not here: the gradient of {bound.op}: {entry.backward}."
    if entry.autocast:
        yield from _autocast(op, function)


def _gradient(op: CustomOp, function: str) -> Iterator[str]:
    bound, entry = op.bound, op.bound.entry
    assert isinstance(entry.backward, dict)
    if any(a.keyword for a in bound.arguments):
        yield f"# Not here: the gradient of {bound.op}, which has keyword arguments."
        return
    names = [a.name for a in bound.arguments]
    tensors = [a.name for a in bound.arguments if a.kind == "tensor"]
    others = [name for name in names if name not in tensors]
    yield f"\n\ndef {function}_setup(ctx, inputs, output):\n    {', '.join(names)}, = inputs"
    yield f"    ctx.save_for_backward({', '.join([*tensors, 'output'])})"
    yield f"    ctx.numbers = ({''.join(f'{name}, ' for name in others)})"
    yield f"\n\ndef {function}_backward(ctx, {gradients(bound)[0]}):"
    yield f"    {', '.join([*tensors, bound.outs[0]])} = ctx.saved_tensors"
    if others:
        yield f"    {', '.join(others)}, = ctx.numbers"
    results = []
    for place, name in enumerate(names):
        formula = entry.backward.get(name, "").replace("ops.", "torch.ops.")
        results.append(f"{formula} if ctx.needs_input_grad[{place}] else None" if formula else "None")
    yield f"    return {', '.join(results)}"
    yield f'\n\ntorch.library.register_autograd("{bound.op}", {function}_backward, setup_context={function}_setup)'


def _autocast(op: CustomOp, function: str) -> Iterator[str]:
    bound = op.bound
    tensors = [a.name for a in bound.arguments if a.kind == "tensor" and not a.optional]
    joint = f"{tensors[0]}.dtype"
    for name in tensors[1:]:
        joint = f"torch.promote_types({joint}, {name}.dtype)"
    dtype = {"float32": "torch.float32", "promote": joint}.get(
        bound.entry.autocast, f"torch.get_autocast_dtype({tensors[0]}.device.type)"
    )
    yield f"\n\ndef {function}_autocast({_signature(bound)}):"
    yield "    key = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)"
    yield "    with torch._C._ExcludeDispatchKeyGuard(key):"
    yield f"        dtype = {dtype}"
    wrap = "{0}.to(dtype) if {0}.is_floating_point() and {0}.dtype != torch.float64 else {0}"
    yield f"        return torch.ops.{bound.op.replace('::', '.')}({_passed(bound, wrap)})"
    yield f'\n\n_{function}.impl("{bound.op.partition("::")[2]}", {function}_autocast, "AutocastPrivateUse1")'
