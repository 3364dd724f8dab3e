// Each collective: which tensors it reads and writes, and what the group of the host is asked.
#include <torch/library.h>

#include <algorithm>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include "distributed/process_group.h"
#include "pytorch/allocator.h"

namespace bringup {
namespace {

using c10d::OpType;
using Tensors = ProcessGroup::Tensors;
using TensorLists = ProcessGroup::TensorLists;

Tensors all_of(const TensorLists& lists) {
  Tensors all;
  for (const Tensors& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

uint64_t address(const at::Tensor& tensor) { return reinterpret_cast<uint64_t>(tensor.data_ptr()); }

// How a driver's own reduction is called: elements, their dtype, and what is made of them.
static_assert(int(BRINGUP_BXOR) == int(c10d::ReduceOp::BXOR) && int(BRINGUP_AVG) == int(c10d::ReduceOp::AVG));
int32_t reduction(const c10d::ReduceOp& op) { return static_cast<int32_t>(c10d::ReduceOp::RedOpType(op)); }

// Tensors of several sizes: Gloo deals the parts of one tensor, whose sizes may differ.
struct Dealt final : c10d::Work {
  Dealt(c10::intrusive_ptr<c10d::Work> dealing, at::Tensor whole, Tensors outputs)
      : Work(-1, OpType::ALLTOALL), dealing(std::move(dealing)), whole(std::move(whole)), outputs(std::move(outputs)) {}
  bool wait(std::chrono::milliseconds timeout) override {
    dealing->wait(timeout);
    int64_t begin = 0;
    for (const at::Tensor& output : outputs) {
      output.copy_(whole.narrow(0, begin, output.numel()).view(output.sizes()));
      begin += output.numel();
    }
    return true;
  }
  void abort() override { dealing->abort(); }
  const c10::intrusive_ptr<c10d::Work> dealing;
  const at::Tensor whole;
  const Tensors outputs;
};

// Several works as one.
struct Together final : c10d::Work {
  explicit Together(std::vector<c10::intrusive_ptr<c10d::Work>> works)
      : Work(-1, OpType::COALESCED), works(std::move(works)) {}
  bool isCompleted() override {
    return std::all_of(works.begin(), works.end(), [](auto& work) { return work->isCompleted(); });
  }
  bool isSuccess() const override {
    return std::all_of(works.begin(), works.end(), [](auto& work) { return work->isSuccess(); });
  }
  bool wait(std::chrono::milliseconds timeout) override {
    for (const auto& work : works) work->wait(timeout);
    return true;
  }
  void synchronize() override { wait(kNoTimeout); }
  const std::vector<c10::intrusive_ptr<c10d::Work>> works;
};

} // namespace

// The same method of the host's group, with CPU tensors in the places of the device's.
template <class Method, class... Arguments>
ProcessGroup::Start ProcessGroup::ask(Method method, const Arguments&... arguments) const {
  return [host = host_, method, given = std::make_tuple(arguments...)](const HostSide& side) {
    const auto on_host = [&side](const auto& argument) {
      if constexpr (std::is_invocable_v<const HostSide&, decltype(argument)>)
        return std::decay_t<decltype(argument)>(side(argument));
      else
        return argument;
    };
    auto ready = std::apply([&](const auto&... each) { return std::make_tuple(on_host(each)...); }, given);
    return std::apply([&](auto&... each) { return ((*host).*method)(each...); }, ready);
  };
}

template <class Function, class... Arguments>
ProcessGroup::Own ProcessGroup::own(Function bringup_driver::* function, Arguments... arguments) {
  return {[=](const bringup_driver& api) { return api.*function != nullptr; },
          [=](const bringup_driver& api, int32_t device, uint64_t comm, uint64_t stream) {
            return (api.*function)(api.self, device, comm, arguments..., stream);
          }};
}

void ProcessGroup::check_parts(const char* collective, const Tensors& wholes, const Tensors& parts) const {
  TORCH_CHECK_VALUE(wholes.size() == parts.size(), collective, ": ", parts.size(), " inputs or outputs for ",
                    wholes.size(), " tensors of all ranks");
  for (size_t i = 0; i < wholes.size(); ++i) {
    const at::Tensor &whole = wholes[i], &part = parts[i];
    TORCH_CHECK_TYPE(whole.scalar_type() == part.scalar_type(), collective, ": input and output have dtypes ",
                     c10::toString(part.scalar_type()), " and ", c10::toString(whole.scalar_type()));
    TORCH_CHECK_VALUE(whole.numel() == part.numel() * getSize(), collective, " of ", getSize(), " ranks: a tensor of ",
                      whole.numel(), " elements is not ", getSize(), " times one of ", part.numel());
  }
}

void ProcessGroup::startCoalescing() {
  std::lock_guard lock(mutex_);
  coalescing_ = true;
  coalesced_.clear();
}

ProcessGroup::Work ProcessGroup::endCoalescing() {
  std::lock_guard lock(mutex_);
  coalescing_ = false;
  return c10::make_intrusive<Together>(std::exchange(coalesced_, {}));
}

ProcessGroup::Work ProcessGroup::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  const bool root = options.rootRank == getRank();
  Call call{"broadcast", OpType::BROADCAST, root ? tensors : Tensors(), root ? Tensors() : tensors};
  if (tensors.size() == 1)
    call.own = own(&bringup_driver::broadcast, address(tensors[0]), tensors[0].nbytes(),
                   static_cast<int32_t>(options.rootRank));
  return run(std::move(call), ask(&Backend::broadcast, tensors, options));
}

ProcessGroup::Work ProcessGroup::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  Call call{"all_reduce", OpType::ALLREDUCE, tensors, tensors, &options.reduceOp, true};
  if (tensors.size() == 1)
    call.own = own(&bringup_driver::all_reduce, address(tensors[0]), address(tensors[0]), tensors[0].numel(),
                   dtype_code(tensors[0].scalar_type()), reduction(options.reduceOp));
  return run(std::move(call), ask(&Backend::allreduce, tensors, options));
}

ProcessGroup::Work ProcessGroup::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  return run({"all_reduce_coalesced", OpType::ALLREDUCE_COALESCED, tensors, tensors, &options.reduceOp},
             ask(&Backend::allreduce_coalesced, tensors, options));
}

