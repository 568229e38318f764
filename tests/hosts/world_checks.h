// Every kind of call of a group, against what a loop over its ranks says.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/comm/process_group.h"

namespace lockstep::test {

// Collective. Throws std::logic_error that names the call whose result is wrong, and where.
void check_world(const ProcessGroup& world);

}  // namespace lockstep::test
