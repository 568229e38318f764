// Why a group was aborted, as sent between ranks, and the Error that they throw for it.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <source_location>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::comm {

// Ranks are the group's.
struct AbortReason {
  Fault fault = Fault::aborted;
  int rank = -1;                // Rank that aborted; -1 when `reason` names it.
  std::vector<int> ranks = {};  // Those that caused it, ascending: at most `most_blamed`.
  int more = 0;                 // Such ranks beyond `ranks`.
  std::string call = {};        // The call that failed on `rank`; may be empty.
  std::string reason = {};      // The rest of the message.

  // Whether the aborting rank is itself the lost one.
  bool is_own_loss() const { return fault == Fault::peer_lost && rank < 0; }
};

// Such as "rank 0 waited for ranks 1,3-4: barrier #4 of group world on rank 0: ...".
std::string describe(const AbortReason& why);

// Throws a copy of `error` with this text. `error` must have no Failure.
[[noreturn]] void throw_again(const Error& error, std::string_view text);

// Ends a call of an aborted group. ranks() caused the abort; empty if unknown.
class GroupAborted : public Error {
 public:
  // The message is `context`, then the text of `why`.
  GroupAborted(std::string_view context, AbortReason why,
               std::source_location where = std::source_location::current());

  const AbortReason& why() const { return why_; }

 private:
  friend void throw_again(const Error& error, std::string_view text);
  GroupAborted(AbortReason why, std::string_view text, std::source_location where);

  AbortReason why_;
};

// Whether living ranks caused `error`: its fault is timeout or mismatch.
bool blames_the_living(const Error& error);

// Whether living or departed ranks caused `error`.
bool blames_ranks(const Error& error);

// Why `rank` aborts its group after `error`, whose text begins with `context`. Forwards the reason
// of a GroupAborted. Other ranks get the same fault if ranks caused it or were lost, else aborted.
AbortReason abort_reason_for(const Error& error, int rank, const std::string& context);

// A Failure for `error` of a call by `rank`: for the first rank that has left, or else with the
// error's fault. Ranks are the group's.
Failure blame_in(const Error& error, int rank, const std::string& context,
                 std::chrono::milliseconds timeout);

}  // namespace lockstep::comm
