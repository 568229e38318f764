// Predicts the layouts of a program's model.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tools/plan/command_line.h"

namespace lockstep::tools {

int plan_program(const PlanCommandLine& line);

}  // namespace lockstep::tools
