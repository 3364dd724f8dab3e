// Stress of the runtime for the sanitizers: first use, events, failures, captures and random states from many threads.
//
// Build and run (from the repository root), with SAN = thread, or address,undefined, or left out:
//   g++ -std=c++20 -O1 -g -fsanitize=$SAN -DBRINGUP_YIELD_POINTS -Ibringup/csrc -Ibringup/include
//       tests/sanitize/runtime_stress.cpp
//       bringup/csrc/runtime/{device,waiting,recording,allocator,block_pool}.cpp
//       -pthread -o runtime_stress && ./runtime_stress
// The driver is pretended: queued work is a number per stream, and it says when a handle is used that was destroyed.
// tests/sanitize/put_back.py puts known mistakes back into the runtime and shows that this program finds each.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <random>
#include <set>
#include <sstream>

#include "runtime/device.h"

using namespace bringup;

static thread_local std::minstd_rand t_random{std::random_device{}()};

void bringup::yield_point() noexcept {
  // Now and then for so long that others go through several of their own: what two threads must do in between is rare.
  if (t_random() % 32 == 0) std::this_thread::sleep_for(std::chrono::microseconds(t_random() % 200));
  for (unsigned turns = t_random() % 4; turns > 0; --turns) std::this_thread::yield();
}

namespace {

int passed = 0, failed = 0;
std::atomic<long> violations{0};
thread_local std::string t_error;

void check(bool ok, const char* what) {
  (ok ? passed : failed) += 1;
  if (!ok) std::printf("FAILED: %s\n", what);
}

// ---- the driver ----
constexpr int kDevices = 80, kThreads = 6;
constexpr uint64_t kGood = 1, kBad = 2; // kernels; the second fails, with its first argument as its number

struct FakeStream {
  std::deque<uint64_t> queue; // numbers of failing launches; 0 for all others
  uint64_t queued = 0, done = 0;
  std::vector<uint64_t> failures;
};
struct FakeDevice {
  std::mutex mutex;
  std::map<uint64_t, FakeStream> streams;
  std::map<uint64_t, std::pair<uint64_t, uint64_t>> events; // handle → stream, number
  std::map<uint64_t, int> users;                            // calls under way, per event
  uint64_t next = 1, launches = 0;

