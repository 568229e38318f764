// Whether the ranks of one host were told the same, before some wait for others that never come:
// how many ranks there are, and which backend to meet by.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/base/time.h"
#include "lockstep/job/host_session.h"

namespace lockstep {

// Errors: mismatch, naming the ranks and what each was told, when those that have come differ.
// Blocking: never but before that Error, for 2 s at most, until all have come and can see it too.
void require_agreement(HostSession& session);

// As require_agreement(). Blocking: until all ranks have come. Errors: also timeout, naming those
// that did not; peer_lost.
void await_agreement(HostSession& session, Deadline deadline);

// Whether ranks of one host that are told `backend` need nothing but its shared memory.
bool is_shared_memory(std::string_view backend);

}  // namespace lockstep
