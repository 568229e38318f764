// The ranks of a group by hosts: those of this host, and this rank's like on the other hosts.
//
// What all hosts need travels between hosts in lanes: the ranks with the same place on their host
// are a lane, so each byte crosses a link once, and all ranks of a host carry a part.
//
// Thread safety: as ProcessGroup's.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep::parallel {

struct HostGroups {
  ProcessGroup all;
  ProcessGroup host;                      // The ranks of this host, in their order in `all`.
  std::optional<ProcessGroup> lane = {};  // One rank of each host. Absent if there is one host.
  std::vector<int> owners;                // Ranks of `all`: those of lane 0, of lane 1 and so on.

  int hosts() const { return lane ? lane->size() : 1; }

  // The slices of this rank's lane, and this rank's own, where slice i belongs to owners[i].
  int first_of_lane() const { return host.rank() * hosts(); }
  int own_slice() const { return first_of_lane() + (lane ? lane->rank() : 0); }
};

// Collective. Ranks that share no memory count as on several hosts. `label` becomes part of the
// groups' names. Errors: unsupported, on all ranks, if the hosts have different numbers of ranks.
HostGroups host_groups(const ProcessGroup& group, const std::string& label);

// An exception, whose text is `reason`, has ended `what` on this rank. Ranks that wait for it in
// one of `groups`, some of which may be absent, get an Error(aborted).
void give_up(std::initializer_list<std::optional<ProcessGroup>> groups, std::string_view what,
             std::string_view reason) noexcept;

}  // namespace lockstep::parallel
