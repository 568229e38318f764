// Compares, draws and checks the orders in which a pipeline's ranks work. Nothing is started.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "lockstep/parallel/pipeline/simulate_order.h"
#include "tools/plan/command_line.h"

namespace lockstep::tools {

// Returns the exit code.
int plan_orders(const PlanCommandLine& line);

// Errors: system.
void write_svg(const SimulatedPipeline& simulated, const std::string& file);

}  // namespace lockstep::tools
