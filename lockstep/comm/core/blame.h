// Which living ranks ended a call, from the Error that it threw.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/comm/core/given_up.h"

namespace lockstep {

// Whether living ranks are to blame for it: timeout, mismatch.
bool blames_the_living(const Error& error);

// Why `rank` gives its group up after `error` of a call. `context` begins the message of `error`,
// such as "all_reduce #812 of group world on rank 3". Another rank's reason is passed on as it is.
GivenUp given_up_for(const Error& error, int rank, const std::string& context);

// A Failure with a fault, for `error` of a call by `rank`; all ranks are those of the group.
// `timeout` was that of the call.
Failure blame_in(const Error& error, int rank, const std::string& context,
                 std::chrono::milliseconds timeout);

}  // namespace lockstep
