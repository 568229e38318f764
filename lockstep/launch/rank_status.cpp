// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/text.h"
#include "lockstep/job/activity.h"
#include "lockstep/launch/status.h"

namespace lockstep {
namespace {

// True for the group of all ranks: the only one whose members the page knows.
bool in_world(const Activity& activity) {
  static const GroupName world = pack_group_name("world");
  return std::equal(world.begin(), world.end(), activity.group.begin(),
                    [](std::uint64_t word, const auto& each) { return word == each; });
}

std::string state_of(const JobPage& page, int slot) {
  if (page.phase(slot) == JobPage::Phase::vacant) return "starting";
  const char process = page.process_state(slot);
  if (process == 'T' || process == 't') return "stopped";
  if (process == '?' || process == 'Z' || process == 'X') return "ended";
  if (page.phase(slot) != JobPage::Phase::alive) return "running";  // It is in no group.
  if (page.lost(slot)) return "ended";
  return page.activity(slot).inside() ? "waiting" : "running";
}

std::string last_of(const JobPage& page, int slot) {
  switch (page.phase(slot)) {
    case JobPage::Phase::vacant:
      return "yet to join its group";
    case JobPage::Phase::finished:
      return "has left its group";
    case JobPage::Phase::abandoned:
      return "has lost its group";
    case JobPage::Phase::alive:
      break;
  }
  return describe(page.activity(slot));
}

// A rank that is in another group now may have been here before: its activity does not tell.
bool yet_to_come(const Activity& other, std::uint64_t sequence) {
  return other.sequence() == 0 || (in_world(other) && other.sequence() < sequence);
}

}  // namespace

RankStatus status_of(const JobPage& page, int slot, int first_rank) {
  const Activity& own = page.activity(slot);
  RankStatus status{.rank = first_rank + slot,
                    .pid = page.pid(slot),
                    .state = state_of(page, slot),
                    .step = own.step.load(std::memory_order_relaxed),
                    .last = last_of(page, slot)};
  if (!own.inside() || !in_world(own)) return status;
  for (int other = 0; other < page.slots(); ++other)
    if (other != slot && yet_to_come(page.activity(other), own.sequence()))
      status.waits_for.push_back(first_rank + other);
  return status;
}

std::string describe(const RankStatus& rank) {
  if (rank.waits_for.empty()) return rank.last;
  return fmt::format("{}, waits for {}", rank.last, as_ranges(rank.waits_for));
}

}  // namespace lockstep
