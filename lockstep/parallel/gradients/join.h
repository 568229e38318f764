// For ranks whose inputs end at different times, after torch/distributed/algorithms/join.py. Active
// ranks announce each collective of DistributedDataParallel; joined ranks take part without data.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/gradients/distributed_data_parallel_options.h"

namespace lockstep::parallel {

class Join {
 public:
  enum class Step : std::uint8_t { joined, broadcast_buffers, average_gradients };

  Join(const ProcessGroup& group, JoinOptions options);

  // Collective. Announces this rank's next step. Returns the active ranks'; empty if all have
  // joined.
  // Errors, on all ranks: mismatch for different steps of active ranks; aborted if only some ranks
  // have joined and the options forbid it.
  std::optional<Step> exchange(Step own);

  int active_ranks() const { return active_ranks_; }
  int largest_active_rank() const { return largest_active_rank_; }

  const JoinOptions& options() const { return options_; }

 private:
  const ProcessGroup group_;
  const JoinOptions options_;
  const std::string label_;  // Different options are a mismatch.
  int active_ranks_;
  int largest_active_rank_;
};

}  // namespace lockstep::parallel
