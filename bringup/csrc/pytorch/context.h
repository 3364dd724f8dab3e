// What every torch-facing file needs: the current device and stream of this thread, and errors in torch's classes.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <c10/util/Exception.h>

#include <functional>
#include <utility>

#include "runtime/device.h"

namespace bringup {

inline constexpr c10::DeviceType kDeviceType = c10::DeviceType::PrivateUse1;

// Throws the torch exception (and so the Python one) that fits the status.
[[noreturn]] void raise(const Error& error);
[[noreturn]] void raise_without_cause(const Error& error);
// Called first by raise(); throws where more is known of an error than its text, or writes a longer text.
extern void (*raise_hook)(Error& error);

template <class F>
auto translated(F&& work) -> decltype(work()) {
  try {
    return work();
  } catch (const Error& error) {
    raise(error);
  }
}

c10::DeviceIndex current_device() noexcept;
void set_current_device(c10::DeviceIndex index) noexcept;
c10::DeviceIndex resolve(c10::Device device); // index -1 means the current device
int32_t current_stream(c10::DeviceIndex index) noexcept;
int32_t exchange_stream(c10::DeviceIndex index, int32_t stream) noexcept;

inline Device& device_at(int32_t index) { // wider than c10::DeviceIndex, so that 300 is refused and not 44
  return translated([&]() -> Device& { return Registry::get().device(index); });
}

// Runs on the stream's thread, in its order; a device without host functions runs it at once.
void host_function_on(Device& device, int32_t stream, std::function<void()> work);

void leave_groups(); // of processes, when the program ends: nothing waits for other ranks any more

// Registrations, each in its own file; attach() calls them once.
void register_guard();
void fence_autograd_workers(); // before the interpreter goes down
void register_hooks();
void register_allocator();
void register_host_allocator();
void register_graphs();
void register_library_ops();
void register_sparse_ops(); // when the first device opens: nobody has sparse tensors before
void register_profiler();

} // namespace bringup
