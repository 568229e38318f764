// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/pipeline/split_backward.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "lockstep/tensor/torch_version.h"

namespace lockstep {

using torch::autograd::AccumulateGrad;
using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::variable_list;

// At a node, one per output in forward.
struct IncomingGradients {
  variable_list gradients;
  bool is_complete = false;  // After the first part. The second part starts with these.
};

struct SplitBackward::Kept {
  NodePtr node;
  std::shared_ptr<IncomingGradients> kept;
};

// Weights, and all nodes where their gradients start.
struct SplitBackward::Group {
  std::vector<Kept> nodes;
  edge_list weights;
};

namespace {

variable_list execute(const edge_list& roots, const std::vector<at::Tensor>& gradients, bool keep,
                      bool accumulate, const edge_list& outputs) {
  return torch::autograd::Engine::get_default_engine().execute(
      roots, gradients, keep, /*create_graph=*/false, accumulate, outputs);
}

// Keeps the gradient that arrives in the first part. In the second part, that gradient replaces
// the arriving one, which includes contributions of the group's nodes.
class KeepGradient : public torch::autograd::FunctionPreHook {
 public:
  explicit KeepGradient(std::shared_ptr<IncomingGradients> kept) : kept_(std::move(kept)) {}

  variable_list operator()(const variable_list& gradients) override {
    if (!kept_->is_complete) kept_->gradients = gradients;
    return kept_->gradients;
  }

 private:
  const std::shared_ptr<IncomingGradients> kept_;
};

class Graph {
 public:
  Graph(const edge_list& roots, const std::unordered_set<const Node*>& inputs) : inputs_(inputs) {
    for (const Edge& root : roots) visit(root.function);
  }

  // Each node follows all nodes below it.
  const std::vector<NodePtr>& nodes() const { return nodes_; }

  bool leads_to_input(const Node* node) const { return to_input_.contains(node); }

  // Leaves below `node`, on paths without nodes that lead to inputs.
  void add_weights(const NodePtr& node, std::set<NodePtr>& weights,
                   std::unordered_set<const Node*>& seen) const {
    if (leads_to_input(node.get()) || !seen.insert(node.get()).second) return;
    if (is_leaf(*node)) {
      weights.insert(node);
      return;
    }
    for (const Edge& edge : node->next_edges())
      if (edge.is_valid()) add_weights(edge.function, weights, seen);
  }

 private:
  static bool is_leaf(const Node& node) {
    return dynamic_cast<const AccumulateGrad*>(&node) != nullptr;
  }

  // Without recursion: graphs may be deep.
  void visit(const NodePtr& root) {
    std::vector<std::pair<NodePtr, std::size_t>> path;
    const auto enter = [&](const NodePtr& node) {
      if (seen_.insert(node.get()).second) path.emplace_back(node, 0);
    };
    enter(root);
    while (!path.empty()) {
      auto& [node, next] = path.back();
      if (next < node->num_outputs()) {
        const Edge& edge = node->next_edge(next++);
        if (edge.is_valid()) enter(edge.function);  // May reallocate `path`.
        continue;
      }
      const auto leads = [&](const Edge& edge) {
        return edge.is_valid() && leads_to_input(edge.function.get());
      };
      if (inputs_.contains(node.get()) || std::ranges::any_of(node->next_edges(), leads))
        to_input_.insert(node.get());
      nodes_.push_back(std::move(node));
      path.pop_back();
    }
  }

