// CachingAllocator over a pretended device (numbers, no memory) under plain C names, for ctypes (test_allocator.py).
#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>

#include "runtime/allocator.h"

using namespace bringup;

namespace {

struct PretendedDevice : MemoryBackend {
  explicit PretendedDevice(uint64_t memory) : memory(memory) {}

  void enter() { // a Python function: needs the GIL
    if (hook) hook();
  }
  uint64_t raw_alloc(uint64_t nbytes) override {
    enter();
    std::lock_guard lock(mutex);
    if (nbytes > memory - used) throw Error(BRINGUP_OUT_OF_MEMORY, "full");
    used += nbytes;
    const uint64_t address = next;
    next += nbytes + 4096; // a gap: blocks of two segments are never neighbours
    segments[address] = nbytes;
    return address;
  }
  void raw_free(uint64_t address) override {
    enter();
    std::lock_guard lock(mutex);
    used -= segments.at(address);
    segments.erase(address);
  }
  uint64_t raw_memory() override { return memory; }
  // An event is (stream, ticket); `completed` says how far each stream is.
  uint64_t record_event(int32_t stream) override {
    enter();
    std::lock_guard lock(mutex);
    if (refuse_events) throw Error(BRINGUP_ERROR, "no events today");
    ++live_events;
    return static_cast<uint64_t>(stream) << 32 | ++recorded[stream];
  }
  bool query_event(uint64_t event) override {
    enter();
    std::lock_guard lock(mutex);
    return completed[static_cast<int32_t>(event >> 32)] >= (event & 0xFFFFFFFF);
  }
  bool wait_event(uint64_t event, int32_t) noexcept override {
    enter();
    std::lock_guard lock(mutex);
    uint64_t& done = completed[static_cast<int32_t>(event >> 32)];
    done = std::max(done, event & 0xFFFFFFFF);
    return true;
  }
  bool finish_work(int32_t) noexcept override {
    enter();
    return true;
  }
  void destroy_event(uint64_t) override {
    std::lock_guard lock(mutex);
    --live_events;
  }
  std::string label() override { return "pretended:0"; }

  std::mutex mutex;
  uint64_t memory, used = 0, next = 1 << 20;
  int64_t live_events = 0;
  bool refuse_events = false;
  void (*hook)() = nullptr;
  std::map<uint64_t, uint64_t> segments;
  std::map<int32_t, uint64_t> recorded, completed;
};

struct Session {
  explicit Session(uint64_t memory) : device(memory), allocator(device) {}
  PretendedDevice device;
  CachingAllocator allocator;
};

thread_local std::string message;

int status_of(auto body) {
  try {
    body();
    return BRINGUP_OK;
  } catch (const Error& error) {
    message = error.what();
    return error.status;
  }
}

} // namespace

extern "C" {
Session* session_new(uint64_t memory) { return new Session(memory); }
void session_delete(Session* s) { delete s; }
const char* last_message() { return message.c_str(); }

int allocate(Session* s, uint64_t nbytes, int32_t stream, Block** block) {
  return status_of([&] { *block = s->allocator.allocate(nbytes, stream); });
}
void release(Session* s, Block* block) { s->allocator.free(block); }
void record_stream(Session* s, Block* block, int32_t stream) { s->allocator.record_stream(block, stream); }
uint64_t address(Block* block) { return block->address; }
uint64_t size(Block* block) { return block->size; }
Block* find(Session* s, uint64_t address) { return s->allocator.find(address); }
int empty_cache(Session* s) {
  return status_of([&] { s->allocator.empty_cache(); });
}
int set_fraction(Session* s, double fraction) {
  return status_of([&] { s->allocator.set_fraction(fraction); });
}
void reset_peak(Session* s) { s->allocator.reset_peak(); }
void reset_accumulated(Session* s) { s->allocator.reset_accumulated(); }

// MemoryStats is nothing but int64: nine sets of three kinds of (current, peak, allocated, freed), then five counters.
uint64_t stats(Session* s, int64_t* out) {
  static_assert(sizeof(MemoryStats) == (9 * 3 * 4 + 5) * sizeof(int64_t));
  const MemoryStats stats = s->allocator.stats();
  if (out) std::memcpy(out, &stats, sizeof stats);
  return sizeof stats / sizeof(int64_t);
}
// Rows of (segment address, segment size, stream, large, address, size, requested, allocated, active).
uint64_t snapshot(Session* s, uint64_t* out, uint64_t rows) {
  uint64_t row = 0;
  for (const auto& [start, bytes, stream, large, blocks] : s->allocator.snapshot()) {
    for (const auto& [address, size, requested, allocated, active] : blocks) {
      const uint64_t values[9] = {start,     bytes, static_cast<uint64_t>(stream), large, address, size, requested,
                                  allocated, active};
      if (row < rows) std::memcpy(out + 9 * row, values, sizeof values);
      ++row;
    }
  }
  return row;
}

uint64_t device_used(Session* s) { return s->device.used; }
uint64_t device_segments(Session* s) { return s->device.segments.size(); }
int64_t device_events(Session* s) { return s->device.live_events; }
uint64_t recorded(Session* s, int32_t stream) { return s->device.recorded[stream]; }
uint64_t completed(Session* s, int32_t stream) { return s->device.completed[stream]; }
void complete(Session* s, int32_t stream) { s->device.completed[stream] = s->device.recorded[stream]; }
void refuse_events(Session* s, int refuse) { s->device.refuse_events = refuse != 0; }
void set_hook(Session* s, void (*hook)()) { s->device.hook = hook; }
}
