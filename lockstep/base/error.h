// How this library reports failure.
//
// There is one exception type. Its Fault tells the caller what to do next, not which line
// failed; its Failure, when a rank was lost, says who and why; the message carries the rest.
// The library never ends the process.

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
  mismatch,     // Ranks disagree on what they do: fix the program.
  unsupported,  // This backend cannot do it: choose another.
  timeout,      // The deadline passed; peers may be slow or gone.
  peer_lost,    // A peer died or left: end this rank, start the job anew. Error::failure() says
                // who, unless what was lost is not a rank.
  aborted,      // A rank, perhaps this one, gave the group up while the call was under way.
  corrupt,      // A file or message is not what it should be: use another.
  system,       // The operating system refused; what() says how.
  bug,          // This library broke its own invariant: report it, end the rank.
};

LOCKSTEP_API std::string_view name(Fault fault);

// What is known of a rank that was lost, or of ranks that live but ended a call of the others.
struct Failure {
  int rank = -1;
  std::string host = {};
  int pid = 0;
  std::optional<int> exit_code = {};  // It ended by itself, without destroy_process_group().
  std::optional<int> signal = {};  // It was ended by a signal; neither is set when that is unknown.
  std::optional<bool> oom = {};    // Ended by the kernel for want of memory; empty when unknown.
  std::string operation = {};   // What it did last, such as "all_reduce"; empty before the first.
  std::uint64_t sequence = 0;   // The number of that operation in its group, counted from 1.
  std::string group = {};       // That group's name.
  std::string what = {};        // The exception that ended it, type and text; empty when not known.
  std::string connection = {};  // How that to another host's rank ended; no cause is known then.
  int detected_by = -1;         // The rank that noticed first; -1 for the launcher.
  bool left = false;            // It gave its group up, to an exception say, without having ended.

  // Of ranks that live: `timeout` when they did not come, `mismatch` when they called other things
  // than the rest. Then `what` is no exception: it says who waited and how long, or who called
  // what. The latter has no `ranks`, and `rank` is -1, where they are not known.
  std::optional<Fault> fault = {};
  std::vector<int> ranks = {};  // All of them, in order; `rank` is the first.
  std::string call = {};        // Which call they ended: "all_reduce #812 of group world".
};

// One line, such as
//   rank 1 (pid 4242 on node3) was killed by signal 9 (SIGKILL), last seen in all_reduce #812
//   rank 1 did not come to all_reduce #812 of group world within 30 s; rank 0 waited; ...
// Control characters in what a rank said are replaced.
LOCKSTEP_API std::string describe(const Failure& failure);

class LOCKSTEP_API Error : public std::runtime_error {
 public:
  Error(Fault fault, std::string_view message,
        std::source_location where = std::source_location::current());

  // Of timeout and mismatch, with the ranks that are to blame for it: see ranks().
  Error(Fault fault, std::string_view message, std::vector<int> ranks,
        std::source_location where = std::source_location::current());

  // Fault::peer_lost; the message is `context` followed by describe(failure).
  Error(std::string_view context, Failure failure,
        std::source_location where = std::source_location::current());

  Fault fault() const { return fault_; }
  const std::optional<Failure>& failure() const { return failure_; }

  // Ranks of the group, in order: of a timeout those that did not come, of a mismatch those that
  // called something else than most did, or all when no call was that of most. Empty when unknown.
  const std::vector<int>& ranks() const { return ranks_; }

 private:
  Fault fault_;
  std::vector<int> ranks_;
  std::optional<Failure> failure_;
};

// Both stay on in release builds. require() guards what callers pass in; check()
// guards what this library believes about itself.
LOCKSTEP_API void require(bool ok, std::string_view message,
                          std::source_location where = std::source_location::current());
LOCKSTEP_API void check(bool ok, std::string_view message,
                        std::source_location where = std::source_location::current());

// The same with a message that costs something to make: `message()` is called on failure only.
template <std::invocable Message>
void require(bool ok, Message message,
             std::source_location where = std::source_location::current()) {
  if (!ok) throw Error(Fault::misuse, message(), where);
}

// Fault::system with the text of `error_number` after `what`; errno as it is when not given.
[[noreturn]] LOCKSTEP_API void throw_errno(
    std::string_view what, std::source_location where = std::source_location::current());
[[noreturn]] LOCKSTEP_API void throw_errno(
    std::string_view what, int error_number,
    std::source_location where = std::source_location::current());

}  // namespace lockstep
