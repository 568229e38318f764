// Compares every kind of call of a group with a loop over its ranks.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/comm/process_group.h"

namespace lockstep::test {

// Collective. Throws std::logic_error with the call and the position of a wrong result.
void check_world(const ProcessGroup& world);

}  // namespace lockstep::test
