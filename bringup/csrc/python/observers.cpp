// Python functions that watch devices: the memory history, the stream sanitizer.
#include <torch/csrc/utils/pybind.h>

#include "python/bindings.h"
#include "runtime/device.h"

namespace py = pybind11;

namespace bringup {
namespace {

// Calls a Python function, with what happened as text and integers.
struct PythonObserver final : WorkObserver {
  PyObject* function = nullptr; // never freed: memory is given back while the interpreter goes down
  bool memory_only = false;

  template <class... Arguments>
  void call(const char* what, const Device& device, Arguments... arguments) {
    if (!Py_IsInitialized()) return;
    py::gil_scoped_acquire gil;
    py::error_scope raised; // memory also goes while an exception is on its way
    try {
      const py::handle observer = function;
      observer(what, device.index, arguments...);
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable("an observer of devices");
    }
  }
  void allocated(Device& device, const Block& block) override {
    call("allocated", device, block.address, block.size, block.stream);
  }
  void freed(Device& device, const Block& block) override {
    call("freed", device, block.address, block.size, block.stream);
  }
  void worked(Device& device, const Work& work) override {
    if (!memory_only && work.kind == Work::Kind::synchronize) call("synchronized", device, work.stream);
  }
  void shared(Device& device, const Block& block, int32_t stream) override {
    if (!memory_only) call("shared", device, block.address, stream);
  }
  void recorded(Device& device, const Event& event) override {
    if (!memory_only) call("recorded", device, event.handle, event.stream);
  }
  void waited(Device& device, const Event& event, Device& waiting, int32_t stream) override {
    if (!memory_only) call("waited", device, event.handle, waiting.index, stream);
  }
  void host_waited(Device& device, const Event& event) override {
    if (memory_only) return;
    event.handle ? call("host_waited", device, event.handle) : call("synchronized", device, event.stream);
  }
};

void observe(PythonObserver& observer, py::object function) {
  observer.unwatch();
  if (function.is_none()) return;
  observer.function = function.release().ptr();
  observer.watch();
}

} // namespace

void bind_observers(py::module& module) {
  static auto *memory = new PythonObserver(), *streams = new PythonObserver();
  memory->memory_only = true;
  module.def("observe_memory", [](py::object function) { observe(*memory, std::move(function)); });
  module.def("observe_streams", [](py::object function) { observe(*streams, std::move(function)); });
}

} // namespace bringup
