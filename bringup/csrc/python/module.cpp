// bringup._C: the core's functions as Python sees them (documented in bringup/_C.pyi).
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <time.h>

#include "aten/ledger.h"
#include "aten/route.h"
#include "python/bindings.h"
#include "pytorch/allocator.h"
#include "pytorch/context.h"
#include "pytorch/generator.h"

namespace py = pybind11;

namespace bringup {
namespace {

// Read by torch_device/core_binary.py before the library is loaded: a binary for another torch may not even load.
__attribute__((used)) const char built_for[] = "bringup-torch=" BRINGUP_TORCH_VERSION ";";

// ---- the GIL around the places where the runtime blocks ----

void* let_gil_go() { return Py_IsInitialized() && PyGILState_Check() ? PyEval_SaveThread() : nullptr; }
void take_gil_back(void* token) { PyEval_RestoreThread(static_cast<PyThreadState*>(token)); }

using NoGil = py::call_guard<py::gil_scoped_release>;

// ---- exceptions of Python drivers ----
//
// The error that torch raises has them as its cause, with file and line; those that end a program (KeyboardInterrupt,
// SystemExit) stay what they are. Where there is no device at all, the cause is what went wrong at activation.

// bringup/torch_device/errors.py knows what the error becomes: an exception, thrown here, or a text that may be longer.
void raise_with_cause(Error& error) {
  if (!Py_IsInitialized()) return;
  py::gil_scoped_acquire gil;
  try {
    const py::cpp_function plain([&] {
      try {
        raise_without_cause(error);
      } catch (...) {
        torch::translate_exception_to_python(std::current_exception());
      }
      return py::error_already_set().value();
    });
    const py::object told = py::module_::import("bringup.torch_device.errors")
                                .attr("told")(static_cast<int>(error.status), error.what(), plain);
    if (py::isinstance<py::str>(told)) {
      error = Error(error.status, told.cast<std::string>());
      return;
    }
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(told.ptr())), told.ptr());
  } catch (py::error_already_set& failure) { // while the interpreter goes down: the text is all there is
    failure.discard_as_unraisable("the cause of a driver's error");
    return;
  }
  python_error persistent;
  persistent.persist();
  throw persistent;
}

// ---- host functions ----

void host_function(int device, int64_t stream, py::object function) {
  if (!PyCallable_Check(function.ptr())) throw py::type_error("a host function must be callable");
  // The last reference may go on a stream's thread: it takes the GIL for that, or leaves it to the process's end.
  std::shared_ptr<py::object> held(new py::object(std::move(function)), [](py::object* object) {
    if (!Py_IsInitialized()) return;
    py::gil_scoped_acquire gil;
    delete object;
  });
  auto call = [held = std::move(held)] {
    if (!Py_IsInitialized()) return;
    py::gil_scoped_acquire gil;
    try {
      (*held)();
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable("a host function of a device stream");
    }
  };
  py::gil_scoped_release no_gil;
  host_function_on(device_at(device), static_cast<int32_t>(stream), std::move(call));
}

// Without Python: its thread may still sleep when the interpreter goes down.
void sleep(int device, int64_t stream, double milliseconds) {
  const auto nanoseconds = static_cast<int64_t>(milliseconds * 1e6);
  host_function_on(device_at(device), static_cast<int32_t>(stream), [nanoseconds] {
    timespec time{static_cast<time_t>(nanoseconds / 1000000000), static_cast<long>(nanoseconds % 1000000000)};
    nanosleep(&time, nullptr);
  });
}

// ---- descriptions ----

py::bytes device_spec(int index) {
  py::gil_scoped_release no_gil;
  const bringup_device_spec spec = translated([&] { return device_at(index).spec(); });
  py::gil_scoped_acquire gil;
  return {reinterpret_cast<const char*>(&spec), sizeof(spec)};
}

void attach(const std::string& type_name, std::unordered_map<std::string, int> arguments) {
  static bool attached = false;
  TORCH_CHECK(!attached, "bringup is attached to PyTorch already");
  attached = true;
  Registry::get().type_name = type_name;
  special_arguments() = std::move(arguments);
  blocking_hooks = {&let_gil_go, &take_gil_back};
  register_guard();
  register_allocator();
  register_host_allocator();
  register_graphs();
  register_hooks();
  register_library_ops();
  register_profiler();
  register_metadata_pickling();
}

} // namespace

