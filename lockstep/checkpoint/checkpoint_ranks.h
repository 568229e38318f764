// The ranks that save or load together, and their agreement on one outcome.
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

  // As the group's before_end(). Does nothing for one process.
  void before_end(const std::shared_ptr<const std::function<void()>>& act) const;

  void abort(std::string_view reason) const;

  // Collective. Returns the results of `action` on all ranks. If it throws an Error on some ranks,
  // all ranks throw that of the lowest one. For other exceptions, the other ranks throw
  // Error(aborted) with the exception's text. The group stays usable.
  std::vector<std::string> all(std::string_view what,
                               const std::function<std::string()>& action) const;

  // As all(), but only rank 0 runs `action`.
  std::string rank_0(std::string_view what, const std::function<std::string()>& action) const;

 private:
  std::optional<ProcessGroup> group_;
  std::chrono::milliseconds timeout_{};
};

}  // namespace lockstep::checkpoint
