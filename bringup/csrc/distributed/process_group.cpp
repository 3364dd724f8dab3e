// How a collective is run: on the calling thread where nothing is queued before it, else in the order of streams.
#include "distributed/process_group.h"

#include <ATen/ops/empty_strided.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>

#include "pytorch/allocator.h"

namespace bringup {
namespace {

// A copied collective is cut into pieces, so that copies and network overlap; those in flight bound the pinned memory.
constexpr int64_t kPiece = 8 << 20;
constexpr int64_t kPiecesInFlight = 4;

// What Gloo reduces; other dtypes can only be moved, as bytes.
bool host_has(c10::ScalarType type) {
  using enum c10::ScalarType;
  constexpr std::array known{Float, Double, Half, BFloat16, Char, Byte, Bool, Int, Long};
  return std::find(known.begin(), known.end(), type) != known.end();
}

void check_reduction(const char* collective, c10d::ReduceOp::RedOpType op, c10::ScalarType type) {
  using enum c10d::ReduceOp::RedOpType;
  const bool of_bits = op == BAND || op == BOR || op == BXOR;
  TORCH_CHECK_TYPE(
      host_has(type), collective, " of ", c10::toString(type),
      ": Gloo reduces float32, float64, float16, bfloat16, int8, uint8, int32, int64 and bool: convert to ",
      "one of these first");
  TORCH_CHECK_TYPE(!of_bits || c10::isIntegralType(type, /*includeBool=*/true), collective, ": BAND, BOR and BXOR ",
                   "are for integers, and this is ", c10::toString(type));
  TORCH_CHECK_TYPE(op != AVG || c10::isFloatingType(type), collective,
                   ": AVG is for floating-point numbers, and this is ", c10::toString(type));
  TORCH_CHECK_NOT_IMPLEMENTED(op != PREMUL_SUM, collective, ": Gloo has no PREMUL_SUM: multiply first, then SUM");
}

at::Tensor cpu_tensor(c10::Storage storage, c10::ScalarType type, at::IntArrayRef sizes, at::IntArrayRef strides,
                      int64_t offset) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                         c10::scalarTypeToTypeMeta(type));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  return tensor;
}

at::Tensor pinned(at::IntArrayRef sizes, at::IntArrayRef strides, c10::ScalarType type) {
  return at::empty_strided(sizes, strides, at::TensorOptions(type).device(c10::kCPU).pinned_memory(true));
}

std::string described(const std::vector<at::Tensor>& tensors) {
  if (tensors.empty()) return "no tensors";
  const std::string more = tensors.size() > 1 ? c10::str(" and ", tensors.size() - 1, " more") : "";
  return c10::str(c10::toString(tensors[0].scalar_type()), " ", tensors[0].sizes(), more);
}

// On a stream, without waiting; the allocator keeps the memory from others until it is done.
void copy_on(Device& device, int32_t stream, const at::Tensor& to, const at::Tensor& from) {
  const c10::StreamGuard current(torch_stream(device, stream));
  to.copy_(from, /*non_blocking=*/true);
  record_stream((to.is_cpu() ? from : to).storage().data_ptr(), torch_stream(device, stream));
}

} // namespace

// ---- the host's side of a call ----

void HostSide::add(const at::Tensor& tensor, Device& device, bool zero_copy, bool as_bytes, bool flat) {
  const c10::TensorImpl* key = tensor.unsafeGetTensorImpl();
  if (tensors_.count(key)) return;
  at::Tensor host;
  if (zero_copy) {
    auto alias = holding_alias(tensor.storage().unsafeGetStorageImpl(), device.spec().host_offset);
    host =
        cpu_tensor(std::move(alias), tensor.scalar_type(), tensor.sizes(), tensor.strides(), tensor.storage_offset());
  } else {
    host = pinned(tensor.sizes(), tensor.strides(), tensor.scalar_type());
  }
  copies_[key] = host;
  if (as_bytes) { // one more dimension, so that the others mean what they did
    std::vector<int64_t> sizes = tensor.sizes().vec(), strides = tensor.strides().vec();
    const auto itemsize = static_cast<int64_t>(tensor.itemsize());
    for (int64_t& stride : strides) stride *= itemsize;
    sizes.push_back(itemsize);
    strides.push_back(1);
    host = cpu_tensor(host.storage(), at::kByte, sizes, strides, host.storage_offset() * itemsize);
  }
  if (flat) host = cpu_tensor(host.storage(), host.scalar_type(), {host.numel()}, {1}, host.storage_offset());
  tensors_[key] = host;
}

