// A group's ranks by hosts. Ranks with the same position on their hosts form a rail. Data for all
// hosts is sent within rails: each byte crosses a link once.
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
  ProcessGroup host;                      // This host's ranks, in the order of `all`.
  std::optional<ProcessGroup> rail = {};  // Empty with one host.
  std::vector<int> owners;                // Ranks of `all`, rail by rail.

  int hosts() const { return rail ? rail->size() : 1; }

  // Slice i belongs to owners[i].
  int first_of_rail() const { return host.rank() * hosts(); }
  int own_slice() const { return first_of_rail() + (rail ? rail->rank() : 0); }
};

// Collective. Ranks that share no memory count as of different hosts. `label` becomes part of the
// groups' names.
// Errors: unsupported, on all ranks, if hosts have different numbers of ranks.
HostGroups host_groups(const ProcessGroup& group, const std::string& label);

// Aborts `groups` because `reason` has ended `what` on this rank. Ranks that wait for this rank
// throw Error(aborted).
void abort_groups(std::initializer_list<std::optional<ProcessGroup>> groups, std::string_view what,
                  std::string_view reason) noexcept;

}  // namespace lockstep::parallel
