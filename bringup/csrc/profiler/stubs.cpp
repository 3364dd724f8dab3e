// Device times for PyTorch's profiler: it asks for a mark before and after each op and for the time between them.
#include <c10/util/ApproximateClock.h>
#include <torch/csrc/profiler/stubs/base.h>

#include "pytorch/context.h"

namespace bringup {

void register_kineto();

namespace {

namespace profiler = torch::profiler::impl;

struct Stubs final : profiler::ProfilerStubs {
  static std::shared_ptr<const EventSlot::Mark> mark_of(const profiler::ProfilerVoidEventStub* event) {
    return event && *event ? static_cast<const EventSlot*>(event->get())->get() : nullptr;
  }
  // Called around every op, those of the CPU too: a device that cannot be marked costs the time, not the program.
  void record(c10::DeviceIndex* device, profiler::ProfilerVoidEventStub* event, int64_t* cpu_ns) const override {
    const c10::DeviceIndex index = current_device();
    if (device) *device = index;
    if (cpu_ns) *cpu_ns = c10::getTime();
    try {
      auto slot = std::make_shared<EventSlot>();
      slot->record(Registry::get().device(index), current_stream(index), BRINGUP_EVENT_TIMING);
      *event = std::move(slot);
    } catch (const Error&) {
      event->reset();
    }
  }
  float elapsed(const profiler::ProfilerVoidEventStub* first,
                const profiler::ProfilerVoidEventStub* last) const override {
    const auto start = mark_of(first), end = mark_of(last);
    if (!start || !end || &start->device != &end->device || start->event.recording || end->event.recording) return 0;
    return translated([&] {
      for (const auto& mark : {start, end}) mark->device.wait_event(mark->event.handle, mark->event.stream);
      return static_cast<float>(start->device.elapsed_ms(start->event, end->event) * 1000); // microseconds
    });
  }
  void onEachDevice(std::function<void(int)> work) const override {
    const c10::DeviceIndex before = current_device();
    for (int32_t index = 0; index < Registry::get().device_count(); ++index) {
      if (!Registry::get().device(index).is_open()) continue;
      set_current_device(static_cast<c10::DeviceIndex>(index));
      work(index);
    }
    set_current_device(before);
  }
  void synchronize() const override {
    const int32_t index = current_device();
    if (index < Registry::get().device_count()) Registry::get().device(index).finish_work(kAllStreams);
  }
  bool enabled() const override { return true; }
  void mark(const char*) const override {}
  void rangePush(const char*) const override {}
  void rangePop() const override {}
};

} // namespace

void register_profiler() {
  static auto* stubs = new Stubs(); // never destroyed: a profiler may still run at exit
  profiler::registerPrivateUse1Methods(stubs);
  register_kineto();
}

} // namespace bringup
