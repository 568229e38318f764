// Shows that a parallel model computes what the whole one does.
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
  // The most that a loss or a gradient may differ by, as a part of the largest absolute value of
  // the tensor. Sums over ranks have another order than one process's.
  double tolerance = 1e-5;
};

// What check_parallel() has found equal.
struct ParallelCheck {
  std::string worst = {};  // The parameter whose gradient differs most.
  double difference = 0;   // By how much, as a part of its largest absolute value.
  std::int64_t parameters = 0;
};

// Compares the losses and the gradients of all parameters, in their order; parts are gathered.
// Collective over `group`. Errors: mismatch, on all ranks, naming the first that differs, by how
// much, and where; misuse for models with different parameters.
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

// Compares pass(false) and pass(true), which begin with the same random numbers. The default
// generator is left as it was. Collective and Errors: as compare_passes(), and all that `pass`
// throws.
LOCKSTEP_API ParallelCheck check_passes(const std::function<Pass(bool is_parallel)>& pass,
                                        const ProcessGroup& group,
                                        const CheckParallelOptions& options = {});

// Makes a model with make() twice, cuts the second one with cut(model), runs loss(model,
// is_parallel) and backward() on both, and compares them. loss() returns the same loss for both: a
// number, of the same inputs. Otherwise as check_passes(); `group` is of the ranks that hold the
// parts.
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
