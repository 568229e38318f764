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

#include "lockstep/comm/process_group.h"

namespace lockstep {

// Names and defaults are those of PyTorch's Join.
struct JoinOptions {
  // Whether gradients are still divided by the number of all ranks when some have joined: then
  // every sample weighs the same. Otherwise by the number of ranks that are active.
  // GradientMean::over_samples divides by the samples there were, in either case.
  bool divide_by_initial_world_size = true;

  // Whether all ranks throw Error(aborted) as soon as one has joined.
  bool throw_on_early_termination = false;
};

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
  int active_ranks_;
  int largest_active_rank_;
};

}  // namespace lockstep
