// `lockstep plan`: predicts how to divide a model among ranks; compares, draws and checks pipeline
// schedules.

// SPDX-License-Identifier: Apache-2.0
#include "tools/command_line.h"
#include "tools/plan/command_line.h"
#include "tools/plan/orders.h"
#include "tools/plan/program.h"

int main(int argc, char** argv) {
  using namespace lockstep;
  const tools::PlanCommandLine line = tools::parse_plan(argc, argv);
  return tools::run_or_complain("lockstep plan", [&] {
    return line.is_of_program() ? tools::plan_program(line) : tools::plan_orders(line);
  });
}