// ---- the group ----

ProcessGroup::ProcessGroup(c10::intrusive_ptr<c10d::Backend> host, std::string name,
                           c10::intrusive_ptr<c10d::Store> store)
    : Backend(host->getRank(), host->getSize()),
      host_(std::move(host)),
      name_(std::move(name)),
      store_(std::move(store)) {}

// The host's group waits without end for its threads, and those wait for ranks that were given up.
ProcessGroup::~ProcessGroup() {
  if (DeviceWork::gave_up()) c10::raw::intrusive_ptr::incref(host_.get());
}

c10d::ErrorType ProcessGroup::getError() {
  std::lock_guard lock(broken_->mutex);
  return broken_->why.empty() ? c10d::ErrorType::SUCCESS : c10d::ErrorType::COMM_ERROR;
}

void ProcessGroup::check_usable() {
  std::lock_guard lock(broken_->mutex);
  if (!broken_->why.empty()) C10_THROW_ERROR(DistBackendError, "an earlier call of this group failed: " + broken_->why);
}

// init_process_group() without a name calls every group Gloo's, and DDP then looks for a Gloo that is not there; one
// that has several backends it calls nobody's, and then warns at every step.
void ProcessGroup::name_owner() {
  using Owner = c10d::ProcessGroup;
  try {
    const auto owner = c10d::resolve_process_group(name_);
    const auto type = owner->getBackendType();
    if (type == Owner::UNDEFINED || (type == Owner::GLOO && !owner->hasBackendForDeviceType(c10::kCPU)))
      owner->setDefaultBackend(Owner::CUSTOM);
  } catch (const c10::Error&) { // a group that nobody registered: it is used directly
  }
}

// The device of the call's tensors; an error where they are not what every rank must have.
Device& ProcessGroup::check(const Call& call) const {
  const at::Tensor* first = nullptr;
  for (const Tensors* list : {&call.reads, &call.writes}) {
    for (const at::Tensor& tensor : *list) {
      if (!first) first = &tensor;
      TORCH_CHECK_VALUE(tensor.device().type() == kDeviceType, call.collective, ": this group is for ",
                        Registry::get().type_name, " tensors and got one on ", tensor.device(),
                        "; move it, or make the group with init_process_group(\"cpu:gloo,", Registry::get().type_name,
                        ":bringup\")");
      TORCH_CHECK_VALUE(tensor.device() == first->device(), call.collective, ": tensors of one call must be on one ",
                        "device, got ", first->device(), " and ", tensor.device());
      TORCH_CHECK_VALUE(tensor.is_non_overlapping_and_dense(), call.collective, ": a tensor of sizes ", tensor.sizes(),
                        " and strides ", tensor.strides(), " is not contiguous: call .contiguous() first");
      TORCH_CHECK_VALUE(!tensor.is_conj() && !tensor.is_neg(), call.collective,
                        ": the tensor is a lazy conjugate or negative: call .resolve_conj().resolve_neg() first");
      if (call.reduces) check_reduction(call.collective, *call.reduces, tensor.scalar_type());
    }
  }
  TORCH_CHECK_VALUE(first, call.collective, ": there is no tensor");
  return device_at(first->device().index());
}

