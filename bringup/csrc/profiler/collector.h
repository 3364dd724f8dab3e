// What a profile collects: what threads ask of devices, and what the devices' own traces say they ran. No torch here.
#pragma once

#include <array>
#include <deque>

#include "runtime/device.h"

namespace bringup {

// Work that a thread asked for, and for what.
struct Request : Work {
  uint64_t ended; // Unix time, nanoseconds
  int32_t device;
  uint64_t handle; // the driver's, of the stream
  int32_t thread;  // the system's number
  int32_t op;      // PyTorch's number of the op that asked; 0: none did
  int32_t range;   // and of the record_function range around it
};

// Something that a device ran, in Unix time; `request` is its place among the requests, -1 where it is not known.
struct TracedWork {
  bringup_trace_record record;
  int32_t device, stream;
  int64_t request;
};

// The one collector of the process; it collects between start and stop.
class Collector final : public WorkObserver {
 public:
  static Collector& get();
  void start(int32_t (*thread_number)(), void (*memory_changed)(Device&, const Block&, bool allocated));
  void stop(); // waits for the devices
  // What was collected, until the next start.
  const std::vector<Request>& requests() const { return requests_; }
  std::vector<TracedWork> work() const;
  const std::vector<std::string>& problems() const { return problems_; }

  // What PyTorch says of the calling thread: the ops and ranges it is inside of.
  static thread_local std::vector<uint64_t> ops, ranges;

  void worked(Device& device, const Work& work) override;
  void waited(Device&, const Event&, Device& waiting, int32_t stream) override {
    worked(waiting, {Work::Kind::wait, stream, now()});
  }
  void allocated(Device& device, const Block& block) override;
  void freed(Device& device, const Block& block) override { memory_changed_(device, block, false); }

 private:
  struct Trace {
    Device* device;
    bringup_clock_pair begin{}, end{};
    uint64_t dropped = 0;
    bool reading = false; // some thread takes records
    std::vector<bringup_trace_record> records;

    uint64_t host_ns(uint64_t device_ns) const; // where a moment of its clock lies in Unix time
    void read();
  };
  void trace(Device& device);
  std::optional<TracedWork> timed(const Request& request, int64_t place, uint64_t& stream_ended) const;

  std::mutex mutex_; // of what follows
  std::condition_variable read_;
  bool collecting_ = false;
  std::vector<Request> requests_;
  std::deque<Trace> traces_; // references into it stay good
  std::vector<std::string> problems_;
  std::array<std::atomic<bool>, 128> seen_{}; // devices whose trace was started, or cannot be
  int32_t (*thread_number_)() = nullptr;
  void (*memory_changed_)(Device&, const Block&, bool) = nullptr;
};

} // namespace bringup
