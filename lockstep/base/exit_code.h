// The exit codes of our programs, those of sysexits.h where it has one. A rank's own code, and 128
// + the signal that killed it, are passed on by `lockstep run` as they are.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/base/api.h"
#include "lockstep/base/error.h"

namespace lockstep {

constexpr int exit_usage = 64;        // The command line, or a call, is wrong on every attempt.
constexpr int exit_corrupt = 65;      // A file or message is not what it should be.
constexpr int exit_unavailable = 69;  // A host or a rank was lost, or did not come in time.
constexpr int exit_bug = 70;          // This library broke its own invariant.
constexpr int exit_system = 71;       // The operating system refused.
constexpr int exit_output_lost = 74;  // What was to be written could not be, as on a full disk.
constexpr int exit_preempted = 75;    // The job made room and wants to be started again.
constexpr int exit_mismatch = 76;     // Ranks disagree on what they do.
constexpr int exit_unsupported = 78;  // What was configured cannot be done here.
constexpr int exit_not_executable = 126;
constexpr int exit_not_found = 127;

// What a rank should exit with that ends with an Error of this kind.
LOCKSTEP_API int exit_code_of(Fault fault);

}  // namespace lockstep
