// Rows of devices in torch.profiler: what the collector found, as activities of Kineto.
//
// torch.profiler has Kineto's CPU rows of ops, and asks a plug-in for a device's. Each launch, copy and wait gets a row
// on the thread that asked for it and one on the stream that ran it, joined by an arrow; both are linked to the op.
#include <c10/core/Allocator.h>

#include "profiler/collector.h"
#include "pytorch/context.h"

#if __has_include(<libkineto.h>)
#define FMT_HEADER_ONLY // torch does not export its copy
#include <libkineto.h>
#include <output_base.h>

#include <map>

namespace bringup {
namespace {

using libkineto::ActivityType;

// What a row says of itself is written when it is asked for: most profiles are not exported.
struct Row final : libkineto::GenericTraceActivity {
  using GenericTraceActivity::GenericTraceActivity;
  uint64_t bytes = 0, grid = 0;
  double flops = 0;
  bool on_device = false;

  const std::string metadataJson() const override {
    std::string text = fmt::format("\"correlation\": {}", id);
    if (on_device) text += fmt::format(", \"device\": {}, \"stream\": {}", device, resource);
    if (bytes) text += fmt::format(", \"bytes\": {}", bytes);
    if (grid) text += fmt::format(", \"grid\": {}", grid);
    if (flops > 0) text += fmt::format(", \"flops\": {:.15g}", flops);
    const auto ns = static_cast<double>(duration()); // per nanosecond is 10^9 per second
    if (on_device && ns > 0 && bytes) text += fmt::format(", \"GB/s\": {:.6g}", static_cast<double>(bytes) / ns);
    if (on_device && ns > 0 && flops > 0) text += fmt::format(", \"GFLOP/s\": {:.6g}", flops / ns);
    return text;
  }
};

constexpr int64_t kBelowProcesses = 5'000'000; // where viewers place devices: behind the largest number of a process

int32_t thread_number() { return libkineto::systemThreadId(); }

void memory_changed(Device& device, const Block& block, bool allocated) {
  if (!c10::memoryProfilingEnabled()) return;
  const MemoryStats stats = device.memory().stats();
  const auto size = static_cast<int64_t>(block.size);
  const int64_t total = stats.allocated_bytes.kind[0].current - (allocated ? 0 : size); // it is about to be freed
  c10::reportMemoryUsageToProfiler(reinterpret_cast<void*>(block.address), allocated ? size : -size, total,
                                   stats.reserved_bytes.kind[0].current,
                                   c10::Device(kDeviceType, static_cast<c10::DeviceIndex>(device.index)));
}

// Makes the rows of a finished collection.
struct Rows {
  libkineto::CpuTraceBuffer& buffer;
  const libkineto::getLinkedActivityCallback& activity; // of PyTorch, by its number
  std::map<int32_t, std::set<int32_t>> streams{};       // that have rows, by device
  std::map<std::tuple<int32_t, int32_t, int32_t>, Row*> ranges{};

  void make(const Collector& collector) {
    for (const Request& request : collector.requests()) add_request(request);
    for (const TracedWork& work : collector.work())
      add_work(work, work.request < 0 ? nullptr : &collector.requests()[work.request]);
  }

  Row& add(ActivityType type, const std::string& name, uint64_t start, uint64_t end, int32_t device, int32_t resource) {
    auto row = std::make_unique<Row>(buffer.span, type, name);
    Row& added = *row;
    buffer.activities.push_back(std::move(row));
    added.startTime = static_cast<int64_t>(start);
    added.endTime = static_cast<int64_t>(end);
    added.device = device;
    added.resource = resource;
    return added;
  }

  static void describe(Row& row, const Request& request, const libkineto::ITraceActivity* op) {
    row.id = static_cast<int32_t>(request.correlation & 0x7fffffff);
    row.linked = op;
    row.bytes = request.bytes;
    row.grid = request.grid;
    row.flops = request.flops;
  }

  void add_request(const Request& request) {
    static const char* const names[] = {"launch", "copy", "wait", "library op", "synchronize", "relayout"};
    Row& row = add(ActivityType::PRIVATEUSE1_RUNTIME, names[static_cast<int>(request.kind)], request.began,
                   request.ended, libkineto::processId(), request.thread);
    row.threadId = request.thread;
    describe(row, request, request.op ? activity(request.op) : nullptr);
  }

  void add_work(const TracedWork& work, const Request* request) {
    static const char* const copies[] = {"copy from host to device", "copy from device to host", "copy on the device",
                                         "copy between devices"};
    const bringup_trace_record& record = work.record;
    const bool copied = record.kind == BRINGUP_TRACE_COPY;
    const auto* op = request && request->op ? activity(request->op) : nullptr;
    std::string name = record.name ? record.name : "work";
    const auto copy_kind = request && copied ? static_cast<uint32_t>(request->copy_kind) : record.copy_kind;
    if (copied && copy_kind < std::size(copies)) name = copies[copy_kind];
    if (request && request->kind == Work::Kind::relayout)
      name = "relayout";
    else if (op && record.kind == BRINGUP_TRACE_OTHER)
      name = op->name();
    // Waits and host functions are not work of the device: in a row of this type they do not count as its time.
    ActivityType type = ActivityType::GPU_USER_ANNOTATION;
    if (copied) type = ActivityType::GPU_MEMCPY;
    if (record.kind == BRINGUP_TRACE_KERNEL || record.kind == BRINGUP_TRACE_OTHER)
      type = ActivityType::CONCURRENT_KERNEL;
    Row& row = add(type, name, record.start_ns, record.end_ns, work.device, work.stream);
    row.on_device = true;
    streams[work.device].insert(work.stream);
    if (request) {
      describe(row, *request, op);
      arrow(row, false);
      arrow(static_cast<Row&>(*buffer.activities[work.request]), true); // only where there is a row for it to end at
      if (request->range) widen_range(work, request->range);
    }
    if (record.bytes) row.bytes = record.bytes;
  }

