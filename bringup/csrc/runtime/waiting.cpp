// Waiting for a device: its streams and events, and failures of queued work, which are kept for the user to hear.
#include "runtime/device.h"

namespace bringup {

// ---- streams ----

void Device::synchronize_stream(int32_t stream) {
  check_stream(stream);
  refuse_capture(stream, "waiting for a stream");
  finish(stream);
}

void Device::finish_until(int32_t stream, uint64_t seen) {
  Stream& slot = streams_[stream];
  uint64_t known = slot.finished.load(std::memory_order_relaxed);
  while (known < seen && !slot.finished.compare_exchange_weak(known, seen, std::memory_order_acq_rel)) {
  }
}

void Device::finish(int32_t stream) {
  check_lost();
  if (!driver.asynchronous || !is_open()) return;
  const uint64_t seen = streams_[stream].queued.load(std::memory_order_acquire); // what others queue now stays busy
  const uint64_t began = WorkObserver::begin();
  const Event event = record_now(stream);
  const std::optional<Error> met = wait_for(event);
  destroy(event);
  await_quiet_waits(stream);
  tell_failure(stream, met);
  finish_until(stream, seen);
  if (began) observe({.kind = Work::Kind::synchronize, .stream = stream, .began = began});
}

// A stream that has failed stays busy until the user has heard of it: then drain() looks, at no cost for the others.
bool Device::finish_work(int32_t only) noexcept {
  if (!driver.asynchronous || !is_open()) return true;
  bool finished = true;
  for (int32_t stream = std::max(only, 0); stream < (only == kAllStreams ? kStreams : only + 1); ++stream) {
    if (!busy(stream)) continue;
    const uint64_t seen = streams_[stream].queued.load(std::memory_order_acquire);
    try {
      const Event event = record_now(stream);
      const bool done = wait_event(event.handle, stream);
      destroy(event);
      finished &= done;
      // Another quiet wait may have taken a failure that it has not kept yet.
      const bool alone = streams_[stream].quiet_count.load(std::memory_order_acquire) == 0;
      if (done && alone && !streams_[stream].failed.load(std::memory_order_acquire)) finish_until(stream, seen);
    } catch (const Error& error) {
      keep_failure(stream, error);
      finished = false;
    }
  }
  return finished;
}

void Device::synchronize() {
  for (int32_t stream = 0; stream < kStreams; ++stream)
    if (const auto captured = recording(stream); captured && captured->refuses_waiting())
      refuse_capture(stream, "waiting for the device");
  std::optional<Error> first;
  for (int32_t stream = 0; stream < kStreams; ++stream) {
    if (!streams_[stream].created.load(std::memory_order_acquire)) continue;
    try {
      finish(stream);
    } catch (const Error& error) {
      if (error.status == BRINGUP_DEVICE_LOST) throw;
      first = first ? Error(first->status, first->what() + ("; stream " + std::to_string(stream) + ": ") + error.what())
                    : error;
    }
  }
  if (first) throw *first;
}

void Device::keep_failure(int32_t stream, const Error& error) noexcept {
  Stream& slot = streams_[stream];
  std::lock_guard lock(slot.mutex);
  if (!slot.failure) // a text of its own: one that exceptions share is a race to ThreadSanitizer
    slot.failure = Error(error.status, error.what());
  else if (std::string text = slot.failure->what(); text.size() < 4096) // a device that is lost fails every time
    slot.failure = Error(slot.failure->status, text + "; " + error.what());
  mark_busy(stream);
  slot.failed.store(true, std::memory_order_release);
}

void Device::tell_failure(int32_t stream, const std::optional<Error>& met) {
  check_lost();
  Stream& slot = streams_[stream];
  std::optional<Error> kept;
  if (slot.failed.load(std::memory_order_acquire)) {
    std::lock_guard lock(slot.mutex);
    kept.swap(slot.failure);
    slot.failed.store(lost(), std::memory_order_relaxed);
  }
  if (kept && met) throw Error(kept->status, kept->what() + std::string("; ") + met->what());
  if (kept || met) throw kept ? *kept : *met;
}

bool Device::query_stream(int32_t stream) {
  check_stream(stream);
  refuse_capture(stream, "asking whether a stream is idle");
  check_lost();
  if (!driver.asynchronous || !is_open() || !busy(stream)) return true;
  const Event event = record(stream);
  const bool done = query(event);
  destroy(event);
  return done;
}

// ---- events ----

Event Device::record(int32_t stream, uint32_t flags) {
  check_stream(stream);
  if (const auto captured = recording(stream)) return Event{0, 0, captured->id, stream};
  const Event event = record_now(stream, flags);
  WorkObserver::tell(&WorkObserver::recorded, *this, event);
  return event;
}

Event Device::record_now(int32_t stream, uint32_t flags) {
  ensure_open();
  Event event{0, 0, 0, stream, life()};
  if (driver.asynchronous)
    driver.call("event_record", driver.api.event_record, local, stream_handle(stream), flags, &event.handle);
  else
    event.nanoseconds = clock();
  return event;
}

bool Device::query(const Event& event) {
  refuse_captured(event);
  if (event.life != life()) return true;
  check_lost();
  if (!driver.asynchronous || event.handle == 0) return true;
  int32_t done = 0;
  driver.call("event_query", driver.api.event_query, local, event.handle, &done);
  return done != 0;
}

void Device::wait(const Event& event) {
  refuse_captured(event);
  const std::optional<Error> met = wait_for(event);
  await_quiet_waits(event.stream);
  tell_failure(event.stream, met);
  WorkObserver::tell(&WorkObserver::host_waited, *this, event);
}

std::optional<Error> Device::wait_for(const Event& event) {
  if (!driver.asynchronous || event.handle == 0 || event.life != life()) return std::nullopt;
  try {
    // Asking first saves letting the GIL go for work that is long done. A kernel that failed is reported by the wait:
    // also by one that is done, at once.
    const bool done = query(event);
    if (done && !driver.kernels) return std::nullopt;
    std::optional<Blocking> blocking;
    if (!done) blocking.emplace();
    driver.call("event_wait", driver.api.event_wait, local, event.handle, local, -1);
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

namespace {
thread_local int t_quiet_waits = 0; // a Python driver may run anything while it waits: also a user's wait
} // namespace

bool Device::wait_event(uint64_t handle, int32_t stream) noexcept {
  if (!driver.asynchronous || handle == 0) return true;
  const Event event{handle, 0, 0, stream, life()};
  Stream& slot = streams_[stream];
  std::unique_lock lock(slot.mutex);
  const auto mine = slot.quiet.emplace(++slot.last_quiet, Stream::QuietWait{handle}).first;
  slot.quiet_count.fetch_add(1, std::memory_order_relaxed);
  lock.unlock();
  ++t_quiet_waits;
  const std::optional<Error> met = wait_for(event);
  --t_quiet_waits;
  yield_point();
  if (met) keep_failure(stream, *met);
  bool done = !met;
  try {
    if (met) done = query(event); // the work has failed, or only the wait
  } catch (const Error&) {
  }
  auto end = [&] {
    slot.quiet_changed.wait(lock, [&] { return mine->second.asking == 0; });
    slot.quiet.erase(mine);
    slot.quiet_count.fetch_sub(1, std::memory_order_release);
    slot.quiet_changed.notify_all();
    lock.unlock();
    return done;
  };
  lock.lock();
  if (mine->second.asking == 0) return end();
  lock.unlock();
  Blocking blocking; // who asks may need the GIL
  lock.lock();
  return end();
}

// One whose event is not done has taken nothing, and may last: what it waits for may need the caller to go on.
void Device::await_quiet_waits(int32_t stream) {
  Stream& slot = streams_[stream];
  if (slot.quiet_count.load(std::memory_order_acquire) == 0 || t_quiet_waits) return;
  std::unique_lock lock(slot.mutex);
  const uint64_t newest = slot.last_quiet;
  for (auto other = slot.quiet.begin(); other != slot.quiet.end() && other->first <= newest;) {
    const uint64_t number = other->first;
    ++other->second.asking;
    lock.unlock();
    bool done = false;
    try {
      done = query(Event{other->second.event, 0, 0, stream, life()});
    } catch (const Error&) { // unknown is not done
    }
    {
      std::optional<Blocking> blocking;
      if (done) blocking.emplace();
      lock.lock();
      if (--other->second.asking == 0) slot.quiet_changed.notify_all();
      if (done) slot.quiet_changed.wait(lock, [&] { return slot.quiet.count(number) == 0; });
      lock.unlock();
    }
    lock.lock();
    other = slot.quiet.upper_bound(number);
  }
}

void Device::wait(const Event& event, Device& waiting, int32_t wait_stream) {
  if (wait_in_capture(event, waiting, wait_stream) || event.life != life()) return;
  check_lost();
  waiting.check_lost();
  if (!driver.asynchronous || event.handle == 0) return;
  if (&waiting.driver != &driver) { // two drivers know nothing of each other: the host waits in between
    wait(event);
    return;
  }
  driver.call("event_wait", driver.api.event_wait, local, event.handle, waiting.local,
              static_cast<int64_t>(waiting.stream_handle(wait_stream)));
  waiting.mark_busy(wait_stream);
  WorkObserver::tell(&WorkObserver::waited, *this, event, waiting, wait_stream);
}

double Device::elapsed_ms(const Event& start, const Event& end) {
  check_lost();
  if (start.life != life() || end.life != life())
    throw Error(BRINGUP_INVALID, "an event was recorded before " + label() + " was reset: record it again");
  if (!driver.asynchronous)
    return (static_cast<double>(end.nanoseconds) - static_cast<double>(start.nanoseconds)) * 1e-6;
  double milliseconds = 0;
  driver.call("event_elapsed", driver.api.event_elapsed, local, start.handle, end.handle, &milliseconds);
  return milliseconds;
}

void Device::destroy(const Event& event) {
  if (driver.asynchronous && event.handle != 0 && event.life == life() && usable())
    driver.call_quietly("event_destroy", driver.api.event_destroy, local, event.handle);
}

EventSlot::Mark::~Mark() { device.destroy(event); }

void EventSlot::record(Device& device, int32_t stream, uint32_t flags) {
  const Event event = device.record(stream, flags);
  auto mark = std::make_shared<const Mark>(device, event);
  yield_point();
  std::lock_guard lock(mutex_);
  mark_.swap(mark);
} // the lock ends before `mark`

// ---- for the allocator ----

uint64_t Device::record_event(int32_t stream) { return record_now(stream).handle; }
bool Device::query_event(uint64_t event) { return query(Event{event, 0, 0, 0, life()}); }
void Device::destroy_event(uint64_t event) { destroy(Event{event, 0, 0, 0, life()}); }

} // namespace bringup
