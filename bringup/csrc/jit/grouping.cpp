// The pass: grows groups from their last op backwards, as far as alias analysis lets ops move together.
#include "jit/grouping.h"

#include <torch/csrc/jit/ir/alias_analysis.h>
#include <torch/csrc/jit/passes/lower_tuples.h>
#include <torch/csrc/jit/passes/pass_manager.h>
#include <torch/csrc/jit/passes/remove_mutation.h>
#include <torch/csrc/jit/passes/tensorexpr_fuser.h>
#include <torch/csrc/jit/passes/utils/subgraph_utils.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

namespace bringup {

using namespace torch::jit;

namespace {

std::mutex settings_mutex;
std::shared_ptr<const JitSettings> current_settings;

bool is_tensor(const c10::TypePtr& type) { return type->isSubtypeOf(*c10::OptionalType::ofTensor()); }

bool is_list_of_tensors(const c10::TypePtr& type) {
  const auto list = type->cast<c10::ListType>();
  return list && is_tensor(list->getElementType());
}

// What a group may get besides tensors: values that its signature compares.
bool is_plain(c10::TypePtr type) {
  if (const auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  if (const auto list = type->cast<c10::ListType>()) type = list->getElementType();
  return type->isSubtypeOf(*c10::NumberType::get()) || type->isSubtypeOf(*c10::BoolType::get());
}

bool is_chunk(const Node* node) { return node->kind() == prim::ConstantChunk; } // the JIT's form of aten::chunk

std::string name_of(const Node* node) {
  const c10::FunctionSchema* schema = node->maybeSchema();
  return is_chunk(node) ? "aten::chunk" : schema ? c10::toString(schema->operator_name()) : node->kind().toQualString();
}

bool is_view(const Node* node) {
  if (is_chunk(node) || node->kind() == prim::ListUnpack) return true;
  const c10::FunctionSchema* schema = node->maybeSchema();
  return schema && std::any_of(schema->returns().begin(), schema->returns().end(),
                               [](const c10::Argument& result) { return result.alias_info(); });
}

bool is_free(const Node* node) {
  return node->kind() == prim::Constant || node->kind() == prim::ListConstruct || is_view(node);
}

bool used_only_by(const Node* node, const Node* user) {
  for (const Value* output : node->outputs())
    for (const Use& use : output->uses())
      if (use.user != user) return false;
  return true;
}

std::string why_not(Node* node, const AliasDb& db, const JitSettings& settings) {
  const c10::FunctionSchema* schema = node->maybeSchema();
  if (schema && schema->is_mutable()) return "writes to its argument";
  for (const Value* output : node->outputs()) {
    if (output->type()->isSubtypeOf(*c10::TensorType::get())) continue;
    if (!is_list_of_tensors(output->type())) return "gives no tensor";
    if (output->uses().size() != 1 || output->uses()[0].user->kind() != prim::ListUnpack)
      return "gives a list that is not unpacked at once";
  }
  const auto known = settings.ops.find(name_of(node));
  if (known == settings.ops.end()) return "has no lowering";
  if (!known->second.empty()) return known->second;
  if (db.isMutable(node)) // alias analysis knows what schemas of normalizations hide
    return "may write to its running statistics: `training` is not the constant False (torch.jit.freeze makes it one)";
  bool tensors = false;
  for (const Value* input : node->inputs()) {
    const bool list = is_list_of_tensors(input->type()), tensor = is_tensor(input->type());
    tensors |= list || tensor;
    if (list && (input->node()->kind() != prim::ListConstruct || !used_only_by(input->node(), node)))
      return "takes a list of tensors that others have too";
    if (!list && !tensor && !is_plain(input->type()) && input->node()->kind() != prim::Constant)
      return "takes a " + input->type()->str() + " that is not constant";
  }
  return tensors ? "" : "takes no tensor";
}

bool is_one_of(const std::string& name, std::string_view names) {
  return names.find(" " + name + " ") != std::string_view::npos;
}

// Ops that may return their argument itself, which their schemas do not say: writing to the result writes to it.
bool may_return_argument(const Node* node) {
  const std::string name = node->kind().toQualString();
  return is_one_of(name,
                   " aten::type_as aten::dropout aten::feature_dropout aten::alpha_dropout aten::feature_alpha_dropout"
                   " aten::atleast_1d aten::atleast_2d aten::atleast_3d aten::broadcast_tensors aten::meshgrid"
                   " aten::cartesian_prod aten::chain_matmul aten::conj_physical aten::einsum aten::sum_to_size ") ||
         name.rfind("aten::_cast_", 0) == 0 || name.rfind("aten::unsafe_", 0) == 0;
}

// Whether anything else may see the memory of its result.
bool may_share(const Node* node) {
  if (is_view(node) || !may_return_argument(node)) return is_view(node);
  const Node* maker = node->input(0)->node();
  const bool is_new = (maker->kind().is_aten() || maker->kind() == group_kind()) && !may_share(maker);
  return !is_new || node->input(0)->uses().size() > 1;
}

std::string twin_of(const c10::FunctionSchema& in_place) {
  return in_place.name().substr(0, in_place.name().size() - 1);
}

bool has_supported_twin(const Node* in_place, const JitSettings& settings) {
  const c10::FunctionSchema* schema = in_place->maybeSchema();
  if (!schema || schema->name().back() != '_' || may_return_argument(in_place->input(0)->node())) return false;
  const std::string twin = twin_of(*schema);
  // In place they keep the dtype of their argument, otherwise they give a bool.
  if (is_one_of(twin, " aten::eq aten::ne aten::lt aten::le aten::gt aten::ge ") ||
      twin.rfind("aten::logical_", 0) == 0)
    return false;
  const auto known = settings.ops.find(c10::toString(c10::OperatorName(twin, schema->overload_name())));
  return known != settings.ops.end() && known->second.empty();
}

class Grouping {
 public:
  Grouping(const std::shared_ptr<Graph>& graph, const JitSettings& settings) : settings_(settings), db_(graph) {}

  void grow(Block* block) {
    for (Node* node : block->nodes())
      for (Block* inner : node->blocks()) grow(inner);
    for (bool changed = true; changed;) {
      changed = false;
      for (auto it = block->nodes().rbegin(); it != block->nodes().rend();) {
        Node* node = *it;
        if (starts_group(node)) node = merge(node, new_group(node));
        while (node->kind() == group_kind() && absorb_one(node)) changed = true;
        it = ++node->reverseIterator();
      }
    }
  }

  void finish(Block* block) {
    static std::atomic<int64_t> next_id{1};
    for (auto it = block->nodes().begin(); it != block->nodes().end();) {
      Node* node = *it++; // a group that is too small is gone afterwards
      for (Block* inner : node->blocks()) finish(inner);
      if (node->kind() != group_kind()) continue;
      auto subgraph = node->g(attr::Subgraph);
      const auto size = std::count_if(subgraph->nodes().begin(), subgraph->nodes().end(),
                                      [](const Node* inside) { return !is_free(inside); });
      // The maker of a list may not have been able to move along.
      const bool whole = std::all_of(node->inputs().begin(), node->inputs().end(), [](const Value* input) {
        return is_tensor(input->type()) || is_plain(input->type());
      });
      if (!whole || static_cast<size_t>(size) < settings_.min_group_size) {
        SubgraphUtils::unmergeSubgraph(node);
        continue;
      }
      RemoveTensorTypeSpecializations(subgraph); // the profile's shapes are no promise
      node->i_(group_id(), next_id++);
    }
  }

 private:
  bool supported(Node* node) { return why_not(node, db_, settings_).empty(); }

  bool starts_group(Node* node) {
    // A list of tensors does not leave a group: whoever unpacks it takes its maker along.
    const auto outputs = node->outputs();
    return !is_free(node) && !may_share(node) && supported(node) &&
           std::all_of(outputs.begin(), outputs.end(), [](auto* output) { return is_tensor(output->type()); }) &&
           std::any_of(outputs.begin(), outputs.end(), [](auto* output) { return output->hasUses(); });
  }

  bool absorb_one(Node* group) {
    std::vector<Node*> producers;
    for (Value* input : group->inputs())
      if (input->node()->owningBlock() == group->owningBlock() && fits(input->node(), group))
        producers.push_back(input->node());
    std::sort(producers.begin(), producers.end(), [](Node* a, Node* b) { return a != b && a->isAfter(b); });
    for (Node* producer : producers) {
      if (!db_.moveBeforeTopologicallyValid(producer, group)) continue;
      merge(producer, group);
      return true;
    }
    return false;
  }

  static Node* new_group(Node* before) {
    Graph* graph = before->owningGraph();
    Node* group = graph->create(group_kind(), 0)->insertBefore(before);
    return group->g_(attr::Subgraph, std::make_shared<Graph>(graph->current_scope()));
  }

  // SubgraphUtils can keep alias analysis up to date itself, but mixes outputs up behind one that has no use.
  Node* merge(Node* node, Node* group) {
    Node* stand_in = node->owningGraph()->create(prim::Uninitialized, 0)->insertBefore(node);
    std::vector<std::pair<Value*, Use>> outside;
    for (Value* output : node->outputs()) {
      Value* kept = stand_in->addOutput()->copyMetadata(output);
      db_.replaceWithNewValue(output, kept);
      for (const Use& use : output->uses())
        if (use.user != group) {
          outside.emplace_back(kept, use);
          break;
        }
    }
    SubgraphUtils::mergeNodeIntoSubgraph(node, group);
    for (const auto& [kept, use] : outside) db_.replaceWithNewValue(kept, use.user->input(use.offset));
    stand_in->destroy();
    return group;
  }

  // A view or a list that others see stays outside: what leaves a group is always new memory.
  bool fits(Node* node, const Node* group) {
    if (node->kind() == group_kind()) return true;
    if (node->kind() == prim::ListUnpack) return used_only_by(node, group) && supported(node->input()->node());
    if (node->kind() == prim::ListConstruct) {
      const c10::TypePtr& type = node->output()->type();
      return used_only_by(node, group) && (is_plain(type) || is_list_of_tensors(type));
    }
    return supported(node) && (!may_share(node) || used_only_by(node, group));
  }

  const JitSettings& settings_;
  AliasDb db_;
};

void each_node(Block* block, const std::function<void(Node*)>& visit) {
  for (auto it = block->nodes().begin(); it != block->nodes().end();) {
    Node* node = *it++; // what is inserted behind it is not visited
    for (Block* inner : node->blocks()) each_node(inner, visit);
    visit(node);
  }
}

bool takes_tensors(const Node* node) {
  return std::count_if(node->inputs().begin(), node->inputs().end(), [](auto* x) { return is_tensor(x->type()); }) > 1;
}

// Whether an op that was in place has the strides of its argument in its other form too. masked_fill is contiguous
// where its mask is broadcast; hardswish is pointwise without the tag.
bool keeps_strides(const Node* node) {
  const auto op = c10::Dispatcher::singleton().findSchema(node->schema().operator_name());
  const bool pointwise = op && op->hasTag(at::Tag::pointwise) && node->kind() != aten::masked_fill;
  return pointwise || name_of(node) == "aten::hardswish" || may_share(node);
}

// What was in place keeps the dtype and the strides of its argument.
void keep_form(Node* node) {
  const bool strides = keeps_strides(node);
  if (strides && !takes_tensors(node)) return;
  WithInsertPoint behind(node->next());
  Value *was = node->input(0), *is = node->output();
  const auto copy = c10::Symbol::fromQualString("aten::copy");
  Value* kept =
      strides ? node->owningGraph()->insert(aten::type_as, {is, was}) : node->owningGraph()->insert(copy, {was, is});
  is->replaceAllUsesAfterNodeWith(kept->node(), kept);
}

void explain(Block* block, const AliasDb& db, const JitSettings& settings, std::vector<std::string>& reasons) {
  for (Node* node : block->nodes()) {
    reasons.push_back(why_not(node, db, settings));
    for (Block* inner : node->blocks()) explain(inner, db, settings, reasons);
  }
}

} // namespace

c10::Symbol group_kind() {
  static const auto kind = c10::Symbol::fromQualString("bringup::CompilationGroup");
  return kind;
}

c10::Symbol group_id() {
  static const auto name = c10::Symbol::attr("group_id");
  return name;
}

std::shared_ptr<const JitSettings> jit_settings() {
  std::lock_guard lock(settings_mutex);
  return current_settings;
}

void set_jit_settings(std::shared_ptr<const JitSettings> settings) {
  static std::optional<GraphPassNameType> registered;
  std::lock_guard lock(settings_mutex);
  // Before the JIT's own fuser, which would take the pointwise ops first.
  if (settings && !registered)
    registered = registerPrePass([](std::shared_ptr<Graph>& graph) {
      if (const auto settings = jit_settings()) make_groups(graph, *settings);
    });
  if (!settings && registered) {
    clearPrePass(*registered);
    registered.reset();
  }
  current_settings = std::move(settings);
}

void make_groups(std::shared_ptr<Graph>& graph, const JitSettings& settings) {
  RemoveProfileNodesAndSpecializeTypes(graph); // they stand between ops
  LowerSimpleTuples(graph);
  // relu_ of a value that nothing else sees is relu. add_ keeps the dtype of its argument, add may give a wider one.
  std::unordered_map<const Node*, c10::Symbol> before;
  std::unordered_set<c10::Symbol> twins;
  each_node(graph->block(), [&](Node* node) {
    before.emplace(node, node->kind());
    if (has_supported_twin(node, settings)) twins.insert(c10::Symbol::fromQualString(twin_of(node->schema())));
  });
  RemoveTensorMutation(graph, [&](Node* node) { return has_supported_twin(node, settings); });
  each_node(graph->block(), [&](Node* node) {
    const auto known = before.find(node);
    if ((known == before.end() || known->second != node->kind()) && twins.count(node->kind())) keep_form(node);
  });
  Grouping grouping(graph, settings);
  grouping.grow(graph->block());
  grouping.finish(graph->block());
  if (!tensorExprFuserEnabled()) RemoveTensorTypeSpecializations(graph);
}

std::vector<std::string> why_not_grouped(const std::shared_ptr<Graph>& graph, const JitSettings& settings) {
  std::vector<std::string> reasons;
  explain(graph->block(), AliasDb(graph), settings, reasons);
  return reasons;
}

} // namespace bringup
