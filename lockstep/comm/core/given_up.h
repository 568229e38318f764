// The reason why a group was given up: whom a failed call blames, how ranks tell each other, and
// the Error that they throw for it.

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

// All ranks are numbers of this group.
struct GivenUp {
  Fault fault = Fault::aborted;
  int rank = -1;                // Rank that gave the group up; -1 when `reason` names it.
  std::vector<int> ranks = {};  // Those that caused it, rising: at most `most_blamed`.
  int more = 0;                 // Number of such ranks beyond `ranks`.
  std::string call = {};        // The call that failed on `rank`; may be empty.
  std::string reason = {};      // The rest of the message.

  // Whether the rank that gave the group up is itself the lost one.
  bool is_own_loss() const { return fault == Fault::peer_lost && rank < 0; }
};

// Returns text such as "rank 0 waited for ranks 1,3-4: barrier #4 of group world on rank 0: 3 of 9
// ranks did not ...".
std::string describe(const GivenUp& why);

// Throws a copy of `error`, which has no Failure, with another text.
[[noreturn]] void throw_again(const Error& error, std::string_view text);

// Ends a call of a group that another rank has given up. ranks() are those that caused it.
class GroupGivenUp : public Error {
 public:
  // The message is `context`, followed by the text of `why`.
  GroupGivenUp(std::string_view context, GivenUp why,
               std::source_location where = std::source_location::current());

  const GivenUp& why() const { return why_; }

 private:
  friend void throw_again(const Error& error, std::string_view text);
  GroupGivenUp(GivenUp why, std::string_view text, std::source_location where);

  GivenUp why_;
};

// Whether living ranks are to blame for it: timeout, mismatch.
bool blames_the_living(const Error& error);

// Whether ranks() caused it: living ones, or such as have left.
bool blames_ranks(const Error& error);

// Why `rank` gives its group up after `error` of a call. `context` begins the message of `error`,
// such as "all_reduce #812 of group world on rank 3". Another rank's reason is passed on as it is.
// The others hear of the same fault where ranks are to blame or were lost, and else of an abort.
GivenUp given_up_for(const Error& error, int rank, const std::string& context);

// A Failure for `error` of a call by `rank`: with a fault, or of a rank that has left. All ranks
// are those of the group. `timeout` was that of the call.
Failure blame_in(const Error& error, int rank, const std::string& context,
                 std::chrono::milliseconds timeout);

}  // namespace lockstep::comm
