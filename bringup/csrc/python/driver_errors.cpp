// Exceptions of Python drivers: the error that torch raises has them as its cause, with file and line; those that end
// a program (KeyboardInterrupt, SystemExit) stay what they are.
#include <torch/csrc/Exceptions.h>

#include "python/bindings.h"
#include "pytorch/context.h"

namespace py = pybind11;

namespace bringup {
namespace {

py::object class_for(bringup_status status) {
  switch (status) {
    case BRINGUP_OUT_OF_MEMORY:
      return py::module_::import("torch").attr("OutOfMemoryError");
    case BRINGUP_INVALID:
      return py::reinterpret_borrow<py::object>(PyExc_ValueError);
    case BRINGUP_UNSUPPORTED:
      return py::reinterpret_borrow<py::object>(PyExc_NotImplementedError);
    case BRINGUP_INDEX_ERROR:
      return py::reinterpret_borrow<py::object>(PyExc_IndexError);
    default:
      return py::reinterpret_borrow<py::object>(PyExc_RuntimeError);
  }
}

// Throws if a method of a Python driver failed on this thread with this text; else torch's own exception serves.
void raise_with_cause(const Error& error) {
  if (!Py_IsInitialized()) return;
  py::gil_scoped_acquire gil;
  try {
    const py::object cause = py::module_::import("bringup.driver.adapter").attr("take_exception")(error.what());
    if (cause.is_none()) return;
    const bool ends = !PyErr_GivenExceptionMatches(cause.ptr(), PyExc_Exception);
    const py::object raised = ends ? cause : class_for(error.status)(error.what());
    if (!ends) PyException_SetCause(raised.ptr(), py::object(cause).release().ptr());
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(raised.ptr())), raised.ptr());
  } catch (py::error_already_set& failure) { // while the interpreter goes down: the text is all there is
    failure.discard_as_unraisable("the cause of a driver's error");
    return;
  }
  python_error persistent;
  persistent.persist();
  throw persistent;
}

} // namespace

void bind_driver_errors() { raise_hook = raise_with_cause; }

} // namespace bringup
