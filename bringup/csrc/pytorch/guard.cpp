// Device guard: how PyTorch switches devices and streams, records events and waits for them.
#include <ATen/ThreadLocalPythonObjects.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <pthread.h>

#include <string_view>

#include "pytorch/allocator.h"
#include "pytorch/context.h"

namespace bringup {
namespace {

// What torch keeps behind the void* of an event.
struct TorchEvent {
  const bool timing;
  EventSlot slot;
  std::shared_ptr<const EventSlot::Mark> mark() const { return slot.get(); }
};

std::atomic<bool> g_autograd_workers[128];

// Autograd's workers call setDevice when they start, and are known by their names.
void note_autograd_worker(c10::DeviceIndex index) {
  thread_local bool looked = false;
  if (looked) return;
  looked = true;
  char name[16] = "";
  pthread_getname_np(pthread_self(), name, sizeof(name));
  if (std::string_view(name).starts_with("pt_autograd")) g_autograd_workers[index] = true;
}

struct GuardImpl final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kDeviceType; }

  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::DeviceIndex previous = current_device();
    if (device.index() != previous) setDevice(device);
    return {kDeviceType, previous};
  }
  c10::Device getDevice() const override { return {kDeviceType, current_device()}; }
  void setDevice(c10::Device device) const override {
    if (!device.has_index()) return;
    device_at(device.index());
    note_autograd_worker(device.index());
    set_current_device(device.index());
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index() && device.index() < Registry::get().device_count()) set_current_device(device.index());
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(Registry::get().device_count());
  }

  c10::DeviceCapability getDeviceCapability(c10::Device device) const override {
    const uint64_t mask = translated([&] { return device_at(resolve(device)).spec().dtypes; });
    c10::DeviceCapability capability;
    capability.capability_data.capability_bits = 0;
    for (int type = 0; type < static_cast<int>(c10::ScalarType::NumOptions); ++type) {
      const int code = dtype_code(static_cast<c10::ScalarType>(type));
      if (code != BRINGUP_QUANTIZED && (mask == 0 || mask >> code & 1)) // no device holds quantized tensors
        capability.capability_data.capability_bits |= 1ULL << type;
    }
    return capability;
  }

  // ---- streams ----
  static c10::Stream make(c10::DeviceIndex index, int32_t stream) {
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(kDeviceType, index), stream);
  }
  c10::Stream getStream(c10::Device device) const override {
    const c10::DeviceIndex index = device.has_index() ? device.index() : current_device();
    return make(index, current_stream(index));
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return make(resolve(device), 0); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool high_priority) const override {
    const c10::DeviceIndex index = resolve(device);
    return make(index, translated([&] { return device_at(index).stream_from_pool(high_priority); }));
  }
  c10::Stream getNewStream(c10::Device device, int priority) const override {
    return getStreamFromGlobalPool(device, priority < 0);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::DeviceIndex index = stream.device_index();
    translated([&] { device_at(index).check_stream(static_cast<int32_t>(stream.id())); });
    return make(index, exchange_stream(index, static_cast<int32_t>(stream.id())));
  }
  void* getStreamNativeHandle(const c10::Stream stream) const { // overrides where torch has it, hence no keyword
    return reinterpret_cast<void*>(
        translated([&] { return device_at(stream.device_index()).stream_handle(static_cast<int32_t>(stream.id())); }));
  }
  bool isStreamCapturing(const c10::Stream& stream) const { // as above
    Device& device = device_at(stream.device_index());
    translated([&] { device.check_stream(static_cast<int32_t>(stream.id())); });
    return device.recording(static_cast<int32_t>(stream.id())) != nullptr;
  }
  bool queryStream(const c10::Stream& stream) const override {
    Device& device = device_at(stream.device_index());
    const auto id = static_cast<int32_t>(stream.id());
    const bool done = translated([&] { return device.query_stream(id); });
    if (done) WorkObserver::tell(&WorkObserver::host_waited, device, Event{0, 0, 0, id});
    return done;
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    translated([&] { device_at(stream.device_index()).synchronize_stream(static_cast<int32_t>(stream.id())); });
  }
  void synchronizeDevice(const c10::DeviceIndex index) const override {
    translated([&] { device_at(index < 0 ? current_device() : index).synchronize(); });
  }

  // ---- events ----
  void record(void** slot, const c10::Stream& stream, const c10::DeviceIndex device,
              const c10::EventFlag flag) const override {
    TORCH_CHECK(device == -1 || device == stream.device_index(), "the event belongs to device ",
                static_cast<int>(device), " and the stream to device ", static_cast<int>(stream.device_index()),
                ": record an event on a stream of its own device");
    Device& owner = device_at(stream.device_index());
    // The slot is filled only once it is recorded, and by one of several threads: whoever finds it full has a mark.
    std::atomic_ref<void*> place(*slot);
    auto* event = static_cast<TorchEvent*>(place.load(std::memory_order_acquire));
    std::unique_ptr<TorchEvent> fresh;
    if (event == nullptr) fresh.reset(event = new TorchEvent{flag == c10::EventFlag::BACKEND_DEFAULT, {}});
    const uint32_t flags = event->timing ? BRINGUP_EVENT_TIMING : 0;
    translated([&] { event->slot.record(owner, static_cast<int32_t>(stream.id()), flags); });
    void* none = nullptr;
    if (fresh && place.compare_exchange_strong(none, event, std::memory_order_acq_rel)) fresh.release();
  }
  void block(void* slot, const c10::Stream& stream) const override {
    if (slot == nullptr) return; // never recorded: nothing to wait for
    const auto mark = static_cast<TorchEvent*>(slot)->mark();
    translated(
        [&] { mark->device.wait(mark->event, device_at(stream.device_index()), static_cast<int32_t>(stream.id())); });
  }
  bool queryEvent(void* slot) const override {
    if (slot == nullptr) return true;
    const auto mark = static_cast<TorchEvent*>(slot)->mark();
    const bool done = translated([&] { return mark->device.query(mark->event); });
    if (done) WorkObserver::tell(&WorkObserver::host_waited, mark->device, mark->event);
    return done;
  }
  void synchronizeEvent(void* slot) const override {
    if (slot == nullptr) return;
    const auto mark = static_cast<TorchEvent*>(slot)->mark();
    translated([&] { mark->device.wait(mark->event); });
  }
  double elapsedTime(void* start_slot, void* end_slot, const c10::DeviceIndex) const override {
    TORCH_CHECK(start_slot && end_slot, "both events must be recorded before elapsed_time is asked for");
    const auto start = static_cast<TorchEvent*>(start_slot)->mark(), end = static_cast<TorchEvent*>(end_slot)->mark();
    Device& owner = start->device;
    TORCH_CHECK(&owner == &end->device, "elapsed_time: the events are of device ", owner.index, " and device ",
                end->device.index);
    TORCH_CHECK_VALUE(static_cast<TorchEvent*>(start_slot)->timing && static_cast<TorchEvent*>(end_slot)->timing,
                      "elapsed_time: both events must be created with enable_timing=True");
    return translated([&] {
      TORCH_CHECK(owner.query(start->event) && owner.query(end->event),
                  "elapsed_time: both events must be completed first (call synchronize())");
      return owner.elapsed_ms(start->event, end->event);
    });
  }
  void destroyEvent(void* slot, const c10::DeviceIndex) const noexcept override {
    delete static_cast<TorchEvent*>(slot);
  }

  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    record_stream(data, stream);
  }
};

} // namespace

// A worker drops the last reference to its task a moment after backward() has returned. If that task holds Python
// state and the interpreter is finalising by then, the process aborts: so at exit every worker gets one more task,
// without Python state, and is known to be done with the others when it has run.
void fence_autograd_workers() {
  const auto saved = at::impl::ThreadLocalPythonObjects::get_state();
  at::impl::ThreadLocalPythonObjects::set_state({});
  for (int32_t index = 0; index < Registry::get().device_count(); ++index) {
    if (!g_autograd_workers[index] || !Registry::get().device(index).is_open()) continue;
    try {
      const c10::Device device(kDeviceType, static_cast<c10::DeviceIndex>(index));
      auto leaf = at::zeros({}, at::TensorOptions().device(device));
      leaf.set_requires_grad(true);
      leaf.mul(1).backward();
    } catch (const std::exception&) {
      // A device that fails now has nothing more to fence; exiting must go on.
    }
  }
  at::impl::ThreadLocalPythonObjects::set_state(saved);
}

void register_guard() {
  static GuardImpl guard;
  static c10::impl::DeviceGuardImplRegistrar registrar(kDeviceType, &guard);
}

} // namespace bringup
