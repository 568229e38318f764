// What `lockstep run` knows of ranks that have ended before they joined a group, the first one or
// the next; and what it learns of those that wait there in vain.
//
// Both are on a page of its own. Ranks that wait in a store for the others look there.
//
// Thread safety: any thread may call any function.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/base/error.h"

namespace lockstep::c10d {

// To be called only if LOCKSTEP_AGENT_FD is set, by a process that waits for a group. Blocking: the
// first call, until the agent has answered. Errors: peer_lost, with the rank that has ended, or
// timeout and mismatch, with those for want of which others ended. Logs their failure record once.
void throw_if_launcher_lost_rank();

// As that, for a process that waits for no group: that a rank has ended in order is no loss to it.
void throw_if_job_failed();

// Tells the launcher of an Error of init_process_group() for which other ranks are to blame, and
// logs its failure record. If this process then ends, the launcher names those. To be called only
// if LOCKSTEP_AGENT_FD is set.
void tell_launcher(const Error& error, std::chrono::milliseconds timeout);

// Throws that nobody has served the store at `place` within `timeout`; `reason` is that of the last
// try to use it, or empty. As tell_launcher().
[[noreturn]] void throw_without_store(const std::string& place, std::chrono::milliseconds timeout,
                                      const std::string& reason);

// The next three do nothing if no function above has been called.
//
// This process makes another group: what it has told the launcher is no longer why it ends.
void tell_launcher_of_new_try();

// It has joined the group.
void tell_launcher_of_group();

// It ends with this exception.
void tell_launcher_of_end(std::string_view text, std::optional<Fault> fault);

}  // namespace lockstep::c10d
