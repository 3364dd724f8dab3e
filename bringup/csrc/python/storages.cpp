// What Python can do with one storage: its metadata, its placement over partitions, sharing it with another process.
#include "python/bindings.h"

#include <torch/csrc/jit/serialization/pickler_helper.h>
#include <torch/csrc/utils/pybind.h>

#include <string_view>

#include "pytorch/allocator.h"
#include "pytorch/context.h"

namespace py = pybind11;

namespace bringup {
namespace {

StorageImpl* ours(const c10::Storage& storage) {
  TORCH_CHECK_VALUE(storage.device_type() == kDeviceType, "expected a storage of a ", Registry::get().type_name,
                    " device, got one on ", storage.device());
  StorageImpl* extras = extras_of(storage.unsafeGetStorageImpl());
  TORCH_CHECK_VALUE(extras,
                    "this storage was made over memory that bringup does not manage: it has no metadata and no "
                    "placement");
  return extras;
}

// Moves the bytes into memory of another placement and lets the storage own that instead.
void relayout(const c10::Storage& storage, uint32_t kind, uint64_t block) {
  StorageImpl* impl = ours(storage);
  const c10::DeviceIndex index = storage.device().index();
  translated([&] {
    Device& device = device_at(index);
    bringup_placement target{kind, 0, block, 0}, source = impl->placement;
    source.offset = 0;
    if (kind > BRINGUP_PARTIAL || (kind == BRINGUP_SHARD && (block == 0 || block % 8)))
      throw Error(BRINGUP_INVALID,
                  "a placement is single, replicate, shard (with a block of a multiple of 8 bytes) or "
                  "partial; got kind " +
                      std::to_string(kind) + ", block " + std::to_string(block));
    if (device.spec().partitions <= 1 && kind != BRINGUP_SINGLE)
      throw Error(BRINGUP_INVALID, device.label() + " has one partition: its storages are always single");
    if (source.kind == target.kind && source.block == target.block) return;
    const uint64_t nbytes = impl->nbytes();
    if (nbytes == 0) {
      impl->placement = target;
      return;
    }
    c10::DataPtr fresh = allocate_on(index, nbytes, &target);
    device.relayout(reinterpret_cast<uint64_t>(fresh.get()), target, reinterpret_cast<uint64_t>(impl->data()), source,
                    nbytes, current_stream(index));
    record_stream(impl->data_ptr(), c10::Stream(c10::Stream::UNSAFE, storage.device(), current_stream(index)));
    impl->set_data_ptr_noswap(std::move(fresh));
    impl->placement = target;
  });
}

py::tuple ipc_export(const c10::Storage& storage) {
  ours(storage);
  const c10::DeviceIndex index = storage.device().index();
  char handle[512] = "";
  {
    py::gil_scoped_release no_gil;
    translated([&] {
      Device& device = device_at(index);
      if (device.spec().partitions > 1)
        throw Error(BRINGUP_UNSUPPORTED, "tensors of partitioned devices cannot be shared between processes");
      device.synchronize(); // the other process knows nothing of our streams
      device.driver.call("ipc_export", device.driver.api.ipc_export, device.local,
                         reinterpret_cast<uint64_t>(storage.data()), handle, sizeof(handle));
    });
  }
  return py::make_tuple(static_cast<int>(index), std::string(handle), 0, storage.nbytes());
}

struct Imported {
  int32_t device;
  uint64_t address;
};

void close_imported(void* context) {
  std::unique_ptr<Imported> imported(static_cast<Imported*>(context));
  Device& device = Registry::get().device(imported->device);
  --device.imported;
  // Any stream of the device may still read it. What cannot be waited for stays mapped: better lost than wrong.
  if (device.usable() && device.finish_work(kAllStreams))
    device.driver.call_quietly("ipc_close", device.driver.api.ipc_close, device.local, imported->address);
}

c10::Storage ipc_import(int index, const std::string& handle, uint64_t offset, uint64_t nbytes) {
  return translated([&] {
    Device& device = device_at(index);
    device.ensure_open();
    if (!device.driver.api.ipc_import || !device.driver.api.ipc_close)
      throw Error(BRINGUP_UNSUPPORTED, "driver '" + device.driver.name + "' cannot map memory of another process");
    uint64_t address = 0;
    device.driver.call("ipc_import", device.driver.api.ipc_import, device.local, handle.c_str(), &address);
    ++device.imported;
    c10::DataPtr data(reinterpret_cast<void*>(address + offset), new Imported{index, address}, &close_imported,
                      c10::Device(kDeviceType, static_cast<c10::DeviceIndex>(index)));
    // Not resizable: growing it would silently part from the other process.
    return c10::Storage(c10::make_storage_impl(c10::StorageImpl::use_byte_size_t(), static_cast<int64_t>(nbytes),
                                               std::move(data), device_allocator(), false,
                                               c10::Device(kDeviceType, static_cast<c10::DeviceIndex>(index))));
  });
}

// torch pickles a map of names to booleans for tensors of other devices. A name may be any text: so the core holds the
// metadata as text, the hexadecimal form of what Python gives.
constexpr std::string_view kMetadataName = "bringup_storage_metadata:";

using PickledNames = std::unordered_map<std::string, bool>;

void pickle_metadata(const at::Tensor& tensor, PickledNames& names) {
  StorageImpl* extras = tensor.has_storage() ? extras_of(tensor.storage().unsafeGetStorageImpl()) : nullptr;
  if (extras && extras->metadata) names[std::string(kMetadataName) + *extras->metadata] = true;
}

void unpickle_metadata(const at::Tensor& tensor, PickledNames& names) {
  StorageImpl* extras = tensor.has_storage() ? extras_of(tensor.storage().unsafeGetStorageImpl()) : nullptr;
  for (const auto& [name, present] : names)
    if (extras && name.starts_with(kMetadataName)) extras->metadata = name.substr(kMetadataName.size());
}

} // namespace

void register_metadata_pickling() {
  torch::jit::TensorBackendMetaRegistry(kDeviceType, &pickle_metadata, &unpickle_metadata);
}

void bind_storages(py::module_& module) {
  module.def("storage_metadata", [](const c10::Storage& storage) -> py::object {
    const StorageImpl* impl = ours(storage);
    return impl->metadata ? py::type::of(py::bytes()).attr("fromhex")(*impl->metadata) : py::object(py::none());
  });
  module.def("set_storage_metadata", [](const c10::Storage& storage, py::object metadata) {
    ours(storage)->metadata =
        metadata.is_none() ? std::nullopt : std::optional(metadata.attr("hex")().cast<std::string>());
  });
  module.def("placement", [](const c10::Storage& storage) {
    StorageImpl* impl = ours(storage);
    return py::make_tuple(impl->placement.kind, impl->placement.block);
  });
  module.def("relayout", &relayout, py::call_guard<py::gil_scoped_release>());
  module.def("ipc_export", &ipc_export);
  module.def("ipc_import", &ipc_import, py::call_guard<py::gil_scoped_release>());
  module.def("tensor_address", [](const at::Tensor& tensor) {
    TORCH_CHECK_VALUE(tensor.device().type() == kDeviceType, "expected a tensor on ", Registry::get().type_name,
                      ", got one on ", tensor.device());
    return locate(*tensor.unsafeGetTensorImpl(), device_at(tensor.device().index())).address;
  });
}

} // namespace bringup
