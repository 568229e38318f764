// `lockstep plan`: predicts how to divide a program's model among ranks; compares, draws and checks
// the orders in which a pipeline's ranks work.

// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "tools/command_line.h"
#include "tools/plan/command_line.h"
#include "tools/plan/orders.h"
#include "tools/plan/program.h"

int main(int argc, char** argv) {
  using namespace lockstep;
  constexpr const char* command = "lockstep plan";
  const tools::PlanCommandLine line = tools::parse_plan(argc, argv);
  return tools::run_or_complain(command, [&] {
    try {
      return line.is_of_program() ? tools::plan_program(line) : tools::plan_orders(line);
    } catch (const Error& error) {
      std::fprintf(stderr, "%s: %s\n", command, bare_text(error).c_str());
      return exit_code_of(error.fault());
    }
  });
}
