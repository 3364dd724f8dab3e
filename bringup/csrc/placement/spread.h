// How a kernel may be shared out over memory partitions: what the compiler has found out about its grid.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace bringup {

// One axis of the grid, whose extent is an argument: a partition that gets `rows` of it gets that number instead.
struct SpreadAxis {
  struct Access {  // of one address argument
    int64_t step;  // bytes from one position on the axis to the next; 0: the axis does not matter
    bool confined; // a position touches its own `step` bytes only
  };
  uint32_t position;            // of the extent among the arguments
  uint64_t extent, least, most; // of the kernel's own size: what it was compiled for
  std::vector<Access> accesses;

  uint64_t units(uint64_t rows) const; // work units of that many rows; asks Python once for each number

  std::function<uint64_t(uint64_t)> ask;
  mutable std::mutex mutex;
  mutable std::map<uint64_t, uint64_t> known;
};

struct Spread {
  std::vector<bool> written; // by address argument
  std::vector<std::unique_ptr<SpreadAxis>> axes;
};

// (written, [(position, extent, least, most, [(step, confined)], units)]), as _C.pyi says.
std::shared_ptr<const Spread> spread_from(const pybind11::handle& description);

} // namespace bringup
