// A failed attempt's report, for a person.
//
// Thread safety: full. Blocking: no.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/base/error.h"
#include "lockstep/base/message_parts.h"

namespace lockstep::launch {

// Each part is one line, without control characters, and not empty. `attached`: the rank was in a
// group, or had lost it.
MessageParts report_of(const Failure& failure, bool attached);

// Whether several ranks, its `ranks`, ended with the same exception, which is then the cause.
bool is_common(const Failure& failure);

// Whether two ranks ended with the same exception, whose text may be cut between launchers.
bool ended_alike(const Failure& one, const Failure& other);

// If so, adds the ranks of `other` to those of `failure`, in order.
void add_alike(Failure& failure, const Failure& other);

}  // namespace lockstep::launch
