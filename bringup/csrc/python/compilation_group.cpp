// A CompilationGroup at run time: compiled once per signature of its inputs, run op by op where that would be wrong.
#include <ATen/autocast_mode.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/jit/runtime/custom_operator.h>
#include <torch/csrc/jit/runtime/interpreter.h>

#include <map>

#include "aten/signature.h"
#include "jit/grouping.h"
#include "python/bindings.h"
#include "pytorch/context.h"

namespace py = pybind11;

namespace bringup {
namespace {

using GraphPtr = std::shared_ptr<torch::jit::Graph>;
using Inputs = at::ArrayRef<c10::IValue>;
using Tensors = std::vector<at::Tensor>;
using Key = std::vector<int64_t>;

// A program whose inputs never repeat would otherwise compile for ever.
constexpr size_t kMostSignatures = 64;

// Tensors that are more than their bytes: subclasses, and what function transforms wrap.
constexpr c10::DispatchKeySet kWrapped({c10::DispatchKey::Python, c10::DispatchKey::FuncTorchBatched,
                                        c10::DispatchKey::FuncTorchGradWrapper, c10::DispatchKey::Functionalize});

// ---- the signature ----

// The inputs of a call as words that are equal where the same code serves; `reason` says why none does.
struct GroupSignature {
  Signature call;
  const char* reason = nullptr;

  GroupSignature(torch::jit::Stack& stack, Inputs inputs, const ArgumentRules& rules, const JitSettings& settings)
      : call(home_of(inputs)) {
    using Fit = Signature::Fit;
    const Fit fit = call.read(rules, &stack);
    const int from_first = call.device - settings.first_device;
    if (fit != Fit::kernel || !call.numbers.empty())
      reason = fit == Fit::other_route ? "an input is neither a plain strided tensor nor a number"
                                       : "its inputs are on several devices";
    else if (call.tensors.empty())
      reason = "no input is a tensor";
    else if (home_of(inputs) == kDeviceType && (from_first < 0 || from_first >= settings.device_count))
      reason = "its inputs are on a device of another driver";
    else if (at::autocast::is_autocast_enabled(home_of(inputs)))
      reason = "autocast is on";
    else if (c10::impl::TorchDispatchModeTLS::any_modes_set())
      reason = "a dispatch mode is active";
    for (const c10::IValue& input : inputs)
      if (input.isTensor() && !input.toTensor().defined()) reason = "an input is undefined";
    for (const at::Tensor* tensor : call.tensors) {
      if (tensor->key_set().has_any(kWrapped))
        reason = "an input is a tensor subclass or inside a function transform";
      else if (tensor->unsafeGetTensorImpl()->is_wrapped_number())
        reason = "an input is a number that takes part in type promotion as one";
      else if (tensor->_fw_grad(0).defined() || (c10::GradMode::is_enabled() && tensor->requires_grad()))
        reason = "an input requires a gradient";
    }
  }

 private:
  static c10::DeviceType home_of(Inputs inputs) {
    for (const c10::IValue& input : inputs)
      if (input.isTensor() && input.toTensor().defined() && input.toTensor().is_cpu()) return c10::kCPU;
    return kDeviceType;
  }
};

// ---- code for a signature: a Python function ----

py::object* compiler = nullptr; // never freed: its last call may be while the interpreter ends

struct Compiled {
  py::object function;
  std::string refusal; // why there is none

  Compiled(py::object function, std::string refusal) : function(std::move(function)), refusal(std::move(refusal)) {}
  Compiled(const Compiled&) = delete;
  ~Compiled() { // graphs may outlive the interpreter
    if (!Py_IsInitialized()) {
      function.release();
      return;
    }
    py::gil_scoped_acquire gil;
    function = py::object();
  }
};
using CompiledPtr = std::shared_ptr<const Compiled>;

template <class F>
auto with_gil(F&& work) -> decltype(work()) {
  py::gil_scoped_acquire gil;
  try {
    return work();
  } catch (const py::error_already_set& error) {
    throw std::runtime_error(error.what()); // the JIT keeps only the text of an error
  }
}

CompiledPtr compile(const GraphPtr& graph, Inputs inputs, int device) {
  return with_gil([&] {
    py::list arguments;
    for (const c10::IValue& input : inputs) arguments.append(torch::jit::toPyObject(input));
    py::object made = (*compiler)(graph->copy(), arguments, device);
    const bool refused = py::isinstance<py::str>(made);
    const std::string refusal = refused ? made.cast<std::string>() : "";
    return std::make_shared<const Compiled>(refused ? py::object() : std::move(made), refusal);
  });
}

// ---- the group ----

class Group {
 public:
  explicit Group(GraphPtr graph)
      : graph_(std::move(graph)), code_(graph_, group_kind().toQualString()), rules_(rules_of(*graph_)) {}

  struct Counts {
    int64_t calls = 0, compiled = 0;
    std::map<std::string, int64_t> op_by_op; // calls that ran that way, by their reason
  };
  Counts counts() {
    std::lock_guard lock(mutex_);
    return counts_;
  }

