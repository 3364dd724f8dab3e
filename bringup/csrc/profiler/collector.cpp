// What a profile collects: what threads ask of devices, and what the devices' own traces say they ran.
#include "profiler/collector.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace bringup {

// Records that a driver is asked to keep, and requests after which they are read: far fewer, so that none are lost.
static constexpr uint64_t kCapacity = 1 << 20, kReadAfter = 1 << 18;
// What is no launch gets a number of its own.
static constexpr uint64_t kOwnNumber = 1 << 30;

thread_local std::vector<uint64_t> Collector::ops, Collector::ranges;

Collector& Collector::get() {
  static auto* collector = new Collector();
  return *collector;
}

void Collector::start(int32_t (*thread_number)(), void (*memory_changed)(Device&, const Block&, bool)) {
  {
    std::lock_guard lock(mutex_);
    requests_.clear();
    traces_.clear();
    problems_.clear();
    thread_number_ = thread_number;
    memory_changed_ = memory_changed;
    for (auto& seen : seen_) seen = false;
    collecting_ = true;
  }
  for (int32_t index = 0; index < Registry::get().device_count(); ++index)
    if (Device& device = Registry::get().device(index); device.is_open()) trace(device);
  watch();
}

void Collector::trace(Device& device) {
  const auto& api = device.driver.api;
  if (seen_[device.index].exchange(true) || !api.trace_start || !api.trace_stop || !api.trace_read) return;
  Trace started{&device};
  std::optional<Error> failure;
  device.finish_work(kAllStreams); // what was queued before is not part of it
  try {
    device.driver.call("trace_start", api.trace_start, device.local, kCapacity, &started.begin);
  } catch (const Error& error) {
    failure = error;
  }
  std::lock_guard lock(mutex_);
  if (failure)
    problems_.push_back(device.label() + " has no rows: " + failure->what());
  else
    traces_.push_back(std::move(started));
}

void Collector::Trace::read() {
  const auto& api = device->driver.api;
  std::vector<bringup_trace_record> chunk(4096);
  for (uint64_t count = 1; count != 0; records.insert(records.end(), chunk.begin(), chunk.begin() + count)) {
    count = 0;
    device->driver.call("trace_read", api.trace_read, device->local, chunk.data(), chunk.size(), &count, &dropped);
    count = std::min<uint64_t>(count, chunk.size());
  }
}

void Collector::stop() {
  unwatch();
  for (int32_t index = 0; index < Registry::get().device_count(); ++index)
    if (Device& device = Registry::get().device(index); device.is_open()) device.finish_work(kAllStreams);
  {
    Blocking blocking; // who reads may need the GIL
    std::unique_lock lock(mutex_);
    if (!std::exchange(collecting_, false)) return;
    read_.wait(lock,
               [&] { return std::none_of(traces_.begin(), traces_.end(), [](auto& one) { return one.reading; }); });
  }
  for (Trace& one : traces_) {
    const auto& api = one.device->driver.api;
    try {
      one.device->driver.call("trace_stop", api.trace_stop, one.device->local, &one.end);
      one.read();
    } catch (const Error& error) {
      problems_.push_back(one.device->label() + " has no rows: " + error.what());
      one.records.clear();
    }
    if (one.dropped)
      problems_.push_back(one.device->label() + ": its trace had no room for " + std::to_string(one.dropped) +
                          " records, which are missing");
    std::stable_sort(one.records.begin(), one.records.end(),
                     [](const auto& a, const auto& b) { return a.start_ns < b.start_ns; });
  }
}

void Collector::worked(Device& device, const Work& work) {
  const int32_t op = ops.empty() ? 0 : static_cast<int32_t>(ops.back());
  const int32_t range = ranges.empty() ? 0 : static_cast<int32_t>(ranges.back());
  Request request{work, now(), device.index, device.stream_handle(work.stream), thread_number_(), op, range};
  Trace* full = nullptr;
  {
    std::lock_guard lock(mutex_);
    if (!collecting_) return;
    if (!request.correlation) request.correlation = kOwnNumber + requests_.size();
    requests_.push_back(request);
    if (requests_.size() % kReadAfter != 0) return;
    for (Trace& one : traces_)
      if (one.device == &device && !one.reading) full = &one;
    if (!full) return;
    full->reading = true;
  }
  try {
    full->read();
  } catch (const Error&) { // the end of the profile will say so
  }
  std::lock_guard lock(mutex_);
  full->reading = false;
  read_.notify_all();
}

