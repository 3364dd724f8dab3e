"""An op table as one C++ file that builds with torch alone: registrations, argument checks, the vendor's calls."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from bringup.vendor.bound import Bound
from bringup.vendor.call_text import C_TYPES
from bringup.vendor.cpp_parts import BASICS, PREAMBLE, SCALAR_TYPES, expression, parameters
from bringup.vendor.custom import CustomOp, gradients
from bringup.vendor.formula import Formula
from bringup.vendor.generate import NoSource, Sources, conditions, free_tensors, function_name, select
from bringup.vendor.op_lookup import find_overload, in_place_form, out_form


def cpp_source(driver: str, entries: Sequence[Bound], ops: Sequence[CustomOp]) -> str:
    """The file; what C++ cannot say (a Python function, a formula with keywords) is left out with a comment."""
    found = select(entries, ops, lambda bound: parameters(bound.arguments))
    parts = [_head(driver, found.entries), *(f"// {line}" for line in found.left_out), "namespace {", BASICS]
    parts += [_entry(bound) for bound in found.entries]
    parts += [_aten_op(name, bounds) for name, bounds in found.aten.items()]
    parts += [_custom_op(op, bounds) for op, bounds in found.new]
    parts += ["} // namespace", "", *_registrations(found)]
    return "\n".join(parts) + "\n"


def _head(driver: str, entries: Sequence[Bound]) -> str:
    declared = dict.fromkeys(
        line.strip() for bound in entries for call in bound.calls.values() for line in _statements(call.declare)
    )
    wanted = {symbol for bound in entries for call in bound.calls.values() for symbol in call.text.symbols}
    kept = [line for line in declared if any(re.search(rf"\b{symbol}\s*\(", line) for symbol in wanted)]
    libraries = sorted({bound.entry.library for bound in entries if bound.entry.library})
    return "\n".join(
        [
            f"// Tuned ops of {driver}: written by `bringup generate` from ops.toml; needs torch, not bringup.",
            f"// Link with {', '.join(libraries) or 'the library of the chip'}.",
            PREAMBLE,
            'extern "C" {',
            *kept,
            "}",
            "",
        ]
    )


def _statements(declare: str) -> list[str]:
    return [" ".join(part.split()) + ";" for part in declare.split(";") if part.strip()]


# ---- an entry: runs the call, or says that it is not for these arguments ----
def _entry(bound: Bound) -> str:
    out = bound.outs[0]
    taken = []
    for argument in bound.arguments:
        kind = "double" if argument.kind == "number" else ""
        declared = parameters((argument,)) if not kind or argument.optional else f"double {argument.name}"
        taken.append(
            re.sub(rf"{argument.name}$", f"{argument.name}_given", declared) if argument.optional else declared
        )
    lines = [
        f"// {bound.op}, entry {bound.entry.number}; false: not for these arguments.",
        f"bool {function_name(bound)}_{bound.entry.number}({', '.join([*taken, f'Tensor& {out}'])}) {{",
    ]
    unused = {argument.name for argument in bound.unused}
    for argument in bound.arguments:
        if argument.optional and argument.name in unused:
            lines.append(f"  if ({argument.name}_given.has_value()) return false;")
        elif argument.optional:
            lines.append(f"  if (!{argument.name}_given.has_value()) return false;")
            lines.append(f"  const auto& {argument.name} = *{argument.name}_given;")
        elif argument.name in unused:
            default = str(argument.default).lower() if isinstance(argument.default, bool) else argument.default
            lines.append(f"  if ({argument.name} != {default}) return false;")
    tests = conditions(bound, "{}.scalar_type()", SCALAR_TYPES.__getitem__, Formula.cpp)
    lines += [f"  if (!({condition})) return false;" for condition in tests]
    if bound.entry.initial:
        lines.append(f"  {out}.copy_({bound.entry.initial});")
    lines.append(f"  wait_for_stream({out}.device());")
    for dtype, call in bound.calls.items():
        words = {}
        for formula in call.text.formulas:
            words[formula.text] = formula.cpp()
            if formula.bare in bound.tensors:
                access = "mutable" if formula.bare in bound.outs else "const"
                own = bound.entry.argument_dtypes.get(formula.bare, dtype)
                constant = "" if formula.bare in bound.outs else "const "
                pointer = f"static_cast<{constant}{C_TYPES[own]}*>({formula.bare}.{access}_data_ptr())"
                words[formula.text] = pointer
        if bound.units is not None:
            words |= {"begin": "0", "end": f"int64_t({bound.units.cpp()})"}
        text = " ".join(call.text.fill(words).split()).removesuffix(";")
        free = free_tensors(bound)
        test = f"{free[0]}.scalar_type() == {SCALAR_TYPES[dtype]}" if free else "true"
        narrow = ", ".join(sorted(formula.cpp() for formula in call.narrow))
        lines.append(f"  if ({test}{f' && fit_int({{{narrow}}})' if narrow else ''}) {{")
        lines += [f"    {text};", "    return true;", "  }"]
    return "\n".join([*lines, "  return false;", "}", ""])


def _tries(entries: Sequence[Bound]) -> Iterator[str]:
    for bound in entries:
        given = [f"{a.name}.toDouble()" if a.type == "number" else a.name for a in bound.arguments]
        yield f"  if ({function_name(bound)}_{bound.entry.number}({', '.join([*given, 'out'])})) return out;"


# ---- ops ----
def _aten_op(name: str, entries: Sequence[Bound]) -> str:
    bound, function = entries[0], function_name(entries[0])
    operators = f"at::_ops::{name.partition('::')[2].replace('.', '_')}"
    metas = [f"as_meta({a.name})" if a.kind == "tensor" and not a.optional else a.name for a in bound.arguments]
    given = ", ".join(a.name for a in bound.arguments)
    first = next(a.name for a in bound.arguments if a.kind == "tensor")
    return "\n".join(
        [
            f"Tensor {function}_kernel({parameters(bound.arguments)}) {{",
            f"  Tensor out = like_meta({operators}::call({', '.join(metas)}), {first}); // checks the arguments",
            *_tries(entries),
            f"  return at::native::call_fallback_fn<&on_cpu, {operators}>::call({given});",
            "}",
            *_out_form(bound, function),
            *(_in_place_form(bound, function) if in_place_form(find_overload(name)) is not None else []),
            "",
        ]
    )


def _out_form(bound: Bound, function: str) -> list[str]:
    given = ", ".join(a.name for a in bound.arguments)
    separator = ", " if bound.arguments else ""
    return [
        f"Tensor& {function}_out({parameters(bound.arguments)}{separator}Tensor& out) {{",
        f'  return write("{bound.op}", out, {function}_kernel({given}));',
        "}",
    ]


def _in_place_form(bound: Bound, function: str) -> list[str]:
    own = re.sub(r"const Tensor&", "Tensor&", parameters(bound.arguments), count=1)
    given = ", ".join(a.name for a in bound.arguments)
    return [
        f"Tensor& {function}_in_place({own}) {{",
        f"  return {bound.arguments[0].name}.copy_({function}_kernel({given}));",
        "}",
    ]


def _custom_op(op: CustomOp, entries: Sequence[Bound]) -> str:
    bound, function = op.bound, function_name(op.bound)
    taken, given = parameters(bound.arguments), ", ".join(a.name for a in bound.arguments)
    rule = op.outputs[0]
    shape = f"{rule.shape}.sizes()" if isinstance(rule.shape, str) else f"{{{', '.join(s.cpp() for s in rule.shape)}}}"
    first = next(a.name for a in bound.arguments if a.kind == "tensor")
    dtype = SCALAR_TYPES.get(rule.dtype, f"{rule.dtype}.scalar_type()")
    lines = [f"void {function}_check({taken}) {{"]
    free = [name for name in free_tensors(bound) if name not in bound.outs]
    for name in free[1:]:
        a, b = f"{free[0]}.scalar_type()", f"{name}.scalar_type()"
        lines.append(f'  TORCH_CHECK({a} == {b}, "{bound.op}: {free[0]} is ", {a}, ", {name} is ", {b});')
    for name in [*free[1:], *(n for n in bound.entry.argument_dtypes if n not in bound.outs)]:
        lines.append(
            f'  TORCH_CHECK({first}.device() == {name}.device(), "{bound.op}: {name} is on ", {name}.device());'
        )
    for condition in bound.require:
        lines.append(f'  TORCH_CHECK({condition.cpp()}, "{bound.op} requires {condition.text}");')
    for name, wanted in bound.entry.argument_dtypes.items():
        if name not in bound.outs:
            lines.append(
                f'  TORCH_CHECK({name}.scalar_type() == {SCALAR_TYPES[wanted]}, "{bound.op}: {name} must be {wanted}");'
            )
    lines += ["}", f"Tensor {function}_new({taken}) {{", f"  {function}_check({given});"]
    lines += [f"  return at::empty({shape}, {first}.options().dtype({dtype}));", "}"]
    lines += [f"Tensor {function}_kernel({taken}) {{", f"  Tensor out = {function}_new({given});", *_tries(entries)]
    lines += [*_reference(op), "}", *_out_form(bound, function)]
    if op.has_in_place:
        lines += _in_place_form(bound, function)
    return "\n".join([*lines, *_autograd(op, function), *_autocast(op, function), ""])


def _reference(op: CustomOp) -> list[str]:
    name = op.bound.entry.reference
    try:
        if not name or ":" in name:
            raise NoSource("")
        return [f"  return {expression(ast.parse(name, mode='eval').body)};"]
    except NoSource:
        return [
            f'  TORCH_CHECK_NOT_IMPLEMENTED(false, "{op.bound.op}: the library has no function for these arguments");'
        ]


def _autograd(op: CustomOp, function: str) -> list[str]:
    entry, bound = op.bound.entry, op.bound
    if not isinstance(entry.backward, dict):
        return [f"// Not here: the gradient of {bound.op}: {entry.backward}."] if entry.backward else []
    try:
        formulas = {name: expression(ast.parse(text, mode="eval").body) for name, text in entry.backward.items()}
        if any(a.optional for a in bound.arguments) or any(a.kind == "plain" for a in bound.arguments):
            raise NoSource("arguments that are neither tensors nor numbers")
    except NoSource as reason:
        return [f"// Not here: the gradient of {bound.op}: {reason}."]
    tensors = [a.name for a in bound.arguments if a.kind == "tensor"]
    numbers = [a for a in bound.arguments if a.kind == "number"]
    given = ", ".join(a.name for a in bound.arguments)
    grad = gradients(bound)[0]
    saved = [f'    context->saved_data["{a.name}"] = {a.name};' for a in numbers]
    unused = "    [[maybe_unused]] const"
    back = [f"{unused} Tensor {name} = saved[{n}];" for n, name in enumerate([*tensors, bound.outs[0]])]
    for a in numbers:
        taken = "toScalar().toDouble()" if a.type == "number" else "toDouble()"
        back.append(f'{unused} double {a.name} = context->saved_data["{a.name}"].{taken};')
    results = []
    for place, argument in enumerate(bound.arguments):
        if argument.name in formulas:
            results.append(f"context->needs_input_grad({place}) ? {formulas[argument.name]} : Tensor()")
        else:
            results.append("Tensor()")
    return [
        f"struct {function}_gradient : torch::autograd::Function<{function}_gradient> {{",
        f"  static Tensor forward(torch::autograd::AutogradContext* context, {parameters(bound.arguments)}) {{",
        "    const at::AutoDispatchBelowADInplaceOrView below_autograd;",
        "    static const auto op = c10::Dispatcher::singleton()",
        f'                               .findSchemaOrThrow("{bound.op}", "")',
        f"                               .typed<Tensor({', '.join(_types(bound))})>();",
        f"    Tensor {bound.outs[0]} = op.call({given});",
        f"    context->save_for_backward({{{', '.join([*tensors, bound.outs[0]])}}});",
        *saved,
        f"    return {bound.outs[0]};",
        "  }",
        "  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,",
        "                                                 torch::autograd::variable_list grads) {",
        "    const auto saved = context->get_saved_variables();",
        *back,
        f"    const Tensor {grad} = grads[0];",
        f"    return {{{', '.join(results)}}};",
        "  }",
        "};",
        f"Tensor {function}_with_gradient({parameters(bound.arguments)}) {{",
        f"  return {function}_gradient::apply({given});",
        "}",
    ]


def _types(bound: Bound) -> list[str]:
    return [parameters((argument,)).rpartition(" ")[0] for argument in bound.arguments]


def _autocast(op: CustomOp, function: str) -> list[str]:
    rule, bound = op.bound.entry.autocast, op.bound
    if not rule:
        return []
    tensors = [a.name for a in bound.arguments if a.kind == "tensor" and not a.optional]
    wanted = {"lower": "at::autocast::get_autocast_dtype(c10::DeviceType::PrivateUse1)", "float32": "at::kFloat"}
    joint = f"{tensors[0]}.scalar_type()"
    for name in tensors[1:]:
        joint = f"c10::promoteTypes({joint}, {name}.scalar_type())"
    given = [f"cast({a.name})" if a.name in tensors else a.name for a in bound.arguments]
    return [
        f"Tensor {function}_autocast({parameters(bound.arguments)}) {{",
        "  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKey::AutocastPrivateUse1);",
        f"  const at::ScalarType dtype = {wanted.get(rule, joint)};",
        "  auto cast = [&](const Tensor& t) {",
        "    return t.is_floating_point() && t.scalar_type() != at::kDouble ? t.to(dtype) : t;",
        "  };",
        "  static const auto op = c10::Dispatcher::singleton()",
        f'                             .findSchemaOrThrow("{bound.op}", "")',
        f"                             .typed<Tensor({', '.join(_types(bound))})>();",
        f"  return op.call({', '.join(given)});",
        "}",
    ]


# ---- registrations ----
def _registrations(found: Sources) -> Iterator[str]:
    if found.aten:
        yield "TORCH_LIBRARY_IMPL(aten, OPS_KEY, m) {"
        for name, entries in found.aten.items():
            function = function_name(entries[0])
            yield f'  m.impl("{name.partition("::")[2]}", &{function}_kernel);'
            op = find_overload(name)
            for form, suffix in ((out_form(op), "out"), (in_place_form(op), "in_place")):
                if form is not None:
                    yield f'  m.impl("{form._name.partition("::")[2]}", &{function}_{suffix});'
        yield "}"
    for custom, _ in found.new:
        namespace, _, base = custom.bound.op.partition("::")
        function, forms = function_name(custom.bound), custom.forms()
        yield f"TORCH_LIBRARY_FRAGMENT({namespace}, m) {{"
        yield from (f'  m.def("{schema}");' for schema in forms.values())
        yield "}"
        yield f"TORCH_LIBRARY_IMPL({namespace}, OPS_KEY, m) {{"
        yield f'  m.impl("{base}", &{function}_kernel);'
        yield f'  m.impl("{base}.out", &{function}_out);'
        if custom.has_in_place:
            yield f'  m.impl("{base}_", &{function}_in_place);'
        yield "}"
        yield f'TORCH_LIBRARY_IMPL({namespace}, Meta, m) {{ m.impl("{base}", &{function}_new); }}'
        if any("struct" in line for line in _autograd(custom, function)):
            yield f'TORCH_LIBRARY_IMPL({namespace}, Autograd, m) {{ m.impl("{base}", &{function}_with_gradient); }}'
        if custom.bound.entry.autocast:
            yield f"TORCH_LIBRARY_IMPL({namespace}, AutocastPrivateUse1, m) {{"
            yield f'  m.impl("{base}", &{function}_autocast);\n}}'
