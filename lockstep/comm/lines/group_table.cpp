// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/lines/group_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/comm/lines/line_frames.h"

namespace lockstep {
namespace {

constexpr std::size_t max_unopened = 1024;

}  // namespace

std::shared_ptr<GroupLines> GroupTable::open(const std::string& name,
                                             const std::vector<int>& world_ranks,
                                             const std::vector<std::shared_ptr<Line>>& lines) {
  const std::lock_guard lock(mutex_);
  if (failed_) throw *failed_;
  const std::uint64_t id = group_id(name);
  require(groups_.contains(id) || !was_opened(id), [&] {
    return fmt::format("group {}, or one of the same hash, was opened before", name);
  });
  const bool came_before = groups_.contains(id) && !was_opened(id);
  const auto opened = group(id);
  opened->open(name, world_ranks, lines);
  ever_opened_.insert(std::upper_bound(ever_opened_.begin(), ever_opened_.end(), id), id);
  if (came_before) --unopened_;
  return opened;
}

void GroupTable::close(GroupLines& group) {
  group.close();
  const std::lock_guard lock(mutex_);
  groups_.erase(group.id());
}

std::shared_ptr<GroupLines> GroupTable::receiver(std::uint64_t id) {
  const std::lock_guard lock(mutex_);
  if (!groups_.contains(id)) {
    if (was_opened(id)) return nullptr;
    if (++unopened_ > max_unopened)
      throw Error(Fault::corrupt, "it speaks of too many groups that are not here");
  }
  return group(id);
}

void GroupTable::tell_all_soon() {
  const std::lock_guard lock(mutex_);
  for (const auto& [id, group] : groups_) to_tell_.push_back(id);
}

bool GroupTable::has_to_tell() const {
  const std::lock_guard lock(mutex_);
  return !to_tell_.empty();
}

void GroupTable::tell() {
  std::vector<std::shared_ptr<GroupLines>> groups;
  {
    const std::lock_guard lock(mutex_);
    for (const std::uint64_t id : to_tell_)
      if (const auto found = groups_.find(id); found != groups_.end())
        groups.push_back(found->second);
    to_tell_.clear();
  }
  for (const auto& group : groups) group->tell(true);
}

void GroupTable::fail(const Error& error) {
  std::vector<std::shared_ptr<GroupLines>> groups;
  {
    const std::lock_guard lock(mutex_);
    failed_ = error;
    for (const auto& [id, group] : groups_) groups.push_back(group);
  }
  for (const auto& group : groups) group->fail(error);
}

std::shared_ptr<GroupLines> GroupTable::group(std::uint64_t id) {
  auto& group = groups_[id];
  if (group) return group;
  group = std::make_shared<GroupLines>(id, [this, id] {
    {
      const std::lock_guard lock(mutex_);
      to_tell_.push_back(id);
    }
    wake_();
  });
  return group;
}

bool GroupTable::was_opened(std::uint64_t id) const {
  return std::binary_search(ever_opened_.begin(), ever_opened_.end(), id);
}

}  // namespace lockstep
