// Philox generator: a seed and an offset, nothing else (rule: element i of a random tensor).
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/GeneratorImpl.h>

#include <optional>

#include "pytorch/context.h"

namespace bringup {

using PhiloxState = RandomState;

struct GeneratorImpl final : c10::GeneratorImpl {
  explicit GeneratorImpl(c10::DeviceIndex index);

  void set_current_seed(uint64_t seed) override;
  void set_offset(uint64_t offset) override;
  uint64_t get_offset() const override;
  uint64_t current_seed() const override;
  uint64_t seed() override;
  void set_state(const c10::TensorImpl& new_state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;
  void graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& new_state) override;
  c10::intrusive_ptr<c10::GeneratorImpl> graphsafe_get_state() const override;
  static c10::DeviceType device_type() { return kDeviceType; }

  static constexpr uint64_t kOffsetStep = 4; // CUDA's: code that saves and restores offsets relies on it
  // Hands one op `calls` offsets that nobody else gets, whatever handle it draws from. During a capture they are the
  // graph's, anew in every replay.
  PhiloxState reserve(uint64_t calls = 1);

 private:
  std::shared_ptr<Recording> recording() const; // of the stream that this thread uses
  void refuse_capture(const char* what) const;
  std::shared_ptr<RandomSource> source() const;
  GeneratorImpl* clone_impl() const override;
  mutable std::mutex swapping_; // torch holds mutex_ around some of its calls, and around others it does not
  // Shared between a generator and its graph-safe handles: replaying a graph advances the same counter.
  std::shared_ptr<RandomSource> source_ = std::make_shared<RandomSource>(PhiloxState{c10::default_rng_seed_val, 0});
};

// A graph's capture, with the generators that its steps draw from. Every recording is one.
struct Capture final : Recording {
  using Recording::Recording;
  struct DrawnFrom {
    c10::intrusive_ptr<GeneratorImpl> generator;
    uint64_t calls;
  };
  std::vector<DrawnFrom> generators;
  // A place among the numbers of every replay; none once the capture has ended.
  std::optional<RandomState> draw(GeneratorImpl& generator, uint64_t calls);
};

const at::Generator& default_generator(c10::DeviceIndex index);
// The given generator, or the device's own; TypeError-like message when it is of another device.
GeneratorImpl& generator_for(const std::optional<at::Generator>& generator, c10::DeviceIndex index);

} // namespace bringup
