// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/reducer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/scalar_tensor.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/node.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <set>

#include "lockstep/comm/error.h"

namespace lockstep {
namespace {

using torch::autograd::variable_list;

// A parameter that two modules share has two names, but one gradient.
NamedTensors only_trained(NamedTensors parameters) {
  std::set<const void*> seen;
  std::erase_if(parameters, [&](const auto& entry) {
    const at::Tensor& parameter = entry.second;
    return !parameter.requires_grad() || !seen.insert(parameter.unsafeGetTensorImpl()).second;
  });
  require(!parameters.empty(), "the module has no parameter that requires a gradient");
  return parameters;
}

}  // namespace

Reducer::Reducer(NamedTensors parameters, ProcessGroup group)
    : group_(std::move(group)),
      parameters_(only_trained(std::move(parameters))),
      buckets_(parameters_, group_),
      scale_(at::scalar_tensor(1.0 / group_.size(), at::kDouble)),
      ready_(parameters_.size(), false) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    auto accumulator = torch::autograd::impl::grad_accumulator(parameters_[i].second);
    auto hook = std::make_unique<torch::autograd::utils::LambdaPostHook>(
        [this, i](const variable_list& outputs, const variable_list&) {
          on_gradient(i);
          return outputs;
        });
    const std::uintptr_t key = accumulator->add_post_hook(std::move(hook));
    hooks_.push_back({std::move(accumulator), key});
  }
}

Reducer::~Reducer() {
  for (const Hook& hook : hooks_) hook.accumulator->del_post_hook(hook.key);
}

// Runs on the thread that called backward(), once `.grad` of the parameter is complete.
void Reducer::on_gradient(std::size_t index) {
  if (!synchronize_) return;
  const auto& [name, parameter] = parameters_[index];
  begin_backward();
  if (!ready_[index]) ++ready_count_;
  ready_[index] = true;
  if (group_.size() == 1) return;

  const at::NoGradGuard no_grad;
  at::Tensor& gradient = parameter.mutable_grad();
  at::Tensor view = buckets_.view(index);
  if (!gradient.defined()) {
    view.zero_();
  } else if (gradient.layout() != at::kStrided) {
    throw Error(Fault::unsupported, "the gradient of parameter " + name + " is sparse");
  } else {
    at::mul_out(view, gradient, scale_);  // In place where autograd has added to the view itself.
    if (gradient.data_ptr() == view.data_ptr()) return;
  }
  gradient = view;
}

// Each backward() is a graph task of its own; an exception may have cut the last one short.
void Reducer::begin_backward() {
  const int task = torch::autograd::get_current_graph_task_id();
  if (task == graph_task_) return;
  graph_task_ = task;
  ready_.assign(ready_.size(), false);
  ready_count_ = 0;
  torch::autograd::Engine::get_default_engine().queue_callback([this] { finish_backward(); });
}

void Reducer::finish_backward() {
  if (ready_count_ != parameters_.size()) throw_unused();
  buckets_.all_reduce(group_);
}

void Reducer::throw_unused() const {
  std::string names;
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    if (!ready_[i]) names += (names.empty() ? "" : ", ") + parameters_[i].first;
  throw Error(Fault::misuse,
              "backward() gave no gradient to " + names +
                  ": each parameter that requires one must have a part in the loss; set "
                  "requires_grad_(false) on the others before DistributedDataParallel is made");
}

}  // namespace lockstep