void Collector::allocated(Device& device, const Block& block) {
  if (!seen_[device.index].load(std::memory_order_relaxed)) trace(device); // it was opened since
  memory_changed_(device, block, true);
}

// A clock that drifts does so by less than a hundredth; one of a described chip's time has nothing to do with ours.
uint64_t Collector::Trace::host_ns(uint64_t device_ns) const {
  const auto length = static_cast<double>(end.device_ns - begin.device_ns);
  double rate = static_cast<double>(end.host_ns - begin.host_ns) / std::max(1.0, length);
  if (rate < 0.99 || rate > 1.01) rate = 1;
  return begin.host_ns +
         static_cast<int64_t>(static_cast<double>(static_cast<int64_t>(device_ns - begin.device_ns)) * rate);
}

// What a device without traces ran, from the marks around it. Its place in time is where the mark before it was asked
// for, or where the stream was done with what it had: a driver's events say how long, and not when.
std::optional<TracedWork> Collector::timed(const Request& request, int64_t place, uint64_t& stream_ended) const {
  if (!request.start || !request.end) return std::nullopt;
  double ms = 0;
  try {
    ms = request.start->device.elapsed_ms(request.start->event, request.end->event);
  } catch (const Error&) { // the work has failed
    return std::nullopt;
  }
  const auto kind = request.kind == Work::Kind::copy ? BRINGUP_TRACE_COPY : BRINGUP_TRACE_KERNEL;
  bringup_trace_record record{kind, static_cast<uint32_t>(request.copy_kind), std::max(request.began, stream_ended)};
  record.end_ns = stream_ended = record.start_ns + static_cast<uint64_t>(std::max(0.0, ms) * 1e6);
  record.bytes = request.bytes;
  if (request.name) record.name = request.name->c_str();
  return TracedWork{record, request.device, request.stream, place};
}

// Records of launches carry their number, others none. A stream runs in order, so the nth copy that it ran is the nth
// that was asked for; by kind, because not every kind leaves a record.
std::vector<TracedWork> Collector::work() const {
  std::unordered_map<uint64_t, int64_t> launches;
  std::map<std::tuple<int32_t, uint64_t, Work::Kind>, std::deque<int64_t>> lines;
  std::map<std::pair<int32_t, uint64_t>, int32_t> streams;
  std::map<std::pair<int32_t, int32_t>, uint64_t> ended; // where the last work of a stream without traces did
  std::vector<TracedWork> found;
  for (const Request& request : requests_) {
    const int64_t place = &request - requests_.data();
    if (const auto work = timed(request, place, ended[{request.device, request.stream}])) found.push_back(*work);
    streams[{request.device, request.handle}] = request.stream;
    const bool other = request.kind == Work::Kind::relayout;
    if (request.kind == Work::Kind::launch)
      launches[request.correlation] = place;
    else
      lines[{request.device, request.handle, other ? Work::Kind::charge : request.kind}].push_back(place);
  }
  const std::map<uint32_t, Work::Kind> kinds{{BRINGUP_TRACE_COPY, Work::Kind::copy},
                                             {BRINGUP_TRACE_WAIT, Work::Kind::wait},
                                             {BRINGUP_TRACE_OTHER, Work::Kind::charge}};
  for (const Trace& one : traces_) {
    for (bringup_trace_record record : one.records) {
      const int32_t index = one.device->index;
      int64_t place = -1;
      if (const auto launch = launches.find(record.correlation); launch != launches.end()) {
        place = launch->second;
      } else if (const auto kind = kinds.find(record.kind); record.correlation == 0 && kind != kinds.end()) {
        const bool copied = kind->second == Work::Kind::copy;
        auto& line = lines[{index, record.stream, kind->second}];
        if (!line.empty() && (!copied || requests_[line.front()].bytes == record.bytes)) {
          place = line.front();
          line.pop_front();
        }
      }
      record.start_ns = one.host_ns(record.start_ns);
      record.end_ns = std::max(record.start_ns, one.host_ns(record.end_ns));
      const auto stream = streams.find({index, record.stream});
      found.push_back(
          {record, index, stream == streams.end() ? static_cast<int32_t>(record.stream) : stream->second, place});
    }
  }
  return found;
}

} // namespace bringup
