// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/prune/traced_model.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "lockstep/base/error.h"

namespace lockstep::prune {
namespace {

// Includes frozen parameters in the graph.
class AllRequireGradients {
 public:
  explicit AllRequireGradients(const torch::nn::Module& module) {
    for (const at::Tensor& parameter : module.parameters())
      if (!parameter.requires_grad() && parameter.is_floating_point()) {
        parameter.set_requires_grad(true);
        frozen_.push_back(parameter);
      }
  }
  ~AllRequireGradients() {
    for (const at::Tensor& parameter : frozen_) parameter.set_requires_grad(false);
  }
  AllRequireGradients(const AllRequireGradients&) = delete;
  AllRequireGradients& operator=(const AllRequireGradients&) = delete;

 private:
  std::vector<at::Tensor> frozen_;
};

}  // namespace

InEvaluation::InEvaluation(torch::nn::Module& module)
    : module_(module), was_training_(module.is_training()) {
  for (const auto& child : module.modules(/*include_self=*/false))
    modes_.emplace_back(child, child->is_training());
  module.eval();
}

InEvaluation::~InEvaluation() {
  module_.train(was_training_);
  for (const auto& [module, was_training] : modes_) module->train(was_training);
}

TracedModel trace_model(torch::nn::Module& module,
                        const std::function<std::vector<at::Tensor>()>& forward) {
  const InEvaluation evaluation(module);
  const AllRequireGradients gradients(module);
  const at::AutoGradMode enabled(true);
  const std::vector<at::Tensor> outputs = forward();
  const auto first = std::find_if(outputs.begin(), outputs.end(), [](const at::Tensor& output) {
    return output.defined() && output.grad_fn() != nullptr;
  });
  require(first != outputs.end(),
          "ChannelPruner: forward() returns no tensor that depends on a parameter");
  return {.trace = trace_channels(module, outputs),
          .samples = first->dim() > 0 ? std::max<std::int64_t>(first->size(0), 1) : 1};
}

}  // namespace lockstep::prune
