// A collective on its way: the host runs it in the order of a device's streams, and streams wait for it, not the host.
#pragma once

#include <c10/core/StreamGuard.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <functional>

#include "pytorch/context.h"

namespace bringup {

using HostWork = c10::intrusive_ptr<c10d::Work>; // of the group that works on CPU tensors

// What messages call a collective.
struct CallName {
  std::string collective, tensors, group; // "all_reduce", "float32 [4, 3]", "0"
  uint64_t number = 0;                    // counts the calls of the group
  int rank = 0, size = 1;
};

class DeviceWork final : public c10d::Work {
 public:
  DeviceWork(CallName name, c10d::OpType type, Device& device, std::vector<at::Tensor> outputs, bool queued);

  // ---- what the group does with it, in this order; failures are kept, whichever thread meets them ----
  void start_host(const std::function<HostWork()>& start, bool at_once); // at_once: on the thread that made the call
  void finish_host(bool last = true);    // waits for the host's part; `last`: nothing of the call follows it
  void finish_device(const Event& done); // of the driver's own collective, in the order of its stream
  void complete_on(int32_t stream);      // the outputs are there when this stream gets here

  const bool queued;             // the device's streams wait; else the host does
  bool message = false;          // point-to-point: who waits first finishes it
  std::function<void()> deliver; // brings what the host has got to the device; of messages and of what is not queued
  std::function<void(const std::string&)> on_failure;
  std::function<void()> abandon; // ends what the driver does for it

  // ---- what torch asks ----
  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  int sourceRank() const override;
  std::vector<at::Tensor> result() override { return outputs_; }
  void synchronize() override { wait(kNoTimeout); }
  bool wait(std::chrono::milliseconds timeout) override;
  void wait_at_exit(bool listed);
  void abort() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  uint64_t getSequencenumber() const override { return name_.number; }

  static bool give_up_late(); // at exit: what has waited for other ranks for long; says whether nothing waits now
  static void leave();        // until nothing waits for other ranks
  static bool gave_up();      // then: the host's threads still wait, so nobody may wait for these

 private:
  void fail(const std::string& why) noexcept;
  void give_up() noexcept;
  void wait_on(int32_t stream);
  void deliver_now(); // once, and marks the work as done
  bool host_is_done(std::unique_lock<std::mutex>& lock) const;
  void throw_failure();
  int32_t here() const { return current_stream(static_cast<c10::DeviceIndex>(device_.index)); }

  const CallName name_;
  Device& device_;
  const std::vector<at::Tensor> outputs_;
  const int32_t called_on_; // the stream
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  mutable std::mutex lock_; // of what follows
  mutable std::condition_variable changed_;
  HostWork host_;
  bool started_ = false, host_ready_ = false, finished_ = false, taken_ = false;
  bool tells_ = false; // the host's work reports its end
  std::string failure_;
  std::vector<std::pair<Device*, int32_t>> waiting_; // streams that wait
  std::shared_ptr<const EventSlot::Mark> complete_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

// Told of a call that failed, on the thread that met it: by the group's own name, and why.
inline void (*failure_observer)(const std::string& group, const std::string& why) = nullptr;

// Makes a stream wait for what another one has been given so far.
void follow(Device& device, int32_t waiting, int32_t stream);

inline c10::Stream torch_stream(Device& device, int32_t stream) {
  const c10::Device place(kDeviceType, static_cast<c10::DeviceIndex>(device.index));
  return c10::Stream(c10::Stream::UNSAFE, place, stream);
}

} // namespace bringup
