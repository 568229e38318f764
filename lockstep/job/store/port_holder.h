// Describes the process that listens on a TCP port of this host, for messages.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "lockstep/base/api.h"

namespace lockstep {

// Returns text such as "process 4242 (python train.py)", "a process of user 1001" or "an unknown
// process". The kernel shows no more of other users' processes.
LOCKSTEP_API std::string describe_port_holder(int port);

}  // namespace lockstep
