// Device memory as torch sees it: the c10 allocator, our StorageImpl, and CPU aliases of host-visible storages.
#include "pytorch/allocator.h"

#include <ATen/core/Tensor.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/flat_hash_map.h>

#include <pthread.h>

#include <bit>
#include <thread>

namespace bringup {

// ---- dtypes ----

int dtype_code(c10::ScalarType type) {
  using T = c10::ScalarType;
  constexpr std::pair<T, int> codes[] = {{T::Bool, BRINGUP_BOOL},
                                         {T::Byte, BRINGUP_UINT8},
                                         {T::Char, BRINGUP_INT8},
                                         {T::Short, BRINGUP_INT16},
                                         {T::Int, BRINGUP_INT32},
                                         {T::Long, BRINGUP_INT64},
                                         {T::Half, BRINGUP_FLOAT16},
                                         {T::BFloat16, BRINGUP_BFLOAT16},
                                         {T::Float, BRINGUP_FLOAT32},
                                         {T::Double, BRINGUP_FLOAT64},
                                         {T::ComplexHalf, BRINGUP_COMPLEX32},
                                         {T::ComplexFloat, BRINGUP_COMPLEX64},
                                         {T::ComplexDouble, BRINGUP_COMPLEX128},
                                         {T::UInt16, BRINGUP_UINT16},
                                         {T::UInt32, BRINGUP_UINT32},
                                         {T::UInt64, BRINGUP_UINT64}};
  for (const auto& [known, code] : codes)
    if (known == type) return code;
  return c10::isFloat8Type(type) ? BRINGUP_FLOAT8 : BRINGUP_QUANTIZED;
}

void check_dtype(Device& device, c10::ScalarType type) {
  const uint64_t mask = translated([&]() { return device.spec().dtypes; });
  // Bytes are always there: torch moves and saves every storage as uint8, and masks are bool.
  if (C10_LIKELY(mask == 0 || (mask >> dtype_code(type) & 1)) || type == c10::ScalarType::Byte ||
      type == c10::ScalarType::Bool)
    return;
  TORCH_CHECK_NOT_IMPLEMENTED(false, device.label(), " (", device.spec().name, ") has no dtype ", c10::toString(type),
                              ": convert to one that torch.accelerator.get_device_capability() lists");
}

// ---- storages ----

StorageImpl::~StorageImpl() {
  if (auto* known = alias.load(std::memory_order_acquire))
    c10::intrusive_ptr<c10::StorageImpl>::reclaim(known); // drops the reference this storage holds
}

namespace {

void* host_bytes(c10::StorageImpl* storage, int64_t host_offset) {
  void* bytes = storage->data_ptr().get();
  return bytes ? static_cast<char*>(bytes) + host_offset : nullptr;
}

c10::intrusive_ptr<c10::StorageImpl> cpu_storage(c10::StorageImpl* like, c10::DataPtr data) {
  return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(),
                                               static_cast<int64_t>(like->nbytes()), std::move(data),
                                               c10::GetCPUAllocator(), /*resizable=*/true);
}

} // namespace

c10::intrusive_ptr<c10::StorageImpl> holding_alias(c10::StorageImpl* storage, int64_t host_offset) {
  c10::raw::intrusive_ptr::incref(storage);
  auto release = [](void* held) { c10::raw::intrusive_ptr::decref(static_cast<c10::StorageImpl*>(held)); };
  return cpu_storage(storage, {host_bytes(storage, host_offset), storage, +release, c10::Device(c10::kCPU)});
}

c10::intrusive_ptr<c10::StorageImpl> host_alias(c10::StorageImpl* storage, int64_t host_offset) {
  void* bytes = host_bytes(storage, host_offset);
  StorageImpl* extras = extras_of(storage);
  auto* known = extras ? extras->alias.load(std::memory_order_acquire) : nullptr;
  if (C10_LIKELY(known && known->data() == bytes && known->nbytes() == storage->nbytes()))
    return c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(known);
  auto fresh = cpu_storage(storage, c10::DataPtr(bytes, c10::Device(c10::kCPU)));
  // Published only when there was none: a storage that grew keeps making short-lived aliases, which is rare and right.
  c10::StorageImpl* expected = nullptr;
  if (extras && known == nullptr &&
      extras->alias.compare_exchange_strong(expected, fresh.get(), std::memory_order_acq_rel))
    c10::raw::intrusive_ptr::incref(fresh.get());
  return fresh;
}

