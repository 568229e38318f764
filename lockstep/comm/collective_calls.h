// Checks the arguments of a ProcessGroup's calls, and describes them for comparison.
//
// Errors: misuse and unsupported, on this rank alone. Nothing is sent, and the group stays usable.
// Lifetime: a Collective refers to its buffers and counts.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/comm/core/backend.h"
#include "lockstep/comm/core/buffer.h"
#include "lockstep/comm/process_group.h"

namespace lockstep::comm {

// --- Collectives: the arguments are ProcessGroup's -----------------------------------------------

Collective all_reduce_of(const Buffer& data, ReduceOp op);
Collective broadcast_of(const Buffer& data, int root, const ProcessGroup& group);
Collective reduce_of(const Buffer& data, int root, ReduceOp op, const ProcessGroup& group);
Collective all_gather_of(const Buffer& input, const Buffer& output, const Counts& counts,
                         const ProcessGroup& group);
Collective reduce_scatter_of(const Buffer& input, const Buffer& output, ReduceOp op,
                             const Counts& counts, const ProcessGroup& group);
Collective gather_of(const Buffer& input, const Buffer& output, int root, const Counts& counts,
                     const ProcessGroup& group);
Collective scatter_of(const Buffer& input, const Buffer& output, int root, const Counts& counts,
                      const ProcessGroup& group);

// `pairs`: the counts sent to each rank, then those received from each; or empty.
Collective all_to_all_of(const Buffer& input, const Buffer& output, const Counts& pairs,
                         const ProcessGroup& group);
Counts pairs_of(const Counts& send_counts, const Counts& receive_counts, const ProcessGroup& group);

// Rejects device buffers that `backend` does not support.
void require_possible(const Collective& collective, Backend& backend);

// --- Messages and groups -------------------------------------------------------------------------

// `operation` is send or recv.
std::shared_ptr<Message> message_of(Operation operation, const Buffer& data, int peer,
                                    std::int64_t tag, const ProcessGroup& group);

// This rank's index in `ranks`, if listed. Error messages start with `what`.
std::optional<int> place_in(const std::vector<int>& ranks, const ProcessGroup& group,
                            const char* what);

std::uint64_t layout_of_ranks(const std::vector<int>& ranks);

}  // namespace lockstep::comm
