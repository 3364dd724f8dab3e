// How streams wait for a collective, and how a failure of it reaches whoever waits.
#include "distributed/work.h"

#include <ATen/core/ivalue.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <set>
#include <thread>

namespace bringup {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kGrace = std::chrono::seconds(10); // at exit, for other ranks

// Works whose host part is waited for: at exit they are told to give up.
struct Waited {
  std::mutex mutex;
  std::set<DeviceWork*> works;
};
Waited& waited() {
  static auto* works = new Waited();
  return *works;
}
std::atomic<Clock::rep> g_leaving{0}; // when to give up; 0: never
std::atomic<int> g_observing{0};

// Holds the program's end back while a failure is reported to Python. Begun at that end or later it has nobody to
// report to: a thread that asks for the interpreter while that goes down is ended in the middle of its work.
class Report {
 public:
  Report() : python_((++g_observing, g_leaving == 0)) {}
  ~Report() { --g_observing; }
  Report(const Report&) = delete;
  Report& operator=(const Report&) = delete;
  void operator()(const std::string& group, const std::string& why) const {
    if (failure_observer && python_)
      failure_observer(group, why);
    else
      std::fprintf(stderr, "bringup: %s\n", why.c_str());
  }

 private:
  const bool python_;
};

} // namespace

void follow(Device& device, int32_t waiting, int32_t stream) {
  if (!device.busy(stream)) return; // what it was given is done
  const Event event = device.record(stream);
  device.wait(event, device, waiting);
  device.destroy(event);
}

DeviceWork::DeviceWork(CallName name, c10d::OpType type, Device& device, std::vector<at::Tensor> outputs, bool queued)
    : Work(name.rank, type),
      queued(queued),
      name_(std::move(name)),
      device_(device),
      outputs_(std::move(outputs)),
      called_on_(here()) {
  const c10::Device place(kDeviceType, static_cast<c10::DeviceIndex>(device.index));
  future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors(), std::vector<c10::Device>{place});
}

// ---- the host's part ----

void DeviceWork::start_host(const std::function<HostWork()>& start, bool at_once) {
  HostWork host;
  std::string why;
  {
    std::lock_guard lock(lock_);
    host_ready_ = false;
    if (!failure_.empty()) return; // an earlier piece
  }
  try {
    host = start();
  } catch (const std::exception& error) {
    if (at_once) throw; // bad arguments: nothing has happened yet, and the caller is there to be told
    why = error.what();
  }
  {
    std::lock_guard lock(lock_);
    host_ = host;
    started_ = true;
  }
  changed_.notify_all();
  if (!why.empty()) fail(why);
  if (!why.empty()) return;
  c10::intrusive_ptr<c10::ivalue::Future> future;
  try {
    future = host->getFuture();
  } catch (const c10::Error&) { // messages, and what Gloo composes: it is done when somebody has waited for it
    return;
  }
  auto self = c10::intrusive_ptr<DeviceWork>::reclaim_copy(this);
  {
    std::lock_guard lock(lock_);
    tells_ = true;
  }
  future->addCallback(
      [self](c10::ivalue::Future& future) {
        if (future.hasError()) self->fail(future.tryRetrieveErrorMessage());
        {
          std::lock_guard lock(self->lock_);
          self->host_ready_ = true;
        }
        self->changed_.notify_all();
        if (!self->queued) self->deliver_now();
      },
      /*uses_future=*/true);
}

bool DeviceWork::host_is_done(std::unique_lock<std::mutex>& lock) const {
  for (const auto slice = std::chrono::milliseconds(200);;) {
    if (changed_.wait_for(lock, slice, [this] { return host_ready_ || !failure_.empty(); })) return true;
    const auto leaving = g_leaving.load();
    if (leaving && Clock::now().time_since_epoch().count() > leaving) return false;
  }
}

void DeviceWork::finish_host(bool last) {
  HostWork host;
  bool tells = false;
  {
    std::unique_lock lock(lock_);
    changed_.wait(lock, [this] { return started_ || !failure_.empty(); });
    host = failure_.empty() && !host_ready_ ? host_ : nullptr;
    tells = tells_;
  }
  if (!tells) {
    if (host) {
      {
        std::lock_guard lock(waited().mutex);
        waited().works.insert(this);
      }
      try {
        if (!host->wait()) fail("it was aborted");
      } catch (const std::exception& error) {
        fail(error.what());
      }
      std::lock_guard lock(waited().mutex);
      waited().works.erase(this);
    }
    std::lock_guard lock(lock_);
    host_ready_ = true;
  } else {
    std::unique_lock lock(lock_);
    const bool done = host_is_done(lock);
    lock.unlock();
    if (!done) fail("this rank exits while it waits for the others");
  }
  if (!last) return;
  if (queued) {
    std::lock_guard lock(lock_);
    finished_ = true;
  }
  changed_.notify_all();
}

void DeviceWork::deliver_now() {
  {
    std::lock_guard lock(lock_);
    if (taken_) return;
    taken_ = true;
  }
  if (failure_.empty() && deliver) {
    try {
      deliver();
    } catch (const std::exception& error) {
      fail(error.what());
    }
  }
  deliver = nullptr;
  if (!message) {
    if (failure_.empty())
      future_->markCompleted(outputs_);
    else
      future_->setError(exception());
  }
  std::lock_guard lock(lock_);
  finished_ = true;
  changed_.notify_all();
}

