// Shows that a parallel model computes what the whole one does.
//
//   lockstep::check_parallel(
//       [] { return std::make_shared<Gpt>(options); },
//       [&](Gpt& gpt) { lockstep::parallelize_module(gpt, mesh["tp"], plan); },
//       [&](Gpt& gpt, bool is_parallel) { return loss_of(gpt, tokens, is_parallel); }, mesh["tp"]);

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>

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

// Makes a model with make() twice, each time with the same random numbers, cuts the second one with
// cut(model), runs loss(model, is_parallel) and backward() on both, and compares them.
// loss() returns the same loss for both: a number, of the same inputs. The default generator is
// left as it was.
// Collective over `group`, whose ranks hold the parts.
// Errors: those of compare_passes(), and all that the functions throw.
template <class Make, class Cut, class Loss>
ParallelCheck check_parallel(const Make& make, const Cut& cut, const Loss& loss,
                             const ProcessGroup& group, const CheckParallelOptions& options = {}) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const at::Tensor before = generator.get_state();
  const auto pass = [&](bool is_parallel) {
    generator.set_state(before);
    auto model = make();
    if (is_parallel) cut(*model);
    at::Tensor value = loss(*model, is_parallel);
    value.backward();
    return std::pair(std::move(model), std::move(value));
  };
  const auto [whole, whole_loss] = pass(false);
  const auto [parallel, parallel_loss] = pass(true);
  generator.set_state(before);
  return compare_passes(*whole, whole_loss, *parallel, parallel_loss, group, options);
}

}  // namespace lockstep
