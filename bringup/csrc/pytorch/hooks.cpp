// Accelerator hooks: how device-agnostic code inside PyTorch reaches our device without knowing it.
#include <ATen/detail/PrivateUse1HooksInterface.h>

#include "pytorch/allocator.h"
#include "pytorch/context.h"
#include "pytorch/generator.h"

namespace bringup {
namespace {

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return Registry::get().device_count() > 0; }
  void init() const override {
    translated([&] { device_at(current_device()).ensure_open(); });
  }
  bool hasPrimaryContext(c10::DeviceIndex index) const override { return device_at(index).is_open(); }

  c10::DeviceIndex deviceCount() const override {
    return static_cast<c10::DeviceIndex>(Registry::get().device_count());
  }
  void setCurrentDevice(c10::DeviceIndex index) const override {
    device_at(index);
    set_current_device(index);
  }
  c10::DeviceIndex getCurrentDevice() const override { return current_device(); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    const c10::DeviceIndex previous = current_device();
    setCurrentDevice(index);
    return previous;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return index < 0 ? current_device() : exchangeDevice(index);
  }

  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }
  at::Device getDeviceFromPtr(void* data) const override {
    Device* device = Registry::get().find(reinterpret_cast<uint64_t>(data));
    TORCH_CHECK_VALUE(device, "the pointer ", data, " does not belong to any ", Registry::get().type_name, " device");
    return {kDeviceType, static_cast<c10::DeviceIndex>(device->index)};
  }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override { return default_generator(index); }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    if (index < 0) index = current_device();
    device_at(index);
    return at::make_generator<GeneratorImpl>(index);
  }

  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t nbytes) const override {
    resize_storage(storage, nbytes);
  }
};

} // namespace

void resize_storage(const c10::Storage& storage, size_t nbytes) {
  c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
  TORCH_CHECK(impl->resizable(), "Trying to resize storage that is not resizable");
  const c10::DeviceIndex index = storage.device().index();
  Device& device = device_at(index);
  // What had no bytes yet had no place for them either.
  const bringup_placement wanted =
      impl->nbytes() || device.spec().default_placement.block ? placement_of(impl) : device.placement_of_new(nbytes);
  if (StorageImpl* extras = extras_of(impl)) extras->placement = wanted;
  c10::DataPtr fresh = allocate_on(index, nbytes, &wanted);
  const size_t kept = std::min(nbytes, impl->nbytes());
  if (kept > 0) {
    translated([&] {
      bringup_placement placement = wanted;
      placement.offset = 0;
      const bool partitioned = device.spec().partitions > 1;
      device.copy(reinterpret_cast<uint64_t>(fresh.get()), reinterpret_cast<uint64_t>(impl->data()), kept,
                  BRINGUP_DEVICE_TO_DEVICE, current_stream(index), partitioned ? &placement : nullptr);
    });
  }
  // The copy may still be queued, on another stream than the one the old memory came from.
  record_stream(impl->data_ptr(), c10::Stream(c10::Stream::UNSAFE, storage.device(), current_stream(index)));
  impl->set_data_ptr_noswap(std::move(fresh));
  impl->set_nbytes(nbytes);
}

void register_hooks() {
  static Hooks hooks;
  at::RegisterPrivateUse1HooksInterface(&hooks);
}

} // namespace bringup
