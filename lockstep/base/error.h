// Error: the library's one exception type. Its Fault defines what the caller should do next.
//
// The library never ends the process. After an Error, a program should exit with exit_code_of(), as
// record() does.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <source_location>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/api.h"

namespace lockstep {

enum class Fault {
  misuse,       // The call fails on every attempt: fix the program.
  mismatch,     // Ranks make different calls: fix the program.
  unsupported,  // This backend, device or type cannot do it: choose another.
  timeout,      // The deadline passed; peers may be slow or gone.
  peer_lost,    // A peer died or left: end this rank and restart the job. failure() or ranks()
                // has the rank, if it is known.
  aborted,      // A rank, possibly this one, failed, or left or aborted the group.
  corrupt,      // A file or message is damaged: use another.
  system,       // A system call failed; what() has its error.
  bug,          // An invariant of this library is broken: report it and end the rank.
};

LOCKSTEP_API std::string_view name(Fault fault);
LOCKSTEP_API std::optional<Fault> fault_named(std::string_view name);  // Empty for other text.

// A lost rank, or running ranks that made a call of other ranks fail.
struct Failure {
  int rank = -1;
  std::string host = {};
  int pid = 0;
  std::optional<int> exit_code = {};  // Set if it exited.
  std::optional<int> signal = {};     // Set if a signal ended it. Neither is set if unknown.
  std::optional<bool> oom = {};       // Whether the OOM killer ended it; empty if unknown.
  std::string operation = {};         // The last one, such as "all_reduce".
  std::uint64_t sequence = 0;         // The operation's number in its group, from 1.
  std::optional<int> peer = {};       // For send and recv: the other rank in `group`; -1: any.
  std::string group = {};
  std::string what = {};        // Type and text of the exception that ended it, if known.
  std::string connection = {};  // How the connection to its host ended, if no other cause is known.
  int detected_by = -1;         // Rank that first detected the failure; -1: the launcher.
  bool left = false;            // Left its group before the others.

  // Set if the ranks still run. `timeout`: they did not join `call`; `what` lists the waiting ranks
  // and times. `mismatch`: their call differs; `what` lists the calls. `ranks` is empty and `rank`
  // is -1 if the ranks are unknown.
  std::optional<Fault> fault = {};
  std::vector<int> ranks = {};  // Ascending; `rank` is the first.
  std::string call = {};        // "all_reduce #812 of group world".
};

// One line, with control characters replaced:
//   rank 1 (pid 4242 on node3) was killed by signal 9 (SIGKILL), last seen in all_reduce #812
LOCKSTEP_API std::string describe(const Failure& failure);

class LOCKSTEP_API Error : public std::runtime_error {
 public:
  Error(Fault fault, std::string_view message,
        std::source_location where = std::source_location::current());

  Error(Fault fault, std::string_view message, std::vector<int> ranks,
        std::source_location where = std::source_location::current());

  // Fault::peer_lost; the message is `context` and describe(failure).
  Error(std::string_view context, Failure failure,
        std::source_location where = std::source_location::current());

  Fault fault() const { return fault_; }
  const std::optional<Failure>& failure() const { return failure_; }

  // The group's ranks that caused the fault, ascending; empty when unknown. Timeout: those that did
  // not join the call. Mismatch: those whose call differs from the majority's, or all without a
  // majority. Peer lost: those that left; failure() has the one that died.
  const std::vector<int>& ranks() const { return ranks_; }

 private:
  Fault fault_;
  std::vector<int> ranks_;
  std::optional<Failure> failure_;
};

// require() checks the caller's arguments, check() the library's own invariants, also in release
// builds.
LOCKSTEP_API void require(bool ok, std::string_view message,
                          std::source_location where = std::source_location::current());
LOCKSTEP_API void check(bool ok, std::string_view message,
                        std::source_location where = std::source_location::current());

// Calls `message()` on failure only.
template <std::invocable Message>
void require(bool ok, Message message,
             std::source_location where = std::source_location::current()) {
  if (!ok) throw Error(Fault::misuse, message(), where);
}

// Throws Fault::system with `what` and the text of `error_number` (default: errno).
[[noreturn]] LOCKSTEP_API void throw_errno(
    std::string_view what, std::source_location where = std::source_location::current());
[[noreturn]] LOCKSTEP_API void throw_errno(
    std::string_view what, int error_number,
    std::source_location where = std::source_location::current());

// Exit codes of Lockstep's programs, from sysexits.h where it has them. `lockstep run` returns the
// exit code of the rank that failed first, or 128 + the signal that killed it.
constexpr int exit_usage = 64;
constexpr int exit_corrupt = 65;
constexpr int exit_unavailable = 69;  // A host or rank was lost, late or aborted.
constexpr int exit_bug = 70;
constexpr int exit_system = 71;
constexpr int exit_output_lost = 74;
constexpr int exit_preempted = 75;  // Preempted: start the job again.
constexpr int exit_mismatch = 76;
constexpr int exit_unsupported = 78;
constexpr int exit_not_executable = 126;
constexpr int exit_not_found = 127;

LOCKSTEP_API int exit_code_of(Fault fault);

}  // namespace lockstep
