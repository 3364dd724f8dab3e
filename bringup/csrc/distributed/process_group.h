// A c10d::Backend for device tensors over one for CPU tensors: it runs in stream order, on device memory where the host
// sees that, else through pinned memory.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <map>

#include "distributed/work.h"

namespace bringup {

// CPU tensors in the place of a call's device tensors.
class HostSide {
 public:
  // The same bytes where the host sees them, else pinned memory for a copy; `as_bytes`: items are written as bytes;
  // `flat`: in one dimension.
  void add(const at::Tensor& tensor, Device& device, bool zero_copy, bool as_bytes, bool flat);
  void replace(const at::Tensor& tensor, at::Tensor host) { tensors_[tensor.unsafeGetTensorImpl()] = std::move(host); }
  const at::Tensor& operator()(const at::Tensor& tensor) const { return tensors_.at(tensor.unsafeGetTensorImpl()); }
  template <class Item> // tensors, or lists of them
    requires(!std::is_arithmetic_v<Item>)
  std::vector<Item> operator()(const std::vector<Item>& list) const {
    std::vector<Item> found;
    for (const Item& each : list) found.push_back((*this)(each));
    return found;
  }
  const at::Tensor& copied(const at::Tensor& tensor) const { return copies_.at(tensor.unsafeGetTensorImpl()); }

 private:
  std::map<const c10::TensorImpl*, at::Tensor> tensors_, copies_; // copies_: of the tensor's own dtype
};

class ProcessGroup final : public c10d::Backend {
 public:
  using Work = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;
  using TensorLists = std::vector<Tensors>;

  ProcessGroup(c10::intrusive_ptr<c10d::Backend> host, std::string name, c10::intrusive_ptr<c10d::Store> store);
  ~ProcessGroup() override;

  const std::string getBackendName() const override { return "bringup"; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return host_->getBackendOptions(); }
  void setTimeout(std::chrono::milliseconds timeout) override { host_->setTimeout(timeout); }
  void setSequenceNumberForGroup() override { host_->setSequenceNumberForGroup(); }
  uint64_t getSequenceNumberForGroup() override { return host_->getSequenceNumberForGroup(); }
  c10d::ErrorType getError() override;
  void abort() override;
  void shutdown() override;
  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override;
  Work endCoalescing() override;

  Work broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  Work allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  Work allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  Work reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  Work allgather(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  Work _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override;
  Work allgather_coalesced(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  Work allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                       const c10d::AllgatherOptions& options) override;
  Work gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  Work scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& options) override;
  Work reduce_scatter(Tensors& outputs, TensorLists& inputs, const c10d::ReduceScatterOptions& options) override;
  Work _reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) override;
  Work reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                       const c10d::ReduceScatterOptions& options) override;
  Work alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                     std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) override;
  Work alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;
  Work send(Tensors& tensors, int to, int tag) override;
  Work recv(Tensors& tensors, int from, int tag) override;
  Work recvAnysource(Tensors& tensors, int tag) override;
  Work barrier(const c10d::BarrierOptions& options) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;

 private:
  // The driver's own function for a call: queues it on a stream, by the handles of communicator and stream.
  struct Own {
    std::function<bool(const bringup_driver&)> offered;
    std::function<int32_t(const bringup_driver&, int32_t device, uint64_t comm, uint64_t stream)> queue;
  };
  struct Call {
    const char* collective;
    c10d::OpType type;
    Tensors reads, writes;
    const c10d::ReduceOp* reduces = nullptr; // without one it moves bytes, whatever their dtype
    bool pieces = false;                     // the same on parts of its one tensor
    bool message = false, flat = false;      // flat: Gloo would cut along the first dimension, which may be 1
    Own own{};
  };
  struct Comm { // a driver's communicator
    Device& device;
    const uint64_t handle;
    std::atomic<bool> ended{false};
    void end() noexcept;
    ~Comm() { end(); }
  };
  using Start = std::function<Work(const HostSide&)>;
  // The streams of a device, taken from its pool: copies to the host, the host's part, copies back, and messages, which
  // only start there.
  struct Lanes {
    int32_t in, run, out, messages;
    std::atomic<int> unstarted{0}, unstarted_messages{0}; // calls that the host's group has not seen yet
  };

  template <class Function, class... Arguments>
  static Own own(Function bringup_driver::* function, Arguments... arguments);
  template <class Method, class... Arguments>
  Start ask(Method method, const Arguments&... arguments) const;
  void check_parts(const char* collective, const Tensors& wholes, const Tensors& parts) const;
  Work run(Call call, Start start);
  void run_now(Device& device, DeviceWork& work, const Call& call, const Start& start, bool zero_copy, bool as_bytes);
  void queue(Device& device, const c10::intrusive_ptr<DeviceWork>& work, const Call& call, const Start& start,
             bool zero_copy, bool as_bytes);
  void queue_pieces(Device& device, const c10::intrusive_ptr<DeviceWork>& work, const at::Tensor& tensor,
                    const Call& call, const Start& start);
  bool queue_own(Device& device, const c10::intrusive_ptr<DeviceWork>& work, const Call& call);
  std::shared_ptr<Comm> comm_of(Device& device);
  void check_peer(const char* message, int peer) const;
  Device& check(const Call& call) const;
  void check_usable();
  void name_owner();
  void finish_queued(); // waits until the host's group has done what was queued
  std::shared_ptr<Lanes> lanes_of(Device& device);

  const c10::intrusive_ptr<c10d::Backend> host_;
  const std::string name_;
  const c10::intrusive_ptr<c10d::Store> store_;
  std::mutex mutex_; // of what follows
  std::map<int32_t, std::shared_ptr<Lanes>> lanes_;
  std::map<int32_t, std::shared_ptr<Comm>> comms_;
  size_t joined_ = 0; // communicators: their names in the store
  uint64_t calls_ = 0;
  bool coalescing_ = false;
  std::vector<Work> coalesced_;
  struct Broken { // shared with works, which may outlive the group
    std::mutex mutex;
    std::string why;
  };
  const std::shared_ptr<Broken> broken_ = std::make_shared<Broken>();
};

} // namespace bringup
