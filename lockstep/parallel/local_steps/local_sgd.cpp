// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/parallel/local_steps/local_steps.h"
#include "lockstep/tensor/collectives.h"
#include "lockstep/tensor/tensor_lists.h"

namespace lockstep {
namespace {

std::string text_of(const LocalSGDOptions& options) {
  std::string text = "period ";
  return text.append(std::to_string(options.period))
      .append("\nwarmup_steps ")
      .append(std::to_string(options.warmup_steps));
}

const LocalSGDOptions& require_valid(const LocalSGDOptions& options) {
  require(options.period >= 1, "LocalSGD: period must be at least 1");
  require(options.warmup_steps >= 0, "LocalSGD: warmup_steps is negative");
  return options;
}

}  // namespace

LocalSGD::LocalSGD(torch::nn::Module& module, torch::optim::Optimizer& optimizer,
                   const ProcessGroup& group, const LocalSGDOptions& options)
    : LocalSteps(module, optimizer, group, "LocalSGD", text_of(require_valid(options))),
      options_(options),
      subgroup_(options.subgroup ? *options.subgroup : host_group(group)) {}

CommunicationHook LocalSGD::hook() const {
  return [this](GradientBucket& bucket) {
    const ProcessGroup& ranks = is_local() ? subgroup_ : bucket.group;
    all_reduce(bucket.buffer, ranks, ReduceOp::average, {.label = bucket.label});
  };
}

bool LocalSGD::synchronize_after(std::int64_t step, bool& all) {
  all = step >= options_.warmup_steps && (step - options_.warmup_steps) % options_.period == 0;
  if (all) synchronize_all();
  return all;
}

// By copies: an Error of a collective leaves all parameters as they were.
void LocalSGD::synchronize_all() {
  std::vector<at::Tensor> means;
  for (const auto& [name, parameter] : parameters()) means.push_back(parameter.detach().clone());
  all_reduce_coalesced(means, group(), ReduceOp::average, {.label = label()});
  for (std::size_t i = 0; i < means.size(); ++i) parameters()[i].second.detach().copy_(means[i]);
}

}  // namespace lockstep
