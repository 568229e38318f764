// LibTorch's default random generator of each rank, from which dropout and randn() draw.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/base/api.h"
#include "lockstep/tensor/state.h"

namespace lockstep {

class ProcessGroup;

// Each rank's own, saved as "rank.0", "rank.1" and so on. Loaded on as many ranks, each gets its
// own again, and draws the numbers that it would have drawn. Loaded on more, a rank that there was
// not is seeded with XXH3_64bits_withSeed(rank 0's state, seed = its rank). That rule is frozen.
class LOCKSTEP_API RandomGenerators : public Stateful {
 public:
  explicit RandomGenerators(const ProcessGroup& group);
  RandomGenerators() = default;  // Of a process that trains alone.

  StateDict state_dict() override;

  // Its own, else rank 0's. Errors: misuse when there is neither, or it is none of this LibTorch's.
  StateRequest wanted(const StateDict& saved) override;
  void load_state_dict(StateDict state) override;

 private:
  int rank_ = 0;
};

}  // namespace lockstep
