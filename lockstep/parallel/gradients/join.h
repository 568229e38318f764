// Ranks whose inputs end at different times: those that have no more follow what the others do.
//
// Before each collective of DistributedDataParallel an active rank announces it; a rank that has
// joined learns of it and takes part with nothing of its own. After torch/distributed/algorithms/
// join.py, but announced by collective rather than by forward(), so that several forward() calls
// may share a backward().

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/gradients/distributed_data_parallel_options.h"

namespace lockstep {

class Join {
 public:
  enum class Step : std::uint8_t { joined, broadcast_buffers, average_gradients };

  Join(const ProcessGroup& group, JoinOptions options);

  // Collective. Says what this rank is about to do, or that it has joined, and returns what the
  // active ranks do: nothing when there are none left.
  // Errors, on all ranks: mismatch when active ones are about to do different things; aborted when
  // some have joined, others have not, and the options forbid it.
  std::optional<Step> exchange(Step own);

  // In the last exchange in which any rank was active.
  int active_ranks() const { return active_ranks_; }
  int largest_active_rank() const { return largest_active_rank_; }

  const JoinOptions& options() const { return options_; }

 private:
  const ProcessGroup group_;
  const JoinOptions options_;
  const std::string label_;  // Ranks whose options differ get a mismatch.
  int active_ranks_;
  int largest_active_rank_;
};

}  // namespace lockstep
