// Exchanges failure notices with `lockstep run` while ranks join a group: ranks that exited before
// joining, and timeouts of ranks.
//
// Call the first four functions only if LOCKSTEP_AGENT_FD is set. The others do nothing until then.
// Thread safety: any thread.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/base/error.h"

namespace lockstep::c10d {

// For a process that waits for a group. Logs the failure record once.
// Blocking: the first call waits for the agent's answer.
// Errors: peer_lost, with the rank that has exited; timeout and mismatch, with the ranks whose
// absence made others exit.
void throw_if_launcher_lost_rank();

// For a process that waits for no group: ignores the orderly exit of a rank.
void throw_if_job_failed();

// Reports an Error of init_process_group() that other ranks caused, and logs its failure record. If
// this process exits, the launcher names those ranks.
void tell_launcher(const Error& error, std::chrono::milliseconds timeout);

// Throws timeout: no process has served the store at `place`. `reason` is the last attempt's error,
// or empty. Reports as tell_launcher().
[[noreturn]] void throw_without_store(const std::string& place, std::chrono::milliseconds timeout,
                                      const std::string& reason);

// This process creates another group: its earlier reports no longer explain its exit.
void tell_launcher_of_new_try();

void tell_launcher_of_group();

void tell_launcher_of_end(std::string_view text, std::optional<Fault> fault);

}  // namespace lockstep::c10d
