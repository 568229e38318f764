// init_process_group() for groups that the library makes itself.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

#include "lockstep/comm/core/init_options.h"
#include "lockstep/comm/process_group.h"

namespace lockstep::comm {

// As init_process_group(), but `options.timeout` limits only the making of the group. Calls have
// `call_timeout` by default.
ProcessGroup init_group(const InitOptions& options, std::chrono::milliseconds call_timeout);

}  // namespace lockstep::comm
