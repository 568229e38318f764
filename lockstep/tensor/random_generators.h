// The state of each rank's default LibTorch random generator, from which dropout and randn() draw.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/base/api.h"
#include "lockstep/tensor/state.h"

namespace lockstep {

class ProcessGroup;

// Each rank's generator is saved under its rank: "rank.0", "rank.1" and so on. On load, each rank
// gets its own generator again and continues with the same numbers. A rank without a saved
// generator is seeded with XXH3_64bits_withSeed(rank 0's state, seed = its rank). This rule is
// frozen.
class LOCKSTEP_API RandomGenerators : public Stateful {
 public:
  explicit RandomGenerators(const ProcessGroup& group);
  RandomGenerators() = default;  // For a process that trains alone.

  StateDict state_dict() override;

  // Asks for this rank's generator, or rank 0's if there is none. Errors: misuse if both are
  // missing, or the state is not one of this LibTorch's generators.
  StateRequest wanted(const StateDict& saved) override;
  void load_state_dict(StateDict state) override;

 private:
  int rank_ = 0;
};

}  // namespace lockstep
