// The current device and stream of each thread, and runtime errors in torch's exception classes.
#include "pytorch/context.h"

#include <array>
#include <atomic>

namespace bringup {

namespace {
thread_local c10::DeviceIndex t_device = 0;
thread_local std::array<int8_t, 128> t_streams{};
} // namespace

void (*raise_hook)(Error& error) = nullptr;

void raise(const Error& error) {
  Error told = error;
  if (raise_hook) raise_hook(told);
  raise_without_cause(told);
}

void raise_without_cause(const Error& error) {
  switch (error.status) {
    case BRINGUP_OUT_OF_MEMORY:
      TORCH_CHECK_WITH(OutOfMemoryError, false, error.what());
    case BRINGUP_INVALID:
      TORCH_CHECK_VALUE(false, error.what());
    case BRINGUP_UNSUPPORTED:
      TORCH_CHECK_NOT_IMPLEMENTED(false, error.what());
    case BRINGUP_INDEX_ERROR:
      TORCH_CHECK_INDEX(false, error.what());
    case BRINGUP_DEVICE_LOST:
      throw c10::AcceleratorError({__func__, __FILE__, __LINE__}, BRINGUP_DEVICE_LOST, error.what());
    default:
      TORCH_CHECK(false, error.what());
  }
  __builtin_unreachable();
}

c10::DeviceIndex current_device() noexcept { return t_device; }
void set_current_device(c10::DeviceIndex index) noexcept { t_device = index; }

c10::DeviceIndex resolve(c10::Device device) {
  TORCH_CHECK(device.type() == kDeviceType, "expected a ", Registry::get().type_name, " device, got ", device);
  const c10::DeviceIndex index = device.has_index() ? device.index() : t_device;
  device_at(index); // the error names the devices that exist
  return index;
}

int32_t current_stream(c10::DeviceIndex index) noexcept { return t_streams[static_cast<uint8_t>(index) & 127]; }

int32_t exchange_stream(c10::DeviceIndex index, int32_t stream) noexcept {
  return std::exchange(t_streams[static_cast<uint8_t>(index) & 127], static_cast<int8_t>(stream));
}

namespace {

// One host function on its way through a driver. A driver may run it at once and still report a failure of something
// else, so both sides hold it.
struct Errand {
  std::function<void()> work;
  std::atomic<bool> ran{false};
};
using SharedErrand = std::shared_ptr<Errand>;

void run_errand(void* argument) {
  std::unique_ptr<SharedErrand> errand(static_cast<SharedErrand*>(argument));
  (*errand)->ran = true;
  (*errand)->work();
}

} // namespace

void host_function_on(Device& device, int32_t stream, std::function<void()> work) {
  auto errand = std::make_shared<Errand>();
  errand->work = std::move(work);
  auto* argument = new SharedErrand(errand);
  translated([&] {
    try {
      device.host_function(stream, &run_errand, argument);
    } catch (...) {
      if (!errand->ran) delete argument;
      throw;
    }
  });
}

} // namespace bringup
