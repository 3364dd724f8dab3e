// What Python makes of the group, and the timer that DistributedDataParallel asks for.
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

#include "distributed/process_group.h"
#include "python/bindings.h"

namespace bringup {
namespace {

namespace py = pybind11;

PyObject* g_observer = nullptr; // never freed: calls may fail while the interpreter goes down

void tell_observer(const std::string& group, const std::string& why) {
  if (!Py_IsInitialized()) return;
  py::gil_scoped_acquire gil;
  try {
    const py::handle observer = g_observer;
    observer(group, why);
  } catch (py::error_already_set& error) {
    error.discard_as_unraisable("the report of a failed collective");
  }
}

// Times of a training step in device time, for DDP's logs.
class StepTimer final : public c10d::Timer {
 public:
  explicit StepTimer(c10::Device device) : device_(device) {}

  void record(Event event) override {
    Timer::record(event); // the host's time
    marks_[static_cast<size_t>(event)].record(device_at(device_.index()), current_stream(device_.index()),
                                              BRINGUP_EVENT_TIMING);
  }
  std::optional<int64_t> measureDifference(Event start, Event end) override {
    const auto first = marks_[static_cast<size_t>(start)].get(), last = marks_[static_cast<size_t>(end)].get();
    if (!first || !last) return std::nullopt;
    Device& device = first->device;
    for (const auto& mark : {first, last}) device.wait_event(mark->event.handle, mark->event.stream);
    const auto milliseconds = translated([&] { return device.elapsed_ms(first->event, last->event); });
    if (milliseconds < 0) return std::nullopt; // of two steps: the later event is not there yet
    return static_cast<int64_t>(milliseconds * 1e6);
  }

 private:
  const c10::Device device_;
  std::array<EventSlot, 5> marks_;
};

} // namespace

void leave_groups() { DeviceWork::leave(); }

void bind_distributed(py::module_& module) {
  module.def("process_group", [](const c10::intrusive_ptr<c10d::Backend>& host, const std::string& name,
                                 const c10::intrusive_ptr<c10d::Store>& store) {
    return c10::intrusive_ptr<c10d::Backend>(c10::make_intrusive<ProcessGroup>(host, name, store));
  });
  module.def("give_up_late_collectives", &DeviceWork::give_up_late, py::call_guard<py::gil_scoped_release>());
  module.def("observe_failures", [](py::object function) {
    g_observer = function.release().ptr();
    failure_observer = &tell_observer;
  });
  static c10::Registerer<c10::DeviceType, std::unique_ptr<c10d::Timer>, c10::Device> timer(
      kDeviceType, c10d::TimerRegistry(),
      [](c10::Device device) -> std::unique_ptr<c10d::Timer> { return std::make_unique<StepTimer>(device); });
}

} // namespace bringup
