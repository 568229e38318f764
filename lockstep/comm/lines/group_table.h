// The groups whose frames a rank's connections carry, by group_id(): those that were opened, and
// those for which frames have come before that.
//
// Thread safety: any thread may call any member at any time. Blocking: never.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/lines/group_lines.h"

namespace lockstep {

class GroupTable {
 public:
  // `wake` makes the lines' thread call tell().
  explicit GroupTable(std::function<void()> wake) : wake_(std::move(wake)) {}

  // `lines` has one for each rank of the group; null for those of this host.
  // Errors: misuse for a name that was opened before; that of fail().
  std::shared_ptr<GroupLines> open(const std::string& name, const std::vector<int>& world_ranks,
                                   const std::vector<std::shared_ptr<Line>>& lines);
  void close(GroupLines& group);

  // The group that a frame is for; null if it was closed. Errors: corrupt if frames have come for
  // too many groups that were not opened.
  std::shared_ptr<GroupLines> receiver(std::uint64_t id);

  // GroupLines::tell() of the groups that have asked for it, or of all.
  void tell_all_soon();
  bool has_to_tell() const;
  void tell();

  // The lines' thread has failed.
  void fail(const Error& error);

 private:
  std::shared_ptr<GroupLines> group(std::uint64_t id);
  bool was_opened(std::uint64_t id) const;

  const std::function<void()> wake_;

  mutable std::mutex mutex_;                                     // Guards the members below.
  std::map<std::uint64_t, std::shared_ptr<GroupLines>> groups_;  // Until they are closed.
  std::vector<std::uint64_t> ever_opened_;  // Sorted; data for a closed one is dropped.
  std::size_t unopened_ = 0;                // Number of groups with data but no open() yet.
  std::vector<std::uint64_t> to_tell_;
  std::optional<Error> failed_;
};

}  // namespace lockstep
