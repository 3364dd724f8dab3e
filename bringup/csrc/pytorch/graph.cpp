// Graphs as torch sees them: capture, replay and memory pools behind torch.accelerator.Graph.
#include "pytorch/generator.h"

#if __has_include(<ATen/core/GraphImplInterface.h>)
#include <ATen/core/GraphImplInterface.h>
#include <ATen/record_function.h>

#include <fstream>
#include <map>

namespace bringup {
namespace {

// The number of a pool of one device's allocator, given back when the last graph that uses it is gone.
using MemoryPool = const int32_t;

std::shared_ptr<MemoryPool> memory_pool(Device& device, const c10::MempoolId_t& id) {
  static auto* mutex = new std::mutex();
  static auto* pools = new std::map<std::tuple<int32_t, uint32_t, c10::MempoolId_t>, std::weak_ptr<MemoryPool>>();
  std::lock_guard lock(*mutex);
  std::erase_if(*pools, [](const auto& entry) { return entry.second.expired(); });
  auto& known = (*pools)[{device.index, device.life(), id}];
  std::shared_ptr<MemoryPool> pool = known.lock();
  if (!pool)
    known = pool = std::shared_ptr<MemoryPool>(new int32_t(device.memory().make_pool()), [at = &device](auto* number) {
      if (at->usable()) at->memory().release_pool(*number);
      delete number;
    });
  return pool;
}

// What a capture wrote down. Immutable but for `replayed_on`: any number of threads may replay it.
struct Program {
  ~Program() { // the memory may go back to the driver next
    for (int32_t stream = 0; stream < Device::kStreams; ++stream) {
      if (replayed_on[stream] && now()) device.finish_work(stream);
    }
    if (native && now()) device.destroy_graph(*native);
  }
  bool now() const { return device.usable() && device.life() == life; } // else its memory and kernels are gone
  Device& device;
  std::shared_ptr<MemoryPool> pool;
  Steps steps;
  std::vector<Capture::DrawnFrom> generators;
  std::optional<uint64_t> native; // the driver's own graph of the steps
  const uint32_t life = device.life();
  std::array<std::atomic<bool>, Device::kStreams> replayed_on{};
};

class Graph final : public at::GraphImplInterface {
 public:
  explicit Graph(const at::GraphImplArgs&) {} // the steps are what runs: they are always kept, and never compiled
  ~Graph() override { reset(); }

  void capture_begin(c10::MempoolId_t pool, at::GraphCaptureMode mode) override {
    static std::atomic<c10::CaptureId_t> captures{0};
    TORCH_CHECK(!capture_ && !program(), "this graph ", capture_ ? "is being captured" : "holds a capture",
                " already: call ", capture_ ? "capture_end()" : "reset()", " first, or make another graph");
    TORCH_CHECK_VALUE(pool.first == 0 || pool.second == 0, "(", pool.first, ", ", pool.second,
                      ") is no memory pool: give what pool() of a graph or graph_pool_handle() returned");
    using Mode = Recording::Mode;
    const c10::DeviceIndex index = current_device();
    Device& device = device_at(index);
    const c10::MempoolId_t id = pool.first || pool.second ? pool : c10::MempoolId_t{++captures, 0};
    auto memory = memory_pool(device, id);
    auto capture = std::make_shared<Capture>(*memory, mode == at::GraphCaptureMode::Relaxed       ? Mode::relaxed
                                                      : mode == at::GraphCaptureMode::ThreadLocal ? Mode::thread_local_
                                                                                                  : Mode::global);
    stream_ = current_stream(index);
    translated([&] { device.begin_capture(capture, stream_); });
    device_ = &device;
    memory_ = std::move(memory);
    pool_ = id;
    capture_ = std::move(capture);
  }

  void capture_end() override {
    TORCH_CHECK(capture_, "capture_end() without capture_begin()");
    device_->end_capture(capture_);
    const std::shared_ptr<Capture> capture = std::move(capture_);
    std::shared_ptr<MemoryPool> memory = std::move(memory_);
    Steps steps = translated([&] { return capture->take(); }); // from here on its generators do not change either
    const auto native = translated([&] { return device_->make_graph(steps, stream_); });
    std::lock_guard lock(mutex_);
    program_.reset(new Program{*device_, std::move(memory), std::move(steps), std::move(capture->generators), native});
  }

  void instantiate() override { TORCH_CHECK(program(), "instantiate() needs a capture that has ended"); }

  void replay() override {
    const std::shared_ptr<Program> kept = program();
    TORCH_CHECK(kept, "replay() of a graph that holds no capture: capture_begin() and capture_end() come first");
    TORCH_CHECK(kept->device.life() == kept->life, "this graph was captured before ", kept->device.label(),
                " was reset, and its memory is gone: capture it again");
    RECORD_FUNCTION("Graph.replay", c10::ArrayRef<const c10::IValue>{}); // a profile shows it as an op
    const int32_t stream = current_stream(static_cast<c10::DeviceIndex>(kept->device.index));
    translated([&] {
      kept->device.refuse_capture(stream, "the replay of a graph");
      c10::SmallVector<RandomState, 2> states;
      for (const auto& [generator, calls] : kept->generators) states.push_back(generator->reserve(calls));
      kept->replayed_on[stream] = true;
      if (kept->native) return kept->device.launch_graph(*kept->native, stream);
      kept->device.replay(kept->steps, stream, states.data());
    });
  }

  void reset() override {
    if (capture_) device_->end_capture(capture_);
    capture_.reset();
    memory_.reset();
    std::shared_ptr<Program> dropped; // outlives the lock: its destructor waits
    std::lock_guard lock(mutex_);
    dropped.swap(program_);
  }

  c10::MempoolId_t pool() const override {
    TORCH_CHECK(capture_ || program(), "pool() of a graph that holds no capture: capture_begin() comes first");
    return pool_;
  }

  void enable_debug_mode() override {} // there is nothing that a dump would lack
  void debug_dump(const std::string& path) override {
    const std::shared_ptr<Program> kept = program();
    TORCH_CHECK(kept, "debug_dump() of a graph that holds no capture");
    std::ofstream file(path);
    for (const auto& step : kept->steps.steps)
      file << step.op << (!step.kernel ? " of bytes: " : " on work units: ")
           << (!step.kernel ? kept->steps.args[step.first_arg + 2] : step.work.grid) << "\n";
    file.close();
    TORCH_CHECK(file, "the graph could not be written to ", path);
  }

 private:
  std::shared_ptr<Program> program() const {
    std::lock_guard lock(mutex_);
    return program_;
  }
  Device* device_ = nullptr;
  int32_t stream_ = 0; // where the capture began
  c10::MempoolId_t pool_{0, 0};
  std::shared_ptr<Capture> capture_;   // while it goes on
  std::shared_ptr<MemoryPool> memory_; // meanwhile
  mutable std::mutex mutex_;           // of the one below, for threads that replay
  std::shared_ptr<Program> program_;
};

} // namespace

void register_graphs() {
  at::GraphImplRegistry()->Register(c10::DeviceTypeName(kDeviceType, /*lower_case=*/false),
                                    [](const at::GraphImplArgs& args) -> std::unique_ptr<at::GraphImplInterface> {
                                      return std::make_unique<Graph>(args);
                                    });
}

} // namespace bringup
#else
void bringup::register_graphs() {}
#endif
