// Looks at this host, as this process sees it: inside of its container, cgroup and launcher.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tools/doctor/host.h"

namespace lockstep::doctor {

// Everything of a Host but LibTorch and engines. Wipes LOCKSTEP_JOB_TOKEN. `interface` is as
// InitOptions::interface. Errors: system, for what every Linux tells.
Host examine(const std::string& interface);

}  // namespace lockstep::doctor