PYBIND11_MODULE(_C, module) {
  module.attr("TORCH_VERSION") = BRINGUP_TORCH_VERSION;

  module.def(
      "register_driver",
      [](uintptr_t table, const std::string& name, bool acknowledges,
         const std::optional<std::vector<int32_t>>& visible) {
        const auto* driver = reinterpret_cast<const bringup_driver*>(table);
        const int32_t first = translated([&] { return Registry::get().add(driver, name, acknowledges, visible); });
        return py::make_tuple(first, Registry::get().device_count() - first);
      },
      py::arg("struct_address"), py::arg("name"), py::arg("acknowledges") = false, py::arg("visible") = py::none());
  module.def("acknowledge", &Driver::acknowledge);
  module.def("attach", &attach, py::arg("type_name"), py::arg("special_arguments"));
  module.def("device_count", [] { return Registry::get().device_count(); });
  module.def("driver_of", [](int device) {
    Device& found = device_at(device);
    return py::make_tuple(found.driver.name, found.local);
  });
  module.def("current_device", [] { return static_cast<int>(current_device()); });
  module.def("set_device", [](int device) {
    device_at(device);
    set_current_device(static_cast<c10::DeviceIndex>(device));
  });
  module.def("ensure_open", [](int device) { translated([&] { device_at(device).ensure_open(); }); }, NoGil());
  module.def("is_open", [](int device) { return device_at(device).is_open(); });
  module.def("reset_device", [](int device) { translated([&] { device_at(device).reset(); }); }, NoGil());
  module.def("give_up", [](int device, const std::string& why) { device_at(device).lose(why); }, NoGil());
  module.def("lives", [](int device) { return device_at(device).life(); });
  module.def("device_spec", &device_spec);
  module.def("clock", [](int device) { return translated([&] { return device_at(device).clock(); }); }, NoGil());
  module.def("finish_work", [](int device) { return device_at(device).finish_work(kAllStreams); }, NoGil());
  module.def("synchronize", [](int device) { translated([&] { device_at(device).synchronize(); }); }, NoGil());
  module.def(
      "shut_down",
      [] {
        leave_groups();
        Registry::get().tell_unheard_failures(); // before the fence's work takes them
        fence_autograd_workers();
        Registry::get().shut_down();
      },
      NoGil());
  module.def("in_bad_fork", [] { return Registry::get().in_bad_fork(); });

  module.def("mark_busy", [](int device, int64_t stream) {
    Device& found = device_at(device);
    translated([&] { found.check_stream(static_cast<int32_t>(stream)); });
    found.mark_busy(static_cast<int32_t>(stream));
  });
  module.def("refuse_capture", [](int device, const std::string& what) {
    translated(
        [&] { device_at(device).refuse_capture(current_stream(static_cast<c10::DeviceIndex>(device)), what.c_str()); });
  });
  module.def(
      "host_register",
      [](int device, uintptr_t pointer, uint64_t nbytes, uint32_t flags) {
        translated([&] { register_host_memory(device_at(device), reinterpret_cast<void*>(pointer), nbytes, flags); });
      },
      NoGil());
  module.def(
      "host_unregister",
      [](uintptr_t pointer) { translated([&] { unregister_host_memory(reinterpret_cast<void*>(pointer)); }); },
      NoGil());
  module.def("sleep", &sleep, py::arg("device"), py::arg("stream"), py::arg("milliseconds"), NoGil());
  module.def("host_function", &host_function);

  module.def(
      "memory_info", [](int device) { return translated([&] { return device_at(device).memory_info(); }); }, NoGil());
  module.def(
      "can_access_peer",
      [](int to, int from) { return translated([&] { return device_at(to).reaches(device_at(from)); }); }, NoGil());
  module.def("memory_segments", [](int device) { return device_at(device).memory().snapshot(); });
  module.def("set_memory_fraction", [](int device, double fraction) {
    translated([&] { device_at(device).memory().set_fraction(fraction); });
  });
  module.def("get_memory_fraction", [](int device) { return device_at(device).memory().fraction(); });
  module.def("default_generator", [](int device) { return default_generator(static_cast<c10::DeviceIndex>(device)); });

  module.def("ledger", &ledger_rows);
  module.def("ledger_reset", &ledger_reset);
  module.def("ledger_ask_again", &ledger_ask_again);
  module.def("routes", [] {
    FirstUse::get().ensure();
    return registered_routes();
  });

  bind_storages(module);
  bind_kernels(module);
  bind_jit(module);
  bind_observers(module);
  bind_distributed(module);
  raise_hook = raise_with_cause;
}

} // namespace bringup
