// Examination of this host as this process sees it: within its container, cgroup and launcher.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tools/doctor/host.h"

namespace lockstep::doctor {

// Fills in a Host except LibTorch and engines. Wipes LOCKSTEP_JOB_TOKEN. `interface` is as
// InitOptions::interface. Errors: system, if the kernel does not tell what every Linux tells.
Host examine(const std::string& interface);

}  // namespace lockstep::doctor
