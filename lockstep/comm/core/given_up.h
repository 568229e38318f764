// Why a group was given up, as its ranks tell each other, and the Error of those who hear of it.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <source_location>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/ranges.h"

namespace lockstep {

// All ranks are the group's own numbers.
struct GivenUp {
  Fault fault = Fault::aborted;
  int rank = -1;  // The rank that gave the group up; -1 when `reason` says who it was.
  std::vector<int> ranks = {};  // The living ranks to blame, rising: at most `most_blamed`.
  int more = 0;                 // How many there are beyond those.
  std::string call = {};        // The call that failed on `rank`; may be empty.
  std::string reason = {};      // The rest, for people.
};

// Such as "rank 0 (waits for 1,3-4): barrier #4 of group world on rank 0: 3 of 9 ranks did not
// ...".
std::string describe(const GivenUp& why);

// Throws an Error without a Failure with another text, and the rest as it is.
[[noreturn]] void throw_again(const Error& error, std::string_view text);

// Ends a call of a group that another rank has given up. ranks() are those to blame.
class GroupGivenUp : public Error {
 public:
  // The message is `context`, and then `why` in words.
  GroupGivenUp(std::string_view context, GivenUp why,
               std::source_location where = std::source_location::current());

  const GivenUp& why() const { return why_; }

 private:
  friend void throw_again(const Error& error, std::string_view text);
  GroupGivenUp(GivenUp why, std::string_view text, std::source_location where);

  GivenUp why_;
};

}  // namespace lockstep
