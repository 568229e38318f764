// Exchanges failure notices with `lockstep run` while ranks join a group.
//
// The launcher reports ranks that have exited before joining. Ranks that wait for a group report
// their timeouts. Both use a shared page of the launcher. Ranks that wait in a store for other
// ranks read it.
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

// Call it only if LOCKSTEP_AGENT_FD is set, in a process that waits for a group. Logs the failure
// record once. Blocking: the first call waits for the agent's answer.
// Errors: peer_lost, with the rank that has exited; timeout and mismatch, with the ranks whose
// absence made others exit.
void throw_if_launcher_lost_rank();

// The same for a process that waits for no group: it ignores the orderly exit of a rank.
void throw_if_job_failed();

// Reports an Error of init_process_group() that other ranks caused to the launcher, and logs its
// failure record. If this process then exits, the launcher names those ranks. Call it only if
// LOCKSTEP_AGENT_FD is set.
void tell_launcher(const Error& error, std::chrono::milliseconds timeout);

// Throws an Error: no process has served the store at `place` within `timeout`. `reason` is the
// error of the last attempt to use it, or empty. Reports as tell_launcher() does.
[[noreturn]] void throw_without_store(const std::string& place, std::chrono::milliseconds timeout,
                                      const std::string& reason);

// The next three functions do nothing if no function above has been called.
//
// This process creates another group: its earlier reports no longer explain its exit.
void tell_launcher_of_new_try();

// This process has joined the group.
void tell_launcher_of_group();

// This process exits with this exception.
void tell_launcher_of_end(std::string_view text, std::optional<Fault> fault);

}  // namespace lockstep::c10d
