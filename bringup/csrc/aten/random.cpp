// Random numbers into a tensor, the same on every driver and for every layout (rule: element i of a random tensor).
#include "aten/random.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <cmath>

#include "aten/route.h"
#include "runtime/philox.h"

namespace bringup {
namespace {

using What = Drawing::What;

constexpr int64_t kGrain = 16384; // elements per thread: below this a thread costs more than it saves

template <class T>
using Raw = void (*)(uint64_t seed, uint64_t offset, uint64_t begin, uint64_t count, T* out);

template <class T>
Raw<T> raw(Raw<float> single, Raw<double> wide) {
  if constexpr (std::is_same_v<T, float>)
    return single;
  else
    return wide;
}

// A half type keeps as many bits of the draw as it can hold: more would round up to the open end.
template <class T>
void scale_uniform(c10::ScalarType type, double from, double to, int64_t count, T* out) {
  const T steps = type == at::kHalf ? 0x1p11f : type == at::kBFloat16 ? 0x1p8f : 0;
  if (steps > 0)
    for (int64_t i = 0; i < count; ++i) out[i] = std::floor(out[i] * steps) / steps;
  if (from == 0 && to == 1) return;
  const T low = static_cast<T>(from), width = static_cast<T>(to - from), high = static_cast<T>(to);
  for (int64_t i = 0; i < count; ++i) {
    const T value = out[i] * width + low;
    const T stored = type == at::kHalf       ? static_cast<T>(at::Half(static_cast<float>(value)))
                     : type == at::kBFloat16 ? static_cast<T>(at::BFloat16(static_cast<float>(value)))
                                             : value;
    out[i] = stored < high || low == high ? value : low; // rounding must not reach the open end
  }
}

// Elements begin … begin + count - 1, as T; `type` is what they will be stored as.
template <class T>
void draw(const Drawing& d, c10::ScalarType type, int64_t begin, int64_t count, T* out) {
  const uint64_t seed = d.state.seed, offset = d.state.offset;
  auto each = [&]<class Word>(Raw<Word> words, auto value) {
    Word some[512];
    for (int64_t done = 0; done < count; done += 512) {
      const int64_t chunk = std::min<int64_t>(512, count - done);
      words(seed, offset, begin + done, chunk, some);
      for (int64_t i = 0; i < chunk; ++i) out[done + i] = static_cast<T>(value(some[i]));
    }
  };
  auto inverted = [&](auto value) { // a distribution by a formula of a 53-bit uniform in (0, 1)
    each(philox_uniform_f64, [&](double uniform) { return value(uniform + 0x1p-54); });
  };
  switch (d.what) {
    case What::word:
      return each(philox_u32, [](uint32_t x) { return x; });
    case What::coin: {
      const auto below = static_cast<uint64_t>(std::floor(d.a * 0x1p32));
      return each(philox_u32, [below](uint32_t x) { return x < below; });
    }
    case What::integer:
      return each(philox_u64, [&](uint64_t x) { // the high half of the product: bias below range / 2^64
        const auto in_range = d.range ? static_cast<uint64_t>((static_cast<unsigned __int128>(x) * d.range) >> 64) : x;
        return static_cast<int64_t>(in_range + static_cast<uint64_t>(d.low));
      });
    case What::cauchy:
      return inverted([&](double u) { return d.a + d.b * std::tan(M_PI * (u - 0.5)); });
    case What::geometric:
      return inverted([&](double u) { return std::ceil(std::log(u) / std::log1p(-d.a)); });
    default:
      break;
  }
  if constexpr (std::is_floating_point_v<T>) {
    const T factor = static_cast<T>(d.b), shift = static_cast<T>(d.a);
    if (d.what == What::uniform) {
      raw<T>(philox_uniform_f32, philox_uniform_f64)(seed, offset, begin, count, out);
      scale_uniform(type, d.a, d.b, count, out);
    } else if (d.what == What::normal) {
      raw<T>(philox_normal_f32, philox_normal_f64)(seed, offset, begin, count, out);
      if (d.a == 0 && d.b == 1) return;
      for (int64_t i = 0; i < count; ++i) out[i] = out[i] * factor + shift;
    } else {
      raw<T>(philox_exponential_f32, philox_exponential_f64)(seed, offset, begin, count, out);
      for (int64_t i = 0; i < count; ++i) out[i] = static_cast<T>(out[i] / d.a);
    }
  }
}

template <class T>
void fill_as(const at::Tensor& self, const Drawing& drawing) {
  const auto type = self.scalar_type(), computed = c10::CppTypeToScalarType<T>::value;
  auto in_parallel = [&](void* data) {
    at::parallel_for(0, self.numel(), kGrain, [&](int64_t begin, int64_t end) {
      draw(drawing, type, begin, end - begin, static_cast<T*>(data) + begin);
    });
  };
  const bool same_bytes = type == computed || (type == at::kBool && computed == at::kByte);
  if (self.is_cpu() && same_bytes && self.is_contiguous()) return in_parallel(self.mutable_data_ptr());
  if (self.device().type() == kDeviceType && same_bytes && self.is_contiguous() && !self.is_neg()) {
    const c10::DeviceIndex index = self.device().index();
    Device& device = device_at(index);
    if (translated([&] { return device.spec().host_visible != 0; })) {
      translated([&] { device.drain(current_stream(index)); });
      const Location place = locate(*self.unsafeGetTensorImpl(), device);
      in_parallel(reinterpret_cast<void*>(place.address + device.spec().host_offset));
      static OpRecord& record =
          op_record(c10::Dispatcher::singleton().findSchemaOrThrow("aten::uniform_", "").schema());
      if (charges(device)) charge(device, record, {}, {self});
      return;
    }
  }
  const at::Tensor host = at::empty(self.sizes(), at::TensorOptions().dtype(computed));
  in_parallel(host.mutable_data_ptr());
  const_cast<at::Tensor&>(self).copy_(host);
}

} // namespace

void fill_random(const at::Tensor& self, const Drawing& drawing) {
  if (self.numel() == 0) return;
  const auto type = self.scalar_type();
  if (type == at::kDouble || (drawing.what == What::geometric && !at::isFloatingType(type)))
    fill_as<double>(self, drawing);
  else if (at::isFloatingType(type))
    fill_as<float>(self, drawing);
  else if (drawing.what == What::coin)
    fill_as<uint8_t>(self, drawing);
  else
    fill_as<int64_t>(self, drawing);
}

} // namespace bringup