  static void arrow(Row& row, bool start) {
    row.flow.id = static_cast<uint32_t>(row.id);
    row.flow.type = libkineto::kLinkAsyncCpuGpu;
    row.flow.start = start;
  }

  // A record_function range on a stream lasts from the first to the last work that was asked for inside of it.
  void widen_range(const TracedWork& work, int32_t number) {
    const auto* range = activity(number);
    if (!range) return;
    Row*& row = ranges[{work.device, work.stream, number}];
    if (!row)
      row = &add(ActivityType::GPU_USER_ANNOTATION, range->name(), work.record.start_ns, work.record.end_ns,
                 work.device, work.stream);
    row->startTime = std::min(row->startTime, static_cast<int64_t>(work.record.start_ns));
    row->endTime = std::max(row->endTime, static_cast<int64_t>(work.record.end_ns));
  }
};

struct Session final : libkineto::IActivityProfilerSession {
  void start() override {
    Collector::get().start(&thread_number, &memory_changed);
    status_ = libkineto::TraceStatus::RECORDING;
  }
  void stop() override {
    Collector::get().stop();
    status_ = libkineto::TraceStatus::PROCESSING;
    for (const std::string& problem : Collector::get().problems()) TORCH_WARN("the profile: ", problem);
  }
  std::vector<std::string> errors() override { return Collector::get().problems(); }

  void processTrace(libkineto::ActivityLogger& logger) override {
    processTrace(logger, [](int32_t) { return nullptr; }, 0, 0);
  }
  void processTrace(libkineto::ActivityLogger& logger, libkineto::getLinkedActivityCallback linked, int64_t start,
                    int64_t end) override {
    buffer_ = std::make_unique<libkineto::CpuTraceBuffer>();
    buffer_->span = libkineto::TraceSpan(start, end, Registry::get().type_name);
    Rows rows{*buffer_, linked};
    rows.make(Collector::get());
    buffer_->gpuOpCount = static_cast<int>(buffer_->activities.size());
    for (const auto& row : buffer_->activities) logger.handleActivity(*row);
    for (const auto& [index, streams] : rows.streams) {
      Device& device = Registry::get().device(index);
      logger.handleDeviceInfo({index, kBelowProcesses + index, device.label(), device.spec().name}, start);
      for (const int32_t stream : streams) {
        const std::string name = "stream " + std::to_string(stream) + (stream == 0 ? " (default)" : "");
        logger.handleResourceInfo({stream, stream, index, name}, start);
      }
    }
  }
  std::unique_ptr<libkineto::DeviceInfo> getDeviceInfo() override { return nullptr; }
  std::vector<libkineto::ResourceInfo> getResourceInfos() override { return {}; }
  std::unique_ptr<libkineto::CpuTraceBuffer> getTraceBuffer() override { return std::move(buffer_); }

  // An op or a range that began before the profile did may end in it.
  static void pop(std::vector<uint64_t>& numbers) {
    if (!numbers.empty()) numbers.pop_back();
  }
  void pushCorrelationId(uint64_t id) override { Collector::ops.push_back(id); }
  void popCorrelationId() override { pop(Collector::ops); }
  void pushUserCorrelationId(uint64_t id) override { Collector::ranges.push_back(id); }
  void popUserCorrelationId() override { pop(Collector::ranges); }

 private:
  std::unique_ptr<libkineto::CpuTraceBuffer> buffer_;
};

struct Profiler final : libkineto::IActivityProfiler {
  const std::string& name() const override {
    static const std::string name = "bringup";
    return name;
  }
  const std::set<ActivityType>& availableActivities() const override {
    static const std::set<ActivityType> types{ActivityType::GPU_MEMCPY, ActivityType::CONCURRENT_KERNEL,
                                              ActivityType::GPU_USER_ANNOTATION, ActivityType::PRIVATEUSE1_RUNTIME};
    return types;
  }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(const std::set<ActivityType>& wanted,
                                                                 const libkineto::Config&) override {
    if (!wanted.count(ActivityType::CONCURRENT_KERNEL)) return nullptr; // a profile of the CPU only
    return std::make_unique<Session>();
  }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(int64_t, int64_t, const std::set<ActivityType>& wanted,
                                                                 const libkineto::Config& config) override {
    return configure(wanted, config);
  }
};

} // namespace

void register_kineto() {
  libkineto::api().registerProfilerFactory([] { return std::make_unique<Profiler>(); });
}

} // namespace bringup

#else // a torch without Kineto's headers: torch.profiler has CPU rows only
namespace bringup {
void register_kineto() {}
} // namespace bringup
#endif
