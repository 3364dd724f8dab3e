// Parts of bringup._C that live in files of their own.
#pragma once

#include <pybind11/pybind11.h>

#include <functional>

namespace bringup {

void bind_storages(pybind11::module_& module);
void bind_kernels(pybind11::module_& module);
void bind_jit(pybind11::module_& module);
void bind_observers(pybind11::module_& module);
void bind_distributed(pybind11::module_& module);
void register_metadata_pickling();

} // namespace bringup
