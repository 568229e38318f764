// SPDX-License-Identifier: Apache-2.0
#include "lockstep/observe/drift_check.h"

#include <string>

#include "lockstep/base/error.h"
#include "lockstep/observe/replica_state.h"
#include "lockstep/optim/optimizer_options.h"

namespace lockstep {

DriftCheck::DriftCheck(const torch::nn::Module& module, const ProcessGroup& group,
                       DriftCheckOptions options)
    : module_(module), optimizer_(nullptr), group_(group), options_(options) {
  require(options_.every > 0, "DriftCheck: `every` must be at least 1");
}

DriftCheck::DriftCheck(const torch::nn::Module& module, const torch::optim::Optimizer& optimizer,
                       const ProcessGroup& group, DriftCheckOptions options)
    : module_(module), optimizer_(&optimizer), group_(group), options_(options) {
  require(options_.every > 0, "DriftCheck: `every` must be at least 1");
  hyperparameters_of(optimizer);  // Called here to report unsupported options at once.
}

void DriftCheck::step() {
  if (++steps_ % options_.every != 0) return;
  // Collected anew each time, because a module may have got other tensors since.
  const NamedTensors tensors =
      options_.buffers ? named_tensors(module_) : named_parameters(module_);
  require_equal(state_of(tensors, optimizer_), group_,
                "drift check after step " + std::to_string(steps_));
}

void require_equal_replicas(const NamedTensors& tensors, const ProcessGroup& group) {
  require_equal(state_of(tensors, nullptr), group, "require_equal_replicas");
}

void require_equal_replicas(const NamedTensors& tensors, const torch::optim::Optimizer& optimizer,
                            const ProcessGroup& group) {
  require_equal(state_of(tensors, &optimizer), group, "require_equal_replicas");
}

}  // namespace lockstep
