"""Pieces of generated C++: what every file begins with, argument types, and formulas over ops in C++."""

from __future__ import annotations

import ast

from bringup.vendor.bound import Argument
from bringup.vendor.generate import NoSource

PREAMBLE = r"""
#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>

// The dispatch key of the device; PrivateUse1 is that of an out-of-tree one.
#ifndef OPS_KEY
#define OPS_KEY PrivateUse1
#endif
"""

BASICS = r"""
using at::Tensor;

// The calls below run on this thread: work on the current stream may still be writing what they read.
void wait_for_stream(const c10::Device& device) {
  if (device.is_cpu()) return;
  const c10::impl::VirtualGuardImpl guard(device.type());
  guard.synchronizeStream(guard.getStream(device));
}

// ---- layouts ----
[[maybe_unused]] bool dense_along(const Tensor& t, int64_t along) {
  const int64_t across = -3 - along;
  return (t.stride(along) == 1 || t.size(along) == 1) && (t.stride(across) >= t.size(along) || t.size(across) == 1);
}
[[maybe_unused]] bool is_blas(const Tensor& t) {
  if (t.dim() < 2) return t.dim() == 1 && (t.stride(0) > 0 || t.size(0) == 1);
  return dense_along(t, -1) || dense_along(t, -2);
}
[[maybe_unused]] bool is_row_major(const Tensor& t) {
  int64_t inner = 1;
  for (int64_t d = t.dim() - 1; d >= 0; --d) {
    const bool last = d == t.dim() - 1;
    if (!((last ? t.stride(d) == 1 : t.stride(d) >= inner) || t.size(d) == 1)) return false;
    inner = last ? t.size(d) : t.stride(d) * t.size(d);
  }
  return true;
}
[[maybe_unused]] int64_t transposed(const Tensor& t) { return t.dim() < 2 || dense_along(t, -1) ? 0 : 1; }
[[maybe_unused]] int64_t ld(const Tensor& t) { // BLAS's leading dimension, or the step of a vector
  if (t.dim() < 2) return t.stride(0) > 0 ? t.stride(0) : 1;
  const int64_t along = transposed(t) ? -2 : -1;
  return std::max<int64_t>({t.stride(-3 - along), t.size(along), 1});
}
[[maybe_unused]] Tensor as_meta(const Tensor& t) {
  return at::empty_strided(t.sizes(), t.strides(), t.options().device(at::kMeta));
}
[[maybe_unused]] Tensor like_meta(const Tensor& meta, const Tensor& where) {
  return at::empty_strided(meta.sizes(), meta.strides(), meta.options().device(where.device()));
}
[[maybe_unused]] bool fit_int(std::initializer_list<int64_t> numbers) {
  return std::max(numbers) < (int64_t{1} << 31);
}
[[maybe_unused]] void on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  at::native::cpu_fallback(op, stack);
}
[[maybe_unused]] Tensor& write(const char* op, Tensor& out, const Tensor& result) {
  TORCH_CHECK(out.scalar_type() == result.scalar_type(), op, ": out is ", out.scalar_type(), ", the result is ",
              result.scalar_type());
  at::native::resize_output(out, result.sizes());
  return out.copy_(result);
}
"""

SCALAR_TYPES = {
    "float32": "at::kFloat",
    "float64": "at::kDouble",
    "float16": "at::kHalf",
    "bfloat16": "at::kBFloat16",
    "bool": "at::kBool",
    "uint8": "at::kByte",
    "int8": "at::kChar",
    "int16": "at::kShort",
    "int32": "at::kInt",
    "int64": "at::kLong",
}
_TYPES = {
    "Tensor": "const Tensor&",
    "number": "const at::Scalar&",
    "float": "double",
    "int": "int64_t",
    "bool": "bool",
    "str": "c10::string_view",
    "List[int]": "at::IntArrayRef",
}


def type_of(argument: Argument) -> str:
    """How a kernel takes an argument."""
    bare = argument.type.removeprefix("Optional[").removesuffix("]") if argument.optional else argument.type
    if bare not in _TYPES:
        raise NoSource(f"an argument of type {argument.type}")
    if not argument.optional:
        return _TYPES[bare]
    return f"const std::optional<{_TYPES[bare].removeprefix('const ').removesuffix('&')}>&"


def parameters(arguments: tuple[Argument, ...]) -> str:
    """The parameters of a kernel, as C++ declares them."""
    return ", ".join(f"{type_of(argument)} {argument.name}" for argument in arguments)


_SIGNS: dict[type, str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}


def expression(node: ast.expr) -> str:
    """A formula over ops in C++: ``torch.f`` is ``at::f``, methods are methods.

    >>> expression(ast.parse("a * torch.mv(grad.t(), x)", mode="eval").body)
    '(a * at::mv(grad.t(), x))'
    """
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float)):
        return str(node.value).lower() if isinstance(node.value, bool) else repr(node.value)
    if isinstance(node, ast.BinOp) and type(node.op) in _SIGNS:
        return f"({expression(node.left)} {_SIGNS[type(node.op)]} {expression(node.right)})"
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return f"-({expression(node.operand)})"
    if isinstance(node, (ast.List, ast.Tuple)):
        return f"{{{', '.join(expression(part) for part in node.elts)}}}"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not node.keywords:
        inner = ", ".join(expression(part) for part in node.args)
        owner = node.func.value
        if isinstance(owner, ast.Name) and owner.id == "torch":
            return f"at::{node.func.attr}({inner})"
        if not any(isinstance(part, ast.Name) and part.id == "ops" for part in ast.walk(owner)):
            return f"{expression(owner)}.{node.func.attr}({inner})"
    raise NoSource(f"the formula {ast.unparse(node)}")
