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
  // The largest accepted difference of a loss or a gradient, as a fraction of the tensor's largest
  // absolute value. Sums over ranks have another order than one process's.
  double tolerance = 1e-5;
};

struct ParallelCheck {
  std::string worst = {};  // Differs most: "the loss" or "the gradient of NAME".
  double difference = 0;   // As CheckParallelOptions::tolerance.
  std::int64_t parameters = 0;
};

// Collective over `group`: compares losses and all gradients.
// Errors: mismatch, on all ranks, with the first tensor that differs, by how much, and where;
// misuse for models with different parameters.
LOCKSTEP_API ParallelCheck compare_passes(const torch::nn::Module& whole,
                                          const at::Tensor& whole_loss,
                                          const torch::nn::Module& parallel,
                                          const at::Tensor& parallel_loss,
                                          const ProcessGroup& group,
                                          const CheckParallelOptions& options = {});

struct Pass {
  std::shared_ptr<torch::nn::Module> model;
  at::Tensor loss;
};

// Compares pass(false) and pass(true), which start with the same state of the default CPU
// generator. Restores it. Collective and Errors: as compare_passes(), and exceptions of `pass`.
LOCKSTEP_API ParallelCheck check_passes(const std::function<Pass(bool is_parallel)>& pass,
                                        const ProcessGroup& group,
                                        const CheckParallelOptions& options = {});

// Makes two models and cuts the second with cut(model). Runs loss(model, is_parallel), which
// must compute the same loss, and backward() on both, and compares them. The ranks of `group` hold
// the parts. Otherwise as check_passes().
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
