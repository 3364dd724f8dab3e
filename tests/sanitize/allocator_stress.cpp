// Stress of the caching allocator alone, for the sanitizers: no torch, no Python, a fake device made of host memory.
//
// Build and run (from the repository root), with SAN = thread, or address,undefined, or left out:
//   g++ -std=c++20 -O1 -g -fsanitize=$SAN -Ibringup/csrc -Ibringup/include tests/sanitize/allocator_stress.cpp
//       bringup/csrc/runtime/{allocator,block_pool}.cpp -pthread -o allocator_stress &&
//       ./allocator_stress
// `./allocator_stress --bench` (built with -O2) prints nanoseconds per alloc+free pair instead.
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

#include "runtime/allocator.h"
#include "runtime/blocking.h"

using namespace bringup;

namespace {

constexpr uint64_t MiB = 1 << 20;
int passed = 0, failed = 0;
std::atomic<long> violations{0};

void check(bool ok, const char* what) {
  (ok ? passed : failed) += 1;
  if (!ok) std::printf("FAILED: %s\n", what);
}

// Host memory with a limit. An event is a ticket; ticket t is done once `finished` has passed it.
struct FakeDevice : MemoryBackend {
  explicit FakeDevice(uint64_t memory, double failure_rate = 0) : memory(memory), failure_rate(failure_rate) {}
  ~FakeDevice() override {
    for (auto& [address, size] : segments) std::free(reinterpret_cast<void*>(address));
  }

  bool fails() noexcept {
    thread_local std::mt19937_64 random(std::hash<std::thread::id>{}(std::this_thread::get_id()));
    return failure_rate > 0 && random() % 10000 < failure_rate * 10000;
  }
  void maybe_fail() {
    if (fails()) throw Error(BRINGUP_ERROR, "injected");
  }
  uint64_t raw_alloc(uint64_t nbytes) override {
    maybe_fail();
    std::lock_guard lock(mutex);
    ++calls;
    if (used + nbytes > memory) throw Error(BRINGUP_OUT_OF_MEMORY, "full");
    used += nbytes;
    peak = std::max(peak, used);
    void* pointer = std::aligned_alloc(512, nbytes);
    segments[reinterpret_cast<uint64_t>(pointer)] = nbytes;
    return reinterpret_cast<uint64_t>(pointer);
  }
  void raw_free(uint64_t address) override {
    maybe_fail();
    std::lock_guard lock(mutex);
    auto it = segments.find(address);
    if (it == segments.end()) {
      ++violations;
      return;
    }
    for (const auto& [stream, number] : uses[address])
      if (worked[stream] < number) ++violations; // that work would write into memory of somebody else
    uses.erase(address);
    used -= it->second;
    segments.erase(it);
    std::free(reinterpret_cast<void*>(address));
  }
  uint64_t raw_memory() override { return memory; }
  uint64_t record_event(int32_t) override {
    maybe_fail();
    if (refuse_events) throw Error(BRINGUP_ERROR, "no events today");
    ++live_events;
    return ++tickets;
  }
  bool query_event(uint64_t event) override {
    maybe_fail();
    return finished >= event;
  }
  bool wait_event(uint64_t event, int32_t) noexcept override {
    if (fails()) return false;
    uint64_t seen = finished;
    while (seen < event && !finished.compare_exchange_weak(seen, event)) {
    }
    return true;
  }
  bool finish_work(int32_t stream) noexcept override {
    if (fails()) return false;
    std::lock_guard lock(mutex);
    for (int32_t i = 0; i < kStreams; ++i)
      if (stream == kAllStreams || stream == i) worked[i] = queued[i];
    return true;
  }
  // Work that is queued on a stream and uses the segment of an address; it runs whenever finish_work says so.
  void use(uint64_t address, int32_t stream) {
    std::lock_guard lock(mutex);
    uses[std::prev(segments.upper_bound(address))->first][stream] = ++queued[stream];
  }
  void destroy_event(uint64_t event) override {
    if (finished < event) ++violations;
    --live_events;
    maybe_fail();
  }
  std::string label() override { return "fake:0"; }

