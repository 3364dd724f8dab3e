// Who watches what devices are asked to do: a profiler, a sanitizer. While nobody does, a launch pays for one load.
#pragma once

#include <atomic>
#include <cstdint>
#include <ctime>

#include "bringup/driver.h"

namespace bringup {

class Device;
struct Block;
struct Event;
struct Work; // in device.h

// Each function is called on the thread that asks, after the driver was called, without a lock; none may throw.
class WorkObserver {
 public:
  static uint64_t now() {
    timespec time{};
    clock_gettime(CLOCK_REALTIME, &time);
    return static_cast<uint64_t>(time.tv_sec) * 1000000000u + static_cast<uint64_t>(time.tv_nsec);
  }
  static uint64_t begin() { return __builtin_expect(first.load(std::memory_order_acquire) != nullptr, 0) ? now() : 0; }
  // Calls one function of every observer.
  template <class... Parameters, class... Arguments>
  static void tell(void (WorkObserver::*function)(Parameters...), Arguments&&... arguments) {
    for (auto* one = first.load(std::memory_order_acquire); __builtin_expect(one != nullptr, 0); one = one->next_)
      (one->*function)(arguments...);
  }
  void watch();   // from here on
  void unwatch(); // a call that is under way may still come: an observer lives as long as the process

  virtual void worked(Device&, const Work&) {}
  virtual void recorded(Device&, const Event&) {}
  virtual void waited(Device& /*of the event*/, const Event&, Device& /*that waits*/, int32_t /*stream*/) {}
  virtual void host_waited(Device&, const Event&) {}                // without a handle: for all of the event's stream
  virtual void shared(Device&, const Block&, int32_t /*stream*/) {} // another stream uses it: it is not reused before
  virtual void allocated(Device&, const Block&) {}                  // a tensor has a block
  virtual void freed(Device&, const Block&) {}                      // and gives it back

 private:
  static inline std::atomic<WorkObserver*> first{nullptr};
  std::atomic<WorkObserver*> next_{nullptr};
};

} // namespace bringup