namespace {

void delete_block(void* context);

c10::intrusive_ptr<c10::StorageImpl> make_storage(c10::StorageImpl::use_byte_size_t, c10::SymInt size_bytes,
                                                  c10::DataPtr data, c10::Allocator* allocator, bool resizable) {
  const int64_t nbytes = size_bytes.guard_int(__FILE__, __LINE__);
  if (data.device().type() != kDeviceType && allocator) data = allocator->allocate(nbytes); // the caller had no memory
  const c10::DeviceIndex index = data.device().index();
  auto storage = c10::make_intrusive<StorageImpl>(c10::StorageImpl::use_byte_size_t(), std::move(size_bytes),
                                                  std::move(data), allocator, resizable);
  if (index >= 0 && index < Registry::get().device_count()) {
    Device& device = Registry::get().device(index);
    if (device.partitioned()) {
      const auto* block = storage->data_ptr().get_deleter() == &delete_block
                              ? static_cast<const Block*>(storage->data_ptr().get_context())
                              : nullptr;
      storage->placement = block ? block->placement : device.placement_of_new(static_cast<uint64_t>(nbytes));
    }
  }
  return storage;
}

void tell_observers(const Block& block, void (WorkObserver::*what)(Device&, const Block&)) {
  WorkObserver::tell(what, static_cast<Device&>(block.owner->backend()), block);
}

void delete_block(void* context) {
  if (context == nullptr) return;
  auto* block = static_cast<Block*>(context);
  CachingAllocator& owner = *block->owner;
  // At exit and in a forked child nothing is given back: the driver may be gone, and the lock may be held for ever. Of
  // a lost device only the books are kept: it can be reset once nothing is held.
  auto& device = static_cast<Device&>(owner.backend());
  if (!device.usable() && !device.lost()) return;
  tell_observers(*block, &WorkObserver::freed);
  owner.free(block);
}

// Blocks that CPU kernels hold, by the pointer they were given. oneDNN allocates through raw_allocate, which demands
// that a DataPtr's context is its pointer, so the block cannot be the context here. A flat table under a spinning lock
// costs about 30 ns each way.
class RedirectedBlocks {
 public:
  void insert(void* bytes, Block* block) {
    Guard guard(lock_);
    blocks_[bytes] = block;
  }
  void after_fork_in_child() { lock_.clear(); } // the thread that held it is not here
  Block* take(void* bytes) {
    Guard guard(lock_);
    const auto found = blocks_.find(bytes);
    if (found == blocks_.end()) return nullptr;
    Block* block = found->second;
    blocks_.erase(found);
    return block;
  }

 private:
  struct Guard {
    explicit Guard(std::atomic_flag& lock) : lock(lock) {
      while (lock.test_and_set(std::memory_order_acquire)) std::this_thread::yield();
    }
    ~Guard() { lock.clear(std::memory_order_release); }
    std::atomic_flag& lock;
  };
  std::atomic_flag lock_ = ATOMIC_FLAG_INIT;
  ska::flat_hash_map<void*, Block*> blocks_;
};
RedirectedBlocks& redirected_blocks() {
  static auto* blocks = new RedirectedBlocks();
  return *blocks;
}

void delete_redirected_block(void* bytes) { delete_block(redirected_blocks().take(bytes)); }

// raw_deallocate gets a pointer and does not say whether it was allocated under a redirection.
c10::DeleterFnPtr g_usual_raw_deleter = nullptr;
void delete_raw(void* bytes) {
  if (Block* block = redirected_blocks().take(bytes))
    delete_block(block);
  else
    g_usual_raw_deleter(bytes);
}

// The two have the same members in the same order.
c10::CachingAllocator::StatArray stat_array(const StatSet& set) {
  return std::bit_cast<c10::CachingAllocator::StatArray>(set);
}

struct TorchAllocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t nbytes) override { return allocate_on(current_device(), nbytes); }
  c10::DeleterFnPtr raw_deleter() const override { return &delete_block; }
  void copy_data(void* dest, const void* source, std::size_t count) const override {
    translated([&] {
      Device& device = device_at(current_device());
      device.copy(reinterpret_cast<uint64_t>(dest), reinterpret_cast<uint64_t>(source), count, BRINGUP_DEVICE_TO_DEVICE,
                  current_stream(current_device()));
    });
  }

  bool initialized() override {
    for (int32_t index = 0; index < Registry::get().device_count(); ++index)
      if (Registry::get().device(index).is_open()) return true;
    return false;
  }
  void emptyCache(c10::MempoolId_t) override {
    translated([&] {
      for (int32_t index = 0; index < Registry::get().device_count(); ++index)
        if (Registry::get().device(index).is_open()) Registry::get().device(index).memory().empty_cache();
    });
  }
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override { record_stream(data, stream); }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex index) override {
    Device& device = device_at(index);
    if (!device.usable()) return {}; // in a forked child the allocator's lock may be held for ever
    const MemoryStats from = device.memory().stats();
    c10::CachingDeviceAllocator::DeviceStats stats;
    stats.allocation = stat_array(from.allocation);
    stats.segment = stat_array(from.segment);
    stats.active = stat_array(from.active);
    stats.inactive_split = stat_array(from.inactive_split);
    stats.allocated_bytes = stat_array(from.allocated_bytes);
    stats.reserved_bytes = stat_array(from.reserved_bytes);
    stats.active_bytes = stat_array(from.active_bytes);
    stats.inactive_split_bytes = stat_array(from.inactive_split_bytes);
    stats.requested_bytes = stat_array(from.requested_bytes);
    stats.num_alloc_retries = from.num_alloc_retries;
    stats.num_ooms = from.num_ooms;
    stats.num_sync_all_streams = from.num_sync_all_streams;
    stats.num_device_alloc = from.num_device_alloc;
    stats.num_device_free = from.num_device_free;
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex index) override { device_at(index).memory().reset_accumulated(); }
  void resetPeakStats(c10::DeviceIndex index) override { device_at(index).memory().reset_peak(); }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex index) override {
    return translated([&] { return std::pair<size_t, size_t>(device_at(index).memory_info()); });
  }
};

