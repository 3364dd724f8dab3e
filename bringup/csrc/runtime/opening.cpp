// How a device comes and goes: opened on first use, lost where its driver says so, reset where the user does.
#include <cstring>
#include <utility>

#include "runtime/device.h"

namespace bringup {

// ---- FirstUse ----

FirstUse& FirstUse::get() {
  static auto* first = new FirstUse();
  return *first;
}

void FirstUse::set(void (*hook)()) {
  std::lock_guard lock(mutex_);
  hook_ = hook;
  done_ = hook == nullptr;
}

void FirstUse::run() {
  if (runner_.load() == std::this_thread::get_id()) return;
  Blocking blocking; // around the mutex, which is held while the hook runs: nobody waits for it with the GIL in hand
  std::lock_guard lock(mutex_);
  if (done_) return;
  runner_ = std::this_thread::get_id();
  try {
    hook_();
  } catch (...) {
    runner_ = std::thread::id();
    throw;
  }
  runner_ = std::thread::id();
  done_.store(true, std::memory_order_release);
}

// ---- Device: opening ----

void Device::refuse(State state) {
  if (state == State::forked)
    throw Error(BRINGUP_ERROR, label() +
                                   " cannot be used in a forked child: its parent had opened the device. Start child "
                                   "processes with multiprocessing's 'spawn' (or 'forkserver') method");
  if (state == State::lost)
    throw Error(BRINGUP_DEVICE_LOST, label() + " is lost (" + lost_ + "): its tensors are gone. torch." +
                                         Registry::get().type_name +
                                         ".reset_device() opens it again once they are dropped; other devices go on");
  throw Error(BRINGUP_ERROR, label() + " is closed: the process is shutting down");
}

void Device::lose(const std::string& why) {
  std::lock_guard lock(open_mutex_);
  if (!usable()) return;
  lost_ = why;
  state_.store(State::lost, std::memory_order_release);
  opened_.notify_all();
  for (Stream& slot : streams_) { // launches look at nothing else
    std::lock_guard stream_lock(slot.mutex);
    slot.failed.store(true, std::memory_order_release);
  }
}

void Device::reset() {
  for (int32_t stream = 0; stream < kStreams; ++stream)
    if (capturing(stream))
      throw Error(BRINGUP_ERROR, label() + " cannot be reset while its stream " + std::to_string(stream) +
                                     " is captured into a graph: end the capture first");
  if (is_open()) {
    finish_work(kAllStreams);
    try {
      memory_->empty_cache();
    } catch (const Error&) { // closing is the last that the driver hears of it
    }
  }
  std::unique_lock<std::mutex> lock(open_mutex_);
  const State before = state_.load();
  if (before == State::unopened) return;
  if (before == State::opening) throw Error(BRINGUP_ERROR, label() + " is being opened or reset by another thread");
  if (before > State::lost) refuse(before);
  state_ = State::opening; // who wants to use it waits
  lock.unlock();
  auto end = [&](State state) {
    lock.lock();
    state_.store(state, std::memory_order_release);
    opened_.notify_all();
    lock.unlock();
  };
  const StatSet held = memory_->stats().allocation;
  if (imported || !memory_->forget()) {
    end(before);
    throw Error(BRINGUP_ERROR,
                label() + " cannot be reset: " + std::to_string(held.kind[0].current + imported) +
                    " tensors or buffers still have memory of it. Drop them first, and what holds them: models, "
                    "optimizers, graphs, compiled functions (torch._dynamo.reset()), exceptions with their tracebacks");
  }
  auto& api = driver.api;
  for (int32_t stream = 1; stream < kStreams && before == State::open && driver.asynchronous; ++stream)
    if (streams_[stream].created)
      driver.call_quietly("stream_destroy", api.stream_destroy, local, streams_[stream].handle.load());
  if (api.close) driver.call_quietly("close", api.close, local);
  for (int32_t stream = 0; stream < kStreams; ++stream) {
    Stream& slot = streams_[stream];
    std::lock_guard stream_lock(slot.mutex);
    slot.created = stream == 0;
    slot.handle = 0;
    slot.finished.store(slot.queued);
    slot.failure.reset();
    slot.failed = false;
  }
  ++life_;
  end(State::unopened);
}

void Device::open_slow() {
  if (usable()) FirstUse::get().ensure(); // before this device is on its way: the thread that registers may open it too
  std::unique_lock<std::mutex> lock(open_mutex_);
  while (state_.load() == State::opening) {
    lock.unlock();
    {
      Blocking blocking; // outside the mutex on both ends: the GIL is never taken with the mutex in hand
      std::unique_lock<std::mutex> waiting(open_mutex_);
      opened_.wait(waiting, [&] { return state_.load() != State::opening; });
    }
    lock.lock();
  }
  if (state_.load() == State::open) return;
  if (state_.load() > State::open) refuse(state_.load());
  state_ = State::opening;
  lock.unlock();
  bringup_device_spec spec;
  std::memset(&spec, 0, sizeof(spec));
  spec.struct_size = sizeof(spec);
  std::optional<Error> failure;
  auto complain = [&](const std::string& what) {
    failure = Error(BRINGUP_ERROR, driver.name + ":" + std::to_string(local) + ": open reported " + what);
  };
  try {
    driver.call("open", driver.api.open, local, &spec);
    if (spec.alignment == 0) spec.alignment = 64;
    if (spec.partitions == 0) spec.partitions = 1;
    if (spec.partitions > 1) spec.host_visible = spec.host_library = 0; // bytes of one tensor may lie in many places
    if (spec.memory_bytes == 0) complain("a device with 0 bytes of memory");
    if (spec.alignment & (spec.alignment - 1))
      complain("an alignment of " + std::to_string(spec.alignment) + ", which is no power of two");
    if (spec.host_library && !spec.host_visible)
      complain("host_library without host_visible: CPU kernels cannot reach its memory");
    const auto& placement = spec.default_placement;
    if (spec.partitions > 1 && placement.kind == BRINGUP_SHARD && placement.block % 8)
      complain("a shard block of " + std::to_string(placement.block) + " bytes, not a multiple of 8");
  } catch (const Error& error) {
    failure = error;
  }
  lock.lock();
  if (!failure) {
    spec.name[sizeof(spec.name) - 1] = '\0';
    spec_ = spec;
    state_.store(State::open, std::memory_order_release);
  } else if (state_.load() == State::opening) {
    state_ = State::unopened;
  }
  opened_.notify_all();
  lock.unlock();
  if (failure) throw *failure;
}

} // namespace bringup
