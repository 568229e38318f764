// Byte strings of any length between ranks: names, settings, file lists, JSON.
//
//   const std::string settings = broadcast_bytes(group.rank() == 0 ? read(path) : "", group);
//   const auto hosts = all_gather_bytes(host_name(), group);  // hosts[r] is rank r's.
//
// Each call is two collectives; the first one sends the lengths. Timeouts hold for each.
// Limit: 1 GiB for all strings of a call together, checked before allocation. Send large data with
// Buffers or tensors.
// Blocking, Errors: as ProcessGroup's. Misuse beyond the limit: a sender finds it before anything
// is sent; if only the sum is too large, all ranks find it. Corrupt for an impossible length.

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

// Returns rank `root`'s bytes; ignores `bytes` of other ranks.
LOCKSTEP_API std::string broadcast_bytes(std::string_view bytes, const ProcessGroup& group,
                                         int root = 0, const CallOptions& options = {});

// Returns all ranks' bytes, in rank order.
LOCKSTEP_API std::vector<std::string> all_gather_bytes(std::string_view bytes,
                                                       const ProcessGroup& group,
                                                       const CallOptions& options = {});

// Returns all ranks' bytes on rank `root`, in rank order; nothing on the others.
LOCKSTEP_API std::vector<std::string> gather_bytes(std::string_view bytes,
                                                   const ProcessGroup& group, int root = 0,
                                                   const CallOptions& options = {});

// Returns part rank() of rank `root`'s `parts`, which has one entry for each rank; ignores `parts`
// of other ranks.
LOCKSTEP_API std::string scatter_bytes(const std::vector<std::string>& parts,
                                       const ProcessGroup& group, int root = 0,
                                       const CallOptions& options = {});

}  // namespace lockstep
