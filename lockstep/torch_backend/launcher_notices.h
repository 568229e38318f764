// Exchanges reports of failures with `lockstep run` while ranks join a group.
//
// Call the first four functions only if LOCKSTEP_AGENT_FD is set. The others do nothing until one
// of those has reached the agent.
// Thread safety: full.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/base/error.h"

namespace lockstep::torch_backend {

// For a process that waits for a group. Logs each failure once.
// Blocking: the first call waits for the agent's answer.
// Errors: peer_lost, with the exited rank; timeout and mismatch, with the ranks whose absence or
// call made others exit.
void throw_if_launcher_lost_rank();

// For a process that waits for no group: ignores orderly exits.
void throw_if_job_failed();

// Reports and logs an Error of init_process_group() that other ranks caused. If this process exits,
// the launcher names those ranks.
void tell_launcher(const Error& error, std::chrono::milliseconds timeout);

// Throws timeout: no process serves the store at `place`. `reason` is the last attempt's error, or
// empty. Reports as tell_launcher().
[[noreturn]] void throw_without_store(const std::string& place, std::chrono::milliseconds timeout,
                                      const std::string& reason);

// This process creates another group: earlier reports no longer explain its exit.
void tell_launcher_of_new_try();

void tell_launcher_of_group();

void tell_launcher_of_end(std::string_view text, std::optional<Fault> fault);

}  // namespace lockstep::torch_backend
