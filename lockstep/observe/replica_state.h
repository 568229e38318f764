// What must be equal on all ranks, in few bytes, and the comparison.

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

// `optimizer` may be null. Errors: misuse for a tensor that is undefined or not dense; as
// hyperparameters_of().
ReplicaState state_of(const NamedTensors& tensors, const torch::optim::Optimizer* optimizer);

// Collective: eight bytes of each rank, and all of `state` only when these differ. `call` names the
// caller; ranks that name another get a mismatch from `group`.
// Errors: mismatch, on all ranks with the same text, when the states differ; `group` stays usable.
void require_equal(const ReplicaState& state, const ProcessGroup& group, std::string_view call);

}  // namespace lockstep
