// A CompilationGroup at run time: compiled once per signature of its inputs, run op by op where that would be wrong.
// bringup/jit/grouping.py finds the groups; what Python cannot ask of PyTorch's graphs is here as well.
#include <ATen/autocast_mode.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <pybind11/functional.h>
#include <torch/csrc/jit/ir/alias_analysis.h>
#include <torch/csrc/jit/passes/lower_tuples.h>
#include <torch/csrc/jit/passes/pass_manager.h>
#include <torch/csrc/jit/passes/remove_mutation.h>
#include <torch/csrc/jit/passes/tensorexpr_fuser.h>
#include <torch/csrc/jit/passes/utils/subgraph_utils.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/jit/runtime/custom_operator.h>
#include <torch/csrc/jit/runtime/interpreter.h>

#include <map>

#include "aten/signature.h"
#include "python/bindings.h"
#include "pytorch/context.h"

namespace py = pybind11;

namespace bringup {
namespace {

using GraphPtr = std::shared_ptr<torch::jit::Graph>;
using Inputs = at::ArrayRef<c10::IValue>;
using Tensors = std::vector<at::Tensor>;

// Tensors that are more than their bytes: subclasses, and what function transforms wrap.
constexpr c10::DispatchKeySet kWrapped({c10::DispatchKey::Python, c10::DispatchKey::FuncTorchBatched,
                                        c10::DispatchKey::FuncTorchGradWrapper, c10::DispatchKey::Functionalize});

const auto kGroup = c10::Symbol::fromQualString("bringup::CompilationGroup");

// What bringup.jit.enable said last; null after disable.
struct JitSettings {
  int device; // where groups of CPU tensors run
  int first_device, device_count;
  py::object *make_groups, *group; // never freed: their last calls may be while the interpreter ends
};
std::mutex settings_mutex;
std::shared_ptr<const JitSettings> current_settings;

std::shared_ptr<const JitSettings> jit_settings() {
  std::lock_guard lock(settings_mutex);
  return current_settings;
}

template <class F>
auto with_gil(F&& work) -> decltype(work()) {
  py::gil_scoped_acquire gil;
  try {
    return work();
  } catch (const py::error_already_set& error) {
    throw std::runtime_error(error.what()); // the JIT keeps only the text of an error
  }
}

void set_jit_settings(std::shared_ptr<const JitSettings> settings) {
  static std::optional<torch::jit::GraphPassNameType> registered;
  std::lock_guard lock(settings_mutex);
  // Before the JIT's own fuser, which would take the pointwise ops first.
  if (settings && !registered)
    registered = torch::jit::registerPrePass([](GraphPtr& graph) {
      if (const auto settings = jit_settings()) with_gil([&] { (*settings->make_groups)(graph); });
    });
  if (!settings && registered) {
    torch::jit::clearPrePass(*registered);
    registered.reset();
  }
  current_settings = std::move(settings);
}

// ---- the signature ----

// The inputs of a call as words that are equal where the same code serves; `reason` says why none does.
struct GroupSignature {
  Signature call;
  const char* reason = nullptr;

