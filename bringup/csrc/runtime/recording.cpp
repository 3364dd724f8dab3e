// Recordings of a device's streams: writing work down, refusing what cannot be, running it again.
#include "runtime/recording.h"

#include <utility>

#include "runtime/device.h"

namespace bringup {

static std::atomic<uint64_t> g_recordings{0};

Recording::Recording(int32_t pool, Mode mode)
    : id(++g_recordings), memory_pool(pool), mode_(mode), thread_(std::this_thread::get_id()) {}

bool Recording::add(const char* op, const LoadedKernel* kernel, const bringup_launch& work,
                    const std::vector<Draw>& draws) {
  yield_point();
  std::lock_guard lock(mutex_);
  if (ended_) return false;
  Steps& s = steps_;
  s.steps.push_back({op, kernel, work, s.args.size(), s.draws.size(), draws.size()});
  s.args.insert(s.args.end(), work.args, work.args + work.arg_count);
  s.draws.insert(s.draws.end(), draws.begin(), draws.end());
  return true;
}

void Recording::fail(const std::string& why) {
  {
    std::lock_guard lock(mutex_);
    if (failure_.empty()) failure_ = why;
  }
  throw Error(BRINGUP_ERROR, why);
}

Steps Recording::take() {
  std::lock_guard lock(mutex_);
  ended_ = true;
  if (!failure_.empty()) throw Error(BRINGUP_ERROR, "the capture failed and the graph is empty: " + failure_);
  return std::move(steps_);
}

std::shared_ptr<Recording> Device::recording_slowly(int32_t stream) const {
  yield_point();
  std::lock_guard lock(streams_[stream].mutex);
  return streams_[stream].recording;
}

// Whose recording the stream has then: this one, or that of another capture.
std::shared_ptr<Recording> Device::join_capture(const std::shared_ptr<Recording>& recording, int32_t stream) {
  Stream& slot = streams_[stream];
  std::lock_guard lock(slot.mutex);
  if (!slot.recording) slot.recording = recording;
  slot.captured.store(true, std::memory_order_release);
  return slot.recording;
}

void Device::begin_capture(const std::shared_ptr<Recording>& recording, int32_t stream) {
  auto refuse = [&](const std::string& why) { throw Error(BRINGUP_ERROR, label() + why); };
  if (!runs_kernels())
    refuse(std::string(spec().host_library ? " runs ATen's CPU kernels, at once, as its library"
                                           : " has no kernels that could be launched again") +
           ": there is nothing that a graph could capture");
  if (stream == 0 && driver.asynchronous)
    refuse(": the default stream belongs to every thread and cannot be captured; make another one current first");
  stream_handle(stream);
  if (join_capture(recording, stream) != recording)
    refuse(": stream " + std::to_string(stream) + " is being captured already; captures cannot be nested");
}

void Device::end_capture(const std::shared_ptr<Recording>& recording) noexcept {
  for (Stream& slot : streams_) {
    std::lock_guard lock(slot.mutex);
    if (slot.recording != recording) continue;
    slot.captured.store(false, std::memory_order_release);
    slot.recording.reset(); // whoever uses it just now holds it
  }
}

void Device::refuse_capture(int32_t stream, const char* what) {
  const char* name = NamedWork::current;
  if (const auto captured = recording(stream))
    captured->fail((name ? std::string(name) + " needs " + what + ", which" : what) +
                   " cannot be captured into a graph on " + label() + ": do it before or after the capture");
}

void Device::refuse_captured(const Event& event) {
  if (event.recording)
    throw Error(BRINGUP_ERROR,
                "the event was recorded while its stream was captured into a graph: it marks no moment "
                "in time, only other streams of that capture can wait for it");
}

// True: nothing is left to wait for. A stream that waits for a captured one is captured as well from then on.
bool Device::wait_in_capture(const Event& event, Device& waiting, int32_t wait_stream) {
  waiting.check_stream(wait_stream);
  if (!event.recording) {
    waiting.refuse_capture(wait_stream, "waiting for work outside the capture");
    return false;
  }
  for (int32_t stream = 0; stream < kStreams; ++stream) {
    const auto source = recording(stream);
    if (!source || source->id != event.recording) continue;
    if (&waiting != this)
      source->fail(waiting.label() + " cannot wait for a capture on " + label() + ": it is of one device");
    if (join_capture(source, wait_stream) != source)
      source->fail("a stream of " + label() + " cannot belong to two captures at once");
    return true;
  }
  refuse_captured(event);
  return true;
}

void Device::replay(const Steps& steps, int32_t stream, const RandomState* states) {
  std::vector<uint64_t> filled;
  for (const Steps::Step& step : steps.steps) {
    const uint64_t* args = steps.args.data() + step.first_arg;
    if (!step.kernel) {
      copy(args[0], args[1], args[2], BRINGUP_DEVICE_TO_DEVICE, stream);
      continue;
    }
    if (step.draw_count) filled.assign(args, args + step.work.arg_count);
    for (size_t i = step.first_draw; i < step.first_draw + step.draw_count; ++i) {
      const Draw& draw = steps.draws[i];
      const RandomState& state = states[draw.generator];
      filled[draw.position] = draw.seed ? state.seed : state.offset + draw.offset;
    }
    uint32_t finished = 0;
    bringup_launch work = step.work;
    work.args = step.draw_count ? filled.data() : args;
    work.finished = &finished;
    try {
      launch(*step.kernel, work, stream);
    } catch (const Error& error) {
      if (error.status != BRINGUP_INDEX_ERROR || !finished) throw; // the latter is about earlier work
      throw Error(BRINGUP_INDEX_ERROR, step.op + std::string(": ") + error.what());
    }
  }
}

std::optional<uint64_t> Device::make_graph(const Steps& steps, int32_t stream) {
  if (!driver.graphs || steps.steps.empty() || !steps.draws.empty()) return std::nullopt;
  const uint64_t handle = stream_handle(stream);
  uint64_t graph = 0;
  auto end = [&] { return driver.api.graph_end(driver.api.self, local, handle, &graph); };
  driver.call("graph_begin", driver.api.graph_begin, local, handle);
  try {
    replay(steps, stream, nullptr);
  } catch (...) {
    driver.call_quietly("graph_end", local, [&] {
      const int32_t status = end();
      return status == BRINGUP_OK ? driver.api.graph_destroy(driver.api.self, local, graph) : status;
    });
    throw;
  }
  driver.call("graph_end", local, end);
  return graph;
}

void Device::destroy_graph(uint64_t graph) noexcept {
  driver.call_quietly("graph_destroy", driver.api.graph_destroy, local, graph);
}

} // namespace bringup
