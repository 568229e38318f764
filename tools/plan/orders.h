// Compares, draws and checks pipeline schedules. Starts no process.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tools/plan/command_line.h"

namespace lockstep::tools {

// Returns the exit code.
int plan_orders(const PlanCommandLine& line);

}  // namespace lockstep::tools