std::shared_ptr<ProcessGroup::Lanes> ProcessGroup::lanes_of(Device& device) {
  std::lock_guard lock(mutex_);
  const auto found = lanes_.find(device.index);
  if (found != lanes_.end()) return found->second;
  const auto made = std::make_shared<Lanes>();
  for (int32_t* lane : {&made->in, &made->run, &made->out, &made->messages})
    *lane = translated([&] { return device.stream_from_pool(/*high_priority=*/true); });
  return lanes_[device.index] = made;
}

ProcessGroup::Work ProcessGroup::run(Call call, Start start) {
  check_usable();
  Device& device = check(call);
  const c10::DeviceIndex index = static_cast<c10::DeviceIndex>(device.index);
  translated([&] { device.refuse_capture(current_stream(index), "a collective"); });
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const bringup_device_spec& spec = translated([&]() -> const bringup_device_spec& { return device.spec(); });
  const bool zero_copy = spec.host_visible && spec.partitions <= 1;
  const bool queued = device.driver.asynchronous && device.driver.api.host_function;
  const Tensors& named = call.reads.empty() ? call.writes : call.reads;
  const bool as_bytes =
      std::any_of(named.begin(), named.end(), [](const at::Tensor& each) { return !host_has(each.scalar_type()); });
  CallName name{call.collective, described(named), name_, 0, getRank(), getSize()};
  {
    std::lock_guard lock(mutex_);
    name.number = ++calls_;
  }
  if (name.number == 1) name_owner();
  auto work = c10::make_intrusive<DeviceWork>(name, call.type, device, call.writes, queued);
  work->message = call.message;
  work->on_failure = [broken = broken_](const std::string& why) {
    std::lock_guard lock(broken->mutex);
    if (broken->why.empty()) broken->why = why;
  };
  const bool own = queued && queue_own(device, work, call);
  if (queued && !own)
    queue(device, work, call, start, zero_copy, as_bytes);
  else if (!queued)
    run_now(device, *work, call, start, zero_copy, as_bytes);
  std::lock_guard lock(mutex_);
  if (coalescing_) coalesced_.push_back(work);
  return work;
}

// A device without streams or host functions: the host waits for what is queued, and whoever waits brings it back.
void ProcessGroup::run_now(Device& device, DeviceWork& work, const Call& call, const Start& start, bool zero_copy,
                           bool as_bytes) {
  HostSide host;
  for (const Tensors* list : {&call.reads, &call.writes})
    for (const at::Tensor& tensor : *list) host.add(tensor, device, zero_copy, as_bytes, call.flat);
  translated([&] { device.drain(current_stream(static_cast<c10::DeviceIndex>(device.index))); });
  if (!zero_copy) {
    for (const at::Tensor& tensor : call.reads) host.copied(tensor).copy_(tensor);
    work.deliver = [host, writes = call.writes] {
      const at::AutoDispatchBelowADInplaceOrView below_autograd;
      for (const at::Tensor& tensor : writes) tensor.copy_(host.copied(tensor));
    };
  }
  work.start_host([&] { return start(host); }, /*at_once=*/true);
}