  int32_t say(int32_t status, const std::string& text) {
    t_error = text;
    return status;
  }
  void advance(FakeStream& stream, uint64_t until) { // runs what is queued, in order
    for (; stream.done < until; ++stream.done) {
      if (stream.queue.front()) stream.failures.push_back(stream.queue.front());
      stream.queue.pop_front();
    }
  }
  int32_t report(FakeStream& stream) {
    if (stream.failures.empty()) return BRINGUP_OK;
    std::string text = "failures:";
    for (uint64_t number : stream.failures) text += " " + std::to_string(number);
    stream.failures.clear();
    return say(BRINGUP_INDEX_ERROR, text);
  }
  // Uses an event for a while without the lock, as a driver that waits would.
  template <class F>
  int32_t with_event(uint64_t handle, F&& work) {
    std::unique_lock lock(mutex);
    const auto found = events.find(handle);
    if (found == events.end()) {
      ++violations;
      return say(BRINGUP_INVALID, "the event was destroyed");
    }
    const auto [stream, number] = found->second;
    ++users[handle];
    lock.unlock();
    yield_point();
    lock.lock();
    --users[handle];
    return work(streams[stream], number);
  }
};
FakeDevice fake[kDevices];

int32_t count(void*) { return kDevices; }
int32_t open_device(void*, int32_t, bringup_device_spec* spec) {
  yield_point();
  std::strcpy(spec->name, "pretended");
  spec->memory_bytes = 64 << 20;
  return BRINGUP_OK;
}
int32_t alloc(void*, int32_t d, uint64_t nbytes, uint64_t* address) {
  std::lock_guard lock(fake[d].mutex);
  *address = fake[d].next = (fake[d].next + 511) / 512 * 512 + 512;
  fake[d].next += nbytes;
  return BRINGUP_OK;
}
int32_t release(void*, int32_t, uint64_t) { return BRINGUP_OK; }
int32_t copy(void*, int32_t, uint64_t, uint64_t, uint64_t, int32_t, uint64_t, const bringup_placement*) {
  return BRINGUP_OK;
}
int32_t load(void*, int32_t, const void*, uint64_t, const char*, uint64_t* kernel) {
  return *kernel = kGood, BRINGUP_OK;
}
std::atomic<int32_t> g_lost{-1}; // a device whose launches fail for good
int32_t launch(void*, int32_t d, uint64_t kernel, const bringup_launch* work) {
  if (g_lost == d && work->args[0] == 77) return BRINGUP_DEVICE_LOST;
  std::lock_guard lock(fake[d].mutex);
  FakeStream& stream = fake[d].streams[work->stream];
  if (const int32_t status = fake[d].report(stream)) return status;
  stream.queue.push_back(kernel == kBad ? work->args[0] : 0);
  ++stream.queued;
  ++fake[d].launches;
  if (t_random() % 2) fake[d].advance(stream, stream.done + 1); // some of it runs by itself
  return BRINGUP_OK;
}
int32_t stream_create(void*, int32_t d, int32_t, uint64_t* stream) {
  std::lock_guard lock(fake[d].mutex);
  return *stream = ++fake[d].next, BRINGUP_OK;
}
int32_t stream_destroy(void*, int32_t, uint64_t) { return BRINGUP_OK; }
int32_t event_record(void*, int32_t d, uint64_t stream, uint32_t, uint64_t* event) {
  std::lock_guard lock(fake[d].mutex);
  *event = ++fake[d].next;
  fake[d].events[*event] = {stream, fake[d].streams[stream].queued};
  return BRINGUP_OK;
}
int32_t event_query(void*, int32_t d, uint64_t event, int32_t* done) {
  return fake[d].with_event(event, [&](FakeStream& stream, uint64_t number) {
    *done = stream.done >= number;
    return BRINGUP_OK;
  });
}
int32_t event_wait(void*, int32_t d, uint64_t event, int32_t, int64_t waiting) {
  return fake[d].with_event(event, [&](FakeStream& stream, uint64_t number) -> int32_t {
    if (waiting >= 0) return BRINGUP_OK;
    fake[d].advance(stream, number);
    return fake[d].report(stream);
  });
}
int32_t event_elapsed(void*, int32_t, uint64_t, uint64_t, double* ms) { return *ms = 0, BRINGUP_OK; }
int32_t event_destroy(void*, int32_t d, uint64_t event) {
  std::lock_guard lock(fake[d].mutex);
  if (!fake[d].events.erase(event) || fake[d].users[event]) ++violations; // twice, or under somebody's hands
  fake[d].users.erase(event);
  return BRINGUP_OK;
}
void last_error(void*, char* message, uint64_t size) { std::snprintf(message, size, "%s", t_error.c_str()); }

template <class F>
void in_threads(F&& work) {
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) threads.emplace_back([&, t] { work(t); });
  for (std::thread& thread : threads) thread.join();
}

void launch_on(Device& device, int32_t stream, uint64_t kernel, uint64_t number = 0) {
  const uint64_t args[] = {number};
  bringup_launch work{};
  work.args = args;
  work.arg_count = 1;
  work.grid = 1;
  static const LoadedKernel good{kGood, "good", 0, 0}, bad{kBad, "bad", 0, 0}; // captures keep them
  device.launch(kernel == kGood ? good : bad, work, stream);
}

// ---- first use: whoever has a device open sees everything that was done before ----
int g_registered = 0, g_runs = 0; // plain, so that a thread that does not wait is a data race
void register_once() {
  for (int i = 0; i < 20; ++i) {
    ++g_registered;
    yield_point();
  }
  ++g_runs;
  if (g_runs % 3 == 0) Registry::get().device(kDevices - g_runs).ensure_open(); // registering may open a device
  if (g_runs == 1) throw Error(BRINGUP_ERROR, "the first time fails");
}

void first_use() {
  constexpr int kRounds = (kDevices - 16) / kThreads;
  for (int round = 0; round < kRounds; ++round) {
    g_registered = 0;
    const int runs = g_runs;
    FirstUse::get().set(&register_once);
    std::atomic<long> refused{0}, late{0};
    in_threads([&](int t) {
      Device& device = Registry::get().device(t % 3 == 0 ? round * kThreads : round * kThreads + t);
      for (bool open = false; !open;) {
        try {
          device.ensure_open();
          open = true;
        } catch (const Error&) {
          ++refused;
        }
      }
      late += g_registered != (round == 0 ? 40 : 20);
    });
    check(late == 0 && refused == (round == 0) && g_runs == runs + (round == 0 ? 2 : 1), "first use, once and for all");
  }
}

