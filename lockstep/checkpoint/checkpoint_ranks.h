// The ranks that save or load together, and the agreement on one outcome: the ranks of a group, or
// one process alone.
//
// Thread safety, Blocking: as ProcessGroup's.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep::checkpoint {

class CheckpointRanks {
 public:
  CheckpointRanks() = default;  // One process.
  CheckpointRanks(ProcessGroup group, std::chrono::milliseconds timeout);

  int rank() const { return group_ ? group_->rank() : 0; }
  int size() const { return group_ ? group_->size() : 1; }

  // Requires more than one rank.
  const ProcessGroup& group() const { return *group_; }
  std::chrono::milliseconds timeout() const { return timeout_; }

  // As before_end(), if there are several ranks; otherwise does nothing.
  void before_end(const std::shared_ptr<const std::function<void()>>& act) const;

  // Aborts the group, if there is one.
  void abort(std::string_view reason) const;

  // Collective. Returns the result of `action` on each rank. If it throws an Error on one rank, all
  // ranks throw it; if on several, that of the first rank. For other exceptions, the other ranks
  // throw Error(aborted) with their text. The group stays usable.
  std::vector<std::string> all(std::string_view what,
                               const std::function<std::string()>& action) const;

  // As all(), with `action` only on rank 0.
  std::string rank_0(std::string_view what, const std::function<std::string()>& action) const;

 private:
  std::optional<ProcessGroup> group_;
  std::chrono::milliseconds timeout_{};
};

}  // namespace lockstep::checkpoint
