// What Python says about the axes of a kernel.
#include "placement/spread.h"

#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>

namespace py = pybind11;

namespace bringup {

uint64_t SpreadAxis::units(uint64_t rows) const {
  {
    std::lock_guard lock(mutex);
    const auto found = known.find(rows);
    if (found != known.end()) return found->second;
  }
  const uint64_t count = ask(rows); // may wait for the GIL: not under the lock
  std::lock_guard lock(mutex);
  return known[rows] = count;
}

std::shared_ptr<const Spread> spread_from(const py::handle& description) {
  using Described =
      std::tuple<uint32_t, uint64_t, uint64_t, uint64_t, std::vector<std::pair<int64_t, bool>>, py::object>;
  auto spread = std::make_shared<Spread>();
  const auto [written, axes] = description.cast<std::pair<std::vector<bool>, std::vector<Described>>>();
  spread->written = written;
  for (const auto& [position, extent, least, most, accesses, measure] : axes) {
    auto axis = std::make_unique<SpreadAxis>();
    axis->position = position;
    axis->extent = extent;
    axis->least = least;
    axis->most = most;
    for (const auto& [step, confined] : accesses) axis->accesses.push_back({step, confined});
    std::shared_ptr<py::object> function(new py::object(measure), [](py::object* held) {
      if (!Py_IsInitialized()) return; // a plan that outlives the interpreter keeps its function
      py::gil_scoped_acquire gil;
      delete held;
    });
    axis->ask = [function](uint64_t rows) {
      py::gil_scoped_acquire gil;
      try {
        return (*function)(rows).cast<uint64_t>();
      } catch (py::error_already_set& error) {
        error.restore();
        python_error carried;
        carried.persist();
        throw carried;
      }
    };
    spread->axes.push_back(std::move(axis));
  }
  return spread;
}

} // namespace bringup