ProcessGroup::Work ProcessGroup::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  return run(
      {"reduce", OpType::REDUCE, tensors, options.rootRank == getRank() ? tensors : Tensors(), &options.reduceOp},
      ask(&Backend::reduce, tensors, options));
}

ProcessGroup::Work ProcessGroup::allgather(TensorLists& outputs, Tensors& inputs,
                                           const c10d::AllgatherOptions& options) {
  return run({"all_gather", OpType::ALLGATHER, inputs, all_of(outputs)},
             ask(&Backend::allgather, outputs, inputs, options));
}

ProcessGroup::Work ProcessGroup::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions& options) {
  check_parts("all_gather_into_tensor", {output}, {input});
  Call call{"all_gather_into_tensor", OpType::_ALLGATHER_BASE, {input}, {output}};
  call.flat = true;
  call.own = own(&bringup_driver::all_gather, address(output), address(input), input.nbytes());
  return run(std::move(call), ask(&Backend::_allgather_base, output, input, options));
}

ProcessGroup::Work ProcessGroup::allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                                                     const c10d::AllgatherOptions& options) {
  return run({"all_gather_coalesced", OpType::ALLGATHER_COALESCED, inputs, all_of(outputs)},
             ask(&Backend::allgather_coalesced, outputs, inputs, options));
}

ProcessGroup::Work ProcessGroup::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                 const c10d::AllgatherOptions& options) {
  check_parts("all_gather_into_tensor_coalesced", outputs, inputs);
  return run({"all_gather_into_tensor_coalesced", OpType::COALESCED, inputs, outputs, nullptr, false, false, true},
             ask(&Backend::allgather_into_tensor_coalesced, outputs, inputs, options));
}

ProcessGroup::Work ProcessGroup::gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& options) {
  return run({"gather", OpType::GATHER, inputs, all_of(outputs)}, ask(&Backend::gather, outputs, inputs, options));
}

ProcessGroup::Work ProcessGroup::scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& options) {
  return run({"scatter", OpType::SCATTER, all_of(inputs), outputs}, ask(&Backend::scatter, outputs, inputs, options));
}

ProcessGroup::Work ProcessGroup::reduce_scatter(Tensors& outputs, TensorLists& inputs,
                                                const c10d::ReduceScatterOptions& options) {
  return run({"reduce_scatter", OpType::REDUCE_SCATTER, all_of(inputs), outputs, &options.reduceOp},
             ask(&Backend::reduce_scatter, outputs, inputs, options));
}

ProcessGroup::Work ProcessGroup::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                      const c10d::ReduceScatterOptions& options) {
  check_parts("reduce_scatter_tensor", {input}, {output});
  Call call{"reduce_scatter_tensor", OpType::_REDUCE_SCATTER_BASE, {input}, {output}, &options.reduceOp};
  call.flat = true;
  call.own = own(&bringup_driver::reduce_scatter, address(output), address(input), output.numel(),
                 dtype_code(output.scalar_type()), reduction(options.reduceOp));
  return run(std::move(call), ask(&Backend::_reduce_scatter_base, output, input, options));
}

