// Checks the arguments of a ProcessGroup's calls, and describes them for comparison.
//
// Errors: misuse and unsupported, on this rank alone. Nothing is sent, and the group stays usable.
// Lifetime: a Collective refers to its buffers and counts.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/comm/core/backend.h"
#include "lockstep/comm/core/buffer.h"
#include "lockstep/comm/group/group_identity.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/job/detail/operation.h"

namespace lockstep::comm {

// Errors: also misuse for an operation that is not a call of Backend::run().
Collective collective_of(Operation operation, const CollectiveArguments& given,
                         const GroupIdentity& group);

// The counts sent to each rank, then those received from each; or empty.
Counts pairs_of(const Counts& send_counts, const Counts& receive_counts, int size);

// Rejects device buffers that `backend` does not support, and buffers on different devices.
void require_possible(const Collective& collective, Backend& backend);

std::shared_ptr<Message> message_of(Operation operation, const Buffer& data, int peer,
                                    std::int64_t tag, const GroupIdentity& group);

// This rank's index in `ranks`, if listed. Error messages start with `what`.
std::optional<int> place_in(const std::vector<int>& ranks, const GroupIdentity& group,
                            const char* what);

std::uint64_t layout_of_ranks(const std::vector<int>& ranks);

}  // namespace lockstep::comm