  void run(torch::jit::Stack& stack) {
    const Inputs inputs = Inputs(stack).slice(stack.size() - graph_->inputs().size());
    const auto settings = jit_settings();
    std::string reason = "bringup.jit is disabled";
    CompiledPtr compiled;
    if (settings) {
      const GroupSignature signature(stack, inputs, rules_, *settings);
      const int device = signature.call.device;
      if (!signature.reason)
        compiled = compiled_for(signature.call.words().vec(), inputs, device < 0 ? settings->device : device);
      reason = signature.reason ? signature.reason : compiled->refusal;
    }
    {
      std::lock_guard lock(mutex_);
      ++counts_.calls;
      if (!reason.empty()) ++counts_.op_by_op[reason];
    }
    if (!reason.empty()) {
      torch::jit::InterpreterState(code_).run(stack);
      return;
    }
    Tensors tensors;
    for (const c10::IValue& input : inputs)
      if (input.isTensor()) tensors.push_back(input.toTensor());
    c10::NoGradGuard no_grad;
    Tensors outputs = with_gil([&] { return compiled->function(*py::cast(tensors)).cast<Tensors>(); });
    TORCH_CHECK(outputs.size() == graph_->outputs().size(), "a compiled group gave ", outputs.size(),
                " tensors instead of ", graph_->outputs().size());
    torch::jit::drop(stack, inputs.size());
    for (at::Tensor& output : outputs) stack.emplace_back(std::move(output));
  }

 private:
  CompiledPtr known(const Key& key) {
    static const auto too_many =
        std::make_shared<const Compiled>(py::object(), "it has been called with too many signatures");
    std::lock_guard lock(mutex_);
    const auto found = compiled_.find(key);
    if (found != compiled_.end()) return found->second;
    return compiled_.size() < kMostSignatures ? nullptr : too_many;
  }

  CompiledPtr compiled_for(const Key& key, Inputs inputs, int device) {
    if (auto found = known(key)) return found;
    Blocking without_gil; // the thread that compiles needs it
    std::lock_guard one_compiles(compiling_);
    if (auto found = known(key)) return found;
    CompiledPtr made = compile(graph_, inputs, device);
    std::lock_guard lock(mutex_);
    counts_.compiled += made->refusal.empty();
    return compiled_[key] = made;
  }

  static ArgumentRules rules_of(const torch::jit::Graph& graph) {
    using Kind = ArgumentRules::Kind;
    std::vector<ArgumentRules::Argument> arguments;
    for (const torch::jit::Value* input : graph.inputs())
      arguments.push_back({input->type()->isSubtypeOf(*c10::OptionalType::ofTensor()) ? Kind::tensor : Kind::plain});
    return arguments;
  }

  const GraphPtr graph_;
  const torch::jit::Code code_;
  const ArgumentRules rules_;
  std::mutex compiling_, mutex_; // mutex_: what follows
  std::unordered_map<Key, CompiledPtr, c10::hash<Key>> compiled_;
  Counts counts_;
};

// Copies of a graph share the groups of its nodes.
std::mutex groups_mutex;
std::unordered_map<int64_t, std::weak_ptr<Group>> groups;

std::shared_ptr<Group> find_group(int64_t id) {
  std::lock_guard lock(groups_mutex);
  const auto found = groups.find(id);
  return found == groups.end() ? nullptr : found->second.lock();
}

std::shared_ptr<Group> group_of(const torch::jit::Node* node) {
  const int64_t id = node->i(group_id());
  auto group = find_group(id);
  if (group) return group;
  group = std::make_shared<Group>(node->g(torch::jit::attr::Subgraph));
  std::lock_guard lock(groups_mutex);
  std::erase_if(groups, [](const auto& entry) { return entry.second.expired(); });
  groups[id] = group;
  return group;
}

torch::jit::RegisterOperators registration({torch::jit::Operator(
    group_kind(),
    [](const torch::jit::Node* node) -> torch::jit::Operation {
      return [group = group_of(node)](torch::jit::Stack& stack) { group->run(stack); };
    },
    c10::AliasAnalysisKind::PURE_FUNCTION)}); // the pass lets no view out of a group and no written value in

std::shared_ptr<const JitSettings> settings() {
  auto found = jit_settings();
  TORCH_CHECK(found, "bringup.jit is not enabled: call bringup.jit.enable() first");
  return found;
}

} // namespace

void bind_jit(py::module_& module) {
  module.def("jit_compile_with", [](py::object function) { compiler = new py::object(std::move(function)); });
  module.def("jit_enable", [](std::unordered_map<std::string, std::string> ops, size_t min_group_size, int device,
                              int first_device, int device_count) {
    set_jit_settings(std::make_shared<const JitSettings>(
        JitSettings{std::move(ops), min_group_size, device, first_device, device_count}));
  });
  module.def("jit_disable", [] { set_jit_settings(nullptr); });
  module.def("jit_make_groups", [](GraphPtr graph) { make_groups(graph, *settings()); });
  module.def("jit_why_not_grouped", [](const GraphPtr& graph) { return why_not_grouped(graph, *settings()); });
  module.def("jit_group_counts", [](int64_t id) {
    const auto group = find_group(id);
    const Group::Counts counts = group ? group->counts() : Group::Counts();
    return std::make_tuple(counts.calls, counts.compiled, counts.op_by_op);
  });
}

} // namespace bringup