ProcessGroup::Work ProcessGroup::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                 const c10d::ReduceScatterOptions& options) {
  check_parts("reduce_scatter_tensor_coalesced", inputs, outputs);
  return run({"reduce_scatter_tensor_coalesced", OpType::REDUCE_SCATTER_TENSOR_COALESCED, inputs, outputs,
              &options.reduceOp, false, false, true},
             ask(&Backend::reduce_scatter_tensor_coalesced, outputs, inputs, options));
}

ProcessGroup::Work ProcessGroup::alltoall_base(at::Tensor& output, at::Tensor& input,
                                               std::vector<int64_t>& output_splits, std::vector<int64_t>& input_splits,
                                               const c10d::AllToAllOptions& options) {
  c10d::checkSplitSizes(input_splits, input, getSize());
  c10d::checkSplitSizes(output_splits, output, getSize());
  return run({"all_to_all_single", OpType::ALLTOALL_BASE, {input}, {output}},
             ask(&Backend::alltoall_base, output, input, output_splits, input_splits, options));
}

ProcessGroup::Work ProcessGroup::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
  for (const Tensors* list : {&inputs, &outputs}) {
    TORCH_CHECK_VALUE(list->size() == static_cast<size_t>(getSize()), "all_to_all: ", list->size(), " tensors for ",
                      getSize(), " ranks");
    for (const at::Tensor& each : *list)
      TORCH_CHECK_TYPE(each.scalar_type() == inputs[0].scalar_type(), "all_to_all: the tensors have dtypes ",
                       c10::toString(inputs[0].scalar_type()), " and ", c10::toString(each.scalar_type()));
  }
  return run({"all_to_all", OpType::ALLTOALL, inputs, outputs},
             [host = host_, outputs, inputs, options](const HostSide& side) -> Work {
               std::vector<int64_t> to, from;
               Tensors parts, places = side(outputs);
               for (const at::Tensor& input : side(inputs)) {
                 parts.push_back(input.reshape({-1}));
                 to.push_back(input.numel());
               }
               int64_t items = 0;
               for (const at::Tensor& place : places) {
                 from.push_back(place.numel());
                 items += place.numel();
               }
               at::Tensor sent = at::cat(parts), got = at::empty({items}, sent.options());
               auto dealing = host->alltoall_base(got, sent, from, to, options);
               return c10::make_intrusive<Dealt>(std::move(dealing), got, std::move(places));
             });
}

// Gloo waits for a rank that does not exist until the timeout.
void ProcessGroup::check_peer(const char* message, int peer) const {
  TORCH_CHECK_VALUE(0 <= peer && peer < getSize(), message, ": there is no rank ", peer, " in a group of ", getSize());
}

ProcessGroup::Work ProcessGroup::send(Tensors& tensors, int to, int tag) {
  check_peer("send", to);
  return run({"send", OpType::SEND, tensors, {}, nullptr, false, true}, ask(&Backend::send, tensors, to, tag));
}

ProcessGroup::Work ProcessGroup::recv(Tensors& tensors, int from, int tag) {
  check_peer("recv", from);
  return run({"recv", OpType::RECV, {}, tensors, nullptr, false, true}, ask(&Backend::recv, tensors, from, tag));
}

ProcessGroup::Work ProcessGroup::recvAnysource(Tensors& tensors, int tag) {
  return run({"recv from any rank", OpType::RECVANYSOURCE, {}, tensors, nullptr, false, true},
             ask(&Backend::recvAnysource, tensors, tag));
}

// For the host: it waits, as programs expect of a barrier.
ProcessGroup::Work ProcessGroup::barrier(const c10d::BarrierOptions& options) {
  check_usable();
  const c10::DeviceIndex index = current_device();
  if (Device& device = device_at(index); device.is_open())
    translated([&] { device.synchronize_stream(current_stream(index)); });
  finish_queued();
  return host_->barrier(options);
}

void ProcessGroup::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  finish_queued();
  host_->monitoredBarrier(options, wait_all_ranks);
}

namespace {

void refuse_sparse(const c10::OperatorHandle& op, torch::jit::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, op.schema().name(), ": sparse tensors of ", Registry::get().type_name,
                              " cannot be sent: call .to_dense() first, or make layers with sparse=False");
}

} // namespace

// Else it would run as an op on the CPU does, whose results are read when it returns.
TORCH_LIBRARY_IMPL(c10d, SparsePrivateUse1, library) {
  library.impl("allreduce_", torch::CppFunction::makeFromBoxedFunction<&refuse_sparse>());
}

} // namespace bringup