TorchAllocator& torch_allocator() {
  static TorchAllocator* allocator = new TorchAllocator();
  return *allocator;
}

// ---- redirection of the CPU allocator ----

thread_local c10::DeviceIndex t_redirect = -1;

struct RedirectingAllocator final : c10::Allocator {
  explicit RedirectingAllocator(c10::Allocator* usual) : usual(usual) { g_usual_raw_deleter = usual->raw_deleter(); }
  c10::Allocator* usual;

  c10::DataPtr allocate(size_t nbytes) override {
    if (C10_LIKELY(t_redirect < 0) || nbytes == 0) return usual->allocate(nbytes);
    return translated([&] {
      Device& device = Registry::get().device(t_redirect);
      const int32_t stream = current_stream(t_redirect);
      Block* block = device.memory().allocate(nbytes, stream);
      // The kernel writes at once. Another thread may have queued work on the block, and freed it, since the call
      // began.
      if (C10_UNLIKELY(device.busy(stream)) && !device.finish_work(stream)) {
        device.memory().free(block);
        throw Error(BRINGUP_ERROR, device.label() + ": its stream cannot be waited for");
      }
      void* bytes = reinterpret_cast<void*>(block->address + device.spec().host_offset);
      redirected_blocks().insert(bytes, block);
      tell_observers(*block, &WorkObserver::allocated);
      return c10::DataPtr(bytes, bytes, &delete_redirected_block, c10::Device(c10::kCPU));
    });
  }
  bool is_simple_data_ptr(const c10::DataPtr& data) const override { return usual->is_simple_data_ptr(data); }
  c10::DeleterFnPtr raw_deleter() const override { return &delete_raw; }
  void copy_data(void* dest, const void* source, std::size_t count) const override {
    default_copy_data(dest, source, count);
  }
};

} // namespace

RedirectCpuAllocator::RedirectCpuAllocator(c10::DeviceIndex index) noexcept
    : previous_(std::exchange(t_redirect, index)) {}
RedirectCpuAllocator::~RedirectCpuAllocator() { t_redirect = previous_; }

bool is_redirected(const c10::Storage& storage) { return storage.data_ptr().get_deleter() == &delete_redirected_block; }

c10::Storage adopt(const c10::Storage& cpu_storage, c10::DeviceIndex index) {
  c10::StorageImpl* from = cpu_storage.unsafeGetStorageImpl();
  const size_t nbytes = from->nbytes();
  c10::DataPtr data = from->set_data_ptr(c10::DataPtr(nullptr, c10::Device(c10::kCPU)));
  Block* block = redirected_blocks().take(data.release_context());
  c10::DataPtr device_data(reinterpret_cast<void*>(block->address), block, &delete_block,
                           c10::Device(kDeviceType, index));
  return c10::Storage(make_storage(c10::StorageImpl::use_byte_size_t(), static_cast<int64_t>(nbytes),
                                   std::move(device_data), &torch_allocator(), /*resizable=*/true));
}

// ---- public functions ----