// ---- events that are recorded again while others wait for them ----
void events(Device& device) {
  EventSlot slot;
  slot.record(device, 1);
  std::atomic<long> errors{0};
  in_threads([&](int t) {
    for (int i = 0; i < 3000; ++i) {
      try {
        if (t < 2) {
          launch_on(device, 1 + t, kGood);
          slot.record(device, 1 + t);
          continue;
        }
        const auto mark = slot.get();
        if (t == 2) mark->device.wait(mark->event);
        if (t == 3) mark->device.query(mark->event);
        if (t >= 4) mark->device.wait(mark->event, device, t);
      } catch (const Error& error) {
        if (errors++ == 0) std::printf("%s\n", error.what());
      }
    }
  });
  check(errors == 0 && violations.exchange(0) == 0, "events recorded again against waiters");
}

// ---- failures of queued work: each is heard exactly once ----
void failures(Device& device) {
  std::mutex mutex;
  std::multiset<uint64_t> heard;
  uint64_t injected = 0;
  auto hear = [&](const Error& error) {
    std::lock_guard lock(mutex);
    std::string text = error.what();
    for (char& character : text)
      if (character < '0' || character > '9') character = ' ';
    std::istringstream numbers(text);
    for (uint64_t number; numbers >> number;)
      if (number >= 1000) heard.insert(number);
  };
  in_threads([&](int t) {
    for (int i = 0; i < 3000; ++i) {
      const int32_t stream = 1 + t % 3;
      try {
        if (t < 3 && i % 5 == 0) {
          uint64_t number;
          {
            std::lock_guard lock(mutex);
            number = 1000 + injected++;
          }
          try {
            launch_on(device, stream, kBad, number);
          } catch (const Error& error) { // of earlier work: this launch was not queued
            hear(error);
            std::lock_guard lock(mutex);
            heard.insert(number);
          }
        } else if (t == 3) { // the core's own waits take nothing from the user
          device.finish_work(i % 4 ? 1 + i % 3 : kAllStreams);
          Block* block = device.memory().allocate(4096, 1 + i % 3);
          device.memory().record_stream(block, 1 + (i + 1) % 3);
          device.memory().free(block);
          device.memory().empty_cache();
        } else if (t == 4) {
          i % 2 ? device.synchronize() : device.drain(stream);
        } else if (t == 5 && i % 4) { // a second one, so that both may have a failure of one stream to keep
          device.finish_work(stream);
        } else if (t == 5) {
          EventSlot slot;
          slot.record(device, stream);
          device.wait(slot.get()->event);
        } else {
          launch_on(device, stream, kGood);
        }
      } catch (const Error& error) {
        hear(error);
      }
    }
  });
  device.finish_work(kAllStreams);
  try {
    device.synchronize();
  } catch (const Error& error) {
    hear(error);
  }
  check(heard.size() == injected && std::set<uint64_t>(heard.begin(), heard.end()).size() == injected,
        "every failure is heard once");
  check(violations.exchange(0) == 0, "failures");
  for (int32_t stream : {1, 2}) launch_on(device, stream, kBad, 10 * stream);
  std::string message;
  try {
    device.synchronize();
  } catch (const Error& error) {
    message = error.what();
  }
  check(message.find("10") != std::string::npos && message.find("20") != std::string::npos,
        "synchronize goes on after the first stream that failed");
}

// ---- a failure is heard by the first of the user's waits behind it, whatever other threads wait for meanwhile ----
void heard_at_once(Device& device) {
  std::atomic<long> clean{0};
  std::atomic<int> users{3};
  in_threads([&](int t) {
    const int32_t stream = 1 + t % 3;
    if (t >= 3) { // the core's own waits, among them for events that others have long waited for
      for (int i = 0; users; ++i) {
        if (i % 3 == 0) device.finish_work(i % 2 ? stream : kAllStreams);
        Block* block = device.memory().allocate(4096, stream % 3 + 1);
        device.memory().record_stream(block, stream);
        device.memory().free(block);
        device.memory().empty_cache();
      }
      return;
    }
    for (int i = 0; i < 2000; ++i) {
      bool heard = false;
      try {
        launch_on(device, stream, kBad, 1000 + i);
        // The core's waits take the failure meanwhile; the stream stays busy, so this is as long as it may get.
        for (int turns = 0; turns < 20 && device.busy(stream); ++turns) yield_point();
        if (i % 3 == 0) {
          device.synchronize_stream(stream);
        } else if (i % 3 == 1) {
          device.drain(stream);
        } else {
          EventSlot slot;
          slot.record(device, stream);
          device.wait(slot.get()->event);
        }
      } catch (const Error&) {
        heard = true;
      }
      clean += !heard;
    }
    --users;
  });
  if (clean) std::printf("%ld of 6000 waits did not hear of the failure before them\n", clean.load());
  check(clean == 0, "a user's wait hears of what failed before it");
  check(violations.exchange(0) == 0, "failures, heard at once");
  device.synchronize();
}

