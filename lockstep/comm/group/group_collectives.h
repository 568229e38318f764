// Numbers, compares, runs and records the collectives of one group on this rank.
//
// Thread safety: one thread at a time, which CallQueue admits.
// Errors: every Error of a collective breaks the group.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/comm/core/backend.h"
#include "lockstep/comm/group/call_span.h"
#include "lockstep/comm/group/group_context.h"
#include "lockstep/job/activity.h"

namespace lockstep::comm {

class GroupCollectives {
 public:
  // `group` must outlive it.
  explicit GroupCollectives(GroupContext& group);

  // Completes `collective`, and sets its sequence.
  void execute(Collective& collective);

  // Enters `collective`, sets its sequence, checks that all ranks' calls are equal, then calls
  // act(collective).
  template <class Act>
  void perform(Collective& collective, Act act) {
    group_.throw_if_broken();
    collective.sequence = ++sequence_;
    CallSpan span(group_, packed_name_, collective);
    try {
      group_.backend().enter(collective);
      span.all_entered(last_to_enter());
      throw_unless_all_agree(collective);
      act(collective);
    } catch (...) {
      span.fail();
      group_.break_with(std::current_exception(), group_.identity().describe(collective),
                        collective.timeout);
      throw;
    }
    span.complete();
  }

  // Within the performed `outer`: gathers every rank's words in rank order.
  void all_gather_words(const Collective& outer, std::span<const std::int64_t> mine,
                        std::vector<std::int64_t>& all);

 private:
  // As a rank of the job.
  std::optional<int> last_to_enter() const {
    const auto last = group_.backend().last_to_enter();
    return last ? std::optional(group_.identity().world_rank(*last)) : std::nullopt;
  }

  void throw_unless_all_agree(const Collective& collective) const;
  [[noreturn]] void throw_mismatch(const Collective& collective) const;
  std::vector<std::string> labels_of(const std::vector<Signature>& calls,
                                     const Collective& collective) const;
  void complete(const Collective& collective);
  void run_native(const Collective& collective);
  void all_to_all_of_uneven_parts(const Collective& collective);

  GroupContext& group_;
  const GroupName packed_name_;
  std::uint64_t sequence_ = 0;
};

}  // namespace lockstep::comm