  GroupSignature(torch::jit::Stack& stack, Inputs inputs, const ArgumentRules& rules, const JitSettings* settings)
      : call(home_of(inputs)) {
    using Fit = Signature::Fit;
    const Fit fit = call.read(rules, &stack);
    const int from_first = settings ? call.device - settings->first_device : 0;
    if (!settings)
      reason = "bringup.jit is disabled";
    else if (fit != Fit::kernel || !call.numbers.empty())
      reason = fit == Fit::other_route ? "an input is neither a plain strided tensor nor a number"
                                       : "its inputs are on several devices";
    else if (call.tensors.empty())
      reason = "no input is a tensor";
    else if (home_of(inputs) == kDeviceType && (from_first < 0 || from_first >= settings->device_count))
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

// ---- the group ----

class Group {
 public:
  explicit Group(GraphPtr graph) : graph_(std::move(graph)), code_(graph_, kGroup.toQualString()) {
    using Kind = ArgumentRules::Kind;
    for (const torch::jit::Value* input : graph_->inputs())
      rules_.arguments.push_back(
          {input->type()->isSubtypeOf(*c10::OptionalType::ofTensor()) ? Kind::tensor : Kind::plain});
  }
  Group(const Group&) = delete;
  ~Group() { // graphs may outlive the interpreter
    if (!Py_IsInitialized()) {
      python_.release();
      return;
    }
    py::gil_scoped_acquire gil;
    python_ = py::object();
  }

  void run(torch::jit::Stack& stack) {
    const Inputs inputs = Inputs(stack).slice(stack.size() - graph_->inputs().size());
    const auto settings = jit_settings();
    const GroupSignature signature(stack, inputs, rules_, settings.get());
    if (signature.reason) {
      std::lock_guard lock(mutex_);
      ++refused_[signature.reason];
      return torch::jit::InterpreterState(code_).run(stack);
    }
    auto outputs = with_gil([&]() -> std::optional<Tensors> {
      const c10::NoGradGuard no_grad;
      if (!python_) python_ = (*settings->group)(graph_);
      py::list arguments;
      for (const c10::IValue& input : inputs) arguments.append(torch::jit::toPyObject(input));
      const auto words = signature.call.words();
      const py::bytes key(reinterpret_cast<const char*>(words.data()), words.size() * sizeof(int64_t));
      const int device = signature.call.device < 0 ? settings->device : signature.call.device;
      return python_(key, device, arguments).cast<std::optional<Tensors>>();
    });
    if (!outputs) return torch::jit::InterpreterState(code_).run(stack);
    TORCH_CHECK(outputs->size() == graph_->outputs().size(), "a compiled group gave ", outputs->size(),
                " tensors instead of ", graph_->outputs().size());
    torch::jit::drop(stack, inputs.size());
    for (at::Tensor& output : *outputs) stack.emplace_back(std::move(output));
  }

  // Calls that ran op by op without a look at their code, by their reason; and what has the code, None before that.
  std::pair<std::map<std::string, int64_t>, py::object> report() {
    std::lock_guard lock(mutex_);
    return {refused_, python_ ? python_ : py::none()};
  }

 private:
  py::object python_; // a bringup.jit.compile_group.Group, made for the first call
  std::mutex mutex_;
  std::map<std::string, int64_t> refused_;
  const GraphPtr graph_;
  const torch::jit::Code code_;
  ArgumentRules rules_{{}};
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
  const int64_t id = node->i(c10::Symbol::attr("group_id"));
  auto group = find_group(id);
  if (group) return group;
  group = std::make_shared<Group>(node->g(torch::jit::attr::Subgraph));
  std::lock_guard lock(groups_mutex);
  std::erase_if(groups, [](const auto& entry) { return entry.second.expired(); });
  groups[id] = group;
  return group;
}

torch::jit::RegisterOperators registration({torch::jit::Operator(
    kGroup,
    [](const torch::jit::Node* node) -> torch::jit::Operation {
      return [group = group_of(node)](torch::jit::Stack& stack) { group->run(stack); };
    },
    c10::AliasAnalysisKind::PURE_FUNCTION)}); // the pass lets no view out of a group and no written value in

// ---- for the pass ----

// SubgraphUtils can keep alias analysis up to date itself, but mixes outputs up behind one that has no use.
void merge(torch::jit::AliasDb& aliases, torch::jit::Node* node, torch::jit::Node* group) {
  torch::jit::Node* stand_in = node->owningGraph()->create(c10::prim::Uninitialized, 0)->insertBefore(node);
  std::vector<std::pair<torch::jit::Value*, torch::jit::Use>> outside;
  for (torch::jit::Value* output : node->outputs()) {
    torch::jit::Value* kept = stand_in->addOutput()->copyMetadata(output);
    aliases.replaceWithNewValue(output, kept);
    for (const torch::jit::Use& use : output->uses())
      if (use.user != group) {
        outside.emplace_back(kept, use);
        break;
      }
  }
  torch::jit::SubgraphUtils::mergeNodeIntoSubgraph(node, group);
  for (const auto& [kept, use] : outside) aliases.replaceWithNewValue(kept, use.user->input(use.offset));
  stand_in->destroy();
}

} // namespace

void bind_jit(py::module_& module) {
  module.def("jit_enable", [](py::object make_groups, py::object group, int device, int first, int count) {
    set_jit_settings(std::make_shared<const JitSettings>(
        JitSettings{device, first, count, new py::object(std::move(make_groups)), new py::object(std::move(group))}));
  });
  module.def("jit_disable", [] { set_jit_settings(nullptr); });
  module.def("jit_prepare", [](GraphPtr graph) {
    torch::jit::RemoveProfileNodesAndSpecializeTypes(graph); // they stand between ops
    torch::jit::LowerSimpleTuples(graph);
  });
  module.def("jit_remove_mutation", [](GraphPtr graph, const std::function<bool(torch::jit::Node*)>& wanted) {
    torch::jit::RemoveTensorMutation(graph, wanted);
  });
  module.def("jit_forget_shapes", [](GraphPtr graph) { torch::jit::RemoveTensorTypeSpecializations(graph); });
  module.def("jit_is_mutable",
             [](torch::jit::AliasDb& aliases, torch::jit::Node* node) { return aliases.isMutable(node); });
  module.def("jit_merge", &merge);
  module.def("jit_unmerge", [](torch::jit::Node* group) { torch::jit::SubgraphUtils::unmergeSubgraph(group); });
  module.def("jit_group", [](int64_t id) {
    const auto group = find_group(id);
    return group ? group->report() : std::pair<std::map<std::string, int64_t>, py::object>{{}, py::none()};
  });
}

} // namespace bringup
