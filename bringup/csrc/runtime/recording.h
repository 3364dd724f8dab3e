// Work of a stream that is written down instead of run, and can be run again: the inside of a graph. No torch here.
//
// Steps stand in the order in which they were asked for, whatever thread or captured stream asked, and run again in
// that order on one stream. So waiting among captured streams needs no step of its own, and memory that is freed
// during a capture can serve its next step at once.
#pragma once

#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "runtime/error.h"

namespace bringup {

struct RandomState {
  uint64_t seed, offset;
  bool captured = false; // then these are a Draw's generator and offset
};

// A seed and a counter that several generators may share, and any number of threads draw from.
class RandomSource {
 public:
  explicit RandomSource(RandomState state) : state_(state) {}
  RandomState get() const {
    return change([](RandomState&) {});
  }
  void set(RandomState state) {
    change([&](RandomState& now) { now = state; });
  }
  void set_offset(uint64_t offset) {
    change([&](RandomState& now) { now.offset = offset; });
  }
  RandomState advance(uint64_t step) { // what it was before: nobody else gets the numbers in between
    return change([&](RandomState& now) { now.offset += step; });
  }

 private:
  template <class F>
  RandomState change(F&& work) const {
    std::lock_guard lock(mutex_);
    const RandomState before = state_;
    work(state_);
    return before;
  }
  mutable std::mutex mutex_;
  mutable RandomState state_;
};

// An argument of a launch that is new in every replay.
struct Draw {
  uint32_t position, generator; // the latter counts the states that replay is given
  bool seed;                    // else the generator's offset, plus this one
  uint64_t offset;
};

struct LoadedKernel;

struct Steps {
  struct Step {
    const char* op;             // lives as long as the process
    const LoadedKernel* kernel; // null: a copy, whose arguments are destination, source and bytes
    bringup_launch work;        // its arguments are below
    size_t first_arg, first_draw, draw_count;
  };
  std::vector<Step> steps;
  std::vector<uint64_t> args;
  std::vector<Draw> draws;
};

class Recording {
 public:
  // Who may wait for the whole device meanwhile: nobody, every thread but the one that captures, everybody.
  enum class Mode : uint8_t { global, thread_local_, relaxed };

  Recording(int32_t memory_pool, Mode mode);
  Recording(const Recording&) = delete;

  const uint64_t id; // never 0, never used twice
  const int32_t memory_pool;
  bool refuses_waiting() const {
    return mode_ == Mode::global || (mode_ == Mode::thread_local_ && std::this_thread::get_id() == thread_);
  }
  // False: the capture has ended meanwhile, and the work is to be done as any other.
  bool add(const char* op, const LoadedKernel* kernel, const bringup_launch& work, const std::vector<Draw>& draws = {});
  // Something was asked for that a graph cannot hold: what is written down is not what the program meant.
  [[noreturn]] void fail(const std::string& why);
  Steps take(); // nothing is added after this; throws the first failure

 protected:
  std::mutex mutex_;
  bool ended_ = false;

 private:
  const Mode mode_;
  const std::thread::id thread_;
  Steps steps_;
  std::string failure_;
};

// Names what this thread is doing, for the error if it cannot be captured. The outermost name counts: the user wrote
// it.
struct NamedWork {
  explicit NamedWork(const char* op) : before(current) {
    if (!before) current = op;
  }
  ~NamedWork() { current = before; }
  NamedWork(const NamedWork&) = delete;
  const char* const before;
  static inline constinit thread_local const char* current = nullptr;
};

} // namespace bringup
