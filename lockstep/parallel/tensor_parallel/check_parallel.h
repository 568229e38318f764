// Checks that a parallel model computes the same as the whole model.
//
//   lockstep::check_parallel(
//       [] { return std::make_shared<Gpt>(options); },
//       [&](Gpt& gpt) { lockstep::parallelize_module(gpt, mesh["tp"], plan); },
//       [&](Gpt& gpt, bool is_parallel) { return loss_of(gpt, tokens, is_parallel); }, mesh["tp"]);

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"

namespace torch::nn {
class Module;
}

namespace lockstep {

struct CheckParallelOptions {
  // The largest difference of a loss or a gradient, as a fraction of the tensor's largest absolute
  // value. Sums over ranks have another order than those of one process.
  double tolerance = 1e-5;
};

struct ParallelCheck {
  std::string worst = {};  // The parameter whose gradient differs most.
  double difference = 0;   // By how much, as a fraction of its largest absolute value.
  std::int64_t parameters = 0;
};

// Collective over `group`: compares the losses and the gradients of all parameters.
// Errors: mismatch, on all ranks, with the first tensor that differs, by how much, and where;
// misuse for models with different parameters.
LOCKSTEP_API ParallelCheck compare_passes(const torch::nn::Module& whole,
                                          const at::Tensor& whole_loss,
                                          const torch::nn::Module& parallel,
                                          const at::Tensor& parallel_loss,
                                          const ProcessGroup& group,
                                          const CheckParallelOptions& options = {});

// A model after its loss and backward().
struct Pass {
  std::shared_ptr<torch::nn::Module> model;
  at::Tensor loss;
};

// Compares pass(false) and pass(true), which start with the same random numbers. Restores the
// default generator. Collective and Errors: as compare_passes(), and exceptions of `pass`.
LOCKSTEP_API ParallelCheck check_passes(const std::function<Pass(bool is_parallel)>& pass,
                                        const ProcessGroup& group,
                                        const CheckParallelOptions& options = {});

// Makes two models, cuts the second one with cut(model), runs loss(model, is_parallel) and
// backward() on both, and compares them. loss() returns the same loss for both. `group` has the
// ranks that hold the parts. Otherwise as check_passes().
template <class Make, class Cut, class Loss>
ParallelCheck check_parallel(const Make& make, const Cut& cut, const Loss& loss,
                             const ProcessGroup& group, const CheckParallelOptions& options = {}) {
  const auto pass = [&](bool is_parallel) -> Pass {
    auto model = make();
    if (is_parallel) cut(*model);
    at::Tensor value = loss(*model, is_parallel);
    value.backward();
    return {std::move(model), std::move(value)};
  };
  return check_passes(pass, group, options);
}

}  // namespace lockstep