  const uint64_t memory;
  double failure_rate;
  std::atomic<bool> refuse_events{false};
  std::atomic<uint64_t> tickets{0}, finished{0};
  std::atomic<long> live_events{0};
  std::mutex mutex;
  uint64_t used = 0, peak = 0, calls = 0;
  std::map<uint64_t, uint64_t> segments;
  static constexpr int32_t kStreams = 8;
  uint64_t queued[kStreams] = {}, worked[kStreams] = {};
  std::map<uint64_t, std::map<int32_t, uint64_t>> uses; // per segment: the last work of each stream on it
};

// Address ranges that must not be handed out: live blocks, and freed ones until their ticket is done.
struct Registry {
  struct Range {
    uint64_t end, ticket; // ticket 0: live
  };
  void enter(const FakeDevice& device, uint64_t begin, uint64_t size) {
    std::lock_guard lock(mutex);
    auto it = ranges.lower_bound(begin);
    if (it != ranges.begin() && std::prev(it)->second.end > begin) --it;
    while (it != ranges.end() && it->first < begin + size) {
      if (it->second.ticket == 0 || device.finished < it->second.ticket) ++violations;
      it = ranges.erase(it);
    }
    ranges[begin] = {begin + size, 0};
  }
  // Before free(): from then on the block may return at once, or when the events that free() records are done.
  void leave(const FakeDevice& device, uint64_t begin, bool recorded) {
    std::lock_guard lock(mutex);
    if (recorded) {
      ranges[begin].ticket = device.tickets + 1;
    } else {
      ranges.erase(begin);
    }
  }
  std::mutex mutex;
  std::map<uint64_t, Range> ranges;
};

struct Held {
  Block* block;
  uint64_t nbytes;
  uint8_t pattern;
  bool recorded;
};

bool intact(const Held& held) {
  const auto* data = reinterpret_cast<const uint8_t*>(held.block->address);
  return data[0] == held.pattern && data[held.nbytes / 2] == held.pattern && data[held.nbytes - 1] == held.pattern;
}

void random_work(CachingAllocator& allocator, FakeDevice& device, Registry& registry, unsigned seed, int operations) {
  std::mt19937_64 random(seed);
  std::vector<Held> held;
  int32_t pool = allocator.make_pool();
  auto release = [&](size_t index) {
    Held victim = held[index];
    held[index] = held.back();
    held.pop_back();
    if (!intact(victim)) ++violations;
    const bool pooled =
        victim.block->stream >= FakeDevice::kStreams; // a graph's memory is used wherever it is replayed
    device.use(victim.block->address, pooled ? static_cast<int32_t>(random() % 3) : victim.block->stream);
    registry.leave(device, victim.block->address, victim.recorded);
    allocator.free(victim.block);
  };
  for (int i = 0; i < operations; ++i) {
    const unsigned dice = random() % 100;
    if (dice < 45 || held.empty()) {
      static const uint64_t caps[] = {600, 5000, 60000, MiB, 3 * MiB, 12 * MiB};
      const uint64_t nbytes = 1 + random() % caps[random() % (dice < 3 ? 6 : 4)];
      Held fresh{nullptr, nbytes, static_cast<uint8_t>(random()), false};
      try {
        const auto stream = static_cast<int32_t>(random() % 4);
        fresh.block = allocator.allocate(nbytes, stream == 3 ? pool : stream);
      } catch (const Error&) { // full, or an injected failure: make room and go on
        while (held.size() > 4) release(random() % held.size());
        continue;
      }
      if (fresh.block->owner != &allocator) ++violations;
      if (fresh.block->size < nbytes || fresh.block->address % 512 != 0) ++violations;
      registry.enter(device, fresh.block->address, fresh.block->size);
      if (allocator.find(fresh.block->address + nbytes - 1) != fresh.block) ++violations;
      auto* data = reinterpret_cast<uint8_t*>(fresh.block->address);
      data[0] = data[nbytes / 2] = data[nbytes - 1] = fresh.pattern;
      held.push_back(fresh);
    } else if (dice < 85) {
      release(random() % held.size());
    } else if (dice < 95) {
      Held& chosen = held[random() % held.size()];
      const auto stream = static_cast<int32_t>(random() % 5);
      allocator.record_stream(chosen.block, stream);
      chosen.recorded |= stream != chosen.block->stream;
    } else if (dice < 98) {
      uint64_t done = device.finished;
      if (const uint64_t target = device.tickets; target > done) {
        done += 1 + random() % (target - done);
        uint64_t seen = device.finished;
        while (seen < done && !device.finished.compare_exchange_weak(seen, done)) {
        }
      }
    } else if (dice == 98) {
      (void)allocator.stats();
      (void)allocator.snapshot();
      allocator.release_pool(pool); // blocks of it may be live: they stay valid
      pool = allocator.make_pool();
    } else if (i % 7 == 0) {
      try {
        allocator.empty_cache();
      } catch (const Error&) {
      }
    }
  }
  while (!held.empty()) release(held.size() - 1);
  allocator.release_pool(pool);
}

void everything_returns(CachingAllocator& allocator, FakeDevice& device, const char* what) {
  device.failure_rate = 0;
  device.refuse_events = false;
  allocator.empty_cache();
  const MemoryStats stats = allocator.stats();
  check(stats.allocated_bytes.kind[0].current == 0 && stats.active_bytes.kind[0].current == 0 &&
            stats.requested_bytes.kind[0].current == 0 && stats.inactive_split_bytes.kind[0].current == 0,
        what);
  check(stats.reserved_bytes.kind[0].current == 0 && stats.segment.kind[0].current == 0, what);
  check(stats.num_device_alloc == stats.num_device_free && allocator.snapshot().empty(), what);
  check(device.used == 0 && device.segments.empty() && device.live_events == 0, what);
  check(violations.exchange(0) == 0, what);
}

void stress(int threads, uint64_t memory, double failure_rate, double fraction, const char* what) {
  FakeDevice device(memory, failure_rate);
  CachingAllocator allocator(device);
  allocator.set_fraction(fraction);
  Registry registry;
  std::vector<std::thread> workers;
  for (int t = 0; t < threads; ++t) {
    workers.emplace_back([&, t] { random_work(allocator, device, registry, 1234u + t, 10000); });
  }
  for (auto& worker : workers) worker.join();
  check(device.peak <= static_cast<uint64_t>(fraction * memory), what);
  everything_returns(allocator, device, what);
}

std::string error_of(CachingAllocator& allocator, uint64_t nbytes) {
  try {
    allocator.free(allocator.allocate(nbytes, 0));
  } catch (const Error& error) {
    return error.status == BRINGUP_OUT_OF_MEMORY ? error.what() : "wrong status";
  }
  return "";
}

void out_of_memory() {
  FakeDevice device(64 * MiB);
  CachingAllocator allocator(device);
  Block* large = allocator.allocate(40 * MiB, 0);
  check(error_of(allocator, 30 * MiB).find("tried to allocate 31457280 bytes") != std::string::npos,
        "message says how much");
  check(error_of(allocator, UINT64_MAX).find("fake:0 is out of memory") == 0, "an absurd size is out of memory");
  allocator.free(large);
  Block* retried = allocator.allocate(30 * MiB, 1); // another stream: the cached 40 MiB must go back first
  MemoryStats stats = allocator.stats();
  check(stats.num_alloc_retries == 2 && stats.num_ooms == 2, "one failed and one successful retry");
  check(stats.reserved_bytes.kind[2].current == static_cast<int64_t>(30 * MiB), "the cache was released");
  Block* exact = allocator.allocate(25 * MiB, 0);
  Block* last = allocator.allocate(3 * MiB, 0); // a segment of 8 MiB fits
  Block* tail = allocator.allocate(1 * MiB, 3); // no 2 MiB segment left after this one
  check(tail && last && exact, "small segments on a small device");
  allocator.record_stream(retried, 7);
  allocator.free(retried);
  check(allocator.stats().active_bytes.kind[0].current > allocator.stats().allocated_bytes.kind[0].current, "deferred");
  Block* waited = allocator.allocate(28 * MiB, 0); // only by waiting for the event of stream 7
  check(waited != nullptr && device.finished >= 1, "out of memory waits for recorded streams");
  for (Block* block : {exact, last, tail, waited}) allocator.free(block);
  everything_returns(allocator, device, "out of memory");

  FakeDevice tiny(100 * 1024); // far below one segment
  CachingAllocator small(tiny);
  std::vector<Block*> blocks;
  for (int i = 0; i < 180; ++i) blocks.push_back(small.allocate(512, 0));
  for (Block* block : blocks) small.free(block);
  Block* most = small.allocate(90 * 1024, 0);
  small.free(most);
  everything_returns(small, tiny, "a device with 100 KiB");
}

void failing_events() {
  FakeDevice device(64 * MiB);
  CachingAllocator allocator(device);
  Block* block = allocator.allocate(12 * MiB, 0);
  const uint64_t address = block->address;
  allocator.record_stream(block, 1);
  device.refuse_events = true;
  allocator.free(block); // must not throw, must not be reused
  Block* other = allocator.allocate(12 * MiB, 0);
  check(other->address != address, "no reuse while the event could not be recorded");
  device.refuse_events = false;
  Block* third = allocator.allocate(12 * MiB, 0); // records now; not done yet
  check(third->address != address && device.tickets == 1, "the event is recorded at the next opportunity");
  device.finished = 1;
  Block* reused = allocator.allocate(12 * MiB, 0);
  check(reused->address == address, "reused after the event");
  for (Block* held : {other, third, reused}) allocator.free(held);
  everything_returns(allocator, device, "failing events");
}

void pools_of_graphs() {
  FakeDevice device(64 * MiB);
  CachingAllocator allocator(device);
  const int32_t pool = allocator.make_pool(), other = allocator.make_pool();
  Block* block = allocator.allocate(12 * MiB, pool);
  const uint64_t address = block->address;
  allocator.free(block);
  allocator.empty_cache();
  check(device.used == 12 * MiB, "a held pool keeps free memory");
  Block* elsewhere[] = {allocator.allocate(12 * MiB, 0), allocator.allocate(12 * MiB, other)};
  check(elsewhere[0]->address != address && elsewhere[1]->address != address, "nobody else gets a pool's memory");
  block = allocator.allocate(12 * MiB, pool);
  check(block->address == address, "the pool itself does");
  check(!error_of(allocator, 40 * MiB).empty() && device.segments.count(address), "also when memory is short");
  Block* small = allocator.allocate(700, pool);
  allocator.free(block);
  allocator.release_pool(pool);
  check(device.used == 26 * MiB, "a pool that is given back frees what no block holds");
  allocator.free(small);
  allocator.empty_cache();
  check(device.used == 24 * MiB, "the rest is cache like any other");
  allocator.free(elsewhere[0]);
  allocator.free(elsewhere[1]);
  allocator.release_pool(other);
  everything_returns(allocator, device, "pools of graphs");
}

// A driver in Python: it needs the GIL, which the thread that waits for its memory holds.
std::mutex g_gil;
thread_local bool t_has_gil = false;
struct PythonDevice : FakeDevice {
  using FakeDevice::FakeDevice;
  void raw_free(uint64_t address) override {
    inside = true;
    std::lock_guard lock(g_gil);
    FakeDevice::raw_free(address);
  }
  std::atomic<bool> inside{false};
};

void waiting_lets_the_gil_go() {
  blocking_hooks = {[]() -> void* {
                      if (t_has_gil) g_gil.unlock();
                      return std::exchange(t_has_gil, false) ? &g_gil : nullptr;
                    },
                    [](void*) {
                      g_gil.lock();
                      t_has_gil = true;
                    }};
  PythonDevice device(64 * MiB);
  CachingAllocator allocator(device);
  allocator.free(allocator.allocate(40 * MiB, 1));
  g_gil.lock();
  t_has_gil = true;
  std::thread other([&] { allocator.empty_cache(); });
  while (!device.inside) std::this_thread::yield();
  check(error_of(allocator, 40 * MiB).empty(), "memory that a Python driver is just giving back is waited for");
  g_gil.unlock();
  t_has_gil = false;
  blocking_hooks = {};
  other.join();
}

void fraction_limit() {
  FakeDevice device(400 * MiB);
  CachingAllocator allocator(device);
  allocator.set_fraction(0.25);
  const std::string message = error_of(allocator, 101 * MiB);
  check(message.find("out of memory") != std::string::npos && device.calls == 0, "refused before the driver");
  Block* block = allocator.allocate(100 * MiB, 0);
  check(!error_of(allocator, 1).empty(), "not one byte more");
  allocator.set_fraction(1.0);
  check(error_of(allocator, 1).empty(), "1.0 lifts it");
  for (double bad : {-0.1, 1.5, std::nan("")}) {
    try {
      allocator.set_fraction(bad);
      check(false, "a bad fraction is an error");
    } catch (const Error& error) {
      check(error.status == BRINGUP_INVALID, "a bad fraction is an error");
    }
  }
  std::printf("%s\n", message.c_str());
  allocator.free(block);
  everything_returns(allocator, device, "fraction");
}

void bench() {
  FakeDevice device(1024 * MiB);
  CachingAllocator allocator(device);
  auto measure = [](const char* what, auto body) {
    double best = 1e9;
    for (int round = 0; round < 7; ++round) {
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < 1000000; ++i) body(i);
      best = std::min(best, std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count());
    }
    std::printf("%-44s %6.1f ns\n", what, best / 1e6);
  };
  Block* pins[64];
  for (Block*& pin : pins) pin = allocator.allocate(3000, 0);
  for (int i = 0; i < 64; i += 2) allocator.free(pins[i]);
  std::thread([] {}).join(); // glibc takes no lock in a program that never had a second thread
  std::mutex mutex;
  measure("lock+unlock twice", [&](int) {
    {
      std::lock_guard lock(mutex);
    }
    std::lock_guard lock(mutex);
  });
  measure("1 KiB, quick list: pair", [&](int) { allocator.free(allocator.allocate(1024, 0)); });
  measure("eight sizes, quick lists: pair", [&](int i) { allocator.free(allocator.allocate(512 * (1 + i % 8), 0)); });
  measure("100 KiB, ordered set: pair", [&](int) { allocator.free(allocator.allocate(100 << 10, 0)); });
  measure("4 MiB, ordered set: pair", [&](int) { allocator.free(allocator.allocate(4 * MiB, 0)); });
  measure("1 KiB on two streams in turn: pair", [&](int i) { allocator.free(allocator.allocate(1024, i & 1)); });
}

} // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "--bench") == 0) {
    bench();
    return 0;
  }
  stress(1, 4096 * MiB, 0, 1.0, "1 thread");
  stress(8, 4096 * MiB, 0, 1.0, "8 threads");
  stress(1, 96 * MiB, 0, 1.0, "1 thread, little memory");
  stress(8, 96 * MiB, 0, 1.0, "8 threads, little memory");
  stress(8, 512 * MiB, 0, 0.25, "8 threads, fraction");
  stress(1, 96 * MiB, 0.01, 1.0, "1 thread, 1 % failures");
  stress(8, 96 * MiB, 0.01, 0.9, "8 threads, 1 % failures");
  out_of_memory();
  failing_events();
  pools_of_graphs();
  fraction_limit();
  waiting_lets_the_gil_go();
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed != 0;
}