// ---- a capture that ends while other threads use its stream: their work is in it, or has run ----
void captures(Device& device) {
  device.synchronize();
  const uint64_t before = fake[device.local].launches;
  uint64_t captured = 0;
  std::atomic<uint64_t> asked{0};
  std::atomic<bool> stop{false};
  in_threads([&](int t) {
    if (t > 0) {
      while (!stop) {
        launch_on(device, 1, kGood);
        ++asked;
        (void)device.memory_pool(1);
        yield_point();
      }
      return;
    }
    for (int i = 0; i < 400; ++i) {
      auto recording = std::make_shared<Recording>(1 << 16, Recording::Mode::relaxed);
      device.begin_capture(recording, 1);
      for (int k = 0; k < 3; ++k) yield_point();
      device.end_capture(recording);
      captured += recording->take().steps.size();
    }
    stop = true;
  });
  device.synchronize();
  check(captured + fake[device.local].launches - before == asked, "captured or launched, never neither");
  check(violations.exchange(0) == 0, "captures");
}

// ---- generators that share a state ----
void random_states() {
  RandomSource source({7, 0});
  std::vector<uint64_t> drawn[kThreads];
  in_threads([&](int t) {
    for (int i = 0; i < 20000; ++i) {
      const RandomState state = source.advance(4);
      if (state.seed != 7) ++violations;
      drawn[t].push_back(state.offset);
      if (i % 100 == 0 && source.get().offset < state.offset) ++violations;
    }
  });
  std::set<uint64_t> offsets;
  for (const auto& of_thread : drawn) offsets.insert(of_thread.begin(), of_thread.end());
  check(offsets.size() == kThreads * 20000 && source.get().offset == 4 * offsets.size(), "every offset once");
  check(violations.exchange(0) == 0, "random states");
}

} // namespace

// ---- a device that one thread loses while the others use it ----
void losses(Device& device) {
  device.ensure_open();
  g_lost = device.local;
  std::atomic<long> wrong{0}, told{0};
  in_threads([&](int t) {
    for (int i = 0; i < 400; ++i) {
      try {
        const int32_t stream = t % 3;
        device.stream_handle(stream);
        launch_on(device, stream, t == 1 ? kBad : kGood, t == 0 && i == 200 ? 77 : 1);
        const Event event = device.record(stream);
        yield_point();
        device.wait(event);
        device.destroy(event);
      } catch (const Error& error) {
        if (error.status == BRINGUP_DEVICE_LOST)
          ++told;
        else if (error.status != BRINGUP_INDEX_ERROR)
          ++wrong;
      }
    }
  });
  check(wrong == 0 && told > 0, "every error is of the lost device, or of work that failed before");
  for (int32_t stream = 0; stream < 3; ++stream) {
    for (int again = 0; again < 2; ++again) {
      try {
        launch_on(device, stream, kGood);
        check(false, "a lost device takes no launch");
      } catch (const Error& error) {
        check(error.status == BRINGUP_DEVICE_LOST, "the error of a lost device");
      }
    }
  }
  check(!device.usable() && device.lost(), "a lost device is not usable");
}

int main() {
  bringup_driver table{};
  table.abi_version = BRINGUP_ABI_VERSION;
  table.struct_size = sizeof table;
  table.device_count = count;
  table.open = open_device;
  table.alloc = alloc;
  table.free = release;
  table.copy = copy;
  table.load = load;
  table.launch = launch;
  table.stream_create = stream_create;
  table.stream_destroy = stream_destroy;
  table.event_record = event_record;
  table.event_query = event_query;
  table.event_wait = event_wait;
  table.event_elapsed = event_elapsed;
  table.event_destroy = event_destroy;
  table.last_error = last_error;
  Registry::get().add(&table, "fake");
  first_use();
  events(Registry::get().device(0));
  failures(Registry::get().device(1));
  heard_at_once(Registry::get().device(3));
  captures(Registry::get().device(2));
  losses(Registry::get().device(4));
  random_states();
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed != 0;
}
