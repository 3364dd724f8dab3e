// What one op call launches: numbers as kernel arguments, guards, and the check of a plan that Python made.
#include "aten/plan.h"

#include <ATen/Dispatch_v2.h>
#include <ATen/core/Tensor.h>

#include <bit>

namespace bringup {

Number Number::of(const c10::IValue& value) {
  Number number;
  if (value.isDouble()) {
    number.kind = Kind::real;
    number.real = value.toDouble();
  } else if (value.isInt()) {
    number.integer = value.toInt();
  } else if (value.isBool()) {
    number.kind = Kind::boolean;
    number.integer = value.toBool();
  } else {
    number.kind = Kind::complex;
    number.real = value.toComplexDouble().real();
    number.imaginary = value.toComplexDouble().imag();
  }
  return number;
}

at::Scalar scalar_at(const void* bytes, c10::ScalarType type) {
  return AT_DISPATCH_V2(type, "_local_scalar_dense",
                        AT_WRAP([&] { return at::Scalar(*static_cast<const scalar_t*>(bytes)); }),
                        AT_EXPAND(AT_ALL_TYPES_AND_COMPLEX), AT_EXPAND(AT_BAREBONES_UNSIGNED_TYPES),
                        AT_EXPAND(AT_FLOAT8_TYPES), c10::kComplexHalf, c10::kHalf, c10::kBool, c10::kBFloat16);
}

Number Number::of(const at::Tensor& cpu) {
  Number number;
  const void* bytes = cpu.const_data_ptr();
  if (C10_LIKELY(cpu.scalar_type() == c10::kDouble)) { // Python's floats
    number.kind = Kind::real;
    number.real = *static_cast<const double*>(bytes);
  } else if (cpu.scalar_type() == c10::kLong) {
    number.integer = *static_cast<const int64_t*>(bytes);
  } else {
    number = of(c10::IValue(scalar_at(bytes, cpu.scalar_type())));
  }
  number.tensor = true;
  return number;
}

at::Scalar Number::scalar() const {
  switch (kind) {
    case Kind::boolean:
      return integer != 0;
    case Kind::integer:
      return integer;
    case Kind::real:
      return real;
    default:
      return c10::complex<double>(real, imaginary);
  }
}

namespace {

template <class T>
T converted(const Number& number, bool wrap) {
  if (!wrap || number.kind == Number::Kind::complex) return number.scalar().to<T>();
  return number.kind == Number::Kind::real ? c10::convert<T>(number.real) : c10::convert<T>(number.integer);
}

template <class T>
uint64_t as_argument(T value) {
  if constexpr (std::is_same_v<T, double>)
    return std::bit_cast<uint64_t>(value);
  else if constexpr (std::is_integral_v<T>)
    return static_cast<uint64_t>(value); // sign-extended where there is one
  else
    return std::bit_cast<uint32_t>(static_cast<float>(value));
}

} // namespace

uint64_t Number::bits(c10::ScalarType dtype, bool wrap) const {
  return AT_DISPATCH_V2(
      dtype, "kernel argument", AT_WRAP([&] { return as_argument(converted<scalar_t>(*this, wrap || tensor)); }),
      AT_EXPAND(AT_ALL_TYPES), AT_EXPAND(AT_BAREBONES_UNSIGNED_TYPES), c10::kHalf, c10::kBool, c10::kBFloat16);
}

bool Guard::holds(const Number& given) const {
  auto compare = [&](auto a, auto b) {
    const int which = static_cast<int>(relation) / 2;
    const bool answer = which == 0 ? a == b : which == 1 ? a < b : a > b;
    return answer != (static_cast<int>(relation) % 2 == 1);
  };
  using Kind = Number::Kind;
  auto real = [](const Number& number) {
    return number.kind <= Kind::integer ? static_cast<double>(number.integer) : number.real;
  };
  if (given.kind == Kind::complex && given.imaginary != 0) return relation == Relation::ne;
  if (given.kind <= Kind::integer && value.kind <= Kind::integer) return compare(given.integer, value.integer);
  return compare(real(given), real(value));
}

void Plan::check(const char* op, size_t tensors, size_t numbers, size_t output_count) const {
  auto within = [&](const char* what, uint64_t slot, uint64_t count) {
    TORCH_CHECK_VALUE(slot < count, op, ": its plan names ", what, " ", slot, " of ", count);
  };
  for (const Guard& guard : guards) within("number", guard.number, numbers);
  for (const KernelLaunch& launch : launches)
    for (const Patch& patch : launch.patches) {
      if (patch.source == Source::tensor) within("tensor", patch.slot, tensors);
      if (patch.source == Source::output) within("output", patch.slot, output_count);
      if (patch.source == Source::temporary) within("temporary", patch.slot, temporaries.size());
      if (patch.source == Source::number) within("number", patch.slot, numbers);
      TORCH_CHECK_VALUE((patch.source != Source::seed && patch.source != Source::offset) || (flags & kRandom), op,
                        ": its plan uses random numbers and is not marked RANDOM");
    }
}

} // namespace bringup
