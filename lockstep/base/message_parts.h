// The parts of a failure's message: what failed, who caused it, what to do.
//
// Thread safety: full. Blocking: no.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "lockstep/base/api.h"
#include "lockstep/base/error.h"

namespace lockstep {

struct MessageParts {
  std::string what = {};
  std::string who = {};
  std::string to_do = {};
};

// Splits an Error's text, "WHAT; caused by WHO; to do: REMEDY [FILE:LINE]". The last three parts
// are optional; FILE:LINE is added to `what`.
LOCKSTEP_API MessageParts parts_of(std::string_view message);

// Such as "was killed by signal 9 (SIGKILL)".
LOCKSTEP_API std::string describe_end(const Failure& failure);

// ", last seen in all_reduce #812"; empty before the rank's first call.
LOCKSTEP_API std::string describe_last_call(const Failure& failure);

}  // namespace lockstep
