// Reports failures by one exception type, Error.
//
// Its Fault defines what the caller should do next. The library never ends the process; a program
// that ends with an Error takes its exit code from exit_code_of().

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
  misuse,       // The call is wrong on every attempt: fix the program.
  mismatch,     // Ranks make different calls: fix the program.
  unsupported,  // This backend cannot do it: choose another one.
  timeout,      // The deadline passed; peers may be slow or gone.
  peer_lost,    // A peer died or left: end this rank and restart the job. failure() has the rank;
                // it is empty if the peer is not a rank.
  aborted,      // A rank, possibly this one, left or aborted the group during the call.
  corrupt,      // A file or message is damaged: use another.
  system,       // A system call failed; what() has its error.
  bug,          // This library broke its own invariant: report it and end the rank.
};

LOCKSTEP_API std::string_view name(Fault fault);
LOCKSTEP_API std::optional<Fault> fault_named(std::string_view name);  // Empty for another text.

// Describes a lost rank, or running ranks that made a call of other ranks fail.
struct Failure {
  int rank = -1;
  std::string host = {};
  int pid = 0;
  std::optional<int> exit_code = {};  // Set if it exited without destroy_process_group().
  std::optional<int> signal = {};     // Set if a signal ended it. Both are empty if unknown.
  std::optional<bool> oom = {};       // Whether the OOM killer ended it; empty if unknown.
  std::string operation = {};         // Its last operation, such as "all_reduce".
  std::uint64_t sequence = 0;         // That operation's number in its group, from 1.
  std::optional<int> peer = {};       // The other rank of a message, in that group; -1: any.
  std::string group = {};
  std::string what = {};        // Type and text of the exception that ended it; empty if unknown.
  std::string connection = {};  // How the connection to its host ended; the cause is then unknown.
  int detected_by = -1;         // Rank that detected it first; -1 for the launcher.
  bool left = false;            // The rank aborted its group but still runs.

  // Set if the ranks still run. `timeout`: they did not join `call`; `what` has who waited and how
  // long. `mismatch`: their call differs; `what` has who called what. If the mismatching ranks are
  // unknown, `ranks` is empty and `rank` is -1.
  std::optional<Fault> fault = {};
  std::vector<int> ranks = {};  // In order; `rank` is the first.
  std::string call = {};        // "all_reduce #812 of group world".
};

// Returns one line; control characters in a rank's text are replaced. Example:
//   rank 1 (pid 4242 on node3) was killed by signal 9 (SIGKILL), last seen in all_reduce #812
LOCKSTEP_API std::string describe(const Failure& failure);

class LOCKSTEP_API Error : public std::runtime_error {
 public:
  Error(Fault fault, std::string_view message,
        std::source_location where = std::source_location::current());

  // `ranks` caused the fault; see ranks().
  Error(Fault fault, std::string_view message, std::vector<int> ranks,
        std::source_location where = std::source_location::current());

  // Fault::peer_lost. The message is `context` and describe(failure).
  Error(std::string_view context, Failure failure,
        std::source_location where = std::source_location::current());

  Fault fault() const { return fault_; }
  const std::optional<Failure>& failure() const { return failure_; }

  // The group's ranks that caused the fault, in order; empty when unknown. Timeout: those that did
  // not join the call. Mismatch: those whose call differs from the majority's, or all without a
  // majority. Peer lost: those that left; failure() has the one that died.
  const std::vector<int>& ranks() const { return ranks_; }

 private:
  Fault fault_;
  std::vector<int> ranks_;
  std::optional<Failure> failure_;
};

// require() checks the caller's arguments, check() this library's own invariants, in release builds
// too.
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

// Throws Fault::system with `what` and the text of `error_number`, by default errno.
[[noreturn]] LOCKSTEP_API void throw_errno(
    std::string_view what, std::source_location where = std::source_location::current());
[[noreturn]] LOCKSTEP_API void throw_errno(
    std::string_view what, int error_number,
    std::source_location where = std::source_location::current());

// Exit codes of Lockstep's programs, as in sysexits.h where it has them. `lockstep run` returns a
// rank's own exit code unchanged, or 128 + the signal that killed it.
constexpr int exit_usage = 64;        // The command line or a call is wrong.
constexpr int exit_corrupt = 65;      // A file or message is damaged.
constexpr int exit_unavailable = 69;  // A host or a rank was lost, or did not connect in time.
constexpr int exit_bug = 70;          // This library broke its own invariant.
constexpr int exit_system = 71;       // A system call failed.
constexpr int exit_output_lost = 74;  // Output could not be written.
constexpr int exit_preempted = 75;    // The job was preempted: start it again.
constexpr int exit_mismatch = 76;     // Ranks make different calls.
constexpr int exit_unsupported = 78;  // The configuration is not supported here.
constexpr int exit_not_executable = 126;
constexpr int exit_not_found = 127;

LOCKSTEP_API int exit_code_of(Fault fault);

}  // namespace lockstep
