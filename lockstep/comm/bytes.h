// Byte strings of any length between ranks: names, settings, file lists, JSON.
//
//   const std::string settings = broadcast_bytes(group.rank() == 0 ? read(path) : "", group);
//   const auto hosts = all_gather_bytes(host_name(), group);  // hosts[r] is rank r's.
//
// Each call is two collectives, of which the first tells lengths; timeouts hold for each.
// Limit: 1 GiB for all strings of a call together, checked before memory is taken for them. Large
// data belongs into Buffers or tensors.
// Blocking, Errors: as ProcessGroup's; misuse beyond the limit, which a sender finds before
// anything is sent, and all ranks when only all strings together are too long; corrupt for a length
// that no rank can have sent.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"

namespace lockstep {

inline constexpr std::size_t byte_strings_limit = std::size_t{1} << 30;

// Rank `root`'s bytes. The others' are not looked at.
LOCKSTEP_API std::string broadcast_bytes(std::string_view bytes, const ProcessGroup& group,
                                         int root = 0, const CallOptions& options = {});

// All ranks' bytes, in the order of the ranks.
LOCKSTEP_API std::vector<std::string> all_gather_bytes(std::string_view bytes,
                                                       const ProcessGroup& group,
                                                       const CallOptions& options = {});

// The same on rank `root`; nothing on the others.
LOCKSTEP_API std::vector<std::string> gather_bytes(std::string_view bytes,
                                                   const ProcessGroup& group, int root = 0,
                                                   const CallOptions& options = {});

// Part rank() of rank `root`'s, which are one for each rank. The others' are not looked at.
LOCKSTEP_API std::string scatter_bytes(const std::vector<std::string>& parts,
                                       const ProcessGroup& group, int root = 0,
                                       const CallOptions& options = {});

}  // namespace lockstep
