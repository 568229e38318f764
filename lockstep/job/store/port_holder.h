// Who listens on a TCP port of this host, for messages.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "lockstep/base/api.h"

namespace lockstep {

// Such as "process 4242 (python train.py)", "a process of user 1001", or "an unknown process"; of
// other users' processes the kernel shows no more.
LOCKSTEP_API std::string describe_port_holder(int port);

}  // namespace lockstep
