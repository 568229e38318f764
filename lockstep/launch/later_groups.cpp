// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/later_groups.h"

#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/processes.h"

namespace lockstep::launch {
namespace {

// While a group is made, the previous one counts. A slow rank may offer an older one late.
constexpr std::size_t most_groups = 3;

// Whether `pid` is `started` or a descendant, such as a script's program.
bool is_of(pid_t pid, pid_t started) {
  while (pid > 1 && pid != started) {
    const auto stat = process_stat(pid);
    pid = stat ? stat->parent : 0;
  }
  return pid > 1;
}

std::optional<int> slot_of(const JobControlBlock& page, pid_t started) {
  for (int slot = 0; slot < page.slots(); ++slot)
    if (page.pid(slot) == started) return slot;
  for (int slot = 0; slot < page.slots(); ++slot)
    if (page.phase(slot) == JobControlBlock::Phase::alive && is_of(page.pid(slot), started))
      return slot;
  return std::nullopt;
}

}  // namespace

void LaterGroups::add(FileDescriptor fd) {
  struct stat found {};
  if (::fstat(fd.get(), &found) != 0) throw_errno("fstat");
  const auto is_same = [&](const Group& group) { return group.memory == found.st_ino; };
  if (std::ranges::any_of(groups_, is_same)) return;
  groups_.push_back({found.st_ino, JobControlBlock::attach(std::move(fd))});
  if (groups_.size() > most_groups) groups_.pop_front();
}

std::optional<RankStatus> LaterGroups::status(int local_rank, const std::vector<pid_t>& pids,
                                              int first_rank) const {
  const JobControlBlock* page = nullptr;
  int slot = 0;
  for (auto group = groups_.rbegin(); group != groups_.rend(); ++group) {
    const auto own = slot_of(group->page, pids[static_cast<std::size_t>(local_rank)]);
    if (!own) continue;
    const bool lives = group->page.phase(*own) == JobControlBlock::Phase::alive;
    if (page != nullptr && !lives) continue;
    page = &group->page;
    slot = *own;
    if (lives) break;
  }
  if (page == nullptr) return std::nullopt;
  std::vector<int> ranks(static_cast<std::size_t>(page->slots()), -1);
  for (std::size_t i = 0; i < pids.size(); ++i)
    if (const auto other = slot_of(*page, pids[i]))
      ranks[static_cast<std::size_t>(*other)] = first_rank + static_cast<int>(i);
  return status_of(*page, slot, ranks);
}

}  // namespace lockstep::launch
