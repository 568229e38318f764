// A short form of the state that must be equal on all ranks, and its comparison.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "lockstep/comm/process_group.h"
#include "lockstep/tensor/differences.h"
#include "lockstep/tensor/named_tensors.h"

namespace torch::optim {
class Optimizer;
}

namespace lockstep {

struct ReplicaState {
  Facts settings;      // Types and shapes of tensors, and hyperparameters.
  Facts fingerprints;  // XXH3, 64 bits, of each tensor's elements.
};

// `optimizer` may be null. Errors: misuse for a tensor that is undefined or not dense; those of
// hyperparameters_of().
ReplicaState state_of(const NamedTensors& tensors, const torch::optim::Optimizer* optimizer);

// Collective. Sends eight bytes per rank, and all of `state` only if these differ. `call` names the
// caller; ranks with another name get a mismatch from `group`.
// Errors: mismatch, on all ranks with the same text, if the states differ; `group` stays usable.
void require_equal(const ReplicaState& state, const ProcessGroup& group, std::string_view call);

}  // namespace lockstep