void ProcessGroup::queue(Device& device, const c10::intrusive_ptr<DeviceWork>& work, const Call& call,
                         const Start& start, bool zero_copy, bool as_bytes) {
  const int32_t stream = current_stream(static_cast<c10::DeviceIndex>(device.index));
  const auto held = lanes_of(device); // by what is queued, too: it may outlive the group
  Lanes& lanes = *held;
  if (!zero_copy && call.pieces && !as_bytes && call.writes.size() == 1 &&
      static_cast<int64_t>(call.writes[0].nbytes()) > 2 * kPiece)
    return queue_pieces(device, work, call.writes[0], call, start);
  auto host = std::make_shared<HostSide>();
  for (const Tensors* list : {&call.reads, &call.writes})
    for (const at::Tensor& tensor : *list) host->add(tensor, device, zero_copy, as_bytes, call.flat);
  int32_t before = stream; // what the host's part waits for
  if (!zero_copy) {
    translated([&] { follow(device, lanes.in, stream); });
    for (const at::Tensor& tensor : call.reads) copy_on(device, lanes.in, host->copied(tensor), tensor);
    before = lanes.in;
  }
  std::atomic<int>& unstarted = call.message ? lanes.unstarted_messages : lanes.unstarted;
  const bool at_once = !device.busy(before) && unstarted == 0;
  const int32_t lane = call.message ? lanes.messages : lanes.run;
  auto start_it = [work, host, start](bool now) { work->start_host([&] { return start(*host); }, now); };
  if (at_once) {
    start_it(true);
  } else {
    translated([&] { follow(device, lane, before); });
    ++unstarted;
  }
  if (!call.message) {
    host_function_on(device, lane, [work, at_once, start_it, held, &unstarted] {
      if (!at_once) start_it(false), --unstarted;
      work->finish_host();
    });
  } else if (!at_once) {
    host_function_on(device, lane, [start_it, held, &unstarted] { start_it(false), --unstarted; });
  }
  if (call.message) { // the stream that waits brings it
    if (!zero_copy && !call.writes.empty())
      work->deliver = [&device, host, writes = call.writes] {
        const int32_t waiting = current_stream(static_cast<c10::DeviceIndex>(device.index));
        for (const at::Tensor& tensor : writes) copy_on(device, waiting, tensor, host->copied(tensor));
      };
    return;
  }
  int32_t last = lane;
  if (!zero_copy && !call.writes.empty()) {
    translated([&] { follow(device, lanes.out, lane); });
    for (const at::Tensor& tensor : call.writes) copy_on(device, lanes.out, tensor, host->copied(tensor));
    last = lanes.out;
  }
  work->complete_on(last);
}

// Piece by piece through a few buffers: while one is on the network, the next is copied out and the last one back.
void ProcessGroup::queue_pieces(Device& device, const c10::intrusive_ptr<DeviceWork>& work, const at::Tensor& tensor,
                                const Call& call, const Start& start) {
  const int32_t stream = current_stream(static_cast<c10::DeviceIndex>(device.index));
  const auto held = lanes_of(device);
  Lanes& lanes = *held;
  const int64_t items = tensor.numel(), step = kPiece / static_cast<int64_t>(tensor.itemsize());
  const at::Tensor flat = tensor.as_strided({items}, {1}, tensor.storage_offset());
  std::array<at::Tensor, kPiecesInFlight> buffers;
  std::array<Event, kPiecesInFlight> free{}; // when a buffer has been copied back
  translated([&] { follow(device, lanes.in, stream); });
  ++lanes.unstarted;
  for (int64_t begin = 0, number = 0; begin < items; begin += step, ++number) {
    const int64_t count = std::min(step, items - begin), slot = number % kPiecesInFlight;
    if (!buffers[slot].defined()) buffers[slot] = pinned({step}, {1}, tensor.scalar_type());
    const at::Tensor piece = flat.narrow(0, begin, count), buffer = buffers[slot].narrow(0, 0, count);
    auto host = std::make_shared<HostSide>();
    host->replace(tensor, buffer);
    if (number >= kPiecesInFlight)
      translated([&] {
        device.wait(free[slot], device, lanes.in);
        device.destroy(free[slot]);
      });
    if (!call.reads.empty()) copy_on(device, lanes.in, buffer, piece);
    translated([&] { follow(device, lanes.run, lanes.in); });
    const bool last = begin + step >= items;
    host_function_on(device, lanes.run, [work, host, start, last, held] {
      work->start_host([&] { return start(*host); }, false);
      if (last) --held->unstarted;
      work->finish_host(last);
    });
    translated([&] { follow(device, lanes.out, lanes.run); });
    if (!call.writes.empty()) copy_on(device, lanes.out, piece, buffer);
    translated([&] { free[slot] = device.record(lanes.out); });
  }
  for (const Event& event : free) translated([&] { device.destroy(event); });
  work->complete_on(lanes.out);
}

