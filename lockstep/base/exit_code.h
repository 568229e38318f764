// Exit codes of Lockstep's programs; those that sysexits.h also has are the same there.
// `lockstep run` passes a rank's own exit code through unchanged, and 128 + the signal that killed
// it.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/base/api.h"
#include "lockstep/base/error.h"

namespace lockstep {

constexpr int exit_usage = 64;        // The command line, or a call, is wrong on every attempt.
constexpr int exit_corrupt = 65;      // A file or message is damaged.
constexpr int exit_unavailable = 69;  // A host or a rank was lost, or did not come in time.
constexpr int exit_bug = 70;          // This library broke its own invariant.
constexpr int exit_system = 71;       // The operating system refused.
constexpr int exit_output_lost = 74;  // Output could not be written, for example on a full disk.
constexpr int exit_preempted = 75;    // The job was preempted and wants to be started again.
constexpr int exit_mismatch = 76;     // Ranks make different calls.
constexpr int exit_unsupported = 78;  // The configuration is not supported here.
constexpr int exit_not_executable = 126;
constexpr int exit_not_found = 127;

// Exit code for a rank that ends with an Error of this fault.
LOCKSTEP_API int exit_code_of(Fault fault);

}  // namespace lockstep