c10::Allocator* device_allocator() { return &torch_allocator(); }

c10::Storage new_storage(c10::DeviceIndex index, size_t nbytes) {
  return c10::Storage(make_storage(c10::StorageImpl::use_byte_size_t(), static_cast<int64_t>(nbytes),
                                   allocate_on(index, nbytes), &torch_allocator(), /*resizable=*/true));
}

bringup_placement placement_of(c10::StorageImpl* storage) {
  if (StorageImpl* extras = extras_of(storage)) return extras->placement;
  const c10::DeviceIndex index = storage->device().index();
  Device& device = device_at(index < 0 ? current_device() : index);
  if (C10_LIKELY(device.spec().partitions <= 1) || storage->data() == nullptr) return {};
  // A blob over memory of ours (pickling, DLPack): only the start of an allocation says where the rest lies.
  const auto address = reinterpret_cast<uint64_t>(storage->data());
  const Block* block = device.memory().find(address);
  TORCH_CHECK_NOT_IMPLEMENTED(block && block->address == address, device.label(),
                              " has partitioned memory: a tensor over the address ", storage->data(),
                              ", which is not the start of an allocation, cannot be used");
  return block->placement;
}

c10::DataPtr allocate_on(c10::DeviceIndex index, size_t nbytes, const bringup_placement* placement) {
  const c10::Device torch_device(kDeviceType, index);
  return translated([&] {
    Device& device = Registry::get().device(index);
    device.ensure_open();
    if (nbytes == 0) return c10::DataPtr(nullptr, torch_device);
    const bringup_placement wanted = placement ? *placement : device.placement_of_new(nbytes);
    Block* block =
        device.memory().allocate(device.physical_bytes(nbytes, wanted), device.memory_pool(current_stream(index)));
    block->placement = wanted;
    tell_observers(*block, &WorkObserver::allocated);
    return c10::DataPtr(reinterpret_cast<void*>(block->address), block, &delete_block, torch_device);
  });
}

void record_stream(const c10::DataPtr& data, const c10::Stream& stream) {
  if (data.get_deleter() != &delete_block || data.get_context() == nullptr) return; // empty, or memory we do not own
  auto* block = static_cast<Block*>(data.get_context());
  CachingAllocator& owner = *block->owner;
  auto& device = static_cast<Device&>(owner.backend());
  TORCH_CHECK(device.index == stream.device_index(), "record_stream: the tensor is on ", device.label(),
              " and the stream belongs to device ", static_cast<int>(stream.device_index()));
  translated([&] {
    const auto id = static_cast<int32_t>(stream.id());
    device.check_stream(id);
    if (device.memory_pool(id) != block->stream) owner.record_stream(block, id); // a capture's work is in one order
    WorkObserver::tell(&WorkObserver::shared, device, *block, id);
  });
}

Location locate(const c10::TensorImpl& tensor, Device& device) {
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  const uint64_t base = reinterpret_cast<uint64_t>(storage->data_ptr().get());
  const uint64_t offset = static_cast<uint64_t>(tensor.storage_offset()) * tensor.itemsize();
  if (C10_LIKELY(device.spec().partitions <= 1)) return {base + offset, {}, false};
  bringup_placement placement = placement_of(storage);
  placement.offset = offset;
  return {base, placement, true};
}

void move_bytes(Device& device, c10::StorageImpl* storage, uint64_t offset, const void* host, uint64_t nbytes,
                bringup_copy_kind kind) {
  if (nbytes == 0) return;
  const bool partitioned = device.spec().partitions > 1;
  bringup_placement placement = partitioned ? placement_of(storage) : bringup_placement{};
  placement.offset = offset;
  const uint64_t far = reinterpret_cast<uint64_t>(storage->data()) + (partitioned ? 0 : offset);
  const auto near = reinterpret_cast<uint64_t>(host);
  const bool inwards = kind == BRINGUP_HOST_TO_DEVICE;
  device.copy(inwards ? far : near, inwards ? near : far, nbytes, kind,
              current_stream(static_cast<c10::DeviceIndex>(device.index)), partitioned ? &placement : nullptr);
}

void register_allocator() {
  c10::SetAllocator(kDeviceType, &torch_allocator());
  c10::SetStorageImplCreate(kDeviceType, &make_storage);
  static auto* redirecting = new RedirectingAllocator(c10::GetCPUAllocator());
  c10::SetCPUAllocator(redirecting);
  pthread_atfork(nullptr, nullptr, [] { redirected_blocks().after_fork_in_child(); });
}

} // namespace bringup