  const std::unordered_set<const Node*>& inputs_;
  std::unordered_set<const Node*> seen_;
  std::unordered_set<const Node*> to_input_;
  std::vector<NodePtr> nodes_;
};

// By the node where their gradients start.
using WeightsOf = std::map<NodePtr, std::set<NodePtr>>;

WeightsOf weights_by_node(const Graph& graph, const edge_list& roots) {
  WeightsOf weights_of;
  const auto note = [&](const NodePtr& node, const edge_list& below) {
    std::set<NodePtr> weights;
    std::unordered_set<const Node*> seen;
    for (const Edge& edge : below)
      if (edge.is_valid()) graph.add_weights(edge.function, weights, seen);
    if (!weights.empty()) weights_of.emplace(node, std::move(weights));
  };
  for (const NodePtr& node : graph.nodes())
    if (graph.leads_to_input(node.get())) note(node, node->next_edges());
  for (const Edge& root : roots) note(root.function, {root});
  return weights_of;
}

// Nodes that share a weight are in one set.
using Set = std::pair<std::set<NodePtr>, std::vector<NodePtr>>;

std::vector<Set> grouped(const WeightsOf& weights_of) {
  std::vector<Set> sets;
  for (const auto& [node, weights] : weights_of) {
    Set joined(weights, {node});
    std::erase_if(sets, [&](Set& set) {
      const bool shares = std::ranges::any_of(
          set.first, [&](const NodePtr& weight) { return joined.first.contains(weight); });
      if (shares) {
        joined.first.insert(set.first.begin(), set.first.end());
        joined.second.insert(joined.second.end(), set.second.begin(), set.second.end());
      }
      return shares;
    });
    sets.push_back(std::move(joined));
  }
  return sets;
}

}  // namespace

SplitBackward::SplitBackward(const std::vector<at::Tensor>& roots,
                             std::vector<at::Tensor> gradients)
    : gradients_(std::move(gradients)) {
  for (const at::Tensor& root : roots) roots_.push_back(torch::autograd::impl::gradient_edge(root));
}

SplitBackward::~SplitBackward() = default;
SplitBackward::SplitBackward(SplitBackward&&) noexcept = default;
SplitBackward& SplitBackward::operator=(SplitBackward&&) noexcept = default;

std::vector<at::Tensor> SplitBackward::inputs(const std::vector<at::Tensor>& leaves) {
  edge_list outputs;
  std::unordered_set<const Node*> inputs;
  for (const at::Tensor& leaf : leaves) {
    outputs.push_back(torch::autograd::impl::gradient_edge(leaf));
    inputs.insert(outputs.back().function.get());
  }
  const Graph graph(roots_, inputs);

  const WeightsOf weights_of = weights_by_node(graph, roots_);
  std::unordered_map<const Node*, std::shared_ptr<IncomingGradients>> kept;
  for (const auto& [weights, nodes] : grouped(weights_of)) {
    Group group;
    for (const NodePtr& node : nodes) {
      const auto gradients = std::make_shared<IncomingGradients>();
      gradients->gradients.resize(node->num_inputs());
      // Others do not run now, and may belong to leaves, which persist.
      if (graph.leads_to_input(node.get()))
        node->add_pre_hook(std::make_unique<KeepGradient>(gradients));
      group.nodes.push_back({node, gradients});
      kept.emplace(node.get(), gradients);
    }
    for (const NodePtr& weight : weights) group.weights.emplace_back(weight, 0);
    groups_.push_back(std::move(group));
  }
  // A root that leads to no input does not run now.
  for (std::size_t i = 0; i < roots_.size(); ++i)
    if (const auto found = kept.find(roots_[i].function.get());
        found != kept.end() && !graph.leads_to_input(roots_[i].function.get()))
      found->second->gradients[roots_[i].input_nr] = gradients_[i];

  std::vector<at::Tensor> results =
      execute(roots_, gradients_, /*keep=*/true, /*accumulate=*/false, outputs);

  for (const auto& [node, each] : kept) each->is_complete = true;
  const bool runs_between =
      std::ranges::any_of(groups_, [](const Group& group) { return group.nodes.size() > 1; });
  if (!runs_between)
    for (const NodePtr& node : graph.nodes())
      if (graph.leads_to_input(node.get()) && !kept.contains(node.get())) node->release_variables();
  roots_.clear();
  gradients_.clear();
  is_split_ = true;
  return results;
}

void SplitBackward::weights() {
  if (!is_split_) {
    execute(roots_, gradients_, /*keep=*/false, /*accumulate=*/true, {});
    roots_.clear();
    gradients_.clear();
    return;
  }
  for (Group& group : groups_) {
    edge_list roots;
    std::vector<at::Tensor> gradients;
    for (const auto& [node, kept] : group.nodes)
      for (std::uint32_t i = 0; i < kept->gradients.size(); ++i)
        if (const at::Tensor& gradient = kept->gradients[i]; gradient.defined()) {
          roots.emplace_back(node, i);
          gradients.push_back(gradient);
        }
    if (!roots.empty())
      execute(roots, gradients, /*keep=*/false, /*accumulate=*/true, group.weights);
    group = {};
  }
  groups_.clear();
}

}  // namespace lockstep
