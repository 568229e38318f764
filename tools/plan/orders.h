// Compares, draws and checks pipeline schedules, without processes.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tools/plan/command_line.h"

namespace lockstep::tools {

int plan_orders(const PlanCommandLine& line);

}  // namespace lockstep::tools
