// How this library reports failure: by one exception type, Error.
//
// Its Fault tells the caller what to do next, not which line failed. When a rank was lost, its
// Failure says which rank and why. The message has the details. The library never ends the process:
// a program that ends with an Error takes its exit code from exit_code_of().

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
  peer_lost,    // A peer died or left: end this rank and start the job anew. Error::failure() names
                // the lost rank; it is empty when the lost peer is not a rank.
  aborted,      // A rank, maybe this one, left the group during the call.
  corrupt,      // A file or message is damaged: use another.
  system,       // The operating system refused; what() says how.
  bug,          // This library broke its own invariant: report it and end the rank.
};

LOCKSTEP_API std::string_view name(Fault fault);
LOCKSTEP_API std::optional<Fault> fault_named(std::string_view name);  // Empty for another text.

// Describes a rank that was lost, or living ranks that made a call of the others fail.
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
  std::optional<int> peer = {};  // The other rank, as that group numbers it, if it was a message;
                                 // -1 for any.
  std::string group = {};        // Name of that group.
  std::string what = {};        // Type and text of the exception that ended it; empty when unknown.
  std::string connection = {};  // How the connection to a rank on another host ended; no cause is
                                // known then.
  int detected_by = -1;         // Rank that noticed first; -1 for the launcher.
  bool left = false;            // The rank gave up its group, for example after an exception, but
                                // still runs.

  // Set when the ranks are alive. `timeout`: they did not come. `mismatch`: they called something
  // else than the rest. `what` is then no exception: it says who waited and how long, or who called
  // what. On a mismatch by unknown ranks `ranks` is empty and `rank` is -1.
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

  // `ranks` caused it: see ranks().
  Error(Fault fault, std::string_view message, std::vector<int> ranks,
        std::source_location where = std::source_location::current());

  // Fault::peer_lost. The message is `context` followed by describe(failure).
  Error(std::string_view context, Failure failure,
        std::source_location where = std::source_location::current());

  Fault fault() const { return fault_; }
  const std::optional<Failure>& failure() const { return failure_; }

  // Ranks of the group that caused the fault, in order; empty when unknown. Timeout: the ranks that
  // did not come. Mismatch: the ranks whose call differs from the majority's; without a majority,
  // all ranks. Peer lost: the ranks that left; failure() has the one that died.
  const std::vector<int>& ranks() const { return ranks_; }

 private:
  Fault fault_;
  std::vector<int> ranks_;
  std::optional<Failure> failure_;
};

// require() checks the caller's arguments, check() this library's own invariants. Both stay on in
// release builds.
LOCKSTEP_API void require(bool ok, std::string_view message,
                          std::source_location where = std::source_location::current());
LOCKSTEP_API void check(bool ok, std::string_view message,
                        std::source_location where = std::source_location::current());

// For messages that cost time to build: `message()` is called on failure only.
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

// Exit codes of Lockstep's programs; those that sysexits.h also has are the same there.
// `lockstep run` passes a rank's own exit code through unchanged, and 128 + the signal that killed
// it.
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
