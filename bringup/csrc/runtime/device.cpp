// Drivers and their devices: opening, streams, events, copies, over the C ABI.
#include "runtime/device.h"

#include <pthread.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <deque>
#include <numeric>
#include <utility>

namespace bringup {

uint64_t host_nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// ---- Driver ----

Driver::Driver(const bringup_driver* table, std::string driver_name, bool says_when_it_begins)
    : name(std::move(driver_name)), acknowledges(says_when_it_begins) {
  auto refuse = [&](const std::string& why) { throw Error(BRINGUP_INVALID, "driver '" + name + "': " + why); };
  if (table == nullptr) refuse("its function table is a null pointer");
  if (table->abi_version != BRINGUP_ABI_VERSION)
    refuse("it was built for version " + std::to_string(table->abi_version) + " of the driver ABI, this bringup has " +
           std::to_string(BRINGUP_ABI_VERSION) + "; build it again with this bringup's driver.h");
  const size_t required = offsetof(bringup_driver, target);
  if (table->struct_size < required || table->struct_size > 64 * sizeof(bringup_driver))
    refuse("struct_size is " + std::to_string(table->struct_size) + ", at least " + std::to_string(required) +
           " is needed for the five required functions");
  std::memset(&api, 0, sizeof(api));
  std::memcpy(&api, table, std::min<size_t>(table->struct_size, sizeof(api)));
  const std::pair<const char*, bool> required_functions[] = {{"device_count", api.device_count},
                                                             {"open", api.open},
                                                             {"alloc", api.alloc},
                                                             {"free", api.free},
                                                             {"copy", api.copy}};
  for (const auto& [function, there] : required_functions)
    if (!there) refuse(std::string("the required function ") + function + " is missing");
  asynchronous = api.stream_create && api.stream_destroy && api.event_record && api.event_query && api.event_wait &&
                 api.event_elapsed && api.event_destroy;
  kernels = api.load && api.launch;
  graphs = api.graph_begin && api.graph_end && api.graph_launch && api.graph_destroy;
  count = std::max(0, api.device_count(api.self));
}

namespace {
thread_local bool t_acknowledged = false;
} // namespace

void Driver::acknowledge() noexcept { t_acknowledged = true; }
bool Driver::Entered::exchange(bool value) noexcept { return std::exchange(t_acknowledged, value); }
bool Driver::Entered::acknowledged() const { return t_acknowledged; }

void Driver::missing(const char* function) const {
  throw Error(BRINGUP_UNSUPPORTED, "driver '" + name + "' has no " + function);
}

void Driver::interrupted(const char* function, int32_t device) const {
  throw Error(BRINGUP_ERROR, name + ":" + std::to_string(device) + ": " + function +
                                 " was interrupted (Ctrl-C) before the driver was reached; nothing was done");
}

void Driver::fail(int32_t status, const char* function, int32_t device) const {
  char reason[2048] = "";
  if (api.last_error) api.last_error(api.self, reason, sizeof(reason));
  reason[sizeof(reason) - 1] = '\0';
  if (status == BRINGUP_INDEX_ERROR) { // a mistake of the program, not of the driver: it need not say its name
    const std::string text = reason, prefix = name + ": ";
    throw Error(BRINGUP_INDEX_ERROR, text.rfind(prefix, 0) == 0 ? text.substr(prefix.size()) : text);
  }
  std::string message = name + ":" + std::to_string(device) + ": " + function + " failed";
  if (reason[0]) message += std::string(": ") + reason;
  if (Device* lost = status == BRINGUP_DEVICE_LOST ? Registry::get().find(*this, device) : nullptr) {
    lost->lose(message);
    lost->check_lost();
  }
  throw Error(status >= BRINGUP_ERROR && status <= BRINGUP_ABSENT ? static_cast<bringup_status>(status) : BRINGUP_ERROR,
              message);
}

// ---- Device ----

Device::Device(Driver& owner, int32_t local_index, int32_t global_index)
    : driver(owner), local(local_index), index(global_index), memory_(std::make_unique<CachingAllocator>(*this)) {
  streams_[0].created = true; // handle 0 always exists
}

std::string Device::label() { return Registry::get().type_name + ":" + std::to_string(index); }

bringup_placement Device::placement_of_new(uint64_t nbytes) const {
  bringup_placement placement = spec_.default_placement;
  if (placement.kind != BRINGUP_SHARD || placement.block != 0) return placement;
  if (nbytes <= 4096) return {BRINGUP_REPLICATE, 0, 0, 0};
  placement.block = ((nbytes + spec_.partitions - 1) / spec_.partitions + 7) / 8 * 8;
  return placement;
}

uint64_t Device::physical_bytes(uint64_t nbytes, const bringup_placement& placement) const {
  if (spec_.partitions <= 1 || placement.kind != BRINGUP_SHARD) return nbytes;
  const uint64_t round = placement.block * spec_.partitions;
  return (nbytes + round - 1) / round * placement.block;
}

// ---- Device: streams ----

void Device::check_stream(int32_t stream) const {
  if (stream < 0 || stream >= kStreams)
    throw Error(BRINGUP_INVALID,
                "there is no stream " + std::to_string(stream) + " on device " + std::to_string(index));
}

int32_t Device::stream_from_pool(bool high_priority) {
  ensure_open();
  if (!driver.asynchronous) return 0;
  // A process that asks for more than 32 streams shares them, as torch.cuda does.
  int32_t stream = high_priority ? 1 + kPool + static_cast<int32_t>(next_high_++ % kPool)
                                 : 1 + static_cast<int32_t>(next_normal_++ % kPool);
  stream_handle(stream);
  return stream;
}

uint64_t Device::stream_handle(int32_t stream) {
  check_stream(stream);
  Stream& slot = streams_[stream];
  if (__builtin_expect(slot.created.load(std::memory_order_acquire), 1))
    return slot.handle.load(std::memory_order_relaxed);
  ensure_open();
  if (!driver.asynchronous) return 0;
  uint64_t handle = 0;
  driver.call("stream_create", driver.api.stream_create, local, stream > kPool ? -1 : 0, &handle);
  std::unique_lock<std::mutex> lock(slot.mutex);
  if (slot.created) { // another thread was faster
    lock.unlock();
    driver.call_quietly("stream_destroy", driver.api.stream_destroy, local, handle);
    return slot.handle;
  }
  slot.handle = handle;
  slot.created.store(true, std::memory_order_release);
  return handle;
}

// ---- Device: work ----

template <class F>
void Device::move_bytes(Work::Kind work, uint64_t nbytes, int32_t kind, int32_t stream, F&& queue) {
  const uint64_t began = WorkObserver::begin();
  Mark start = mark_for_observers(stream, began);
  queue();
  mark_busy(stream);
  if (__builtin_expect(began, 0))
    observe({.kind = work,
             .stream = stream,
             .began = began,
             .bytes = nbytes,
             .copy_kind = kind,
             .start = std::move(start)});
}

void Device::copy(uint64_t dst, uint64_t src, uint64_t nbytes, bringup_copy_kind kind, int32_t stream,
                  const bringup_placement* placement) {
  if (nbytes == 0) return;
  ensure_open();
  if (const auto captured = recording(stream)) {
    if (kind != BRINGUP_DEVICE_TO_DEVICE) refuse_capture(stream, "a copy between host and device");
    const uint64_t args[] = {dst, src, nbytes};
    if (captured->add("copy", nullptr, {.arg_count = 3, .args = args})) return;
  }
  if (__builtin_expect(failed(stream), 0)) tell_failure(stream);
  move_bytes(Work::Kind::copy, nbytes, kind, stream, [&] {
    driver.call("copy", driver.api.copy, local, dst, src, nbytes, kind, stream_handle(stream), placement);
  });
}

void Device::copy_from(Device& source, uint64_t dst, uint64_t src, uint64_t nbytes, int32_t stream) {
  move_bytes(Work::Kind::copy, nbytes, kBetweenDevices, stream, [&] {
    driver.call("copy_peer", driver.api.copy_peer, local, dst, source.local, src, nbytes, stream_handle(stream));
  });
}

void Device::relayout(uint64_t dst, const bringup_placement& dst_placement, uint64_t src,
                      const bringup_placement& src_placement, uint64_t nbytes, int32_t stream) {
  move_bytes(Work::Kind::relayout, nbytes, 0, stream, [&] {
    driver.call("relayout", driver.api.relayout, local, dst, &dst_placement, src, &src_placement, nbytes,
                stream_handle(stream));
  });
}

static std::mutex g_observers_mutex;

void WorkObserver::watch() {
  unwatch();
  std::lock_guard lock(g_observers_mutex);
  next_ = first.load();
  first = this;
}

Device::Mark Device::mark_for_observers(int32_t stream, uint64_t began) {
  if (!began || driver.api.trace_start) return nullptr;
  return std::make_shared<const EventSlot::Mark>(*this, record_now(stream, BRINGUP_EVENT_TIMING));
}

void Device::observe(Work work) {
  if (work.start) work.end = mark_for_observers(work.stream, work.began);
  WorkObserver::tell(&WorkObserver::worked, *this, work);
}

void Device::observe(const bringup_launch& launch, const std::string& name, int32_t stream, uint64_t began,
                     Mark start) {
  observe({.kind = Work::Kind::launch,
           .stream = stream,
           .began = began,
           .correlation = launch.correlation,
           .name = &name,
           .grid = launch.grid,
           .bytes = static_cast<uint64_t>(launch.bytes),
           .flops = launch.flops,
           .start = std::move(start)});
}

void WorkObserver::unwatch() {
  std::lock_guard lock(g_observers_mutex);
  for (auto* place = &first; *place; place = &place->load()->next_)
    if (*place == this) return place->store(next_);
}

static std::mutex g_kernels_mutex;
static auto& g_kernels = *new std::deque<LoadedKernel>(); // never destroyed; a deque: references into it stay good

const LoadedKernel& loaded_kernel(uint64_t id) {
  std::lock_guard lock(g_kernels_mutex);
  if (id - 1 >= g_kernels.size()) throw Error(BRINGUP_INVALID, "there is no kernel " + std::to_string(id));
  return g_kernels[id - 1];
}

uint64_t keep_kernel(LoadedKernel kernel) {
  std::lock_guard lock(g_kernels_mutex);
  g_kernels.push_back(std::move(kernel));
  return g_kernels.back().id = g_kernels.size();
}

uint64_t Device::load_kernel(const void* binary, uint64_t nbytes, LoadedKernel kernel) {
  ensure_open();
  if (!driver.kernels) throw Error(BRINGUP_UNSUPPORTED, label() + ": its driver has no kernels");
  kernel.life = life();
  driver.call("load", driver.api.load, local, binary, nbytes, kernel.name.c_str(), &kernel.handle);
  return keep_kernel(std::move(kernel));
}

void Device::load_again(const LoadedKernel& kernel, const void* binary, uint64_t nbytes, const char* entry) {
  ensure_open();
  const uint32_t now = life();
  uint64_t handle = 0;
  driver.call("load", driver.api.load, local, binary, nbytes, entry, &handle);
  std::lock_guard lock(g_kernels_mutex);
  kernel.handle = handle;
  std::atomic_ref(kernel.life).store(now, std::memory_order_release);
}

void (*load_kernel_again)(Device& device, uint64_t id) = nullptr;

static std::atomic<uint64_t> g_launches{0};

void Device::launch(const LoadedKernel& kernel, bringup_launch& work, int32_t stream) {
  if (const auto captured = recording(stream))
    if (captured->add(NamedWork::current ? NamedWork::current : "kernel", &kernel, work)) return;
  if (__builtin_expect(failed(stream), 0)) tell_failure(stream);
  yield_point();
  if (__builtin_expect(std::atomic_ref(kernel.life).load(std::memory_order_acquire) != life() && !kernel.function, 0))
    load_kernel_again(*this, kernel.id);
  uint32_t finished = 0;
  if (!work.finished) work.finished = &finished;
  work.struct_size = sizeof(work);
  work.stream = stream_handle(stream);
  work.block = kernel.block;
  work.local_bytes = kernel.local_bytes;
  work.name = kernel.name.c_str();
  work.correlation = g_launches.fetch_add(1, std::memory_order_relaxed) + 1;
  const uint64_t began = WorkObserver::begin();
  Mark start = mark_for_observers(stream, began);
  try {
    driver.call("launch", local, [&] {
      if (__builtin_expect(!kernel.function, 1)) return driver.api.launch(driver.api.self, local, kernel.handle, &work);
      Driver::acknowledge(); // it is C: no Ctrl-C comes between
      return kernel.function(kernel.context, local, &work);
    });
  } catch (...) {
    mark_busy(stream); // a part of it may be queued
    throw;
  }
  if (!*work.finished) mark_busy(stream);
  if (__builtin_expect(began, 0)) observe(work, kernel.name, stream, began, std::move(start));
}

void Device::launch_graph(uint64_t graph, int32_t stream) {
  static const auto* name = new std::string("graph");
  if (failed(stream)) tell_failure(stream);
  const bringup_launch work{.correlation = ++g_launches};
  const uint64_t began = WorkObserver::begin();
  driver.call("graph_launch", driver.api.graph_launch, local, graph, stream_handle(stream), work.correlation);
  mark_busy(stream);
  if (began) observe(work, *name, stream, began, nullptr);
}

std::pair<uint64_t, uint64_t> Device::memory_info() {
  const uint64_t partitions = spec().partitions, total = spec().memory_bytes * partitions;
  if (!driver.api.memory_info) {
    const uint64_t reserved = memory().stats().reserved_bytes.kind[0].current * partitions;
    return {total > reserved ? total - reserved : 0, total};
  }
  uint64_t free = 0, all = 0;
  driver.call("memory_info", driver.api.memory_info, local, &free, &all);
  return {free, all};
}

bool Device::reaches(Device& peer) {
  if (&driver != &peer.driver || this == &peer || !driver.api.copy_peer || !spec().peer_copy || !peer.spec().peer_copy)
    return false;
  int32_t can = 1;
  if (driver.api.can_access_peer) driver.call("can_access_peer", driver.api.can_access_peer, local, peer.local, &can);
  return can != 0;
}

uint64_t Device::clock() {
  if (!driver.api.clock) return host_nanoseconds();
  ensure_open();
  uint64_t nanoseconds = 0;
  driver.call("clock", driver.api.clock, local, &nanoseconds);
  return nanoseconds;
}

void Device::charge(int32_t stream, int32_t dtype, double flops, double bytes) {
  if (!driver.api.charge) return;
  const uint64_t began = WorkObserver::begin();
  driver.call("charge", driver.api.charge, local, stream_handle(stream), dtype, flops, bytes);
  const auto moved = static_cast<uint64_t>(bytes);
  if (began) observe({.kind = Work::Kind::charge, .stream = stream, .began = began, .bytes = moved, .flops = flops});
}

void Device::host_function(int32_t stream, void (*function)(void*), void* argument) {
  ensure_open();
  check_stream(stream);
  refuse_capture(stream, "a host function");
  if (!driver.api.host_function) { // synchronous devices have nothing queued: now is in order
    Blocking blocking;
    function(argument);
    return;
  }
  driver.call("host_function", driver.api.host_function, local, stream_handle(stream), function, argument);
  mark_busy(stream);
}

// ---- Device: for the allocator ----

uint64_t Device::raw_alloc(uint64_t nbytes) {
  ensure_open();
  uint64_t address = 0;
  driver.call("alloc", driver.api.alloc, local, nbytes, &address);
  if (address == 0 || address % spec_.alignment) {
    if (address) driver.call_quietly("free", driver.api.free, local, address);
    throw Error(BRINGUP_ERROR, driver.name + ":" + std::to_string(local) + ": alloc returned address " +
                                   std::to_string(address) + ", which is 0 or not a multiple of " +
                                   std::to_string(spec_.alignment));
  }
  return address;
}

void Device::raw_free(uint64_t address) {
  if (is_open()) driver.call("free", driver.api.free, local, address);
}

uint64_t Device::raw_memory() { return spec().memory_bytes; }

// ---- Registry ----

Registry::Registry() { pthread_atfork(nullptr, nullptr, &Registry::after_fork_in_child); }

Registry& Registry::get() {
  static Registry* registry = new Registry(); // never destroyed: tensors may outlive static destructors
  return *registry;
}

int32_t Registry::add(const bringup_driver* table, const std::string& name, bool acknowledges,
                      const std::optional<std::vector<int32_t>>& visible) {
  auto driver = std::make_unique<Driver>(table, name, acknowledges);
  const int32_t first = device_count();
  auto chosen = visible.value_or(std::vector<int32_t>(driver->count));
  if (!visible) std::iota(chosen.begin(), chosen.end(), 0);
  for (int32_t local : chosen)
    if (local >= driver->count)
      throw Error(BRINGUP_INVALID, "device " + std::to_string(local) + " is to be visible, and driver '" + name +
                                       "' has " + std::to_string(driver->count) + ", numbered from 0");
  // c10::DeviceIndex is an int8.
  if (first + chosen.size() > 127)
    throw Error(BRINGUP_INVALID, "driver '" + name + "' has " + std::to_string(chosen.size()) + " devices and " +
                                     std::to_string(first) + " are there already: PyTorch can number 127");
  for (int32_t local : chosen) devices_.push_back(std::make_unique<Device>(*driver, local, device_count()));
  drivers_.push_back(std::move(driver));
  return first;
}

void Registry::bad_index(int32_t index) const {
  if (devices_.empty())
    throw Error(BRINGUP_ABSENT, "no " + type_name + " device was found on this machine (see `bringup diagnose`)");
  const std::string last = devices_.size() > 1 ? " … " + type_name + ":" + std::to_string(devices_.size() - 1) : "";
  throw Error(BRINGUP_INVALID, "there is no device " + type_name + ":" + std::to_string(index) + ": " +
                                   std::to_string(devices_.size()) + " device(s) are there, " + type_name + ":0" +
                                   last);
}

Device* Registry::find(const Driver& driver, int32_t local) {
  for (auto& device : devices_)
    if (&device->driver == &driver && device->local == local) return device.get();
  return nullptr;
}

Device* Registry::find(uint64_t address) {
  for (auto& device : devices_)
    if (device->is_open() && device->memory().find(address)) return device.get();
  return nullptr;
}

void Registry::tell_unheard_failures() {
  for (auto& device : devices_) {
    if (!device->is_open()) continue;
    device->finish_work(kAllStreams);
    for (int32_t stream = 0; stream < Device::kStreams; ++stream) {
      try {
        device->tell_failure(stream);
      } catch (const Error& error) {
        std::fprintf(stderr, "bringup: queued work of %s failed, and nothing waited for it: %s\n",
                     device->label().c_str(), error.what());
      }
    }
  }
}

void Registry::shut_down() {
  tell_unheard_failures();
  for (auto& device : devices_) {
    if (!device->is_open()) continue;
    device->state_ = Device::State::closed;
    if (device->driver.api.close) device->driver.call_quietly("close", device->driver.api.close, device->local);
  }
}

void Registry::after_fork_in_child() {
  Registry& registry = get();
  for (auto& device : registry.devices_) {
    if (device->state_.load() == Device::State::unopened) continue;
    device->state_ = Device::State::forked;
    registry.forked_ = true;
  }
}

} // namespace bringup
