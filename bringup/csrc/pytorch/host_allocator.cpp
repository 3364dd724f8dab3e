// Pinned host memory: torch's caching host allocator over the driver's own, or aligned pages.
#include "pytorch/allocator.h"

#include <ATen/Context.h>
#include <ATen/core/CachingHostAllocator.h>

#include <cstdlib>
#include <map>
#include <mutex>

#include "pytorch/context.h"

namespace bringup {
namespace {

// Ranges of live pinned blocks, so that is_pinned() answers for pointers into their middle. A block comes and goes
// rarely, because torch's host allocator caches, so a mutex is enough.
struct PinnedRange {
  size_t nbytes;
  Driver* registered_by = nullptr; // of memory that is the user's own
};
struct PinnedRanges {
  std::mutex mutex;
  std::map<uintptr_t, PinnedRange> ranges;
  // A copy of the range that holds the address, if one does.
  std::optional<PinnedRange> find(const void* pointer) {
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    std::lock_guard lock(mutex);
    auto next = ranges.upper_bound(address);
    if (next == ranges.begin()) return std::nullopt;
    --next;
    return address < next->first + next->second.nbytes ? std::optional(next->second) : std::nullopt;
  }
};
PinnedRanges& pinned_ranges() {
  static auto* ranges = new PinnedRanges();
  return *ranges;
}

// The event torch's allocator keeps per block and stream.
struct HostEvent {
  Device* device;
  Event event;
};

struct HostAllocatorImpl final : at::CachingHostAllocatorImpl<c10::Stream, HostEvent> {
  void allocate_host_memory(size_t size, void** pointer) override {
    Driver* driver = pinning_driver();
    translated([&] {
      if (driver) {
        const Device& current = Registry::get().device(current_device());
        const int32_t local = &current.driver == driver ? current.local : 0;
        driver->call("host_alloc", local, [&] { // portable: the cache above is one for all devices
          return driver->api.host_alloc(driver->api.self, size, local, BRINGUP_HOST_PORTABLE, pointer);
        });
      } else
        *pointer = std::aligned_alloc(4096, (size + 4095) / 4096 * 4096);
      if (*pointer == nullptr)
        throw Error(BRINGUP_OUT_OF_MEMORY, "no memory for " + std::to_string(size) + " bytes of pinned host memory");
    });
    std::lock_guard<std::mutex> lock(pinned_ranges().mutex);
    pinned_ranges().ranges[reinterpret_cast<uintptr_t>(*pointer)] = {size};
  }
  void free_block(at::HostBlock<c10::Stream>* block) override {
    {
      std::lock_guard<std::mutex> lock(pinned_ranges().mutex);
      pinned_ranges().ranges.erase(reinterpret_cast<uintptr_t>(block->ptr_));
    }
    if (Driver* driver = pinning_driver())
      driver->call_quietly("host_free", 0, [&] { return driver->api.host_free(driver->api.self, block->ptr_); });
    else
      std::free(block->ptr_);
  }
  void record_stream(std::optional<std::vector<HostEvent>>& events, c10::Stream stream) override {
    // Called from destructors: it must not throw. On a closed device nothing runs any more. If the event cannot be
    // recorded the block is never reused: queued work may still write to it.
    Device& device = Registry::get().device(stream.device_index());
    Event event;
    try {
      if (device.usable()) event = device.record(static_cast<int32_t>(stream.id()));
    } catch (const Error& error) {
      TORCH_WARN("pinned memory is lost, because the work that uses it cannot be followed: ", error.what());
      return; // torch counts one event more than it has, and so keeps the block for ever
    }
    events->push_back({&device, event});
  }
  bool query_event(HostEvent& event) override {
    return translated([&] {
      if (event.device->usable() && !event.device->query(event.event)) return false;
      event.device->destroy(event.event);
      return true;
    });
  }
  // Pinned memory of the first driver that has a way of its own; one process has one pinned allocator.
  static Driver* pinning_driver() {
    for (int32_t index = 0; index < Registry::get().device_count(); ++index) {
      Driver& driver = Registry::get().device(index).driver;
      if (driver.api.host_alloc && driver.api.host_free) return &driver;
    }
    return nullptr;
  }
};

void delete_host_block(void* context);

struct HostAllocator final : at::CachingHostAllocatorInterface<HostAllocatorImpl, delete_host_block> {
  void copy_data(void* dest, const void* source, std::size_t count) const override { std::memcpy(dest, source, count); }
};

HostAllocator& host_allocator() {
  static auto* allocator = new HostAllocator();
  return *allocator;
}

void delete_host_block(void* context) { host_allocator().free(context); }

} // namespace

c10::Allocator* pinned_allocator() { return &host_allocator(); }

bool is_pinned(const void* pointer) { return pinned_ranges().find(pointer).has_value(); }

void register_host_memory(Device& device, void* pointer, uint64_t nbytes, uint32_t flags) {
  at::globalContext().lazyInitDevice(kDeviceType); // or torch takes no pointer for pinned
  device.ensure_open();
  Driver& driver = device.driver;
  if (!driver.api.host_register || !driver.api.host_unregister) driver.missing("host_register");
  driver.call("host_register", device.local,
              [&] { return driver.api.host_register(driver.api.self, pointer, nbytes, device.local, flags); });
  std::lock_guard lock(pinned_ranges().mutex);
  pinned_ranges().ranges[reinterpret_cast<uintptr_t>(pointer)] = {nbytes, &driver};
}

void unregister_host_memory(void* pointer) {
  const auto found = pinned_ranges().find(pointer);
  if (!found || !found->registered_by) throw Error(BRINGUP_INVALID, "this memory was not registered");
  Driver& driver = *found->registered_by;
  for (int32_t index = 0; index < Registry::get().device_count(); ++index) { // any of them may be copying
    Device& device = Registry::get().device(index);
    if (&device.driver == &driver && device.usable()) device.finish_work(kAllStreams);
  }
  {
    std::lock_guard lock(pinned_ranges().mutex);
    pinned_ranges().ranges.erase(reinterpret_cast<uintptr_t>(pointer));
  }
  driver.call("host_unregister", 0, [&] { return driver.api.host_unregister(driver.api.self, pointer); });
}

bool record_pinned(const c10::DataPtr& data, const c10::Stream& stream) {
  const auto found = pinned_ranges().find(data.get());
  if (found && found->registered_by) return true;
  return host_allocator().record_event(data.get(), data.get_context(), stream);
}

void register_host_allocator() { at::setHostAllocator(kDeviceType, &host_allocator()); }

} // namespace bringup
