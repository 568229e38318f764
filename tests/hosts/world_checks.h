// Every kind of call of a group, compared with a loop over its ranks.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/comm/process_group.h"

namespace lockstep::test {

// Collective. Throws std::logic_error that names the call with the wrong result, and the place.
void check_world(const ProcessGroup& world);

}  // namespace lockstep::test
