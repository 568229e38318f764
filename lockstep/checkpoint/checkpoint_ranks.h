// Who saves or loads together: the ranks of a group, or one process alone; and how they come to one
// outcome.
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

namespace lockstep {

class CheckpointRanks {
 public:
  CheckpointRanks() = default;  // One process.
  CheckpointRanks(ProcessGroup group, std::chrono::milliseconds timeout);

  int rank() const { return group_ ? group_->rank() : 0; }
  int size() const { return group_ ? group_->size() : 1; }

  // Of more than one rank.
  const ProcessGroup& group() const { return *group_; }
  std::chrono::milliseconds timeout() const { return timeout_; }

  // before_end.h, if there are several ranks.
  void before_end(const std::shared_ptr<const std::function<void()>>& act) const;

  // Ends the group, if there is one.
  void abort(std::string_view reason) const;

  // Collective: what `action` returns on each rank. If it throws on one, all throw that Error, the
  // first rank's if there are several; for what is not an Error the others throw Error(aborted)
  // with its text. The group stays usable.
  std::vector<std::string> all(std::string_view what,
                               const std::function<std::string()>& action) const;

  // The same of rank 0's `action` alone.
  std::string rank_0(std::string_view what, const std::function<std::string()>& action) const;

 private:
  std::optional<ProcessGroup> group_;
  std::chrono::milliseconds timeout_{};
};

}  // namespace lockstep
