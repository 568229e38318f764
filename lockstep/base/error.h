// Reports failures by one exception type, Error.
//
// Its Fault defines what the caller should do next. After a lost rank, its Failure has the rank and
// the cause. The library never ends the process. A program that ends with an Error takes its exit
// code from exit_code_of().

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
  peer_lost,    // A peer died or left: end this rank and restart the job. Error::failure() has the
                // lost rank; it is empty when the lost peer is not a rank.
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
  std::optional<int> signal = {};     // Set if a signal ended it. Both are empty when the cause is
                                      // unknown.
  std::optional<bool> oom = {};  // Whether the kernel's OOM killer ended it; empty when unknown.
  std::string operation = {};  // Its last operation, such as "all_reduce"; empty before the first.
  std::uint64_t sequence = 0;  // Number of that operation in its group, from 1.
  std::optional<int> peer = {};  // For a message: the other rank, numbered in that group; -1 for
                                 // any.
  std::string group = {};        // Name of that group.
  std::string what = {};        // Type and text of the exception that ended it; empty when unknown.
  std::string connection = {};  // How the connection to a rank on another host ended. The cause is
                                // then unknown.
  int detected_by = -1;         // Rank that detected it first; -1 for the launcher.
  bool left = false;            // The rank aborted its group, for example after an exception, but
                                // still runs.

  // Set when the ranks are running. `timeout`: they did not join the call. `mismatch`: their call
  // differs from the others'. `what` is then not an exception: it contains who waited and how long,
  // or who called what. On a mismatch by unknown ranks `ranks` is empty and `rank` is -1.
  std::optional<Fault> fault = {};
  std::vector<int> ranks = {};  // All these ranks, in order; `rank` is the first.
  std::string call = {};        // The call that failed: "all_reduce #812 of group world".
};

// Returns one line, such as
//   rank 1 (pid 4242 on node3) was killed by signal 9 (SIGKILL), last seen in all_reduce #812
//   rank 1 (pid 4242 on node3) died of an unknown cause, last seen in send #3 to rank 0 of group a
//   rank 1 did not come to all_reduce #812 of group world within 30 s; rank 0 waited; ...
// Control characters in a rank's text are replaced.
LOCKSTEP_API std::string describe(const Failure& failure);

class LOCKSTEP_API Error : public std::runtime_error {
 public:
  Error(Fault fault, std::string_view message,
        std::source_location where = std::source_location::current());

  // `ranks` caused the fault; see ranks().
  Error(Fault fault, std::string_view message, std::vector<int> ranks,
        std::source_location where = std::source_location::current());

  // Fault::peer_lost. The message is `context` followed by describe(failure).
  Error(std::string_view context, Failure failure,
        std::source_location where = std::source_location::current());

  Fault fault() const { return fault_; }
  const std::optional<Failure>& failure() const { return failure_; }

  // Ranks of the group that caused the fault, in order; empty when unknown. Timeout: the ranks that
  // did not join the call. Mismatch: the ranks whose call differs from the majority's; without a
  // majority, all ranks. Peer lost: the ranks that left; failure() has the rank that died.
  const std::vector<int>& ranks() const { return ranks_; }

 private:
  Fault fault_;
  std::vector<int> ranks_;
  std::optional<Failure> failure_;
};

// require() checks the caller's arguments, check() this library's own invariants. Release builds
// keep both.
LOCKSTEP_API void require(bool ok, std::string_view message,
                          std::source_location where = std::source_location::current());
LOCKSTEP_API void check(bool ok, std::string_view message,
                        std::source_location where = std::source_location::current());

// For messages that are expensive to build: `message()` is called on failure only.
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

// Exit codes of Lockstep's programs, with the values of sysexits.h where it has them. `lockstep
// run` returns a rank's own exit code unchanged, or 128 + the signal that killed it.
constexpr int exit_usage = 64;        // The command line, or a call, is wrong on every attempt.
constexpr int exit_corrupt = 65;      // A file or message is damaged.
constexpr int exit_unavailable = 69;  // A host or a rank was lost, or did not connect in time.
constexpr int exit_bug = 70;          // This library broke its own invariant.
constexpr int exit_system = 71;       // A system call failed.
constexpr int exit_output_lost = 74;  // Output could not be written, for example on a full disk.
constexpr int exit_preempted = 75;    // The job was preempted: start it again.
constexpr int exit_mismatch = 76;     // Ranks make different calls.
constexpr int exit_unsupported = 78;  // The configuration is not supported here.
constexpr int exit_not_executable = 126;
constexpr int exit_not_found = 127;

// Exit code for a rank that ends with an Error of this fault.
LOCKSTEP_API int exit_code_of(Fault fault);

}  // namespace lockstep
