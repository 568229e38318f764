// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/pipeline/stage_module.h"

#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/tensor/name_pattern.h"
#include "lockstep/tensor/named_tensors.h"
#include "lockstep/tensor/torch_version.h"

namespace lockstep {

using pipeline::Layer;
using pipeline::PassedValue;

namespace {

// Passes on parameters' gradients in backward().
class AllGradients : public torch::autograd::Node {
 public:
  AllGradients(std::vector<at::Tensor> parameters, torch::autograd::edge_list edges)
      : Node(std::move(edges)), parameters_(std::move(parameters)) {}

  torch::autograd::variable_list apply(torch::autograd::variable_list&&) override {
    torch::autograd::variable_list gradients;
    for (at::Tensor& parameter : parameters_)
      gradients.push_back(std::exchange(parameter.mutable_grad(), at::Tensor()));
    return gradients;
  }

 private:
  std::vector<at::Tensor> parameters_;
};

void add_below(torch::nn::Module& root, const std::string& name,
               const std::shared_ptr<torch::nn::Module>& module) {
  const std::vector<std::string> levels = levels_of(name);
  torch::nn::Module* parent = &root;
  for (std::size_t i = 0; i + 1 < levels.size(); ++i) {
    const auto children = parent->named_children();
    const auto* const found = children.find(levels[i]);
    parent = found
                 ? found->get()
                 : parent->register_module(levels[i], std::make_shared<torch::nn::Module>()).get();
  }
  parent->register_module(levels.back(), module);
}

}  // namespace

void StageModule::add(int stage, const std::string& name, Layer layer) {
  add_below(*this, name, layer.module);
  stages_[stage].push_back({name, std::move(layer)});
}

PassedValue StageModule::forward(int stage, const PassedValue& value) {
  PassedValue passed = value;
  for (const auto& [name, layer] : stages_.at(stage)) {
    try {
      passed = layer.forward(passed);
    } catch (const Error& error) {
      if (error.fault() != Fault::misuse) throw;
      throw Error(Fault::misuse, "layer " + name + ": " + error.what());
    }
  }
  return passed;
}

bool StageModule::is_trained(int stage) const {
  return std::ranges::any_of(stages_.at(stage), [](const Named& named) {
    return std::ranges::any_of(named.layer.module->parameters(),
                               [](const at::Tensor& each) { return each.requires_grad(); });
  });
}

at::Tensor StageModule::forward() {
  std::vector<at::Tensor> trained;
  for (const at::Tensor& parameter : parameters())
    if (parameter.requires_grad()) trained.push_back(parameter);
  auto edges = torch::autograd::collect_next_edges(trained);
  at::Tensor result = at::zeros({});
  torch::autograd::create_gradient_edge(
      result, make_node<AllGradients>(std::move(trained), std::move(edges)));
  return result;
}

}  // namespace lockstep