// ---- a driver's own collectives ----

void ProcessGroup::Comm::end() noexcept {
  if (!ended.exchange(true) && device.usable())
    device.driver.call_quietly("comm_destroy", device.driver.api.comm_destroy, device.local, handle);
}

// The communicator of a device, made with the first call there by all ranks.
std::shared_ptr<ProcessGroup::Comm> ProcessGroup::comm_of(Device& device) {
  std::string key;
  {
    std::lock_guard lock(mutex_);
    if (const auto found = comms_.find(device.index); found != comms_.end()) return found->second;
    key = "comm/" + std::to_string(joined_++);
  }
  const Driver& driver = device.driver;
  char id[4096] = "";
  if (getRank() == 0) {
    translated([&] { driver.call("comm_id", driver.api.comm_id, device.local, id, 4096); });
    store_->set(key, std::string(id));
  } else {
    const auto found = store_->get(key);
    std::copy_n(found.begin(), std::min<size_t>(found.size(), sizeof(id) - 1), id);
  }
  const auto timeout = static_cast<uint64_t>(host_->getBackendOptions()->timeout.count());
  uint64_t handle = 0;
  translated([&] {
    driver.call("comm_create", driver.api.comm_create, device.local, id, getRank(), getSize(), timeout, &handle);
  });
  std::lock_guard lock(mutex_);
  return comms_[device.index] = std::shared_ptr<Comm>(new Comm{device, handle});
}

// In the order of the group's other calls; false: the driver has no function for this, and the host does it.
bool ProcessGroup::queue_own(Device& device, const c10::intrusive_ptr<DeviceWork>& work, const Call& call) {
  const bringup_driver& api = device.driver.api;
  if (!call.own.queue || !api.comm_create || device.partitioned() || !call.own.offered(api)) return false;
  if ((call.reads.empty() ? call.writes : call.reads)[0].numel() == 0) return false;
  const auto comm = comm_of(device);
  const auto lanes = lanes_of(device);
  const int32_t stream = current_stream(static_cast<c10::DeviceIndex>(device.index));
  try {
    follow(device, lanes->run, stream);
    const uint64_t handle = device.stream_handle(lanes->run);
    device.driver.call(call.collective, device.local,
                       [&] { return call.own.queue(api, device.local, comm->handle, handle); });
  } catch (const Error& error) {
    if (error.status == BRINGUP_UNSUPPORTED) return false;
    translated([&] { throw error; });
  }
  device.mark_busy(lanes->run);
  for (const Tensors* list : {&call.reads, &call.writes})
    for (const at::Tensor& tensor : *list) record_stream(tensor.storage().data_ptr(), torch_stream(device, lanes->run));
  work->abandon = [comm = std::weak_ptr(comm)] {
    if (const auto alive = comm.lock()) alive->end();
  };
  work->wait_at_exit(true);
  const Event done = translated([&] { return device.record(lanes->run); });
  host_function_on(device, lanes->run, [work, done] { work->finish_device(done); });
  work->complete_on(lanes->run);
  return true;
}

void ProcessGroup::abort() {
  std::map<int32_t, std::shared_ptr<Comm>> ended;
  {
    std::lock_guard lock(mutex_);
    ended.swap(comms_);
  }
  host_->abort();
}

void ProcessGroup::finish_queued() {
  std::vector<std::pair<int32_t, std::shared_ptr<const Lanes>>> all;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [index, lanes] : lanes_) all.emplace_back(index, lanes);
  }
  for (const auto& [index, lanes] : all) {
    Device& device = device_at(index);
    if (!device.usable()) continue;
    for (const int32_t lane : {lanes->in, lanes->run, lanes->out, lanes->messages})
      translated([&] { device.finish(lane); });
  }
}

void ProcessGroup::shutdown() {
  finish_queued();
  {
    std::lock_guard lock(mutex_);
    comms_.clear();
  }
  host_->shutdown();
}

} // namespace bringup
