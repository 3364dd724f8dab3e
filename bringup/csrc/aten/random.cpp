// Random ops, the same on every driver and for every layout (rule: element i of a random tensor).
#include <ATen/Dispatch.h>
#include <ATen/Dispatch_v2.h>
#include <ATen/ExpandUtils.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>
#include <limits>

#include "aten/into_out.h"
#include "aten/own_kernels.h"
#include "aten/route.h"
#include "pytorch/generator.h"
#include "runtime/philox.h"

namespace bringup {
namespace {

using at::Tensor;
using OptionalGenerator = std::optional<at::Generator>;

constexpr int64_t kGrain = 16384; // elements per thread: below this a thread costs more than it saves

// Lets `fill(begin, count, T*)` write the elements of `self` in logical order, straight into device memory where the
// host can see it and the layout is plain, through a host buffer otherwise.
template <class T, class F>
void fill_elements(const Tensor& self, F&& fill) {
  const int64_t count = self.numel();
  if (count == 0) return;
  const c10::DeviceIndex index = self.device().index();
  Device& device = device_at(index);
  auto in_parallel = [&](T* data) {
    at::parallel_for(0, count, kGrain, [&](int64_t begin, int64_t end) { fill(begin, end - begin, data + begin); });
  };
  const bool direct = translated([&] { return device.spec().host_visible != 0; }) && self.is_contiguous() &&
                      !self.is_neg() && self.scalar_type() == c10::CppTypeToScalarType<T>::value;
  if (direct) {
    translated([&] { device.drain(current_stream(index)); });
    in_parallel(reinterpret_cast<T*>(locate(*self.unsafeGetTensorImpl(), device).address + device.spec().host_offset));
    if (charges(device)) {
      static OpRecord& record =
          op_record(c10::Dispatcher::singleton().findSchemaOrThrow("aten::uniform_", "").schema());
      charge(device, record, {}, {self});
    }
    return;
  }
  Tensor host = at::empty(self.sizes(), at::TensorOptions().dtype(c10::CppTypeToScalarType<T>::value));
  in_parallel(host.mutable_data_ptr<T>());
  const_cast<Tensor&>(self).copy_(host);
}

PhiloxState reserve(const OptionalGenerator& generator, const Tensor& self) {
  // A generator takes part in dispatch: a CPU tensor with our generator arrives here too.
  TORCH_CHECK(self.device().type() == kDeviceType, "Expected a '", self.device().type(),
              "' device type for generator but found '", Registry::get().type_name, "'");
  return generator_for(generator, self.device().index()).reserve();
}

// Runs `draw32` in float (also for half types, which round once at the end) or `draw64` in double.
template <class F32, class F64>
void fill_floating(const Tensor& self, const char* op, F32&& draw32, F64&& draw64) {
  TORCH_CHECK_NOT_IMPLEMENTED(at::isFloatingType(self.scalar_type()), "\"", op, "\" not implemented for '",
                              c10::toString(self.scalar_type()), "'");
  if (self.scalar_type() == at::kDouble)
    fill_elements<double>(self, draw64);
  else
    fill_elements<float>(self, draw32);
}

// Unit draws of philox.h, then `scale(values, count)` to what the op's arguments ask for.
template <class T>
using Draw = void (*)(uint64_t seed, uint64_t offset, uint64_t begin, uint64_t count, T* out);

template <class Scale>
void fill_scaled(const Tensor& self, const char* op, const PhiloxState& state, Draw<float> draw32, Draw<double> draw64,
                 Scale&& scale) {
  auto filling = [&](auto draw) {
    return [&state, &scale, draw](int64_t begin, int64_t count, auto* out) {
      draw(state.seed, state.offset, begin, count, out);
      scale(out, count);
    };
  };
  fill_floating(self, op, filling(draw32), filling(draw64));
}

// ---- uniform, normal and what follows from them ----

Tensor& uniform_(Tensor& self, double from, double to, OptionalGenerator generator) {
  TORCH_CHECK(from <= to, "uniform_ expects to return a [from, to) range, but found from=", from, " > to=", to);
  TORCH_CHECK(to - from <= std::numeric_limits<double>::max() &&
                  (self.scalar_type() == at::kDouble || to - from <= std::numeric_limits<float>::max()),
              "uniform_ expects to-from <= std::numeric_limits<", c10::toString(self.scalar_type()),
              ">::max(), but found to=", to, " and from=", from, " which result in to-from to exceed the limit");
  if (self.is_complex()) { // real and imaginary part each
    Tensor parts = at::view_as_real(self);
    uniform_(parts, from, to, std::move(generator));
    return self;
  }
  const PhiloxState state = reserve(generator, self);
  const auto type = self.scalar_type();
  // A half type keeps as many bits of the draw as it can hold: more would round up to the open end.
  const float steps = type == at::kHalf ? 0x1p11f : type == at::kBFloat16 ? 0x1p8f : 0;
  auto stored = [&](float value) {
    if (type == at::kHalf) return static_cast<float>(at::Half(value));
    if (type == at::kBFloat16) return static_cast<float>(at::BFloat16(value));
    return value;
  };
  auto scale = [&]<class T>(T* out, int64_t count) {
    if (steps > 0)
      for (int64_t i = 0; i < count; ++i) out[i] = std::floor(out[i] * static_cast<T>(steps)) / static_cast<T>(steps);
    if (from == 0 && to == 1) return;
    const T low = static_cast<T>(from), width = static_cast<T>(to - from), high = static_cast<T>(to);
    for (int64_t i = 0; i < count; ++i) {
      const T value = out[i] * width + low;
      const T kept = std::is_same_v<T, float> ? static_cast<T>(stored(static_cast<float>(value))) : value;
      out[i] = kept < high || low == high ? value : low; // rounding must not reach the open end
    }
  };
  fill_scaled(self, "uniform_", state, philox_uniform_f32, philox_uniform_f64, scale);
  return self;
}

void fill_normal(const Tensor& self, double mean, double deviation, const PhiloxState& state) {
  auto scale = [&]<class T>(T* out, int64_t count) {
    if (mean == 0 && deviation == 1) return;
    const T shift = static_cast<T>(mean), factor = static_cast<T>(deviation);
    for (int64_t i = 0; i < count; ++i) out[i] = out[i] * factor + shift;
  };
  fill_scaled(self, "normal_", state, philox_normal_f32, philox_normal_f64, scale);
}

Tensor& normal_(Tensor& self, double mean, double deviation, OptionalGenerator generator) {
  TORCH_CHECK(deviation >= 0.0, "normal expects std >= 0.0, but found std ", deviation);
  if (self.is_complex()) { // real and imaginary part share the variance
    Tensor parts = at::view_as_real(self);
    fill_normal(parts, 0, deviation / std::sqrt(2.0), reserve(generator, self));
    if (mean != 0) self.add_(mean);
    return self;
  }
  fill_normal(self, mean, deviation, reserve(generator, self));
  return self;
}

Tensor& exponential_(Tensor& self, double rate, OptionalGenerator generator) {
  TORCH_CHECK(rate > 0.0, "exponential_ expects lambda > 0.0, but found lambda=", rate);
  const PhiloxState state = reserve(generator, self);
  auto scale = [&]<class T>(T* out, int64_t count) {
    for (int64_t i = 0; i < count; ++i) out[i] = static_cast<T>(out[i] / rate);
  };
  fill_scaled(self, "exponential_", state, philox_exponential_f32, philox_exponential_f64, scale);
  return self;
}

Tensor& log_normal_(Tensor& self, double mean, double deviation, OptionalGenerator generator) {
  TORCH_CHECK(deviation > 0.0, "log_normal_ expects std > 0.0, but found std=", deviation);
  fill_normal(self, mean, deviation, reserve(generator, self));
  return self.exp_();
}

// Distributions by inversion of a 53-bit uniform; `value` maps u in (0, 1) to the sample.
template <class F>
void fill_by_inversion(const Tensor& self, const char* op, const PhiloxState& state, F&& value) {
  auto fill = [&](int64_t begin, int64_t count, auto* out) {
    using T = std::remove_pointer_t<decltype(out)>;
    double uniform[256];
    for (int64_t done = 0; done < count; done += 256) {
      const int64_t chunk = std::min<int64_t>(256, count - done);
      philox_uniform_f64(state.seed, state.offset, begin + done, chunk, uniform);
      for (int64_t i = 0; i < chunk; ++i) out[done + i] = static_cast<T>(value(uniform[i] + 0x1p-54));
    }
  };
  if (at::isFloatingType(self.scalar_type())) {
    fill_floating(self, op, fill, fill);
  } else {
    TORCH_CHECK_NOT_IMPLEMENTED(at::isIntegralType(self.scalar_type(), false), "\"", op, "\" not implemented for '",
                                c10::toString(self.scalar_type()), "'");
    fill_elements<double>(self, fill);
  }
}

Tensor& cauchy_(Tensor& self, double median, double sigma, OptionalGenerator generator) {
  TORCH_CHECK(sigma > 0.0, "cauchy_ expects sigma > 0.0, but found sigma=", sigma);
  TORCH_CHECK(at::isFloatingType(self.scalar_type()),
              "Cauchy distribution is a continuous probability distribution. dtype must be a floating point but you "
              "specified ",
              self.dtype());
  fill_by_inversion(self, "cauchy_", reserve(generator, self),
                    [=](double u) { return median + sigma * std::tan(M_PI * (u - 0.5)); });
  return self;
}

Tensor& geometric_(Tensor& self, double p, OptionalGenerator generator) {
  TORCH_CHECK(0 < p && p < 1, "geometric_ expects p to be in (0, 1), but got p=", p);
  fill_by_inversion(self, "geometric_", reserve(generator, self),
                    [=](double u) { return std::ceil(std::log(u) / std::log1p(-p)); });
  return self;
}

// ---- integers ----

void fill_integers(const Tensor& self, int64_t low, uint64_t range, const PhiloxState& state) {
  auto fill = [&](int64_t begin, int64_t count, auto* out) {
    using T = std::remove_pointer_t<decltype(out)>;
    uint64_t draws[256];
    for (int64_t done = 0; done < count; done += 256) {
      const int64_t chunk = std::min<int64_t>(256, count - done);
      philox_u64(state.seed, state.offset, begin + done, chunk, draws);
      for (int64_t i = 0; i < chunk; ++i) { // the high half of the product: bias below range / 2^64
        const uint64_t in_range =
            range == 0 ? draws[i] : static_cast<uint64_t>((static_cast<unsigned __int128>(draws[i]) * range) >> 64);
        out[done + i] = static_cast<T>(static_cast<int64_t>(in_range + static_cast<uint64_t>(low)));
      }
    }
  };
  if (self.scalar_type() == at::kDouble)
    fill_elements<double>(self, fill);
  else if (at::isFloatingType(self.scalar_type()))
    fill_elements<float>(self, fill);
  else
    fill_elements<int64_t>(self, fill);
}

// The largest integer up to which a dtype holds every integer: random_() without bounds draws from [0, this].
int64_t integer_limit(c10::ScalarType type) {
  switch (type) {
    case at::kDouble:
      return int64_t{1} << 53;
    case at::kFloat:
      return int64_t{1} << 24;
    case at::kHalf:
      return int64_t{1} << 11;
    case at::kBFloat16:
      return int64_t{1} << 8;
    case at::kBool:
      return 1;
    default:
      return AT_DISPATCH_V2(type, "random_", AT_WRAP([] {
                              return static_cast<int64_t>(std::min<uint64_t>(std::numeric_limits<scalar_t>::max(),
                                                                             std::numeric_limits<int64_t>::max()));
                            }),
                            AT_EXPAND(AT_INTEGRAL_TYPES), AT_EXPAND(AT_BAREBONES_UNSIGNED_TYPES));
  }
}

Tensor& random_(Tensor& self, OptionalGenerator generator) {
  TORCH_CHECK_NOT_IMPLEMENTED(!self.is_complex(), "\"random_\" not implemented for '",
                              c10::toString(self.scalar_type()), "'");
  fill_integers(self, 0, static_cast<uint64_t>(integer_limit(self.scalar_type())) + 1, reserve(generator, self));
  return self;
}

void check_bound(int64_t bound, const char* name, const Tensor& self) {
  const auto type = self.scalar_type();
  if (at::isFloatingType(type)) {
    const double limit = type == at::kHalf ? 65504.0 : type == at::kDouble ? 1e308 : 3e38;
    TORCH_CHECK(std::abs(static_cast<double>(bound)) <= limit, name, " is out of bounds for ", self.dtype());
    if (std::abs(static_cast<double>(bound)) > static_cast<double>(integer_limit(type)))
      TORCH_WARN(name, " is out of bounds [-", integer_limit(type), ", ", integer_limit(type),
                 "]. Due to precision limitations ", self.dtype(),
                 " can support discrete uniform distribution only within this range.");
    return;
  }
  const int64_t high = integer_limit(type);
  const int64_t low = type == at::kBool || !c10::isSignedType(type) ? 0 : -high - 1;
  TORCH_CHECK(bound >= low && bound <= high, name, " is out of bounds for ", self.dtype());
}

Tensor& random_from_to(Tensor& self, int64_t from, std::optional<int64_t> to, OptionalGenerator generator) {
  TORCH_CHECK_NOT_IMPLEMENTED(!self.is_complex(), "\"random_\" not implemented for '",
                              c10::toString(self.scalar_type()), "'");
  if (!to) {
    if (from == std::numeric_limits<int64_t>::lowest()) {
      fill_integers(self, 0, 0, reserve(generator, self)); // all 2^64 values
      return self;
    }
    check_bound(from, "from", self);
    const int64_t last = integer_limit(self.scalar_type());
    fill_integers(self, from, static_cast<uint64_t>(last) - static_cast<uint64_t>(from) + 1, reserve(generator, self));
    return self;
  }
  TORCH_CHECK(from < *to, "random_ expects 'from' to be less than 'to', but got from=", from, " >= to=", *to);
  check_bound(from, "from", self);
  check_bound(*to - 1, "to - 1", self);
  fill_integers(self, from, static_cast<uint64_t>(*to) - static_cast<uint64_t>(from), reserve(generator, self));
  return self;
}

Tensor& random_to(Tensor& self, int64_t to, OptionalGenerator generator) {
  return random_from_to(self, 0, to, std::move(generator));
}

// ---- coins ----

Tensor& bernoulli_float(Tensor& self, double p, OptionalGenerator generator) {
  TORCH_CHECK(0 <= p && p <= 1, "bernoulli_ expects p to be in [0, 1], but got p=", p);
  const PhiloxState state = reserve(generator, self);
  auto fill = [&](int64_t begin, int64_t count, auto* out) {
    using T = std::remove_pointer_t<decltype(out)>;
    uint8_t coins[1024];
    for (int64_t done = 0; done < count; done += 1024) {
      const int64_t chunk = std::min<int64_t>(1024, count - done);
      philox_bernoulli(state.seed, state.offset, begin + done, chunk, p, coins);
      for (int64_t i = 0; i < chunk; ++i) out[done + i] = static_cast<T>(coins[i]);
    }
  };
  if (self.scalar_type() == at::kFloat)
    fill_elements<float>(self, fill);
  else if (self.scalar_type() == at::kDouble)
    fill_elements<double>(self, fill);
  else if (self.scalar_type() == at::kBool)
    fill_elements<bool>(self, fill);
  else
    fill_elements<uint8_t>(self, fill);
  return self;
}

Tensor& bernoulli_tensor(Tensor& self, const Tensor& p, OptionalGenerator generator) {
  TORCH_CHECK(at::isFloatingType(p.scalar_type()), "expected probabilities tensor to have floating type, got ",
              p.scalar_type());
  const PhiloxState state = reserve(generator, self);
  const Tensor chances = p.to(c10::Device(c10::kCPU), at::kDouble).expand(self.sizes()).contiguous();
  const double* chance = chances.const_data_ptr<double>();
  for (int64_t i = 0; i < self.numel(); ++i)
    TORCH_CHECK(chance[i] >= 0 && chance[i] <= 1, "Expected p_in >= 0 && p_in <= 1 to be true, but got false.");
  fill_elements<uint8_t>(self, [&](int64_t begin, int64_t count, uint8_t* out) {
    uint32_t draws[1024];
    for (int64_t done = 0; done < count; done += 1024) {
      const int64_t chunk = std::min<int64_t>(1024, count - done);
      philox_u32(state.seed, state.offset, begin + done, chunk, draws);
      for (int64_t i = 0; i < chunk; ++i) out[done + i] = draws[i] < chance[begin + done + i] * 0x1p32;
    }
  });
  return self;
}

Tensor bernoulli(const Tensor& self, OptionalGenerator generator) {
  Tensor result = at::empty_like(self, c10::MemoryFormat::Contiguous);
  return bernoulli_tensor(result, self, std::move(generator));
}

Tensor& bernoulli_out(const Tensor& self, OptionalGenerator generator, Tensor& out) {
  out.resize_(self.sizes());
  return bernoulli_tensor(out, self, std::move(generator));
}

std::tuple<Tensor, Tensor> native_dropout(const Tensor& input, double p, std::optional<bool> train) {
  TORCH_CHECK(p >= 0 && p <= 1, "dropout probability has to be between 0 and 1, but got ", p);
  if (input.numel() == 0 || !train.value_or(true))
    return {input.clone(), at::ones_like(input, input.options().dtype(at::kBool))};
  if (p == 1) return {at::zeros_like(input), at::zeros_like(input, input.options().dtype(at::kBool))};
  Tensor mask = at::empty_like(input, input.options().dtype(at::kBool));
  bernoulli_float(mask, 1 - p, std::nullopt);
  return {input * mask * (1 / (1 - p)), mask};
}

// ---- tensors of means and deviations ----

Tensor standard_normal(at::IntArrayRef sizes, const Tensor& like, const OptionalGenerator& generator) {
  Tensor result = at::empty(sizes, like.options());
  return normal_(result, 0, 1, generator);
}

void check_deviation(const Tensor& deviation) {
  TORCH_CHECK(!deviation.is_complex(), "normal expects standard deviation to be non-complex");
  TORCH_CHECK(deviation.numel() == 0 || deviation.min().item<double>() >= 0,
              "normal expects all elements of std >= 0.0");
}

Tensor normal_tensor_float(const Tensor& mean, double deviation, OptionalGenerator generator) {
  TORCH_CHECK(deviation >= 0.0, "normal expects std >= 0.0, but found std ", deviation);
  return standard_normal(mean.sizes(), mean, generator).mul_(deviation).add_(mean);
}
Tensor normal_float_tensor(double mean, const Tensor& deviation, OptionalGenerator generator) {
  check_deviation(deviation);
  return standard_normal(deviation.sizes(), deviation, generator).mul_(deviation).add_(mean);
}
Tensor normal_tensor_tensor(const Tensor& mean, const Tensor& deviation, OptionalGenerator generator) {
  check_deviation(deviation);
  const Tensor& like = mean.device().type() == kDeviceType ? mean : deviation; // the other may be a CPU number
  return standard_normal(at::infer_size(mean.sizes(), deviation.sizes()), like, generator).mul_(deviation).add_(mean);
}

} // namespace

BRINGUP_OWN_KERNELS() {
  auto add = [](const char* name, auto function) { own_kernel(std::string("aten::") + name, function, "random"); };
  add("uniform_", TORCH_FN(uniform_));
  add("normal_", TORCH_FN(normal_));
  add("exponential_", TORCH_FN(exponential_));
  add("log_normal_", TORCH_FN(log_normal_));
  add("cauchy_", TORCH_FN(cauchy_));
  add("geometric_", TORCH_FN(geometric_));
  add("random_", TORCH_FN(random_));
  add("random_.from", TORCH_FN(random_from_to));
  add("random_.to", TORCH_FN(random_to));
  add("bernoulli_.float", TORCH_FN(bernoulli_float));
  add("bernoulli_.Tensor", TORCH_FN(bernoulli_tensor));
  add("bernoulli", TORCH_FN(bernoulli));
  add("bernoulli.out", TORCH_FN(bernoulli_out));
  add("native_dropout", TORCH_FN(native_dropout));
  add("normal.Tensor_float", TORCH_FN(normal_tensor_float));
  add("normal.float_Tensor", TORCH_FN(normal_float_tensor));
  add("normal.Tensor_Tensor", TORCH_FN(normal_tensor_tensor));
  add("normal.Tensor_float_out", TORCH_FN(IntoOut<&normal_tensor_float>::call));
  add("normal.float_Tensor_out", TORCH_FN(IntoOut<&normal_float_tensor>::call));
  add("normal.Tensor_Tensor_out", TORCH_FN(IntoOut<&normal_tensor_tensor>::call));
}

} // namespace bringup
