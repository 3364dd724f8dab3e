// Philox generator: a seed and an offset, nothing else (rule: element i of a random tensor).
#include "pytorch/generator.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include <deque>

namespace bringup {

namespace {
constexpr size_t kStateBytes = 2 * sizeof(uint64_t);
} // namespace

GeneratorImpl::GeneratorImpl(c10::DeviceIndex index)
    : c10::GeneratorImpl(c10::Device(kDeviceType, index), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}

std::shared_ptr<Recording> GeneratorImpl::recording() const {
  const c10::DeviceIndex index = device().index();
  return device_at(index).recording(current_stream(index));
}

std::shared_ptr<RandomSource> GeneratorImpl::source() const {
  std::lock_guard lock(swapping_);
  return source_;
}

void GeneratorImpl::refuse_capture(const char* what) const {
  if (const auto captured = recording())
    translated([&] { captured->fail(what + std::string(" cannot be set inside a capture")); });
}

void GeneratorImpl::set_current_seed(uint64_t seed) {
  refuse_capture("a seed");
  source()->set({seed, 0});
}
void GeneratorImpl::set_offset(uint64_t offset) {
  TORCH_CHECK_VALUE(offset % kOffsetStep == 0, "the offset of a Philox generator is a multiple of 4, got ", offset);
  refuse_capture("an offset");
  source()->set_offset(offset);
}
uint64_t GeneratorImpl::get_offset() const { return source()->get().offset; }
uint64_t GeneratorImpl::current_seed() const { return source()->get().seed; }
uint64_t GeneratorImpl::seed() {
  const uint64_t chosen = c10::detail::getNonDeterministicRandom();
  set_current_seed(chosen);
  return chosen;
}

void GeneratorImpl::set_state(const c10::TensorImpl& new_state) {
  at::detail::check_rng_state(new_state);
  TORCH_CHECK_VALUE(new_state.numel() == static_cast<int64_t>(kStateBytes), "the RNG state of a ",
                    Registry::get().type_name, " generator has ", kStateBytes, " bytes, got ", new_state.numel());
  uint64_t words[2];
  std::memcpy(words, new_state.data(), kStateBytes);
  TORCH_CHECK_VALUE(words[1] % kOffsetStep == 0, "the offset of a Philox generator is a multiple of 4, got ", words[1]);
  refuse_capture("a seed");
  source()->set({words[0], words[1]});
}

c10::intrusive_ptr<c10::TensorImpl> GeneratorImpl::get_state() const {
  auto tensor = at::detail::empty_cpu({static_cast<int64_t>(kStateBytes)}, at::kByte);
  const PhiloxState now = source()->get();
  const uint64_t words[2] = {now.seed, now.offset};
  std::memcpy(tensor.mutable_data_ptr(), words, kStateBytes);
  return tensor.getIntrusivePtr();
}

void GeneratorImpl::graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& new_state) {
  auto* other = dynamic_cast<GeneratorImpl*>(new_state.get());
  TORCH_CHECK(other, "graphsafe_set_state: that state belongs to a generator of another device");
  auto shared = other->source();
  std::lock_guard lock(swapping_);
  source_ = std::move(shared);
}

c10::intrusive_ptr<c10::GeneratorImpl> GeneratorImpl::graphsafe_get_state() const {
  auto handle = c10::make_intrusive<GeneratorImpl>(device().index());
  handle->source_ = source();
  return handle;
}

GeneratorImpl* GeneratorImpl::clone_impl() const {
  auto* copy = new GeneratorImpl(device().index());
  copy->source_->set(source()->get());
  return copy;
}

PhiloxState GeneratorImpl::reserve(uint64_t calls) {
  if (const auto captured = recording())
    if (const auto drawn = static_cast<Capture&>(*captured).draw(*this, calls)) return *drawn;
  return source()->advance(calls * kOffsetStep);
}

std::optional<RandomState> Capture::draw(GeneratorImpl& generator, uint64_t calls) {
  std::lock_guard lock(mutex_);
  if (ended_) return std::nullopt;
  uint32_t i = 0;
  while (i < generators.size() && generators[i].generator.get() != &generator) ++i;
  if (i == generators.size()) generators.push_back({c10::intrusive_ptr<GeneratorImpl>::reclaim_copy(&generator), 0});
  return RandomState{i, std::exchange(generators[i].calls, generators[i].calls + calls) * GeneratorImpl::kOffsetStep,
                     true};
}

const at::Generator& default_generator(c10::DeviceIndex index) {
  // Generators open no device, so a seed set before first use is kept (rule: seeds before first use).
  static std::deque<at::Generator>* generators = [] {
    auto* made = new std::deque<at::Generator>();
    for (int32_t i = 0; i < Registry::get().device_count(); ++i)
      made->push_back(at::make_generator<GeneratorImpl>(static_cast<c10::DeviceIndex>(i)));
    return made;
  }();
  if (index < 0) index = current_device();
  device_at(index);
  return (*generators)[index];
}

GeneratorImpl& generator_for(const std::optional<at::Generator>& generator, c10::DeviceIndex index) {
  const at::Generator& chosen = generator && generator->defined() ? *generator : default_generator(index);
  TORCH_CHECK(chosen.device().type() == kDeviceType, "Expected a '", Registry::get().type_name,
              "' device type for generator but found '", chosen.device().type(), "'");
  return *chosen.get<GeneratorImpl>();
}

} // namespace bringup
