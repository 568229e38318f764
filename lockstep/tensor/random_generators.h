// LibTorch's default random generator of each rank, from which dropout and randn() draw.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/comm/api.h"
#include "lockstep/tensor/state.h"

namespace lockstep {

class ProcessGroup;

// Each rank's own, saved as "rank.0", "rank.1" and so on. Loaded on as many ranks, each gets its own
// again, and draws the numbers that it would have drawn. Loaded on more, the ranks that there were
// not are seeded from rank 0's state and their rank.
class LOCKSTEP_API RandomGenerators : public Stateful {
 public:
  explicit RandomGenerators(const ProcessGroup& group);
  RandomGenerators() = default;  // Of a process that trains alone.

  StateDict state_dict() override;
  StateRequest wanted(const StateDict& saved) override;
  void load_state_dict(StateDict state) override;

 private:
  int rank_ = 0;
};

}  // namespace lockstep
