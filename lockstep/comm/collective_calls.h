// Builds the calls of a ProcessGroup: checks the arguments, and describes them for the comparison
// with other ranks.
//
// Errors: misuse and unsupported, on this rank alone: the call is not numbered, nothing is sent,
// and the group is not broken.
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

// `pairs` is empty, or has the counts sent to each rank, then those received from each.
Collective all_to_all_of(const Buffer& input, const Buffer& output, const Counts& pairs,
                         const ProcessGroup& group);
Counts pairs_of(const Counts& send_counts, const Counts& receive_counts, const ProcessGroup& group);

// Rejects device buffers with which `backend` cannot do `collective`.
void require_possible(const Collective& collective, Backend& backend);

// --- Messages and groups -------------------------------------------------------------------------

// `operation` is send or recv.
std::shared_ptr<Message> message_of(Operation operation, const Buffer& data, int peer,
                                    std::int64_t tag, const ProcessGroup& group);

// Returns this rank's index in the `ranks` of a new group; nothing if absent. Error messages start
// with `what`.
std::optional<int> place_in(const std::vector<int>& ranks, const ProcessGroup& group,
                            const char* what);

// Returns Signature::layout for the `ranks` of a new group.
std::uint64_t layout_of_ranks(const std::vector<int>& ranks);

}  // namespace lockstep::comm
