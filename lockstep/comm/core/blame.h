// Which living ranks ended a call, from the Error that it threw.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "lockstep/base/error.h"

namespace lockstep {

// Whether living ranks are to blame for it: timeout, mismatch.
bool blames_the_living(const Error& error);

// Stands before the reason of a group that was given up, in the Errors of those who learn of it.
constexpr std::string_view was_given_up = "the group was given up: ";

// The reason with which `rank` gives its group up for `error`. The ranks to blame stand where
// blame_in() finds them: "rank 0 (waits for 1,3-4): ..." of a timeout, "rank 0 (differ: 2): ..." of
// a mismatch.
std::string reason_for(const Error& error, int rank);

// What `error` of a call by `rank` says: a Failure with a fault; all ranks are those of the group.
// `context` begins its message, "all_reduce #812 of group world on rank 3". `timeout` was that of
// the call.
Failure blame_in(const Error& error, int rank, const std::string& context,
                 std::chrono::milliseconds timeout);

// A Failure with a fault as one text, for frames that have no member for it.
std::string in_words(const Failure& failure);

// Reads that back; false, and nothing is read, when `text` is not one.
bool read_words(std::string_view text, Failure& failure);

}  // namespace lockstep
