// How streams wait for a collective, and how a failure of it reaches whoever waits.
#include "distributed/work.h"

#include <ATen/core/ivalue.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <set>
#include <thread>

namespace bringup {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kGrace = std::chrono::seconds(10); // at exit, for other ranks

// Works whose host part is not in the order of a stream: at exit they are waited for, then told to give up.
struct Waited {
  std::mutex mutex;
  std::set<DeviceWork*> works;
  uint64_t changes = 0, seen = 0; // works that started or ended
};
Waited& waited() {
  static auto* works = new Waited();
  return *works;
}
std::atomic<Clock::rep> g_leaving{0}; // when to give up, unless something starts or ends until then; 0: never
void note_change() {
  std::lock_guard lock(waited().mutex);
  ++waited().changes;
}
std::atomic<bool> g_gone{false}, g_gave_up{false};
std::atomic<int> g_holding{0};

// Holds the program's end back while a thread may reach Python: by a report, or by the last reference to a tensor. A
// thread that asks for the interpreter while that goes down is ended in the middle of its work, which aborts the
// program; what comes too late keeps its references and reports without Python.
class HoldsExit {
 public:
  HoldsExit() : in_time((++g_holding, !g_gone)) {}
  ~HoldsExit() { --g_holding; }
  HoldsExit(const HoldsExit&) = delete;
  HoldsExit& operator=(const HoldsExit&) = delete;
  const bool in_time;
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
  if (!queued) wait_at_exit(true);
  future->addCallback(
      [self](c10::ivalue::Future& future) mutable {
        const HoldsExit here;
        const auto work = std::move(self); // not the future's, which drops it later
        if (future.hasError()) work->fail(future.tryRetrieveErrorMessage());
        {
          std::lock_guard lock(work->lock_);
          work->host_ready_ = true;
        }
        work->changed_.notify_all();
        if (!here.in_time) return c10::raw::intrusive_ptr::incref(work.get());
        if (work->queued) return;
        work->deliver_now();
        work->wait_at_exit(false);
      },
      /*uses_future=*/true);
}

void DeviceWork::wait_at_exit(bool listed) {
  std::lock_guard lock(waited().mutex);
  ++waited().changes;
  if (listed)
    waited().works.insert(this);
  else
    waited().works.erase(this);
}

void DeviceWork::give_up() noexcept {
  fail("this rank exits while it waits for the others");
  c10::raw::intrusive_ptr::incref(this); // the host's threads use it until the process ends
  g_gave_up = true;
  std::function<void()> end;
  {
    std::lock_guard lock(lock_);
    end = abandon;
  }
  if (end) return end();
  try {
    if (!tells_) abort();
  } catch (const c10::Error&) { // what Gloo composes cannot be aborted
  }
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
      wait_at_exit(true);
      try {
        if (!host->wait()) fail("it was aborted");
      } catch (const std::exception& error) {
        fail(error.what());
      }
      wait_at_exit(false);
    }
    std::lock_guard lock(lock_);
    host_ready_ = true;
  } else {
    note_change();
    std::unique_lock lock(lock_);
    const bool done = host_is_done(lock);
    lock.unlock();
    note_change();
    if (!done) give_up();
  }
  if (!last) return;
  if (queued) {
    std::lock_guard lock(lock_);
    finished_ = true;
  }
  changed_.notify_all();
}

// Those that wait for the collective go on behind this, and so hear of its failure.
void DeviceWork::finish_device(const Event& done) {
  const HoldsExit here;
  try {
    device_.wait(done);
  } catch (const std::exception& error) {
    fail(error.what());
  }
  wait_at_exit(false);
  {
    std::lock_guard lock(lock_);
    finished_ = true;
    abandon = nullptr;
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
  const c10::StreamGuard current(torch_stream(device_, stream));
  future_->markCompleted(outputs_);
}

// ---- failures ----

// A stream that the call's outputs reach hears of it at its next use; later calls of the group are refused.
void DeviceWork::fail(const std::string& why) noexcept {
  const HoldsExit here;
  {
    std::lock_guard lock(lock_);
    if (!failure_.empty()) return;
    const double seconds = std::chrono::duration<double>(Clock::now() - began_).count();
    std::string text = c10::str(
        "rank ", name_.rank, " of ", name_.size, ": ", name_.collective, " (call ", name_.number, " of group '",
        name_.group, "', ", name_.tensors, " on ", device_.label(), ") failed after ", std::round(seconds * 10) / 10,
        " s: ", why.substr(0, why.find("\nException raised from")), // frames of torch say nothing to its user
        ". Another rank has died, is stuck or has called something else; the group cannot be used any more: "
        "destroy_process_group() and start again from a checkpoint");
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
  if (failure_observer && here.in_time)
    failure_observer(name_.group, failure_);
  else
    std::fprintf(stderr, "bringup: %s\n", failure_.c_str());
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
  std::unique_lock lock(lock_);
  if (queued) {
    lock.unlock();
    wait_on(here());
    lock.lock();
  } else if (!tells_ && failure_.empty()) {
    lock.unlock();
    finish_host();
    deliver_now();
    lock.lock();
  }
  const auto done = [this] { return finished_ || !failure_.empty(); };
  if (timeout == kNoTimeout)
    changed_.wait(lock, [&] { return queued || done(); });
  else
    TORCH_CHECK(changed_.wait_for(lock, timeout, done), name_.collective, " is not done after ", timeout.count(),
                " ms");
  const bool failed = !failure_.empty();
  lock.unlock();
  if (failed) throw_failure();
  return true;
}

void DeviceWork::wait_on(int32_t stream) {
  std::unique_lock lock(lock_);
  if (!failure_.empty()) return;
  waiting_.emplace_back(&device_, stream);
  const bool first = message && !taken_;
  taken_ = taken_ || message;
  const auto complete = complete_;
  lock.unlock();
  if (first) {
    auto self = c10::intrusive_ptr<DeviceWork>::reclaim_copy(this);
    host_function_on(device_, stream, [self] { self->finish_host(); });
    if (deliver) deliver();
    deliver = nullptr;
    complete_on(stream);
  } else if (complete) {
    translated([&] { device_.wait(complete->event, device_, stream); });
  }
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

bool DeviceWork::give_up_late() {
  std::vector<c10::intrusive_ptr<DeviceWork>> late;
  bool empty = false;
  {
    std::lock_guard lock(waited().mutex);
    const auto now = Clock::now();
    if (!g_leaving || waited().changes != waited().seen) g_leaving = (now + kGrace).time_since_epoch().count();
    waited().seen = waited().changes;
    empty = waited().works.empty();
    if (now.time_since_epoch().count() > g_leaving)
      for (DeviceWork* work : std::exchange(waited().works, {}))
        late.push_back(c10::intrusive_ptr<DeviceWork>::reclaim_copy(work));
  }
  for (const auto& work : late) work->give_up();
  return empty;
}

void DeviceWork::leave() {
  while (!give_up_late()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  g_gone = true;
  while (g_holding) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

bool DeviceWork::gave_up() { return g_gave_up; }

} // namespace bringup
