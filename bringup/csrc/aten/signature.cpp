// One op call as the kernel cache sees it: reading the stack in place, without a copy of any value.
#include "aten/signature.h"

#include <ATen/Context.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <bit>

#include "aten/route.h"
#include "pytorch/allocator.h"

namespace bringup {
namespace {

using Kind = ArgumentRules::Kind;
using Fit = Signature::Fit;

Kind kind_of(const c10::Type* type) {
  if (const auto* optional = type->castRaw<c10::OptionalType>()) type = optional->getElementType().get();
  switch (type->kind()) {
    case c10::TypeKind::TensorType:
      return Kind::tensor;
    case c10::TypeKind::NumberType:
    case c10::TypeKind::FloatType:
      return Kind::number;
    case c10::TypeKind::DeviceObjType:
      return Kind::device;
    case c10::TypeKind::GeneratorType:
      return Kind::generator;
    case c10::TypeKind::ListType: {
      const Kind element = kind_of(type->castRaw<c10::ListType>()->getElementType().get());
      if (element == Kind::tensor) return Kind::tensors;
      return type->castRaw<c10::ListType>()->getElementType()->kind() == c10::TypeKind::NumberType ? Kind::number
                                                                                                   : Kind::plain;
    }
    default:
      return Kind::plain;
  }
}

// What words of the key begin with, so that no two lists of arguments look the same.
enum Tag : int64_t { none = 1, tensor, undefined, number, list, whole, real, truth, text, place };

// Tensors with these are no plain arrays in memory.
const c10::DispatchKeySet kOdd({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative, c10::DispatchKey::ZeroTensor,
                                c10::DispatchKey::Sparse, c10::DispatchKey::SparseCsr, c10::DispatchKey::Quantized,
                                c10::DispatchKey::NestedTensor});

} // namespace

int64_t global_state() {
  const at::Context& context = at::globalContext();
  const int64_t deterministic = context.deterministicAlgorithms() ? 1 + context.deterministicAlgorithmsWarnOnly() : 0;
  return deterministic | static_cast<int64_t>(c10::get_default_dtype_as_scalartype()) << 2;
}

ArgumentRules::ArgumentRules(const OpRecord& record) : from_cpu(record.from_cpu), device_only(record.device_only) {
  bool reads_tensors = false;
  for (size_t i = 0; i < record.schema.arguments().size(); ++i) {
    const auto& argument = record.schema.arguments()[i];
    arguments.push_back({kind_of(argument.real_type().get()), record.mutated[i]});
    reads_tensors |= arguments.back().kind <= Kind::tensors && !argument.is_out();
  }
  numbers_are_keys = !reads_tensors;
}

Fit Signature::add_tensor(const at::Tensor& tensor, bool is_mutated) {
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (!tensor.defined()) {
    words_.push_back(Tag::undefined);
    return Fit::kernel;
  }
  const c10::Device where = impl->device();
  const int64_t kind = Tag::tensor | static_cast<int64_t>(tensor.scalar_type()) << 8 |
                       static_cast<int64_t>(impl->is_wrapped_number()) << 16;
  if (C10_UNLIKELY(where.type() != home_)) {
    if (where.is_cpu() && impl->dim() == 0 && !is_mutated && !impl->key_set().has_any(kOdd)) {
      numbers.push_back(Number::of(tensor));
      words_.push_back(kind | 1 << 17);
      return Fit::kernel;
    }
    stranger = where;
    return Fit::mixed;
  }
  if (C10_UNLIKELY(device != where.index())) {
    if (device >= 0) {
      stranger = where;
      return Fit::mixed;
    }
    device = where.index();
  }
  if (C10_UNLIKELY(impl->key_set().has_any(kOdd) || !impl->has_storage())) return Fit::other_route;
  if (is_mutated) mutated.push_back(static_cast<uint32_t>(tensors.size()));
  tensors.push_back(&tensor);
  const auto sizes = impl->sizes(), strides = impl->strides();
  words_.push_back(kind | static_cast<int64_t>(sizes.size()) << 32);
  words_.append(sizes.begin(), sizes.end());
  words_.append(strides.begin(), strides.end());
  return Fit::kernel;
}

Fit Signature::add_number(const c10::IValue& value, bool as_key) {
  if (value.isNone()) {
    words_.push_back(Tag::none);
    return Fit::kernel;
  }
  if (value.isList()) {
    words_.push_back(Tag::list | static_cast<int64_t>(value.toListRef().size()) << 8);
    for (const c10::IValue& item : value.toListRef())
      if (add_number(item, as_key) != Fit::kernel) return Fit::other_route;
    return Fit::kernel;
  }
  if (!value.isDouble() && !value.isInt() && !value.isBool() && !value.isComplexDouble()) return Fit::other_route;
  numbers.push_back(Number::of(value));
  words_.push_back(Tag::number | static_cast<int64_t>(numbers.back().kind) << 8);
  if (as_key) words_.append({numbers.back().integer, std::bit_cast<int64_t>(numbers.back().imaginary)});
  return Fit::kernel;
}

Fit Signature::add_plain(const c10::IValue& value) {
  if (value.isInt()) {
    words_.append({Tag::whole, value.toInt()});
  } else if (value.isBool()) {
    words_.push_back(Tag::truth | static_cast<int64_t>(value.toBool()) << 8);
  } else if (value.isNone()) {
    words_.push_back(Tag::none);
  } else if (value.isDouble()) {
    words_.append({Tag::real, std::bit_cast<int64_t>(value.toDouble())});
  } else if (value.isList()) {
    words_.push_back(Tag::list | static_cast<int64_t>(value.toListRef().size()) << 8);
    for (const c10::IValue& item : value.toListRef())
      if (add_plain(item) != Fit::kernel) return Fit::other_route;
  } else if (value.isString()) {
    const std::string& characters = value.toStringRef();
    words_.push_back(Tag::text | static_cast<int64_t>(characters.size()) << 8);
    for (char character : characters) words_.push_back(character);
  } else if (value.isDevice()) {
    words_.push_back(Tag::place | static_cast<int64_t>(value.toDevice().type()) << 8 |
                     static_cast<int64_t>(value.toDevice().index()) << 16);
  } else {
    return Fit::other_route; // symbolic sizes, objects
  }
  return Fit::kernel;
}

void Signature::move_to_device(c10::IValue& value) {
  const bool in_list = !value.isTensor();
  auto stays = [&](const at::Tensor& tensor) {
    return !tensor.defined() || !tensor.is_cpu() || (!in_list && tensor.dim() == 0);
  };
  bool all = true;
  each_tensor(value, [&](const at::Tensor& tensor) { all &= stays(tensor); });
  if (all) return;
  const c10::Device target(kDeviceType, device >= 0 ? device : current_device());
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  value = map_tensors(value, [&](const at::Tensor& tensor) { return stays(tensor) ? tensor : tensor.to(target); });
}

Fit Signature::read(const ArgumentRules& rules, torch::jit::Stack* stack) {
  first = stack->size() - rules.arguments.size();
  words_.push_back(0); // the device, once it is known
  Fit fit = Fit::kernel;
  for (size_t i = 0; i < rules.arguments.size() && fit == Fit::kernel; ++i) {
    const auto [kind, is_mutated] = rules.arguments[i];
    c10::IValue& value = (*stack)[first + i];
    if (C10_UNLIKELY(rules.from_cpu >> (i & 63) & 1)) move_to_device(value);
    if (C10_UNLIKELY(rules.device_only >> (i & 63) & 1)) {
      each_tensor(value, [&](const at::Tensor& tensor) {
        if (tensor.is_cpu()) fit = Fit::mixed, stranger = tensor.device();
      });
      if (fit != Fit::kernel) break;
    }
    auto add = [&](const c10::IValue& item) {
      if (item.isTensor()) return add_tensor(item.toTensor(), is_mutated);
      words_.push_back(Tag::none);
      return Fit::kernel;
    };
    switch (kind) {
      case Kind::tensor:
        fit = add(value);
        break;
      case Kind::tensors:
        if (value.isNone()) {
          fit = add(value);
          break;
        }
        words_.push_back(Tag::list | static_cast<int64_t>(value.toListRef().size()) << 8);
        for (const c10::IValue& item : value.toListRef())
          if (fit == Fit::kernel) fit = add(item);
        break;
      case Kind::number:
        fit = add_number(value, rules.numbers_are_keys);
        break;
      case Kind::generator:
        generator = &value;
        break;
      case Kind::device:
        if (value.isDevice() && value.toDevice().type() == kDeviceType) {
          const c10::DeviceIndex index = resolve(value.toDevice());
          if (device >= 0 && device != index) return Fit::other_route;
          device = index;
        }
        [[fallthrough]];
      case Kind::plain:
        fit = add_plain(value);
    }
  }
  if (device < 0 && home_ == kDeviceType) device = current_device();
  words_[0] = static_cast<uint8_t>(device) | global_state() << 8;
  if (C10_UNLIKELY(home_ != kDeviceType)) return fit;
  if (C10_UNLIKELY(device_at(device).partitioned())) // elsewhere every tensor is single
    for (const at::Tensor* tensor : tensors) {
      const bringup_placement placement = placement_of(tensor->storage().unsafeGetStorageImpl());
      words_.append({placement.kind, static_cast<int64_t>(placement.block)});
    }
  return fit;
}

uint64_t Signature::hash() const {
  uint64_t state = words_.size();
  for (int64_t word : words_) state = std::rotl((state ^ static_cast<uint64_t>(word)) * 0x9E3779B97F4A7C15ULL, 29);
  return state;
}

} // namespace bringup
