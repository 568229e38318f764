// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/parallel/local_steps/local_steps.h"
#include "lockstep/tensor/collectives.h"

namespace lockstep {
namespace {

std::string text_of(const LocalSGDOptions& options) {
  std::string text = "period ";
  return text.append(std::to_string(options.period))
      .append("\nwarmup_steps ")
      .append(std::to_string(options.warmup_steps))
      .append(options.subgroup ? "\na subgroup" : "\nno subgroup");
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
    try {
      all_reduce(bucket.buffer, ranks, ReduceOp::average, {.label = bucket.label});
    } catch (const std::exception& error) {  // DistributedDataParallel aborts only bucket.group.
      ranks.abort(std::string("the hook of LocalSGD ended with ") + error.what());
      throw;
    }
  };
}

LocalSteps::Range LocalSGD::due_after(std::int64_t step) const {
  const std::int64_t local = step - options_.warmup_steps;
  if (local < 0 || local % options_.period != 0) return {};
  return {.begin = 0, .end = parameters().size()};
}

at::Tensor LocalSGD::contribution(std::size_t index) const {
  return parameters()[index].second.detach().clone();
}

void LocalSGD::take_mean(std::size_t index, const at::Tensor& mean) {
  parameters()[index].second.detach().copy_(mean);
}

}  // namespace lockstep
