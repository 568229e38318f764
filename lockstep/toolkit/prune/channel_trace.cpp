// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/prune/channel_trace.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>

#include "lockstep/tensor/distinct_tensors.h"
#include "lockstep/tensor/named_tensors.h"
#include "lockstep/toolkit/prune/channel_rules.h"

namespace lockstep::prune {
namespace {

using torch::autograd::Node;

std::vector<Node*> in_order_of_forward(const std::vector<at::Tensor>& outputs) {
  std::vector<Node*> ordered;
  std::set<const Node*> seen;
  std::vector<std::pair<Node*, std::size_t>> open;  // Each with its next edge.
  const auto enter = [&](Node* node) {
    if (node != nullptr && seen.insert(node).second) open.emplace_back(node, 0);
  };
  for (const at::Tensor& output : outputs) {
    enter(output.grad_fn().get());
    while (!open.empty()) {
      auto& [node, edge] = open.back();
      if (edge < node->num_outputs()) {
        enter(node->next_edge(edge++).function.get());
      } else {
        ordered.push_back(node);
        open.pop_back();
      }
    }
  }
  return ordered;
}

class Tracer {
 public:
  explicit Tracer(const torch::nn::Module& module) {
    add(distinct(named_parameters(module)), true);
    add(distinct(named_buffers(module)), false);
  }

  void visit(Node& node) {
    std::vector<LabelledShape>& made = made_[&node];
    for (std::uint32_t i = 0; i < node.num_inputs(); ++i) {
      LabelledShape output;
      for (const c10::SymInt& size : node.input_metadata(i).shape_as_dim_vector())
        output.sizes.push_back(size.expect_int());
      output.dims.resize(output.sizes.size());
      made.push_back(std::move(output));
    }
    if (const auto* const leaf = dynamic_cast<const torch::autograd::AccumulateGrad*>(&node)) {
      made.front() = shape_of(leaf->variable);
      return;
    }
    TracedCall call{.node = node,
                    .inputs = {},
                    .outputs = std::move(made),
                    .trace = trace_,
                    .index_of = [this](const at::Tensor& saved) { return index_of(saved); },
                    .owner_of = [this](Label label) { return owner_of(label); }};
    for (const auto& edge : node.next_edges())
      call.inputs.push_back(edge.is_valid() ? &made_.at(edge.function.get()).at(edge.input_nr)
                                            : nullptr);
    apply_rule(call);
    made_.at(&node) = std::move(call.outputs);
  }

  void pin_output(const at::Tensor& output) {
    if (!output.grad_fn()) return;
    for (const LabelledDim& dim : made_.at(output.grad_fn().get()).at(output.output_nr()).dims)
      trace_.labels.pin(dim, "the model's output");
  }

  ChannelTrace result() && { return std::move(trace_); }

 private:
  void add(const NamedTensors& tensors, bool are_parameters) {
    for (const auto& [name, tensor] : tensors) {
      if (index_of(tensor) >= 0) continue;
      LabelledShape shape = labelled(tensor.sizes().vec());
      owners_.resize(static_cast<std::size_t>(labels_), trace_.tensors.size());
      indices_.emplace(tensor.unsafeGetTensorImpl(), trace_.tensors.size());
      trace_.tensors.push_back({name, tensor, are_parameters, std::move(shape)});
    }
  }

  LabelledShape labelled(std::vector<std::int64_t> sizes) {
    LabelledShape shape{.sizes = std::move(sizes), .dims = {}};
    for (const std::int64_t size : shape.sizes) {
      shape.dims.push_back(trace_.labels.add(size));
      labels_ += size;
    }
    return shape;
  }

  // Labels that rules added have no owner.
  std::size_t owner_of(Label label) const {
    const auto place = static_cast<std::size_t>(label);
    return place < owners_.size() ? owners_[place] : trace_.tensors.size();
  }

  int index_of(const at::Tensor& tensor) const {
    const auto found = indices_.find(tensor.unsafeGetTensorImpl());
    return found == indices_.end() ? -1 : static_cast<int>(found->second);
  }

  LabelledShape shape_of(const at::Tensor& leaf) {
    if (const int index = index_of(leaf); index >= 0)
      return trace_.tensors[static_cast<std::size_t>(index)].shape;
    LabelledShape input = labelled(leaf.sizes().vec());
    owners_.resize(static_cast<std::size_t>(labels_), trace_.tensors.size());
    for (const LabelledDim& dim : input.dims) trace_.labels.pin(dim, "the model's input");
    return input;
  }

  ChannelTrace trace_;
  std::int64_t labels_ = 0;
  std::vector<std::size_t> owners_;  // By label; the number of tensors: none.
  std::map<const at::TensorImpl*, std::size_t> indices_;
  std::unordered_map<const Node*, std::vector<LabelledShape>> made_;
};

}  // namespace

ChannelTrace trace_channels(const torch::nn::Module& module,
                            const std::vector<at::Tensor>& outputs) {
  Tracer tracer(module);
  for (Node* const node : in_order_of_forward(outputs)) tracer.visit(*node);
  for (const at::Tensor& output : outputs) tracer.pin_output(output);
  return std::move(tracer).result();
}

}  // namespace lockstep::prune