void DeviceWork::complete_on(int32_t stream) {
  EventSlot slot;
  translated([&] { slot.record(device_, stream); });
  {
    std::lock_guard lock(lock_);
    complete_ = slot.get();
  }
  if (message) return;
  const OnStream current(device_, stream);
  future_->markCompleted(outputs_);
}

// ---- failures ----

// A stream that the call's outputs reach hears of it at its next use; later calls of the group are refused.
void DeviceWork::fail(const std::string& why) noexcept {
  const Report report;
  {
    std::lock_guard lock(lock_);
    if (!failure_.empty()) return;
    const double seconds = std::chrono::duration<double>(Clock::now() - began_).count();
    char time[32];
    std::snprintf(time, sizeof(time), "%.1f s", seconds);
    std::string text =
        "rank " + std::to_string(name_.rank) + " of " + std::to_string(name_.size) + ": " + name_.collective +
        " (call " + std::to_string(name_.number) + " of group '" + name_.group + "', " + name_.tensors + " on " +
        device_.label() + ") failed after " + time + ": " +
        why.substr(0, why.find("\nException raised from")) + // frames of torch say nothing to its user
        ". Another rank has died, is stuck or has called something else; the group cannot be used any more: "
        "destroy_process_group() and start again from a checkpoint";
    // Before anything that waits for this work goes on: it must find the failure.
    auto streams = waiting_;
    if (std::find(streams.begin(), streams.end(), std::pair(&device_, called_on_)) == streams.end())
      streams.emplace_back(&device_, called_on_);
    for (const auto& [device, stream] : streams)
      if (queued) device->keep_failure(stream, Error(BRINGUP_ERROR, text));
    failure_ = std::move(text);
    if (on_failure) on_failure(failure_);
  }
  changed_.notify_all();
  report(name_.group, failure_);
}

void DeviceWork::throw_failure() {
  try {
    device_.tell_failure(here()); // the same one, which need not be heard twice
  } catch (const Error&) {
  }
  C10_THROW_ERROR(DistBackendError, failure_);
}

std::exception_ptr DeviceWork::exception() const {
  std::lock_guard lock(lock_);
  if (failure_.empty()) return nullptr;
  return std::make_exception_ptr(c10::DistBackendError({__func__, __FILE__, __LINE__}, failure_));
}

// ---- waiting ----

bool DeviceWork::wait(std::chrono::milliseconds timeout) {
  if (!queued) {
    std::unique_lock lock(lock_);
    if (!tells_ && failure_.empty()) {
      lock.unlock();
      finish_host();
      deliver_now();
      lock.lock();
    }
    const auto done = [this] { return finished_ || !failure_.empty(); };
    if (timeout == kNoTimeout)
      changed_.wait(lock, done);
    else
      TORCH_CHECK(changed_.wait_for(lock, timeout, done), name_.collective, " is not done after ", timeout.count(),
                  " ms");
    const bool failed = !failure_.empty();
    lock.unlock();
    if (failed) throw_failure();
    return true;
  }
  const int32_t stream = here();
  bool first = false;
  std::shared_ptr<const EventSlot::Mark> complete;
  {
    std::lock_guard lock(lock_);
    if (failure_.empty()) {
      waiting_.emplace_back(&device_, stream);
      first = message && !taken_;
      taken_ = taken_ || message;
      complete = complete_;
    }
  }
  if (first) {
    auto self = c10::intrusive_ptr<DeviceWork>::reclaim_copy(this);
    host_function_on(device_, stream, [self] { self->finish_host(); });
    if (deliver) deliver();
    deliver = nullptr;
    complete_on(stream);
  } else if (complete) {
    translated([&] { device_.wait(complete->event, device_, stream); });
  }
  std::unique_lock lock(lock_);
  if (timeout != kNoTimeout)
    TORCH_CHECK(changed_.wait_for(lock, timeout, [this] { return finished_ || !failure_.empty(); }), name_.collective,
                " is not done after ", timeout.count(), " ms");
  const bool failed = !failure_.empty();
  lock.unlock();
  if (failed) throw_failure();
  return true;
}

bool DeviceWork::isCompleted() {
  std::shared_ptr<const EventSlot::Mark> complete;
  {
    std::lock_guard lock(lock_);
    if (!failure_.empty()) return true;
    if (!finished_) return false;
    complete = complete_;
  }
  return !complete || translated([&] { return device_.query(complete->event); });
}

bool DeviceWork::isSuccess() const {
  std::lock_guard lock(lock_);
  return finished_ && failure_.empty();
}

int DeviceWork::sourceRank() const { // known to the host when the message is there
  std::unique_lock lock(lock_);
  changed_.wait(lock, [this] { return finished_ || !failure_.empty(); });
  return host_ ? host_->sourceRank() : -1;
}

c10::intrusive_ptr<c10::ivalue::Future> DeviceWork::getFuture() {
  TORCH_CHECK_NOT_IMPLEMENTED(!message, "a ", name_.collective, " has no future: wait() for it");
  return future_;
}

void DeviceWork::abort() {
  HostWork host;
  {
    std::lock_guard lock(lock_);
    host = host_;
  }
  if (host) host->abort();
}

void DeviceWork::leave() {
  g_leaving = (Clock::now() + kGrace).time_since_epoch().count();
  while (g_observing) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const auto until = Clock::now() + kGrace;
  for (;;) { // messages that are on their way arrive; others are given up
    {
      std::lock_guard lock(waited().mutex);
      if (waited().works.empty()) return;
      if (Clock::now() > until) {
        for (DeviceWork* work : waited().works) work->abort();
        return;
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

} // namespace bringup
