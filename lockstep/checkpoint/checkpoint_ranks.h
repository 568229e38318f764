// The ranks that save or load together, and agree on the outcome.
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
  CheckpointRanks(ProcessGroup group, std::chrono::milliseconds timeout);

  int rank() const { return group_ ? group_->rank() : 0; }
  int size() const { return group_ ? group_->size() : 1; }

  // Requires more than one rank.
  const ProcessGroup& group() const { return *group_; }
  std::chrono::milliseconds timeout() const { return timeout_; }

  // The group's before_end().
  void before_end(const std::shared_ptr<const std::function<void()>>& act) const;

  void abort(std::string_view reason) const;

  // Collective. Returns all ranks' results of `action`. If it throws Errors, all ranks throw that
  // of the lowest failed rank. A rank rethrows another exception; the others throw Error(aborted)
  // with its text. The group stays usable.
  std::vector<std::string> all(std::string_view what,
                               const std::function<std::string()>& action) const;

  // As all(), but only rank 0 calls `action`, and all ranks get its result.
  std::string rank_0(std::string_view what, const std::function<std::string()>& action) const;

 private:
  std::optional<ProcessGroup> group_;  // Empty for one rank.
  std::chrono::milliseconds timeout_;
};

}  // namespace lockstep::checkpoint
